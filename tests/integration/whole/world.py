"""A whole playground for the tests of this folder, with ways to change and query it."""

import asyncio
import contextlib
import json
import os
import re
import select
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

# Before gRPC is imported: nothing of it is used in a forked child.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc.aio

from gpushare.api import names
from gpushare.api.quantity import MemoryUnit
from gpushare.kube.auth.access import load_access
from gpushare.kube.client.client import Client
from gpushare.kube.client.errors import ApiError
from gpushare.kube.client.session import MERGE_PATCH, Session
from gpushare.kubeletapi.podresources_pb2 import AllocatableResourcesRequest, ListPodResourcesRequest
from gpushare.kubeletapi.podresources_pb2_grpc import PodResourcesListerStub
from gpushare_playground import gpus
from gpushare_playground.cluster import Cluster, NodeDescription
from gpushare_playground.cluster.control_plane import Control
from gpushare_playground.cluster.embedded import EmbeddedControl
from gpushare_playground.cluster.parts import Part
from gpushare_playground.cluster.real import RealControl
from tests.integration.whole.cluster import (
    CheckFn,
    Json,
    Seen,
    following,
    is_running,
    node_of,
    phase_of,
    record_of,
    waits_because,
)
from tests.integration.whole.forked import DRIVER, Forked
from tests.patience import Deadline

T = TypeVar("T")

CHECKOUT: Final = Path(__file__).parents[3]
ISOLATION: Final = CHECKOUT / "build" / "isolation"
BIN: Final = Path(sys.executable).parent
PODS: Final = "/api/v1/namespaces/default/pods"
#: Longer than the minute that kubectl waits.
_COMMAND_S: Final = 90.0
_KUBELET_S: Final = 30.0

