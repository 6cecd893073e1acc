"""One node of the playground: all parts of a kubelet, combined.

Tasks: the informer of this node's pods, one worker per pod, the node's status and lease, events, the plugins'
streams, the HTTP server. What must survive a kill is on disk: the device checkpoint and each container's
record; everything else is read from the API server again.
"""

import asyncio
import ipaddress
import json
import logging
import shutil
import zlib
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any, Final

from gpushare.kube.client.errors import KubeError
from gpushare.kube.client.session import Session
from gpushare.kube.clock import SYSTEM_CLOCK, Clock
from gpushare.kube.event_recorder import EventRecorder
from gpushare.kube.watch.informer import Informer
from gpushare_playground.kubelet.cleanup import stop_pod
from gpushare_playground.kubelet.devicemanager.allocate import Allocator
from gpushare_playground.kubelet.devicemanager.devices import DeviceBook
from gpushare_playground.kubelet.devicemanager.plugins import Plugins
from gpushare_playground.kubelet.devicemanager.podresources import PodResources
from gpushare_playground.kubelet.errors import NotRunning, Waiting
from gpushare_playground.kubelet.nodestatus import NodeStatus
from gpushare_playground.kubelet.paths import read_json, write_whole
from gpushare_playground.kubelet.pods.fit import check_fit
from gpushare_playground.kubelet.pods.pod_worker import PodWorker
from gpushare_playground.kubelet.pods.prepare import Preparer
from gpushare_playground.kubelet.podspec import Pod, decode_pod
from gpushare_playground.kubelet.runtime.cgroups import Cgroups, cgroup_line
from gpushare_playground.kubelet.runtime.containers import Attempt, Containers
from gpushare_playground.kubelet.runtime.fake_proc import FakeProc
from gpushare_playground.kubelet.server import Server
from gpushare_playground.kubelet.settings import Settings

#: Device changes are written after this delay, in seconds, so that several become one write.
_SETTLE_S: Final = 0.05
_RETRY_S: Final = 1.0
_NODE_KNOWN_S: Final = 10.0
_FLUSH_S: Final = 2.0
_ORPHAN_GRACE_S: Final = 2.0
#: Interval of updates of the fake /proc, in seconds.
_FAKE_PROC_S: Final = 2.0
_log = logging.getLogger(__name__)


