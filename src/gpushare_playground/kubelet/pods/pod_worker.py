"""One pod's life on this node, as one task: admission, start, restarts, stop, status.

The worker reacts to three things: the pod object changed or vanished, a container ended, a wait is over.
Each time it decides from the current state (``plan``), acts, and writes the status if it changed.
"""

import asyncio
import json
import logging
import signal
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Final, Protocol

from gpushare.kube.backoff import Backoff
from gpushare.kube.client.errors import ApiError, KubeError
from gpushare.kube.client.session import MERGE_PATCH, Session, segment
from gpushare.kube.clock import Clock
from gpushare.kube.event_recorder import EventRecorder
from gpushare_playground.kubelet.errors import Rejected, StartFailed
from gpushare_playground.kubelet.pods.pod_plan import ContainerState, make_plan, note_end, restarts_after
from gpushare_playground.kubelet.pods.podstatus import CRASHING, rejected_status, running_status
from gpushare_playground.kubelet.pods.prepare import IMAGE_FAILED, Preparer
from gpushare_playground.kubelet.podspec import Container, Pod
from gpushare_playground.kubelet.runtime.containers import Attempt, Containers
from gpushare_playground.kubelet.settings import Settings

#: Longest sleep of a worker, in seconds: it checks its pod at least this often.
RESYNC_S: Final = 60.0
KILL_TIMEOUT_S: Final = 10.0
_log = logging.getLogger(__name__)


class Node(Protocol):
    """What a worker needs from its node."""

    settings: Settings
    session: Session
    containers: Containers
    preparer: Preparer
    events: EventRecorder
    clock: Clock

    async def admit(self, pod: Pod, running: Collection[str]) -> None:
        """Raises ``Rejected`` if there is no room or no device."""

    def container_ended(self, attempt: Attempt) -> None:
        """A container has ended."""