Devices = dict[tuple[str, str], frozenset[str]]
"""(pod, container) → device IDs of GPU memory."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that has exited."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """Both streams."""
        return self.out + self.err


async def run(*command: str, env: Mapping[str, str] | None = None, stdin: str = "") -> Ran:
    """Run a command until it exits, within a minute and a half."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(env),
    )
    try:
        async with asyncio.timeout(_COMMAND_S):
            out, err = await process.communicate(stdin.encode())
    except TimeoutError:
        process.kill()
        await process.wait()
        raise AssertionError(f"{' '.join(command)} did not end within {_COMMAND_S:.0f} s") from None
    return Ran(process.returncode or 0, out.decode(), err.decode())


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with the checkout's programs and sources first, and ``more``."""
    path = os.pathsep.join([str(BIN), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(CHECKOUT / "src"), **(more or {})}


async def until(
    reached: Callable[[], Awaitable[T]], what: str, within_s: float = 60.0, detail: Callable[[], object] = str
) -> T:
    """Poll for a state; returns the first true result of ``reached()``."""
    deadline = Deadline(within_s)
    while True:
        polled_s = time.monotonic()
        if found := await reached():
            return found
        assert not deadline.passed(), f"not within {deadline}: {what}. {detail()}"
        # What takes long, such as a command, is polled less often: the others need the processors.
        await asyncio.to_thread(select.select, [], [], [], max(0.02, 2 * (time.monotonic() - polled_s)))


class Watchful(Cluster):
    """A cluster whose agents check their GPUs more often than by default, and whose parts restart sooner."""

    part_class = Forked

    def _add(self, name: str, arguments: list[str], environment: dict[str, str]) -> Part:
        if name.startswith("node-agent "):
            arguments = [*arguments, "--health-period", "0.4", "--watchdog-period", "0.5"]
        part = super()._add(name, arguments, environment)
        part.most_backoff_s = 0.4
        return part


class World:
    """A running cluster with its pods, nodes and events in view."""

    def __init__(self, cluster: Cluster, session: Session) -> None:
        self.playground = cluster
        self.session = session
        self.client = Client(session)
        self.over: list[str] = []
        """GPUs that were above their capacity, with the pods of that moment."""
        self.total_mib = {
            gpu.uuid: gpu.total_mib
            for node in cluster.nodes
            for gpu in gpus.preset(node.preset, node.name).gpus
        }
        self.pods = Seen()
        self.nodes = Seen()
        self.events = Seen()
        self.failed = False
        """Whether a test failed on it."""
        self._past: set[str] = set()
        """Events of pods that were deleted with all others."""

    # --- pods ---------------------------------------------------------------------------------

    async def create(self, *pods: Json) -> None:
        """Create pods concurrently."""
        await asyncio.gather(
            *(self.session.request("POST", PODS, body=json.dumps(pod).encode()) for pod in pods)
        )

    async def bind_by_hand(self, name: str, node: str) -> None:
        """Bind a pod as another scheduler would, with no record."""
        target = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": node}}
        body = json.dumps({**target, "metadata": {"name": name}}).encode()
        await self.session.request("POST", f"{PODS}/{name}/binding", body=body)

    async def delete(self, *pod_names: str) -> None:
        """Delete pods; those that are gone already are skipped."""

        async def one(name: str) -> None:
            body = json.dumps({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 1})
            with contextlib.suppress(ApiError):
                await self.session.request("DELETE", f"{PODS}/{name}", body=body.encode())

        await asyncio.gather(*(one(name) for name in pod_names))

    def pod(self, name: str) -> Json:
        """The pod by the last event; empty ``spec`` and ``metadata`` if there is none."""
        return self.pods.items.get(f"default/{name}", {"metadata": {}, "spec": {}})

    async def run_all(self, *pod_names: str) -> None:
        """Wait until all of these pods run, and if there are several until their records have the GPUs that
        they got.
        """
        await self.pods.until(
            lambda: all(is_running(self.pod(name)) for name in pod_names),
            f"{pod_names} run",
            detail=lambda: {name: waits_because(self.pod(name)) for name in pod_names},
        )
        if len(pod_names) > 1:
            await self.settled(*pod_names)

    async def settled(self, *pod_names: str) -> None:
        """Wait until the record of each of these pods (none: of all that run) has the GPUs that the kubelet
        allocated.

        Identical pods that are admitted at the same moment may get each other's. The node agent then
        corrects their records, one after the other.
        """
        shown: list[str] = []

        async def agree() -> bool:
            pods = {f"default/{name}": self.pod(name) for name in pod_names} or self.pods.items
            running = {key: pod for key, pod in pods.items() if is_running(pod)}
            shown[:] = [line async for line in self._elsewhere(running)]
            return not shown

        await until(agree, "records name the GPUs that the kubelets gave", detail=lambda: shown)

    async def _elsewhere(self, pods: Mapping[str, Json]) -> AsyncIterator[str]:
        """Which of the pods have a record with other GPUs than the kubelet allocated."""
        for node in {node_of(pod) for pod in pods.values()}:
            has: dict[str, set[str]] = {}
            for resource in (names.GPU_MEM, names.GPU_WHOLE):
                for (key, _), ids in (await self.devices(node, resource)).items():
                    has.setdefault(key, set()).update(one.partition("-")[0] for one in ids)
            for key, pod in pods.items():
                recorded = {share["uuid"][4:12] for share in record_of(pod)}
                if node_of(pod) == node and recorded != has.get(key, set()):
                    yield f"{key}: its record says {sorted(recorded)}, it has {sorted(has.get(key, ()))}"

    async def delete_all(self, within_s: float = 60.0) -> None:
        """Delete every pod and wait until the last one is gone, and the extender holds nothing for any."""
        await self.delete(*(key.partition("/")[2] for key in self.pods.items))
        await self.pods.until(
            lambda: not self.pods.items, "all pods are gone", within_s, detail=lambda: list(self.pods.items)
        )

        async def let_go() -> bool:
            # It sees pods by its own watch, and chooses other GPUs for new pods until then.
            return not (await self.metrics()).get("allocated_pods")

        await until(let_go, "the extender holds nothing", within_s)
        # A pod of the same name has not been delivered yet.
        self._past.update(key for key, one in self.events.items.items() if _about(one).get("kind") == "Pod")

    def events_of(self, name: str) -> list[str]:
        """``reason: note`` of every event about the object of that name."""
        return [
            f"{one.get('reason')}: {one.get('note')}"
            for key, one in self.events.items.items()
            if key not in self._past and _about(one).get("name") == name
        ]

    async def event(self, name: str, *parts: str, within_s: float = 60.0) -> str:
        """Wait for an event about the object of that name that contains all of ``words``."""

        def found() -> str:
            return next((one for one in self.events_of(name) if all(part in one for part in parts)), "")

        what = f"an event of {name} that says {parts}"
        return await self.events.until(found, what, within_s, detail=lambda: self.events_of(name))

    # --- nodes --------------------------------------------------------------------------------

    def allocatable(self, node: str, resource: str = names.GPU_MEM) -> str:
        """The node's allocatable amount of a resource, as a text; ``0`` if there is none."""
        status = self.nodes.items.get(node, {}).get("status", {})
        return str(status.get("allocatable", {}).get(resource, "0"))

    async def offers(self, node: str, amount: int, resource: str = names.GPU_MEM) -> None:
        """Wait until the node offers exactly that much."""
        await self.nodes.until(
            lambda: self.allocatable(node, resource) == str(amount),
            f"{node} offers {amount} of {resource}",
            detail=lambda: self.allocatable(node, resource),
        )

    async def label(self, node: str, labels: Mapping[str, str | None]) -> None:
        """Set labels of a node, or with ``None`` remove them."""
        body = json.dumps({"metadata": {"labels": labels}}).encode()
        await self.session.request("PATCH", f"/api/v1/nodes/{node}", body=body, content_type=MERGE_PATCH)

    async def devices(self, node: str, resource: str = names.GPU_MEM) -> Devices:
        """The containers' devices of GPU memory, or of another resource, by the node's kubelet."""
        async with self._kubelet(node) as stub:
            answer = await stub.List(ListPodResourcesRequest(), timeout=_KUBELET_S, wait_for_ready=True)
        found: Devices = {}
        for pod in answer.pod_resources:
            for container in pod.containers:
                ids = [
                    one
                    for had in container.devices
                    if had.resource_name == resource
                    for one in had.device_ids
                ]
                if ids:
                    assert len(ids) == len(set(ids)), f"pod {pod.name} has an ID twice: {sorted(ids)}"
                    found[f"{pod.namespace}/{pod.name}", container.name] = frozenset(ids)
        return found

    async def can_give(self, node: str, uuid: str) -> None:
        """Wait until the node's kubelet has healthy devices of this GPU to allocate.

        The node's allocatable shows that only if it changes: while its kubelet restarts it stays as it
        was.
        """
        prefix = f"{uuid.removeprefix('GPU-')[:8]}-"

        async def offered() -> bool:
            async with self._kubelet(node) as stub:
                answer = await stub.GetAllocatableResources(
                    AllocatableResourcesRequest(), timeout=_KUBELET_S, wait_for_ready=True
                )
            return any(one.startswith(prefix) for had in answer.devices for one in had.device_ids)

        await until(offered, f"the kubelet of {node} can give of {uuid}")

    @contextlib.asynccontextmanager
    async def _kubelet(self, node: str) -> AsyncIterator[Any]:
        """A connection to the node's kubelet for its devices."""
        path = self.playground.state / "nodes" / node / "pod-resources" / "kubelet.sock"
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            yield PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]

    async def account(self, node: str) -> str:
        """Allocations on the node, by the records and by the kubelet, for a message."""
        devices = await self.devices(node)
        lines = []
        for key, pod in self.pods.items.items():
            if node_of(pod) == node and (record_of(pod) or (key, "main") in devices):
                meta = pod["metadata"]
                recorded = [
                    f"{one['units']} on GPU {one['index']} ({one['uuid'][4:12]})" for one in record_of(pod)
                ]
                ids = sorted(devices.get((key, "main"), ()))
                lines.append(
                    f"{key} {phase_of(pod)}{' deleted' if meta.get('deletionTimestamp') else ''}: record {recorded}, "
                    f"has {ids}, version {meta['resourceVersion']}"
                )
        return "\n".join(lines)

    # --- commands and parts ---------------------------------------------------------------------

    async def kubectl(self, *arguments: str, stdin: str = "", user: str = "") -> Ran:
        """Run the real kubectl, as administrator or with the permissions of one of our components (``extender``)."""
        kubeconfig = self.playground.control.access(user) if user else self.playground.kubeconfig
        return await run("kubectl", *arguments, env={"KUBECONFIG": str(kubeconfig)}, stdin=stdin)

    @contextlib.asynccontextmanager
    async def opted_in(self, *options: str) -> AsyncIterator[None]:
        """The extender with more options, as a changed chart value starts it."""
        extender = self.playground.parts["extender"]
        before = list(extender.arguments)
        await extender.stop()
        extender.arguments.extend(options)
        extender.start()
        await self.playground.extender_ready()
        try:
            yield
        finally:
            await extender.stop()
            extender.arguments[:] = before
            extender.start()
            await self.playground.extender_ready()

    async def apply(self, *manifests: Json) -> Ran:
        """``kubectl apply -f -``."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
        return await self.kubectl("apply", "-f", "-", stdin=text)

    async def inspected(self) -> Json:
        """``kubectl inspect cgpu -o json``."""
        ran = await self.kubectl("inspect", "cgpu", "-o", "json")
        assert ran.code == 0, ran.err
        return dict(json.loads(ran.out))

    async def metrics(self) -> dict[str, float]:
        """The extender's metrics without labels by name without ``gpushare_scheduler_``, and the sum of its
        ``pending_pods``; empty while it is down.
        """
        port = (self.playground.state / "extender.port").read_text().strip()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            text = (await reader.read()).decode()
        except OSError:
            return {}
        writer.close()
        pending = re.findall(r"^gpushare_scheduler_pending_pods\{.*\} (\S+)$", text, re.MULTILINE)
        return {"pending_pods": sum(map(float, pending))} | {
            name: float(value)
            for name, value in re.findall(r"^gpushare_scheduler_(\w+) (\S+)$", text, re.MULTILINE)
        }

    def logs(self) -> dict[str, str]:
        """Each part's log, by part."""
        folder = self.playground.state / "log"
        return {path.stem: path.read_text(errors="replace") for path in sorted(folder.glob("*.log"))}

    def assert_sound(self) -> None:
        """No GPU was ever above its capacity, and no part has logged a traceback."""
        assert not self.over, "\n".join(self.over)
        bad = {
            name: log[log.index("Traceback") - 500 :][:3000]
            for name, log in self.logs().items()
            if "Traceback" in log
        }
        assert not bad, "\n\n".join(f"{name}:\n{text}" for name, text in bad.items())


