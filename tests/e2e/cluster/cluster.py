"""A running cluster, for tests: its nodes, its components, kubectl and helm."""

import json
import os
import ssl
import subprocess
import urllib.error
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL as KILL
from signal import SIGTERM as TERM
from typing import Any

from tests.e2e.cluster import https, record, settings
from tests.e2e.cluster.components import CONTROL, ON_NODES, Layout
from tests.e2e.cluster.hosts import HOSTS
from tests.e2e.cluster.machine import Machine, Process
from tests.e2e.cluster.network import Plan
from tests.e2e.cluster.serving import serves
from tests.e2e.cluster.waiting import scaled, wait_for
from tests.patience import SLOWNESS


class CommandFailed(RuntimeError):
    """A command ended with an error; ``done`` has its status and output."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        super().__init__(
            f"{' '.join(map(str, done.args))}: exit status {done.returncode}: {done.stderr.strip()}"
        )
        self.done = done


@dataclass(frozen=True, slots=True)
class Node:
    """A real node: a machine with containerd, kubelet and kube-proxy."""

    cluster: "Cluster"
    name: str
    index: int
    preset: str | None

    @property
    def machine(self) -> Machine:
        """The namespaces it lives in."""
        return record.read_machine(self.cluster.state, self.name)

    @property
    def address(self) -> str:
        """Its InternalIP, reached from here, from pods, from every machine."""
        return self.cluster.plan.node(self.index)

    @property
    def gpu_file(self) -> Path:
        """The description of its GPUs, which the fake driver reads at each call; replace it by rename."""
        return self.cluster.state / "gpus" / self.name / "node.conf"

    def run(
        self,
        *argv: str,
        input: bytes | None = None,  # noqa: A002
        check: bool = True,
        timeout: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root on the node. Raises ``RuntimeError`` when ``check`` and it fails."""
        return self.machine.run(*argv, input=input, check=check, timeout=timeout)

    def ctr(self, *argv: str, input: bytes | None = None, timeout: float = 120.0) -> str:  # noqa: A002
        """Run ``ctr`` in Kubernetes' namespace of its containerd; returns stdout."""
        return self.run(*self.cluster.ctr, *argv, input=input, timeout=timeout).stdout


