"""Brings a cluster up and takes it down without a trace."""

import contextlib
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from gpushare_playground.cluster.nodes import DEFAULT_NODES
from tests.e2e.cluster import cgroups, driver, network, record, sample_images
from tests.e2e.cluster.cluster import Cluster, Node
from tests.e2e.cluster.credentials import write_credentials
from tests.e2e.cluster.machine import Machine, Process
from tests.e2e.cluster.programs import kubernetes_version
from tests.e2e.cluster.record import CONTROL, NodeRecord, Record
from tests.e2e.cluster.serving import serves
from tests.e2e.cluster.waiting import wait_for

Report = Callable[[str], None]

THREE_NODES: Final = tuple(NodeRecord(n.name, i, n.preset) for i, n in enumerate(DEFAULT_NODES))
"""Those of the playground: one node of each kind that the documentation's examples use."""


def up(
    state: Path,
    binaries: Path,
    *,
    k8s: str,
    nodes: Sequence[NodeRecord],
    drivers: bool = True,
    host: str = "kubeadm",
    report: Report = print,
) -> Cluster:
    """Start a cluster in the folder ``state``, which must not exist yet; ready when it returns.

    Nodes that have a preset get the fake driver and its CDI specification, unless ``drivers`` is false.
    ``host`` (of :data:`~tests.e2e.cluster.hosts.HOSTS`) sets where nodes have their sockets and folders.

    If it fails or is interrupted, everything is taken down again. Raises ``FileExistsError``,
    :class:`~tests.e2e.cluster.network.NoSlot`, ``RuntimeError`` or ``TimeoutError`` with what to check.
    """
    _check_machine()
    state = state.absolute()
    state.parent.mkdir(parents=True, exist_ok=True)
    try:
        state.mkdir(mode=0o755)
    except FileExistsError:
        raise FileExistsError(
            f"{state}: a cluster is there; end it with: {record.to_type('down', state)}"
        ) from None
    started = time.monotonic()

    def say(what: str) -> None:
        report(f"{time.monotonic() - started:6.2f} s  {what}")

    try:
        plan = network.take_slot()
        record.write(state, Record(k8s, plan.slot, binaries, tuple(nodes), host))
        cluster = Cluster(state)
        _prepare(cluster)
        say("credentials and configuration")
        _make_machines(cluster)
        say("machines")
        _start(cluster, say, drivers=drivers)
    except BaseException:
        logs = state.parent / f"{state.name}.failed-logs"
        shutil.rmtree(logs, ignore_errors=True)
        with contextlib.suppress(OSError):
            shutil.copytree(state / "log", logs)
            report(f"not up; logs are kept in {logs}")
        down(state)
        raise
    return cluster


def down(state: Path) -> bool:
    """End everything of the cluster in ``state`` and remove the folder; false when there was none.

    Works for a cluster of another process, and for one that is not complete. Raises ``RuntimeError`` when something of it cannot be removed.
    """
    state = state.absolute()
    if not state.is_dir():
        return False
    group = record.group(state)
    for pid in cgroups.processes(group):
        with contextlib.suppress(ProcessLookupError):
            Process.of(pid).end(signal.SIGKILL)
    wait_for(f"processes of {state.name} to end", lambda: not cgroups.processes(group), timeout=30)
    cgroups.remove(group)
    with contextlib.suppress(FileNotFoundError):
        network.give_back(network.Plan(record.read(state).slot))
    # What is mounted there would be removed with it.
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    if inside := [where for where in mounted if Path(where).is_relative_to(state)]:
        raise RuntimeError(
            f"{state}: mounted still are {', '.join(inside)}; unmount them, then take it down again"
        )
    shutil.rmtree(state)
    if state.parent == record.STATES:
        with contextlib.suppress(OSError):
            state.parent.rmdir()
    return True