class PodWorker:
    """Manages one pod, by UID. ``done``: nothing is left of it here."""

    def __init__(self, node: Node, pod: Pod, pod_ip: str) -> None:
        self.pod = pod
        self.pod_ip = node.settings.node_ip if pod.spec.host_network else pod_ip
        self.states = {one.name: ContainerState(one.name) for one in pod.ordered}
        self.outcome = pod.status.phase if pod.finished else ""
        self.done = False
        self.admitted = False
        self._vanished = False
        self._stopped = False
        self._settled = pod.finished
        self._node = node
        self._wake = asyncio.Event()
        self._changes = 0
        self._written: dict[str, Any] = {}
        self._rejected: Rejected | None = None
        self._backoff = Backoff(first_s=0.2, most_s=10.0)

    @property
    def active(self) -> bool:
        """Whether it still holds its allocation: devices, CPU, memory, a place."""
        return not self.done and not self._stopped and not self.outcome and self._rejected is None

    # --- changes ------------------------------------------------------------------------------------
    def update(self, pod: Pod) -> None:
        """The object changed."""
        if self._written:
            # Our last write is newer than the watch's version of it.
            own_conditions = {one["type"]: one for one in self._written["conditions"]}
            others = [one for one in pod.status.conditions or () if one.get("type") not in own_conditions]
            pod.status.conditions = [*own_conditions.values(), *others]
            pod.status.start_time = self._written["startTime"]
        self.pod = pod
        self._wake_up()

    def gone(self) -> None:
        """The object vanished: its containers must end."""
        self._vanished = True
        self._wake_up()

    def _wake_up(self) -> None:
        self._changes += 1
        self._wake.set()

    def _is_gone(self) -> bool:
        """Whether the object is gone; a method, because it changes during awaits."""
        return self._vanished

    def _ended(self, attempt: Attempt) -> None:
        name = attempt.folder.parent.name
        self._node.container_ended(attempt)
        state = self.states.get(name)
        if state is not None and state.attempt is attempt:
            note_end(
                state, self._now, self._node.settings.restart_backoff_s, self._node.settings.most_backoff_s
            )
            container = next(one for one in self.pod.ordered if one.name == name)
            assert attempt.ended is not None
            if state.not_before > self._now and restarts_after(self.pod, container, attempt.ended.code):
                self._record(
                    "Warning", "BackOff", f"Back-off restarting failed container {name} in pod {self.pod.key}"
                )
        self._wake.set()

    @property
    def _now(self) -> float:
        return self._node.clock.monotonic()

    # --- lifecycle -------------------------------------------------------------------------------
    async def run(self) -> None:
        """Manage the pod until nothing is left of it."""
        await self._adopt()
        while True:
            self._wake.clear()
            seen_changes = self._changes
            try:
                wait_s = await self._step()
                self._backoff.reset()
            except KubeError as error:
                wait_s = self._backoff.next_s()
                _log.warning(
                    "pod waits for the API server (pod %s, fault %s, wait_s %s)",
                    self.pod.key,
                    str(error),
                    wait_s,
                )
            if self.done:
                return
            if self._changes == seen_changes:
                with suppress(TimeoutError):
                    # Not wait_for: in Python 3.11 it loses a cancellation that coincides with the event.
                    async with asyncio.timeout(RESYNC_S if wait_s is None else wait_s):
                        await self._wake.wait()

    async def _adopt(self) -> None:
        """Adopt the containers of an earlier kubelet process, and request admission."""
        adopted = await self._node.containers.adopt(self.pod.uid, self._ended)
        for name, attempts in adopted.items():
            state = self.states.get(name)
            if state is None:
                continue
            state.attempt = attempts[-1]
            state.last = attempts[-2] if len(attempts) > 1 else None
            if state.attempt.ended is not None and state.attempt.number:
                state.delay_s = self._node.settings.restart_backoff_s
        if self.outcome or self._is_gone() or self.pod.deleted:
            return
        running = {name for name, state in self.states.items() if state.running}
        try:
            await self._node.admit(self.pod, running)
            self.admitted = True
        except Rejected as error:
            self._rejected = error
            self._record("Warning", error.reason, error.problem)

    async def _step(self) -> float | None:
        """Take the actions that are due; returns how long to wait for the next, in seconds (``None``: until something changes)."""
        if self._is_gone():
            await self._stop_all(min(self.pod.spec.termination_grace_period_seconds, 2))
            self.done = True
            return None
        if self._settled:
            await self._stop_all(self.pod.spec.termination_grace_period_seconds)
            await self._finish_deletion()
            return None
        if self._rejected is not None:
            await self._stop_all(self.pod.spec.termination_grace_period_seconds)
            await self._write(
                rejected_status(
                    self.pod, self._rejected.reason, self._rejected.problem, self._node.clock.time_ns()
                )
            )
            await self._finish_deletion()
            return None
        if self.pod.deleted:
            grace_s = self.pod.metadata.deletion_grace_period_seconds
            await self._stop_all(30 if grace_s is None else grace_s)
            # Before the object is deleted: the next pod scheduled here must find the devices free.
            self._stopped = True
            if self.states and any(state.attempt is not None for state in self.states.values()):
                self.outcome = self.outcome or self._final_phase()
                await self._write(self.status())
            await self._finish_deletion()
            return None
        wait_s = None
        if not self.outcome:
            plan = make_plan(self.pod, self.states, self._now)
            for container in plan.start:
                await self._start(container)
                if self._is_gone() or self.pod.deleted:
                    return 0.0
            wait_s = plan.wait_s
            if plan.start:
                wait_s = 0.0
            if plan.outcome:
                self.outcome = plan.outcome
        if self.outcome:
            await self._stop_all(self.pod.spec.termination_grace_period_seconds)
        await self._write(self.status())
        return wait_s

    def _final_phase(self) -> str:
        codes = [self.states[one.name].exit_code for one in self.pod.spec.containers]
        return "Succeeded" if all(code == 0 for code in codes) else "Failed"

    # --- containers ------------------------------------------------------------------------------
    async def _start(self, container: Container) -> None:
        state = self.states[container.name]
        number = 0 if state.attempt is None else state.attempt.number + 1
        try:
            image = self._node.preparer.image(container)
            if state.attempt is None and state.waiting is None:
                self._record(
                    "Normal", "Pulled", f'Container image "{container.image}" already present on machine'
                )
            launch = await self._node.preparer.launch(self.pod, container, image, self.pod_ip)
            if state.attempt is None and state.waiting is None and state.name == self.pod.ordered[0].name:
                await self._write(self.status())
            attempt = await self._node.containers.start(
                self.pod.uid, container.name, number, launch, self._ended
            )
        except StartFailed as error:
            self._cannot_start(container, state, error)
            return
        except OSError as error:
            fault = f"its record cannot be written: {error}"
            self._cannot_start(container, state, StartFailed(container.name, "RunContainerError", fault))
            return
        if state.waiting is not None:
            state.waiting, state.delay_s = None, 0.0
        state.last, state.attempt = state.attempt, attempt
        self._record("Normal", "Created", f"Container created: {container.name}")
        if attempt.ended is not None and attempt.ended.reason == "StartError":
            self._record("Warning", "Failed", f"Error: {attempt.ended.message}")
            self._ended(attempt)
            return
        self._record("Normal", "Started", f"Container started: {container.name}")

    def _cannot_start(self, container: Container, state: ContainerState, error: StartFailed) -> None:
        settings = self._node.settings
        before = state.waiting[0] if state.waiting is not None else ""
        reason, message = error.reason, error.problem
        if reason == IMAGE_FAILED:
            if before != IMAGE_FAILED and not before:
                self._record("Warning", "Failed", f'Failed to pull image "{container.image}": {message}')
            else:
                reason, message = "ImagePullBackOff", f'Back-off pulling image "{container.image}": {message}'
                self._record("Normal", "BackOff", f'Back-off pulling image "{container.image}"')
        else:
            self._record("Warning", "Failed", f"Error: {message}")
        state.waiting = (reason, message)
        state.delay_s = min(max(settings.restart_backoff_s, state.delay_s * 2.0), settings.most_backoff_s)
        state.not_before = self._now + state.delay_s

    async def _stop_all(self, grace_s: float) -> None:
        """Stop app containers together, then sidecars from the last to the first, within ``grace_s`` seconds."""
        deadline = self._now + max(grace_s, 0.0)
        sidecars = [one.name for one in self.pod.init_containers if one.sidecar]
        others = [name for name in self.states if name not in sidecars]
        await self._stop_these(others, deadline)
        for name in reversed(sidecars):
            await self._stop_these([name], deadline)

    async def _stop_these(self, names: list[str], deadline: float) -> None:
        running = [
            (name, state.attempt) for name, state in self.states.items() if name in names and state.running
        ]
        attempts = [attempt for _, attempt in running if attempt is not None]
        for name, attempt in running:
            assert attempt is not None
            self._record("Normal", "Killing", f"Stopping container {name}")
            self._node.containers.signal(attempt, signal.SIGTERM)
        # A pod that vanishes while it is being stopped is not awaited any longer.
        await self._await_ends(attempts, lambda: self._now if self._is_gone() else deadline)
        for attempt in attempts:
            self._node.containers.signal(attempt, signal.SIGKILL)
        # Their end is awaited in any case: until then the shims write to the folder that is removed afterwards.
        killed = self._now + KILL_TIMEOUT_S
        if not await self._await_ends(attempts, lambda: killed):
            _log.error("a container does not die (pod %s)", self.pod.key)

    async def _await_ends(self, attempts: list[Attempt], deadline: Callable[[], float]) -> bool:
        while any(attempt.ended is None for attempt in attempts):
            self._wake.clear()
            left_s = deadline() - self._now
            if left_s <= 0:
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._wake.wait()
        return True

    # --- the API ---------------------------------------------------------------------------------
    def status(self) -> dict[str, Any]:
        """The pod's current status."""
        return running_status(
            self.pod,
            self.states,
            outcome=self.outcome,
            addresses=(self.pod_ip, self._node.settings.node_ip),
            now_ns=self._node.clock.time_ns(),
            now=self._now,
        )

    async def _write(self, status: dict[str, Any]) -> None:
        """Write the status unless it is unchanged since the last write; raises ``KubeError`` if the server does not respond."""
        if _comparable(status) == _comparable(self._written):
            return
        patch = {"metadata": {"uid": self.pod.uid}, "status": status}
        try:
            await self._node.session.request(
                "PATCH",
                f"{self._path}/status",
                body=json.dumps(patch).encode(),
                content_type=MERGE_PATCH,
                idempotent=True,
            )
        except ApiError as error:
            if not error.not_found and not error.conflict:
                raise
            return  # it is gone, or another has its name: the informer will report it
        self._written = status
        self.pod.status.conditions = status["conditions"]
        self.pod.status.start_time = status["startTime"]

    async def _finish_deletion(self) -> None:
        """Delete the object once nothing of it runs any more."""
        if not self.pod.deleted or self._is_gone():
            return
        options = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": self.pod.uid},
        }
        try:
            await self._node.session.request("DELETE", self._path, body=json.dumps(options).encode())
        except ApiError as error:
            if not error.not_found and not error.conflict:
                raise
            self._vanished = True
        # Otherwise the informer reports when it is gone: a finalizer may hold it.
        self.done = self._is_gone()

    @property
    def _path(self) -> str:
        meta = self.pod.metadata
        return f"/api/v1/namespaces/{segment(meta.namespace)}/pods/{segment(meta.name)}"

    def _record(self, kind: Any, reason: str, note: str) -> None:
        self._node.events.record(self.pod.reference, kind=kind, reason=reason, action=reason, note=note)


def _comparable(status: dict[str, Any]) -> str:
    """A status without what changes by itself: the remaining seconds in a back-off's text."""
    text = json.dumps(status, sort_keys=True)
    if CRASHING not in text:
        return text
    plain = json.loads(text)
    for one in [*plain.get("containerStatuses", ()), *plain.get("initContainerStatuses", ())]:
        waiting = one["state"].get("waiting", {})
        if waiting.get("reason") == CRASHING:
            del waiting["message"]
    return json.dumps(plain, sort_keys=True)
