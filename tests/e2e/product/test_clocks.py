"""The nodes' clocks are set: agents and extenders continue, or report what is wrong and recover once it is
corrected.
"""

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from gpushare.api import names
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.product.product import AGENT, HELM_WAIT, INSTALLER, NAMESPACE, SCHEDULER, Product
from tests.e2e.product.stream import APP, REPLICAS, settle, stream

#: Of every night: tests/integration/nodeagent/lifecycle/test_clock_jumps.py lets the same clocks jump in every pull.
pytestmark = pytest.mark.nightly

_FOLDER: Final = "srv/clock"
_DEPLOYMENT: Final = f"deployment/{SCHEDULER}"
DAY_S: Final = 86400


@dataclass(frozen=True, slots=True)
class Clocks:
    """The wall clocks of our components, changed by a library that is preloaded into them (clock.c)."""

    cluster: Cluster

    def folders(self) -> list[Path]:
        """Where each node has the library and the offset."""
        return [Path(f"/proc/{node.machine.init.pid}/root/{_FOLDER}") for node in self.cluster.nodes]

    def set(self, offset_s: int) -> None:
        """Set the clocks of all nodes wrong by that much, from now on."""
        for folder in self.folders():
            new_file = folder / "offset.new"
            new_file.write_text(f"{offset_s}\n")
            new_file.rename(folder / "offset")


@pytest.fixture(scope="module")
def clocks(
    cluster: Cluster, installed: Product, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Clocks]:
    built = tmp_path_factory.mktemp("clock") / "libclock.so"
    source = Path(__file__).with_name("clock.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", built, source], check=True)
    made = Clocks(cluster)
    for folder in made.folders():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / built.name).write_bytes(built.read_bytes())
    made.set(0)
    environment = _environment("/host")
    installed.upgrade(INSTALLER, "--set-json", f"nodeAgent.extraEnv={json.dumps(environment)}")
    installed.kubectl("-n", NAMESPACE, "patch", _DEPLOYMENT, "--type=strategic", "-p", json.dumps(_patch()))
    _rolled_out(installed)
    try:
        yield made
    finally:
        installed.kubectl("-n", NAMESPACE, "rollout", "undo", _DEPLOYMENT)
        installed.typed("helm", "rollback", INSTALLER, "-n", NAMESPACE, *HELM_WAIT)
        _rolled_out(installed)


@pytest.fixture
def right(clocks: Clocks) -> Iterator[Clocks]:
    """Correct clocks before the test, and after it."""
    clocks.set(0)
    yield clocks
    clocks.set(0)


@pytest.mark.parametrize("jump_s", [DAY_S, -240])
def test_pods_are_bound_and_deleted_across_the_jump(
    cluster: Cluster, churn: Product, right: Clocks, jump_s: int
) -> None:
    restarts = _restarts(churn)
    with stream(cluster, APP) as account:
        wait_for("the stream runs", lambda: account.deleted >= 2, timeout=90)
        for offset_s in (jump_s, 0):
            right.set(offset_s)
            since_s = time.time()
            wait_for(
                f"pods are placed with clocks {offset_s} s ahead",
                lambda offset_s=offset_s, since_s=since_s: _placed(churn, offset_s, since_s) >= 3,
                timeout=120,
                every=0.3,
            )
    settle(cluster, churn, APP, REPLICAS)
    assert _restarts(churn) == restarts


def test_a_clock_before_the_certificates_validity_is_reported_until_corrected(
    cluster: Cluster, churn: Product, right: Clocks
) -> None:
    restarts = _restarts(churn)
    right.set(-DAY_S)
    # Open connections continue; new ones are needed after this.
    cluster.restart("kube-apiserver")
    cluster.wait_ready(timeout=120)
    for part in (AGENT, _DEPLOYMENT):
        wait_for(
            f"{part} says why", lambda part=part: "not yet valid" in _log(churn, part), timeout=120, every=0.5
        )
    right.set(0)
    with stream(cluster, APP) as account:
        wait_for("the stream runs", lambda: account.deleted >= 4, timeout=120)
    settle(cluster, churn, APP, REPLICAS)
    assert _restarts(churn) == restarts


def _environment(root: str) -> list[dict[str, str]]:
    values = {
        "LD_PRELOAD": f"{root}/{_FOLDER}/libclock.so",
        "CLOCK_OFFSET_FILE": f"{root}/{_FOLDER}/offset",
    }
    return [{"name": name, "value": value} for name, value in values.items()]


def _patch() -> dict[str, object]:
    mount = {"name": "clock", "mountPath": f"/{_FOLDER}", "readOnly": True}
    container = {"name": "extender", "env": _environment(""), "volumeMounts": [mount]}
    volume = {"name": "clock", "hostPath": {"path": f"/{_FOLDER}", "type": "Directory"}}
    return {"spec": {"template": {"spec": {"containers": [container], "volumes": [volume]}}}}


def _rolled_out(product: Product) -> None:
    product.rolled_out()
    product.kubectl("-n", NAMESPACE, "rollout", "status", _DEPLOYMENT, "--timeout=120s")


def _placed(product: Product, offset_s: int, since_s: float) -> int:
    """How many pods of the stream the extender has bound since then, by a clock that is ``offset_s`` ahead
    of ours.
    """
    found = 0
    for pod in product.pods(f"app={APP}"):
        stamp = (pod["metadata"].get("annotations") or {}).get(names.ANN_ASSUME_TIME)
        if stamp is not None:
            found += since_s < int(stamp) / 1e9 - offset_s < time.time() + 1
    return found


def _restarts(product: Product) -> dict[str, int]:
    """Restarts of every container of ours, by pod and container.

    Kubernetes' own scheduler exits when an unreachable API server costs it its lease; that has nothing to do
    with clocks.
    """
    pods = [pod for pod in product.pods(namespace=NAMESPACE) if pod["status"].get("containerStatuses")]
    return {
        f"{pod['metadata']['name']}/{one['name']}": one["restartCount"]
        for pod in pods
        if not pod["metadata"].get("deletionTimestamp")
        for one in pod["status"]["containerStatuses"]
        if one["name"] != "kube-scheduler"
    }


def _log(product: Product, part: str) -> str:
    container = ["-c", "extender"] if part == _DEPLOYMENT else []
    return product.kubectl("-n", NAMESPACE, "logs", part, *container, "--since=5m")
