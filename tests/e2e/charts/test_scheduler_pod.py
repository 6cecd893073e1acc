"""The containers of the scheduler's Pod as processes: the real kube-scheduler with the chart's
configuration, the extender with it, and for both only the chart's account.
"""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from ssl import CERT_NONE, create_default_context
from typing import Any

import pytest
import yaml

from gpushare.api import names
from gpushare.api.node.device import Device, devices_annotation
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare_playground.controlplane.ports import free_ports
from tests.e2e.asking import Commands
from tests.e2e.charts.accounts import kubeconfig_of
from tests.e2e.charts.rendering import CHARTS, SCHEDULER
from tests.e2e.cluster.waiting import wait_for
from tests.patience import SLOWNESS

NAMESPACE = "gpu"
#: Others than the defaults, in the same order: a leader ends itself before it is replaced. Nothing restarts it here: it
#: must be able to renew on a busy machine.
LEASE = {"leaseDurationSeconds": 12, "renewDeadlineSeconds": 9, "retryPeriodSeconds": 1}
#: One of 15 GiB, in units of 1 GiB.
GPU = Device(0, "GPU-00000000-0000-0000-0000-000000000001", 15360)
TAKEN = {"cpu": "8", "memory": "32Gi", "pods": "110", names.GPU_MEM: "15", names.GPU_COUNT: "1"}


@dataclass
class Replica:
    """One Pod: its two containers as processes, and where their probes are."""

    scheduler: subprocess.Popen[bytes]
    extender: subprocess.Popen[bytes]
    probes: dict[str, str]
    log: Path
    extender_log: Path
    metrics: str

    def kill(self) -> None:
        for process in (self.scheduler, self.extender):
            process.send_signal(signal.SIGKILL)
            process.wait(10)

    def answers(self, container: str, probe: str) -> int:
        """The status of a probe as the kubelet calls it: without a token, and whatever the certificate."""
        context = create_default_context()
        context.check_hostname, context.verify_mode = False, CERT_NONE
        url = f"{self.probes[container]}{probe}"
        try:
            with urllib.request.urlopen(
                url, timeout=5 * SLOWNESS, context=context if url.startswith("https") else None
            ) as got:
                return int(got.status)
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError as error:
            exit_code = {"kube-scheduler": self.scheduler, "extender": self.extender}[container].poll()
            error.add_note(f"{container} has ended with {exit_code}: {self.extender_log.read_text()[-3000:]}")
            raise

    def is_ready(self, deployment: dict[str, Any]) -> bool:
        containers = deployment["spec"]["template"]["spec"]["containers"]
        paths = {one["name"]: one["readinessProbe"]["httpGet"]["path"] for one in containers}
        try:
            return all(self.answers(container, path) == 200 for container, path in paths.items())
        except urllib.error.HTTPError:
            return False


