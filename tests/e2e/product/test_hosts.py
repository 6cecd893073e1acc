"""Nodes that have their sockets and folders elsewhere: what docs/guide/install.md tells to set for them, and what happens without."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.api import names
from tests.e2e.cluster import THREE_NODES, Cluster, build, down, up, wait_for
from tests.e2e.product.conftest import load_images
from tests.e2e.product.product import INSTALLER, NAMESPACE, SCHEDULER, Product, gpu_pod
from tests.e2e.product.test_isolation import ALLOCATES, SAMPLE

(NODE,) = (replace(node, index=0) for node in THREE_NODES if node.name == "cgpu-t4")
#: Host → values of ack-ai-installer.
VALUES = {
    "k3s": (),
    "microk8s": ("nodeAgent.kubeletRootDir=/var/snap/microk8s/common/var/lib/kubelet",),
    "talos": ("nodeAgent.cdiDirs={/var/cdi/static,/var/cdi/dynamic}",),
    "containerd-1.7": ("nodeAgent.containerRuntime=cdi",),
    "nvidia-runtime": (),
}
WITHIN_S = 120.0

# On a pull, kubeadm's paths are those of all other tests, and tests/unit guards where the agent looks.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]


@pytest.fixture(params=VALUES)
def host(request: pytest.FixtureRequest) -> str:
    """The host's name."""
    name: str = request.param
    return name


@pytest.fixture
def cluster_of_host(states: Path, binaries: Path, k8s: str, host: str) -> Iterator[Cluster]:
    """One such node, with images."""
    programs = build(k8s, ready=binaries, host=host)
    cluster = up(states / f"host-{host}", programs, k8s=k8s, nodes=[NODE], host=host)
    try:
        if cluster.host.runtime != "runc":
            _install_nvidia_runtime(cluster)
        load_images(cluster)
        yield cluster
    finally:
        down(cluster.state)


def _install_nvidia_runtime(cluster: Cluster) -> None:
    """In its mode ``cdi``, which takes what the fake driver needs in containers from the CDI spec."""
    node, runtime = cluster.node(NODE.name), cluster.host.runtime
    settings = f'[{runtime}]\nmode = "cdi"\nruntimes = ["{cluster.bin}/runc"]\n'
    folder = "/etc/nvidia-container-runtime"
    node.run("install", "-m", "755", f"{cluster.bin}/{runtime}", f"/usr/bin/{runtime}")
    node.run("sh", "-c", f"mkdir -p {folder} && cat > {folder}/config.toml", input=settings.encode())


def test_a_host_of_another_distribution_runs_limited_pods_with_the_values_of_its_row(
    cluster_of_host: Cluster, host: str
) -> None:
    cluster, at = cluster_of_host, cluster_of_host.host
    product = Product(cluster.kubeconfig, cluster.bin)
    product.label(NODE.name, "core_mem")
    product.install(INSTALLER, *(word for value in VALUES[host] for word in ("--set", value)))
    product.install(SCHEDULER)
    agent = product.rolled_out()[NODE.name]
    product.offers(NODE.name, gpu_mem=15, gpu_core=100)
    pod = gpu_pod("held", 2, 30, labels={"app": "held"})
    pod["spec"]["containers"][0]["image"] = SAMPLE
    product.apply(pod)
    product.running("app=held")
    limit = product.environment("held")[names.ENV_MEM_LIMIT]
    seen = product.kubectl("exec", "held", "--", "python3", "-c", ALLOCATES).split()
    assert seen == [limit, *"00002"]
    assert product.environment("held")[names.ENV_VISIBLE_DEVICES].startswith("GPU-")
    page = f"/api/v1/namespaces/{NAMESPACE}/pods/{agent}:9452/proxy/metrics"
    metrics = product.kubectl("get", "--raw", page)
    (method,) = re.findall(
        r'^gpushare_nodeagent_container_runtime\{method="(\w+)",.*\} 1$', metrics, re.MULTILINE
    )
    assert method == ("cdi" if at.cdi else "nvidia")
    ran = product.run(
        *("kubectl", "-n", NAMESPACE, "exec", agent, "--", "gpushare", "doctor", "node", "--all"),
        *("--host-root", "/host", "--kubelet-root", at.kubelet_root),
        *("--containerd-config", at.containerd_config, "--cdi-dirs", ",".join(at.cdi_dirs)),
    )
    for check in ("kubelet", "agent", "containers", "isolation"):
        assert any(line.startswith("ok") and f" {check} " in line for line in ran.out.splitlines()), ran.text
    product.delete_all()
    wait_for("nothing is held", lambda: product.row(NODE.name)[2] == "0/15", timeout=WITHIN_S)
