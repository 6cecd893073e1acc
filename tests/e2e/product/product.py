"""The product as a user has it on the real cluster: two charts, labelled nodes, kubectl."""

import json
import os
import ssl
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from gpushare.api import names
from gpushare.kube.auth.access import load_access
from gpushare.kube.auth.tls import tls_context
from tests.e2e.cluster.https import ask
from tests.e2e.cluster.waiting import scaled, wait_for
from tests.patience import SLOWNESS, communicate

Json = dict[str, Any]

CHECKOUT: Final = Path(__file__).parents[3]
CHARTS: Final = CHECKOUT / "charts"
EXAMPLES: Final = CHECKOUT / "examples"
NAMESPACE: Final = "kube-system"
INSTALLER: Final = "ack-ai-installer"
SCHEDULER: Final = "ack-co-scheduler"
AGENT: Final = "daemonset/gpushare-device-plugin-ds"
HELM_WAIT: Final = ("--wait", "--timeout", f"{120 * SLOWNESS:.0f}s")
MODES: Final = {"share-v100": "share", "cgpu-t4": "cgpu", "core-mem-v100x4": "core_mem"}
"""Node → the mode that its label asks for, as in the playground."""


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


class Product:
    """Commands that a user types, on a cluster: ``kubeconfig`` and the folder of ``kubectl`` and ``helm``.

    States that are only waited for are read from the API server: kubectl takes longer to start than the
    server to answer.
    """

    def __init__(self, kubeconfig: Path, programs: Path) -> None:
        self.kubeconfig = kubeconfig
        path = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
        self._environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "PATH": os.pathsep.join(path),
            "PYTHONPATH": str(CHECKOUT / "src"),
            "HELM_CACHE_HOME": str(kubeconfig.parent / "helm"),
            "HELM_CONFIG_HOME": str(kubeconfig.parent / "helm"),
            "HELM_DATA_HOME": str(kubeconfig.parent / "helm"),
        }

    @property
    def environment_of_commands(self) -> Mapping[str, str]:
        """The environment of every command here."""
        return self._environment

    # --- commands --------------------------------------------------------------------------------

    def run(
        self,
        *argv: str,
        stdin: str = "",
        timeout_s: float = 180.0,
        environment: Mapping[str, str] | None = None,
    ) -> Ran:
        """Run a command as the user would, in the folder of the checkout; ``environment`` has what differs."""
        process = subprocess.Popen(
            scaled(argv),
            env={**self._environment, **(environment or {})},
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        out, err = communicate(process, stdin, timeout_s)
        return Ran(process.returncode, out, err)

    def start(self, *argv: str) -> "subprocess.Popen[str]":
        """Start a command that keeps running, in the folder of the checkout; both of its streams are its
        ``stdout``.
        """
        return subprocess.Popen(
            argv,
            env=self._environment,
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def typed(self, *argv: str, stdin: str = "", timeout_s: float = 180.0) -> str:
        """Run a command that must succeed; returns its stdout."""
        ran = self.run(*argv, stdin=stdin, timeout_s=timeout_s)
        assert ran.code == 0, f"$ {' '.join(argv)}\n{ran.text}"
        return ran.out

    def kubectl(self, *argv: str, stdin: str = "") -> str:
        """``kubectl …`` that must succeed; returns its stdout."""
        return self.typed("kubectl", *argv, stdin=stdin)

    def json(self, *argv: str) -> Any:
        """``kubectl … -o json``, decoded."""
        return json.loads(self.kubectl(*argv, "-o", "json"))

    def get(self, path: str) -> Any:
        """The API server's response to GET ``path``. Raises ``OSError``."""
        server, context = self._server
        return ask("GET", server + path, context, 10.0 * SLOWNESS)

    @cached_property
    def _server(self) -> tuple[str, ssl.SSLContext | None]:
        access = load_access(str(self.kubeconfig))
        return access.server, tls_context(access, access.client_certificate, access.client_key)

    def apply(self, *manifests: Mapping[str, object]) -> None:
        """``kubectl apply -f -``."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(listed))

    def inspect(self, *argv: str) -> str:
        """``kubectl inspect cgpu …``."""
        return self.kubectl("inspect", "cgpu", *argv)

    def row(self, node: str) -> list[str]:
        """The node's row in ``kubectl inspect cgpu``; empty if it has none."""
        return next(
            (line.split() for line in self.inspect(node).splitlines() if line.split()[:1] == [node]), []
        )

    # --- lifecycle ------------------------------------------------------------------------------

    def install(self, chart: str, *arguments: str, charts: Path = CHARTS) -> str:
        """``helm install CHART charts/CHART …``, waited for; returns what helm prints."""
        return self.typed("helm", "install", chart, str(charts / chart), *self._where(), *arguments)

    def upgrade(self, chart: str, *arguments: str) -> str:
        """``helm upgrade CHART charts/CHART …``, waited for."""
        return self.typed("helm", "upgrade", chart, str(CHARTS / chart), *self._where(), *arguments)

    def roll_back(self, chart: str) -> str:
        """``helm rollback CHART``, to the revision before, waited for."""
        return self.typed("helm", "rollback", chart, *self._where())

    def uninstall(self, chart: str) -> str:
        """``helm uninstall CHART``, waited for."""
        return self.typed("helm", "uninstall", chart, "-n", NAMESPACE, *HELM_WAIT)

    @staticmethod
    def _where() -> tuple[str, ...]:
        return ("-n", NAMESPACE, *HELM_WAIT)

    def label(self, node: str, mode: str | None) -> None:
        """Label a node with a mode; ``None`` removes the label."""
        text = f"{names.LABEL_MODE}-" if mode is None else f"{names.LABEL_MODE}={mode}"
        self.kubectl("label", "node", node, text, "--overwrite")

    def offers(
        self,
        node: str,
        *,
        timeout_s: float = 60.0,
        parts: Sequence[str] = ("capacity", "allocatable"),
        **amounts: object,
    ) -> Json:
        """Wait until the ``parts`` of the node's status have ``gpu_mem=``, ``gpu_core=``, ``gpu_count=``."""
        keys = {"gpu_mem": names.GPU_MEM, "gpu_core": names.GPU_CORE, "gpu_count": names.GPU_COUNT}
        wanted = {keys[key]: str(value) for key, value in amounts.items()}
        last: Json = {}

        def reached() -> bool:
            last.update(self.get(f"/api/v1/nodes/{node}")["status"])
            return all(last[part].get(key, "0") == value for part in parts for key, value in wanted.items())

        wait_for(f"node {node} offers {wanted}", reached, timeout=timeout_s, every=0.3)
        return last

    def rolled_out(self, timeout_s: float = 120.0) -> dict[str, str]:
        """Wait until each sharing node has one agent, of the current DaemonSet, and that is ready; node →
        its pod.

        ``kubectl rollout status`` and ``helm --wait`` count nodes with any ready agent, which may be the
        previous one.
        """
        last: Json = {}
        agents: dict[str, str] = {}

        def reached() -> bool:
            found = self.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/{AGENT.replace('/', 's/')}")
            status = found["status"]
            pods = self.pods("app.kubernetes.io/name=gpushare-device-plugin", NAMESPACE)
            last.update(status=status, pods=[(one["metadata"]["name"], _ready(one)) for one in pods])
            agents.clear()
            agents.update((one["spec"].get("nodeName", ""), one["metadata"]["name"]) for one in pods)
            wanted = status["desiredNumberScheduled"]
            return (
                status.get("observedGeneration") == found["metadata"]["generation"]
                and status.get("updatedNumberScheduled", 0) == wanted == len(pods)
                and all(_ready(one) and not one["metadata"].get("deletionTimestamp") for one in pods)
            )

        try:
            wait_for("every node's agent is the present one", reached, timeout=timeout_s, every=0.3)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{last}") from error
        return agents

    # --- pods ------------------------------------------------------------------------------------

    def pods(self, selector: str = "", namespace: str = "default") -> list[Json]:
        """The pods of a namespace, by label selector."""
        query = urlencode({"labelSelector": selector})
        items: list[Json] = self.get(f"/api/v1/namespaces/{namespace}/pods?{query}")["items"]
        return items

    def running(self, selector: str, count: int = 1, timeout_s: float = 120.0) -> list[Json]:
        """Wait until ``count`` pods of ``selector`` run, are ready, and are not being deleted."""
        found: list[Json] = []

        def reached() -> bool:
            found[:] = [
                pod
                for pod in self.pods(selector)
                if _ready(pod) and not pod["metadata"].get("deletionTimestamp")
            ]
            return len(found) == count

        try:
            wait_for(f"{count} ready pods of {selector}", reached, timeout=timeout_s, every=0.2)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self._state_of(selector)}") from error
        return found

    def _state_of(self, selector: str) -> str:
        """For a failure's text: the pods' status and events."""
        details = []
        for pod in self.pods(selector):
            details += [json.dumps(pod["status"]), *self.events(pod["metadata"]["name"])]
        return "\n".join(details) or "there are no such pods"

    def environment(self, pod: str, container: str = "", namespace: str = "default") -> dict[str, str]:
        """The output of ``env`` in the container."""
        where = ["-c", container] if container else []
        text = self.kubectl("exec", "-n", namespace, pod, *where, "--", "env")
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def events(self, about: str, namespace: str = "default") -> list[str]:
        """``reason: note`` of the events about the object of that name."""
        query = urlencode({"fieldSelector": f"involvedObject.name={about}"})
        items = self.get(f"/api/v1/namespaces/{namespace}/events?{query}")["items"]
        return [f"{item.get('reason')}: {item.get('message')}" for item in items]

    def wait_for_event(self, about: str, words: str) -> None:
        """Wait until an event about the object contains the words: it is written concurrently with what it
        reports, and may arrive later.
        """
        last: list[str] = []

        def reached() -> bool:
            last[:] = self.events(about)
            return any(words in one for one in last)

        try:
            wait_for(f"an event about {about} that says: {words}", reached, timeout=30.0, every=0.2)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{last}") from error

    def admitted(self, manifest: Mapping[str, object]) -> None:
        """Wait until the API server would accept it: its admission sees objects that it depends on, such as
        priority classes, a moment later.
        """
        refusals: list[str] = []

        def taken() -> bool:
            ran = self.run("kubectl", "create", "--dry-run=server", "-f", "-", stdin=json.dumps(manifest))
            refusals[:] = [ran.text]
            return ran.code == 0

        try:
            wait_for("it is admitted", taken, timeout=30.0, every=0.1)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{refusals}") from error

    def node_of(self, pod: str) -> str:
        """The node of a pod in the default namespace, or nothing."""
        name: str = self.get(f"/api/v1/namespaces/default/pods/{pod}")["spec"].get("nodeName", "")
        return name

    def delete_all(self) -> None:
        """Remove what tests made in the default namespace, and wait until it is gone.

        More than once if need be: a controller whose watch has not shown its Deployment's deletion recreates
        the ReplicaSet, and with it pods.
        """
        workloads = "deployments,replicasets,statefulsets,jobs"

        def gone() -> bool:
            # Pods that are deleted with their owner have their own grace period, half a minute, and a kubelet does not shorten it later.
            self.kubectl("delete", workloads, "--all", "--cascade=orphan")
            self.kubectl("delete", "pods", "--all", "--grace-period=1", "--timeout=60s")
            return not self.json("get", f"{workloads},pods")["items"]

        wait_for("no pod is left", gone, timeout=120.0, every=0.2)


def _ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def gpu_pod(
    name: str,
    mem: int,
    core: int | None = None,
    *,
    labels: Mapping[str, str] | None = None,
    node: str | None = None,
    **spec: object,
) -> Json:
    """A pod that requests ``mem`` units (and ``core`` percent) and sleeps; no scheduler name."""
    limits: Json = {names.GPU_MEM: mem}
    if core is not None:
        limits[names.GPU_CORE] = core
    selector = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": dict(labels or {})},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "main",
                    "image": "busybox:1.35",
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sleep", "100000"],
                    "resources": {"limits": limits},
                }
            ],
            **selector,
            **spec,
        },
    }