class Cluster:
    """A running cluster; any process can open it by its state folder."""

    def __init__(self, state: Path) -> None:
        """Raises ``FileNotFoundError`` when there is none in ``state``."""
        self.state = state.absolute()
        self.record = record.read(self.state)
        self.plan = Plan(self.record.slot)
        self.bin = self.record.binaries
        major, minor = self.record.k8s.split(".")
        self.version: settings.Version = (int(major), int(minor))
        self.host = HOSTS[self.record.host]
        self.layout = Layout(self.state, self.bin, self.plan, self.version, self.host)
        self.nodes = [Node(self, n.name, n.index, n.preset) for n in self.record.nodes]

    @property
    def kubeconfig(self) -> Path:
        """Of ``system:masters``; works from here and within the cluster's machines."""
        return self.state / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        """The API server's audit log: a JSON event a line, level Metadata for every request."""
        return self.layout.audit_log

    @property
    def ctr(self) -> tuple[str, ...]:
        """How ``ctr`` begins on a node, in Kubernetes' namespace of its containerd."""
        return "ctr", "--address", self.host.containerd_socket, "-n", "k8s.io"

    @property
    def control(self) -> Machine:
        """The machine of etcd, API server, controllers and scheduler."""
        return record.read_machine(self.state, record.CONTROL)

    def node(self, name: str) -> Node:
        """The node of that name. Raises ``KeyError``."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(f"{name}: no real node; there are {', '.join(n.name for n in self.nodes)}")

    @property
    def environment(self) -> dict[str, str]:
        """This process's environment, with ``KUBECONFIG`` and the folder of binaries first on ``PATH``."""
        path = f"{self.bin}:{os.environ.get('PATH', '')}"
        return {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "PATH": path,
            "HELM_CACHE_HOME": str(self.state / "helm"),
        }

    def kubectl(
        self,
        *argv: str,
        input: str | None = None,  # noqa: A002
        check: bool = True,
        timeout: float = 90.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl of the cluster's version. Raises :class:`CommandFailed` when ``check`` and it fails."""
        return self._command("kubectl", argv, input, timeout, check=check)

    def helm(
        self,
        *argv: str,
        input: str | None = None,  # noqa: A002
        check: bool = True,
        timeout: float = 300.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run helm. Raises :class:`CommandFailed` when ``check`` and it fails."""
        return self._command("helm", argv, input, timeout, check=check)

    def apply(self, *manifests: dict[str, Any]) -> None:
        """``kubectl apply`` of objects."""
        self.kubectl(
            "apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
        )

    def get(self, path: str, *, timeout: float = 10.0) -> Any:
        """The API server's response to GET ``path``, decoded if it is JSON. Raises ``OSError``."""
        return self._ask("GET", path, timeout)

    def delete(self, path: str, *, timeout: float = 10.0) -> Any:
        """The same for DELETE: immediate, where kubectl takes a second on a busy machine."""
        return self._ask("DELETE", path, timeout)

    def _ask(self, method: str, path: str, timeout: float) -> Any:
        context = ssl.create_default_context(cafile=str(self.layout.credentials / "ca.crt"))
        context.load_cert_chain(self.layout.credentials / "admin.crt", self.layout.credentials / "admin.key")
        return https.ask(method, self.layout.url + path, context, timeout * SLOWNESS)

    def ready(self) -> bool:
        """Whether the API server reports that it is ready."""
        try:
            return self.get("/readyz", timeout=2) == "ok"
        except OSError:
            return False

    def node_ready(self, name: str) -> bool:
        """Whether the node exists and its condition Ready is true."""
        try:
            conditions = self.get(f"/api/v1/nodes/{name}")["status"].get("conditions", [])
        except urllib.error.HTTPError:
            return False
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def wait_ready(self, *, timeout: float = 60.0) -> None:
        """Wait until the API server and every real node are ready.

        Raises ``RuntimeError`` immediately when a component has ended by itself: nothing restarts it, as
        systemd would, and the node of a kubelet that is gone looks Ready for another 40 s.
        """
        self.check_running()
        wait_for("the API server to be ready", self.ready, timeout=timeout)
        for node in self.nodes:
            try:
                wait_for(
                    f"node {node.name} to be Ready",
                    lambda name=node.name: self.node_ready(name),
                    timeout=timeout,
                )
            except TimeoutError as error:
                logs = [self.logs(component, node.name)[-2000:] for component in ("kubelet", "containerd")]
                raise TimeoutError("\n".join([str(error), *logs])) from None

    def check_running(self) -> None:
        """Raise ``RuntimeError`` when a component that was started and not stopped has ended."""
        everywhere: list[tuple[str, str | None]] = [(component, None) for component in CONTROL]
        everywhere += [(component, node.name) for node in self.nodes for component in ON_NODES]
        for component, node in everywhere:
            known = record.read_process(self.state, _key(component, node))
            if known and not known.alive():
                last = self.logs(component, node).strip().rpartition("\n")[2]
                raise RuntimeError(f"{_key(component, node)} has ended by itself; it said last: {last}")

    def logs(self, component: str, node: str | None = None) -> str:
        """Everything that the component has logged."""
        return self.layout.log(component, node).read_text(errors="replace")

    def process(self, component: str, node: str | None = None) -> Process | None:
        """The component's process on this machine (its id is good for ``/proc``); ``None`` when it does not run."""
        found = record.read_process(self.state, _key(component, node))
        return found if found and found.alive() else None

    def start(self, component: str, node: str | None = None, *, extra: Sequence[str] = ()) -> Process:
        """Start a component that does not run, on ``node`` or on the control machine; ``extra`` ends its
        command line.

        Returns immediately; the caller waits until it is ready. Raises ``RuntimeError`` if it runs
        already.
        """
        running = self.process(component, node)
        if running:
            raise RuntimeError(f"{_key(component, node)} runs already (process {running.pid}); stop it first")
        index = self.node(node).index if node else 0
        argv = self.layout.argv(component, node, index, extra)
        machine = self.node(node).machine if node else self.control
        process = machine.spawn(argv, self.layout.log(component, node))
        record.write_process(self.state, _key(component, node), process)
        return process

    def stop(
        self, component: str, node: str | None = None, *, signal: int = TERM, timeout: float = 30.0
    ) -> None:
        """Stop a component and wait for its end; after ``timeout`` seconds it is killed.

        Containers keep running when containerd or the kubelet is stopped. Raises ``RuntimeError`` if it does
        not run.
        """
        running = self.process(component, node)
        if running is None:
            raise RuntimeError(f"{_key(component, node)} does not run")
        if not running.end(signal, timeout=timeout) and not running.end(KILL, timeout=timeout):
            raise TimeoutError(
                f"{_key(component, node)}: process {running.pid} does not end, not even killed"
            )
        record.forget_process(self.state, _key(component, node))

    def restart(
        self,
        component: str,
        node: str | None = None,
        *,
        signal: int = TERM,
        extra: Sequence[str] = (),
    ) -> Process:
        """Stop with ``signal``, start again, and wait until it serves; for a component of nodes, on every
        node unless one is named.

        A kubelet that starts while containerd does not serve exits by itself; so each is waited for.
        """
        if node is None and component in ON_NODES:
            return [self.restart(component, n.name, signal=signal, extra=extra) for n in self.nodes][-1]
        self.stop(component, node, signal=signal)
        started = self.start(component, node, extra=extra)
        if node:
            machine = self.node(node).machine
            wait_for(
                f"{component} of {node} to serve", lambda: serves(component, machine, self.host), timeout=30
            )
        return started

    def load_image(self, archive: Path, node: str | None = None) -> None:
        """Import an image archive (OCI layout or docker save) into the node's containerd, or into every node's."""
        chosen = [self.node(node)] if node else self.nodes
        with ThreadPoolExecutor() as side_by_side:
            list(side_by_side.map(lambda one: _import(one, archive), chosen))

    def _command(
        self,
        program: str,
        argv: Sequence[str],
        input: str | None,  # noqa: A002
        timeout: float,
        *,
        check: bool,
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(self.bin / program), *scaled(argv)],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=timeout * SLOWNESS,
            check=False,
        )
        if check and done.returncode:
            raise CommandFailed(done)
        return done


def _import(node: Node, archive: Path) -> None:
    with archive.open("rb") as content:
        done = subprocess.run(
            node.machine.entering([*node.cluster.ctr, "images", "import", "--local", "-"]),
            stdin=content,
            capture_output=True,
            text=True,
            check=False,
            timeout=300 * SLOWNESS,
        )
    if done.returncode:
        raise CommandFailed(done)


def _key(component: str, node: str | None) -> str:
    return f"{node}.{component}" if node else component