class Pods:
    """Starts replicas of the installed Deployment."""

    def __init__(self, commands: Commands, binaries: Path, folder: Path) -> None:
        self._commands = commands
        self._binaries = binaries
        self._folder = folder
        self._kubeconfig = kubeconfig_of(commands, SCHEDULER, NAMESPACE, folder / "kubeconfig")
        self.deployment = commands.json("get", "deployment", SCHEDULER, "-n", NAMESPACE)
        self.running: list[Replica] = []

    def start(self) -> Replica:
        number = len(self.running)
        verbs, health, probes, decisions, own = free_ports(5)
        config = yaml.safe_load(
            self._commands.json("get", "configmap", SCHEDULER, "-n", NAMESPACE)["data"]["config.yaml"]
        )
        config["clientConnection"]["kubeconfig"] = str(self._kubeconfig)
        config["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{verbs}/gpushare"
        path = self._folder / f"config-{number}.yaml"
        path.write_text(yaml.safe_dump(config))
        log = self._folder / f"kube-scheduler-{number}.log"
        containers = {one["name"]: one for one in self.deployment["spec"]["template"]["spec"]["containers"]}
        replaced = {
            "--config": str(path),
            "--secure-port": str(own),
            "--listen": f"127.0.0.1:{verbs}",
            "--health-listen": f"127.0.0.1:{health}",
            "--probes-listen": f"127.0.0.1:{probes}",
            "--decisions-listen": f"127.0.0.1:{decisions}",
        }
        scheduler = [str(self._binaries / containers["kube-scheduler"]["command"][0])]
        scheduler += _with(containers["kube-scheduler"]["args"], replaced)
        # In a pod it finds its account by itself.
        scheduler += [
            f"--{what}-kubeconfig={self._kubeconfig}" for what in ("authentication", "authorization")
        ]
        extender = [sys.executable, "-m", "gpushare", *_with(containers["extender"]["args"], replaced)]
        extender += ["--kubeconfig", str(self._kubeconfig)]
        with (
            log.open("wb") as scheduler_log,
            (self._folder / f"extender-{number}.log").open("wb") as extender_log,
        ):
            replica = Replica(
                subprocess.Popen(scheduler, stderr=scheduler_log, cwd=self._folder),
                subprocess.Popen(extender, stderr=extender_log, env={**os.environ, "PYTHONPATH": "src"}),
                {"kube-scheduler": f"https://127.0.0.1:{own}", "extender": f"http://127.0.0.1:{probes}"},
                log,
                self._folder / f"extender-{number}.log",
                f"http://127.0.0.1:{health}",
            )
        self.running.append(replica)
        wait_for(f"replica {number} is ready", lambda: replica.is_ready(self.deployment))
        return replica

    def leader(self) -> str:
        """The leader; empty if there is none: the lease exists before it is held."""
        lease = self._commands.json("get", "lease", SCHEDULER, "-n", NAMESPACE)
        return str(lease["spec"].get("holderIdentity", ""))


def _with(arguments: list[str], replaced: dict[str, str]) -> list[str]:
    found = [(one, *one.partition("=")[::2]) for one in arguments]
    return [f"{option}={replaced[option]}" if option in replaced else one for one, option, _ in found]


@pytest.fixture(scope="module")
def pods(commands: Commands, binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    argv = ["helm", "install", SCHEDULER, str(CHARTS / SCHEDULER), "-n", NAMESPACE, "--create-namespace"]
    for name, seconds in LEASE.items():
        argv += ["--set", f"leaderElection.{name}={seconds * SLOWNESS:.0f}"]
    commands.typed(*argv)
    annotations = {names.ANN_DEVICES: devices_annotation(NodeMode.SHARE, MemoryUnit.GIB, (GPU,))}
    metadata = {"name": "n1", "annotations": annotations, "labels": {names.LABEL_MODE: "share"}}
    commands.apply({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    patch = json.dumps({"status": {"capacity": TAKEN, "allocatable": TAKEN}})
    commands.typed(
        "kubectl", "patch", "node", "n1", "--subresource", "status", "--type", "merge", "-p", patch
    )
    made = Pods(commands, binaries, tmp_path_factory.mktemp("scheduler"))
    try:
        yield made
    finally:
        for replica in made.running:
            replica.kill()


def ask_for(commands: Commands, name: str, units: int) -> None:
    limits = {names.GPU_MEM: str(units)}
    spec = {
        "schedulerName": SCHEDULER,
        # The node has no kubelet.
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "c", "image": "x", "resources": {"limits": limits}}],
    }
    wait_for(
        "the default account is there",
        lambda: commands.run("kubectl", "get", "sa", "default").returncode == 0,
    )
    commands.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def bound(commands: Commands, name: str) -> dict[str, Any]:
    def look() -> dict[str, Any]:
        found: dict[str, Any] = commands.json("get", "pod", name)
        return found if found["spec"].get("nodeName") else {}

    return wait_for(f"pod {name} is bound", look, every=0.3)


def reason(commands: Commands, name: str) -> str:
    def look() -> str:
        conditions = commands.json("get", "pod", name)["status"].get("conditions", ())
        return next((str(one["message"]) for one in conditions if one["type"] == "PodScheduled"), "")

    return wait_for(f"pod {name} has a reason for being pending", look, every=0.3)


def test_a_leader_binds_pods_and_another_continues_when_it_dies(pods: Pods, commands: Commands) -> None:
    first = pods.start()
    leader = wait_for("one leads", pods.leader)
    second = pods.start()
    assert pods.leader() == leader
    ask_for(commands, "a", 3)
    record = bound(commands, "a")["metadata"]["annotations"]
    assert (record[names.ANN_MEM_INDEX], record[names.ANN_MEM_POD]) == ("0", "3")
    assert GPU.uuid in record[names.ANN_SHARE]

    first.kill()
    wait_for("the other leads", lambda: pods.leader() not in ("", leader))
    # The other's ledger knows what the first one allocated.
    ask_for(commands, "b", 13)
    assert "0/1 nodes are available: 1 no single GPU has 13 GiB free (largest free: 12 GiB" in reason(
        commands, "b"
    )
    ask_for(commands, "c", 12)
    assert bound(commands, "c")["metadata"]["annotations"][names.ANN_MEM_POD] == "12"
    assert second.answers("extender", "/healthz") == 200


def test_verbs_are_not_on_the_pods_address_and_metrics_not_on_the_probe_port(pods: Pods) -> None:
    url, probes = pods.running[-1].metrics, pods.running[-1].probes["extender"]
    assert (
        b"gpushare_scheduler_bind_attempts_total"
        in urllib.request.urlopen(f"{url}/metrics", timeout=5 * SLOWNESS).read()
    )
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{probes}/metrics", timeout=5 * SLOWNESS)
    for at in (url, probes):
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(f"{at}/gpushare/bind", data=b"{}", timeout=5 * SLOWNESS)


def test_without_its_extender_a_leader_binds_no_gpu_pod(pods: Pods, commands: Commands) -> None:
    """By the node's sums it would fit, but its GPU would be unknown."""
    commands.typed("kubectl", "delete", "pod", "a", "b", "--grace-period", "0", "--force")
    last = pods.running[-1]
    last.extender.send_signal(signal.SIGKILL)
    last.extender.wait(10)
    ask_for(commands, "d", 1)
    assert "connection refused" in reason(commands, "d")


def test_the_account_has_every_permission_that_it_uses(pods: Pods) -> None:
    for replica in pods.running:
        denied = [line for line in replica.log.read_text().splitlines() if "forbidden" in line.lower()]
        assert not denied, denied[:3]
    for number in range(len(pods.running)):
        assert "403 Forbidden" not in (pods._folder / f"extender-{number}.log").read_text()
