"""The webhook's process, and the objects of the chart for it on a cluster without policies."""

import copy
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import yaml
from cryptography import x509

from gpushare.kube.auth.access import load_access
from gpushare_playground.controlplane.ports import free_ports
from tests.admission_words import COUNTING
from tests.e2e.asking import Api
from tests.e2e.charts.accounts import kubeconfig_of
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.plane import CHECKOUT, control_plane, wait_for_accounts
from tests.e2e.policies import MUTATING, VALIDATING, serves
from tests.e2e.product.product import Product
from tests.patience import SLOWNESS

CHART = CHECKOUT / "charts" / "ack-ai-installer"
NAMESPACE = "kube-system"
NAME = "gpushare-admission"


class Webhook:
    """One process of the webhook; restarted on the same ports, which stay free, as its address is in the configurations."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        self._folder = folder
        self._kubeconfig = kubeconfig
        self._process: subprocess.Popen[bytes] | None = None
        first, second = free_ports(2)
        self.ports = (first, second)

    def start(self, *arguments: str) -> None:
        assert self._process is None
        ports, log = self._folder / "ports", self._folder / "log"
        ports.unlink(missing_ok=True)
        argv = [sys.executable, "-m", "gpushare", "admission", "--kubeconfig", str(self._kubeconfig)]
        argv += ["--namespace", NAMESPACE, "--server-name", "127.0.0.1"]
        argv += ["--port-file", str(ports), "--drain", "0"]
        argv += ["--listen", f"127.0.0.1:{self.ports[0]}", "--metrics-listen", f"127.0.0.1:{self.ports[1]}"]
        argv += ["--reference-gpu-memory-mib", str(COUNTING.reference_mib)]
        with log.open("ab") as written:
            self._process = subprocess.Popen([*argv, *arguments], stderr=written, cwd=CHECKOUT)
        wait_for("the webhook's ports", lambda: self._alive() and ports.exists())

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(timeout=30 * SLOWNESS)
            self._process = None

    def _alive(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()
        return True

    def ready(self) -> bool:
        self._alive()
        try:
            with urlopen(f"http://127.0.0.1:{self.ports[1]}/readyz", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def log(self) -> str:
        return (self._folder / "log").read_text()

    def certificate(self) -> x509.Certificate:
        pem = ssl.get_server_certificate(("127.0.0.1", self.ports[0]), timeout=10 * SLOWNESS)
        return x509.load_pem_x509_certificate(pem.encode())


@contextmanager
def reviewing(
    binaries: Path,
    state: Path,
    folder: Path,
    chart: Sequence[str],
    arguments: Sequence[str],
    in_force: Callable[[Api], bool],
) -> Iterator[Api]:
    """A control plane that asks the webhook, next to the chart's policies where it has them; once ``in_force``.

    ``chart``: options of ``helm template``. ``arguments``: the webhook's, which it has the rights of its account for.
    """
    with control_plane(binaries, state) as kubeconfig, Api(load_access(str(kubeconfig))) as api:
        wait_for_accounts(api, "default")
        product = Product(kubeconfig, binaries)
        argv = ["helm", "template", "gpushare", str(CHART), "-n", NAMESPACE, *chart]
        argv += [
            f"--set=admission.referenceGpuMemoryMiB={COUNTING.reference_mib}",
            "--set=admission.guards=false",
        ]
        argv += ["--kube-version", str(api.get("/version")["gitVersion"])]
        argv += [
            f"--api-versions=admissionregistration.k8s.io/v1/{kind}"
            for kind in (VALIDATING, MUTATING)
            if serves(api, kind)
        ]
        docs = [doc for doc in yaml.safe_load_all(product.typed(*argv)) if doc]
        product.apply(*rights([doc for doc in docs if doc["metadata"]["name"] == NAME]))
        webhook = Webhook(folder, kubeconfig_of(product, NAME, NAMESPACE, folder / "kubeconfig"))
        webhook.start("--period", "0.5", *arguments)
        try:
            webhooks = [by_address(doc, webhook.ports[0]) for doc in docs if "webhooks" in doc]
            product.apply(*webhooks, *(doc for doc in docs if "AdmissionPolicy" in doc["kind"]))
            wait_for("the API server trusts the webhook", webhook.ready)
            wait_for("all rules are in force", lambda: in_force(api))
            yield api
        finally:
            webhook.stop()


def rendered(product: Product) -> list[dict[str, Any]]:
    """The objects of the chart for the webhook on a cluster without policies."""
    text = product.typed(
        "helm", "template", "gpushare", str(CHART), "-n", NAMESPACE, "--kube-version", "1.28.15"
    )
    found = [doc for doc in yaml.safe_load_all(text) if doc]
    return [doc for doc in found if doc["metadata"]["name"] == NAME]


def own_pods(product: Product) -> list[dict[str, Any]]:
    """The pods of both charts in their namespace, by the existing accounts: those of the webhook, and the
    others with its account.
    """
    made = []
    for chart in ("ack-ai-installer", "ack-co-scheduler"):
        argv = ["helm", "template", "gpushare", str(CHART.parent / chart), "-n", NAMESPACE]
        for doc in yaml.safe_load_all(product.typed(*argv, "--kube-version", "1.28.15")):
            if doc and doc["kind"] in ("Deployment", "DaemonSet"):
                one = {"apiVersion": "v1", "kind": "Pod", **doc["spec"]["template"]}
                one["metadata"] |= {"name": doc["metadata"]["name"], "namespace": NAMESPACE}
                one["spec"]["serviceAccountName"] = NAME
                made.append(one)
    assert NAME in [one["metadata"]["name"] for one in made]
    return made


def by_address(configuration: dict[str, Any], port: int) -> dict[str, Any]:
    made = copy.deepcopy(configuration)
    for webhook in made["webhooks"]:
        service = webhook["clientConfig"].pop("service")
        assert service["name"] == NAME
        webhook["clientConfig"]["url"] = f"https://127.0.0.1:{port}{service['path']}"
    return made


def rights(docs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The permissions that the chart gives the webhook's account, and its Secret."""
    kinds = ("Secret", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    return [doc for doc in docs if doc["kind"] in kinds]