class Kubelet:
    """``async with Kubelet(settings, session) as kubelet: await kubelet.run()``.

    Entering opens the sockets, restores the checkpoint and serves; raises ``BadSettings``. Leaving
    closes them; containers continue.
    """

    def __init__(self, settings: Settings, session: Session, clock: Clock = SYSTEM_CLOCK) -> None:
        self.settings = settings
        self.session = session
        self.clock = clock
        self.port = 0
        self.book = DeviceBook()
        self._last_admitted = ""
        """The pod (UID) that was admitted last."""
        self.plugins = Plugins(settings.folders, self.book, self._devices_changed, clock.monotonic)
        self.allocator = Allocator(settings.folders, self.book, self.plugins)
        self._cgroups = Cgroups(settings.folders.cgroups)
        self.containers = Containers(settings.folders.pods, settings.lifeline, self._cgroups)
        self.preparer = Preparer(settings, session, self.allocator)
        self.events = EventRecorder(session, controller="kubelet", instance=settings.node, clock=clock)
        self._workers: dict[str, PodWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, Pod] = {}
        self._synced = False
        self._admission = asyncio.Lock()
        self._status_due = asyncio.Event()
        self._node_known = asyncio.Event()
        self._grace_until = 0.0
        self._pod_resources = PodResources(settings.folders, self.book, self._listed_pods)
        self._server = Server(self, settings.token, settings.tls)
        self._node: NodeStatus | None = None

    async def __aenter__(self) -> "Kubelet":
        settings = self.settings
        settings.folders.make()
        self.allocator.restore(self.clock.monotonic())
        await self.plugins.start()
        await self._pod_resources.start()
        record = settings.folders.root / "kubelet.json"
        earlier = (read_json(record) or {}).get("port", 0)
        self.port = await self._server.start(settings.node_ip, settings.port, earlier)
        write_whole(record, json.dumps({"port": self.port, "node": settings.node}))
        self._node = NodeStatus(settings, self.session, self.clock, self.port)
        self._grace_until = self.clock.monotonic() + settings.plugin_grace_s
        return self

    async def __aexit__(self, *_: object) -> None:
        await _cancel(self._tasks.values())
        with suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_S):
                await self.events.flush()
        await self._server.stop()
        await self._pod_resources.stop()
        await self.plugins.stop()
        self.containers.close()

    async def run(self) -> None:
        """Run the node until cancelled; raises errors that no part of it can handle."""
        informer = Informer(
            self.session,
            "/api/v1/pods",
            _keyed,
            self,
            params={"fieldSelector": f"spec.nodeName={self.settings.node}"},
        )
        parts = [informer.run(), self.events.run(), self._keep_status(), self._keep_lease()]
        if self.settings.fakegpu_node is not None:
            parts.append(self._keep_fake_proc())
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await _cancel(tasks)

    # --- the informer's handler ------------------------------------------------------------------
    def synced(self) -> None:
        """The first list is complete: begin with the oldest pod, and remove what belongs to none."""
        self._synced = True
        for pod in sorted(self._waiting.values(), key=lambda one: one.metadata.creation_timestamp or ""):
            self._take(pod)
        self._waiting.clear()
        task = asyncio.create_task(self._clear_away(), name="clear away")
        self._tasks["clear away"] = task
        task.add_done_callback(lambda _: self._tasks.pop("clear away", None))

    def upsert(self, item: Pod) -> None:
        """A pod is new here or has changed."""
        if self._synced:
            self._take(item)
        else:
            self._waiting[item.uid] = item

    def remove(self, key: str, last: Pod) -> None:
        """A pod's object is gone."""
        self._waiting.pop(last.uid, None)
        worker = self._workers.get(last.uid)
        if worker is not None:
            worker.gone()

    def _take(self, pod: Pod) -> None:
        worker = self._workers.get(pod.uid)
        if worker is not None:
            worker.update(pod)
            return
        worker = self._workers[pod.uid] = PodWorker(self, pod, self._pod_ip(pod.uid))
        self._tasks[pod.uid] = asyncio.create_task(self._work(worker), name=f"pod {pod.key}")

    async def _work(self, worker: PodWorker) -> None:
        uid = worker.pod.uid
        try:
            await worker.run()
        except Exception:
            _log.exception("a pod's worker failed; its containers go on (pod %s)", worker.pod.key)
            raise
        finally:
            if worker.done:
                self._workers.pop(uid, None)
                self._tasks.pop(uid, None)
        await asyncio.to_thread(self._remove, uid)

    def _remove(self, uid: str) -> None:
        shutil.rmtree(self.settings.folders.pods / uid, ignore_errors=True)
        self._cgroups.forget(uid)

    async def _clear_away(self) -> None:
        """Stop and remove what is left on disk of pods that do not exist any more."""
        pods = self.settings.folders.pods
        for folder in await asyncio.to_thread(lambda: sorted(pods.iterdir())):
            if folder.name not in self._workers:
                _log.info("clearing away a pod that is no more (uid %s)", folder.name)
                await asyncio.to_thread(stop_pod, folder, _ORPHAN_GRACE_S)
                await asyncio.to_thread(self._remove, folder.name)

    # --- admission -------------------------------------------------------------------------------
    async def admit(self, pod: Pod, running: Collection[str]) -> None:
        """Devices first, then the check that the pod fits, one pod at a time; raises ``Rejected``."""
        async with self._admission:
            with suppress(TimeoutError):
                async with asyncio.timeout(_NODE_KNOWN_S):
                    await self._node_known.wait()
            await self._await_plugins()
            self._last_admitted = pod.uid
            await self.allocator.admit(pod, [other.uid for other in self._active_pods()], running)
            assert self._node is not None
            others = [other.pod for other in self._workers.values() if other.admitted and other.active]
            check_fit(pod, others, self._with_devices(self._node.allocatable or self._node.own))

    def _with_devices(self, allocatable: Any) -> dict[str, Any]:
        """The input of the check that a pod fits: for a plugin's resource at least what is allocated already."""
        devices = self.book.allocatable()
        merged = {**allocatable, **devices}
        return {**merged, **{name: max(devices[name], self.book.taken(name)) for name in devices}}

    async def _await_plugins(self) -> None:
        """After a restart, wait a moment for plugins whose devices are in use."""
        while (left_s := self._grace_until - self.clock.monotonic()) > 0:
            used = {grant.resource for grant in self.book.grants()}
            allocatable = self.book.allocatable()
            if all(self.plugins.endpoint(name) and allocatable.get(name) for name in used):
                return
            await self.plugins.wait_for_change(left_s)

    def _active_pods(self) -> list[Pod]:
        return [worker.pod for worker in self._workers.values() if worker.active]

    def _listed_pods(self) -> list[Pod]:
        """As the kubelet lists them, which admits one pod after the other: without those that are not admitted yet."""
        return [
            worker.pod
            for worker in self._workers.values()
            if worker.active
            and (
                worker.admitted or worker.pod.uid == self._last_admitted or self.book.has_any(worker.pod.uid)
            )
        ]

    def _pod_ip(self, uid: str) -> str:
        """A loopback address for a pod: within 127.64.0.0/10, different from those of other pods here."""
        taken = {worker.pod_ip for worker in self._workers.values()}
        number = zlib.crc32(f"{self.settings.node} {uid}".encode()) % (1 << 22)
        while True:
            address = str(ipaddress.ip_address("127.64.0.0") + 1 + number)
            if address not in taken and not address.endswith((".0", ".255")):
                return address
            number = (number + 1) % ((1 << 22) - 2)

    # --- the node --------------------------------------------------------------------------------
    def _devices_changed(self) -> None:
        # Written with each new list, so that after a restart a resource is known before its plugin is back: a pod
        # that requests it is rejected then, as by a real kubelet, and never started without devices.
        self.allocator.save()
        if self.settings.prompt_status:
            self._status_due.set()

    async def _keep_status(self) -> None:
        assert self._node is not None
        while True:
            self._status_due.clear()
            wait_s = self.settings.status_interval_s
            dropped = self.book.expire(self.clock.monotonic(), self.settings.endpoint_grace_s)
            try:
                await self._node.write(self.book.capacity(), self.book.allocatable(), dropped)
                self._node_known.set()
            except KubeError as error:
                _log.warning("node status is not written (node %s, fault %s)", self.settings.node, str(error))
                wait_s = _RETRY_S
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._status_due.wait()
                await asyncio.sleep(_SETTLE_S)

    async def _keep_lease(self) -> None:
        assert self._node is not None
        while True:
            await self._node.renew_lease()
            await asyncio.sleep(self.settings.lease_duration_s / 4)

    async def _keep_fake_proc(self) -> None:
        """Keep the fake /proc up to date, for the node agent's watchdog."""
        files = FakeProc(self.settings.folders.proc)
        while True:
            attempts = [one.attempt for worker in self._workers.values() for one in worker.states.values()]
            running = [one for one in attempts if one is not None and one.ended is None]
            of_containers = ((one.shim, one) for one in running)
            roots = {
                pid: cgroup_line(attempt.pod_uid, attempt.container_id)
                for pid, attempt in (*of_containers, *self._server.commands())
            }
            try:
                await asyncio.to_thread(files.write, roots)
            except OSError as error:
                _log.warning(
                    "the fake /proc cannot be written (node %s, fault %s)", self.settings.node, error
                )
            await asyncio.sleep(_FAKE_PROC_S)

    # --- the HTTP server -------------------------------------------------------------------------
    def container_ended(self, attempt: Attempt) -> None:
        """Commands that run in it end with the container."""
        self._server.container_ended(attempt)

    def attempt(self, namespace: str, pod: str, container: str, *, previous: bool) -> Attempt:
        """The current or previous start of a container; raises ``NotRunning``."""
        key = f"{namespace}/{pod}"
        for worker in self._workers.values():
            if worker.pod.key != key:
                continue
            state = worker.states.get(container)
            if state is None:
                raise NotRunning(f"container {container}", f"is not in pod {key}")
            attempt = state.last if previous else state.attempt
            if attempt is None and previous:
                raise Waiting(f'previous terminated container "{container}"', f'in pod "{pod}" not found')
            if attempt is None:
                reason = state.waiting[0] if state.waiting is not None else "ContainerCreating"
                raise Waiting(f'container "{container}" in pod "{pod}"', f"is waiting to start: {reason}")
            return attempt
        raise NotRunning(f"pod {key}", f"is not on node {self.settings.node}")

    def described_pods(self) -> list[dict[str, Any]]:
        """Every pod here: identity, phase, and container states."""
        return [
            {
                "metadata": {
                    "name": worker.pod.metadata.name,
                    "namespace": worker.pod.metadata.namespace,
                    "uid": worker.pod.uid,
                },
                "status": worker.status(),
            }
            for worker in self._workers.values()
        ]


def _keyed(raw: bytes) -> tuple[str, Pod]:
    pod = decode_pod(raw)
    return pod.key, pod


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