def _about(event: Json) -> Json:
    """The object of the event."""
    return event.get("regarding") or {}


def control_plane() -> Control:
    """The embedded one, or the real one of the folder ``$GPUSHARE_TEST_CONTROL_PLANE``."""
    folder = os.environ.get("GPUSHARE_TEST_CONTROL_PLANE")
    return (
        RealControl(Path(folder), chart=CHECKOUT / "charts" / "ack-ai-installer")
        if folder
        else EmbeddedControl()
    )


@contextlib.asynccontextmanager
async def world(
    *nodes: NodeDescription,
    unit: MemoryUnit = MemoryUnit.GIB,
    check: Callable[[World], CheckFn] | None = None,
    dashboard: bool = False,
    isolated: bool = False,
    control: Control | None = None,
) -> AsyncIterator[World]:
    """A cluster of these nodes, started, with its objects in view; it must end without leftovers.
    ``control``: by default ``control_plane()``. ``isolated``: nodes hold containers to their share.
    """
    assert (DRIVER / "libnvidia-ml.so.1").exists(), "no stand-in driver; build it with: make fakegpu"
    async with (
        Watchful(
            driver=DRIVER,
            nodes=nodes,
            unit=unit,
            report=lambda _: None,
            control=control or control_plane(),
            dashboard=dashboard,
            isolation=ISOLATION if isolated else None,
        ) as cluster,
        Session(load_access(str(cluster.kubeconfig))) as session,
    ):
        made = World(cluster, session)
        if isinstance(cluster.control, RealControl):
            # Tests create pods as the extender, which may write records; the embedded server has no
            # permissions to grant.
            rights = ("--clusterrole=edit", "--user=gpushare-extender")
            bound = await made.kubectl("create", "clusterrolebinding", "tests-make-pods", *rights)
            assert bound.code == 0, bound.err
        if check is not None:
            made.pods = Seen(check(made))
        async with (
            following(session, "/api/v1/pods", made.pods),
            following(session, "/api/v1/nodes", made.nodes),
            following(session, "/apis/events.k8s.io/v1/events", made.events),
        ):
            try:
                yield made
            except BaseException:
                # For debugging: a folder that gets the logs of all parts.
                if log_folder := os.environ.get("GPUSHARE_TEST_KEEP_LOGS"):
                    shutil.copytree(cluster.state / "log", log_folder, dirs_exist_ok=True)
                raise


def gpu_pod(
    name: str,
    units: int | str | None,
    *command: str,
    node: str = "",
    limits: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Json:
    """A pod of one container that requests GPU memory and, by default, sleeps."""
    resources = {**({} if units is None else {names.GPU_MEM: units}), **(limits or {})}
    spec: Json = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": "main",
                "image": "busybox:1.36",
                "command": list(command) or ["sleep", "infinity"],
                "resources": {"limits": resources},
            }
        ],
    }
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    meta = {"name": name, "namespace": "default", "labels": dict(labels or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def shared_node(name: str, preset: str, mode: str = "share", *more: tuple[str, str]) -> NodeDescription:
    """A node in a mode, with more labels."""
    return NodeDescription(name, preset, ((names.LABEL_MODE, mode), *more))