def _check_machine() -> None:
    missing = [
        name for name in ("ip", "nsenter", "unshare", "nft", "iptables", "busybox") if not shutil.which(name)
    ]
    if missing:
        raise RuntimeError(f"missing programs: {', '.join(missing)}; run scripts/install-e2e-packages")


def _prepare(cluster: Cluster) -> None:
    at, plan = cluster.layout, cluster.plan
    addresses = {node.name: node.address for node in cluster.nodes}
    write_credentials(at.credentials, at.url, [plan.control, plan.api_service], addresses)
    shutil.copy2(at.credentials / "admin.kubeconfig", cluster.kubeconfig)
    at.write_config([node.name for node in cluster.nodes])


def _make_machines(cluster: Cluster) -> None:
    group = record.group(cluster.state)

    def make(name: str) -> Machine:
        machine = Machine.start(
            name,
            cluster.state / "machines" / name,
            group=f"{group}/{name}",
            shared=cluster.state,
            binaries=cluster.bin,
        )
        record.write_machine(machine)
        return machine

    with ThreadPoolExecutor() as side_by_side:
        control, *nodes = side_by_side.map(make, [CONTROL, *(node.name for node in cluster.nodes)])
    network.connect(cluster.plan, control.init.pid, [node.init.pid for node in nodes])


def _start(cluster: Cluster, say: Report, *, drivers: bool) -> None:
    with ThreadPoolExecutor() as side_by_side:
        cluster.start("etcd")
        cluster.start("kube-apiserver")
        version = kubernetes_version(cluster.record.k8s)
        archives = side_by_side.submit(sample_images.archives, cluster.bin, version)
        prepared = [
            side_by_side.submit(_prepare_node, cluster, node, archives, drivers=drivers)
            for node in cluster.nodes
        ]
        wait_for("the API server to be ready", lambda: _up_or_ended(cluster), timeout=60)
        say("API server ready")
        cluster.start("kube-controller-manager")
        cluster.start("kube-scheduler")
        for done in prepared:
            done.result()
        say("containerd, images, drivers")
        _grant_kube_proxy(cluster)
        for node in cluster.nodes:
            cluster.start("kubelet", node.name)
            cluster.start("kube-proxy", node.name)
        cluster.wait_ready()
        say(f"{len(cluster.nodes)} nodes Ready")
        wait_for(
            "the default service account",
            lambda: _exists(cluster, "namespaces/default/serviceaccounts/default"),
        )
        say("up")


def _up_or_ended(cluster: Cluster) -> bool:
    cluster.check_running()
    return cluster.ready()


def _prepare_node(cluster: Cluster, node: Node, archives: Future[list[Path]], *, drivers: bool) -> None:
    """Start containerd with the images that every pod needs, and give it the node's pod network."""
    if node.preset:
        driver.describe(node)
    if drivers and node.preset:
        driver.install(node)
    for source, target in (
        (f"{node.name}.cni.conflist", "/etc/cni/net.d/10-pods.conflist"),
        ("containerd.toml", cluster.host.containerd_config),
    ):
        node.run("install", "-D", "-m", "644", f"{cluster.layout.config}/{source}", target)
    cluster.start("containerd", node.name)
    wait_for(
        f"containerd of {node.name}", lambda: serves("containerd", node.machine, cluster.host), timeout=30
    )
    for archive in archives.result():
        cluster.load_image(archive, node.name)


def _grant_kube_proxy(cluster: Cluster) -> None:
    """The role exists from the start; installers bind it."""
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "kube-proxy"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "system:node-proxier",
        },
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:kube-proxy"}],
    }
    # kubectl waits for the server's schema for 32 s, and an emulated processor takes longer to write the first.
    wait_for("the API server's schema", lambda: cluster.get("/openapi/v2", timeout=60))
    cluster.apply(binding)


def _exists(cluster: Cluster, path: str) -> bool:
    return cluster.kubectl("get", "--raw", f"/api/v1/{path}", check=False).returncode == 0
