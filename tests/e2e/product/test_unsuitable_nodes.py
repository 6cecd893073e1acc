"""On a node that cannot serve GPUs, or not as the chart's values ask, ``kubectl get events`` says why, and what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.cluster import Node, NodeRecord, build, cgroups, down, driver, up, wait_for
from tests.e2e.product.conftest import load_images
from tests.e2e.product.product import CHARTS, INSTALLER, NAMESPACE, SCHEDULER, Product, gpu_pod
from tests.e2e.product.test_isolation import SAMPLE

#: Its driver has limits by cgroup.
NODE = NodeRecord("cgpu-t4", 0, "t4-r615")
WITHIN_S = 60.0

# On a pull, tests/integration/nodeagent guards each event with a driver and a kubelet that are scripted.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def bare(states: Path, binaries: Path, k8s: str) -> Iterator[tuple[Product, Node]]:
    """Both charts on a node without driver and CDI description."""
    cluster = up(states / "unsuitable", binaries, k8s=k8s, nodes=[NODE], drivers=False)
    try:
        load_images(cluster)
        product = Product(cluster.kubeconfig, cluster.bin)
        product.label(NODE.name, "cgpu")
        product.install(INSTALLER)
        product.install(SCHEDULER)
        yield product, cluster.node(NODE.name)
    finally:
        down(cluster.state)


@pytest.fixture
def sound(bare: tuple[Product, Node]) -> Iterator[tuple[Product, Node]]:
    """The same node with a driver, described for CDI; without pods of other tests."""
    product, node = bare
    driver.install(node)
    product.offers(NODE.name, gpu_mem=15)
    yield bare
    product.delete_all()


def explains(product: Product, *words: str) -> None:
    """Wait until a line of ``kubectl get events`` has all the words."""
    seen: list[str] = []

    def reached() -> bool:
        seen[:] = product.kubectl("get", "events", "--all-namespaces").splitlines()
        return any(all(word in line for word in words) for line in seen)

    try:
        wait_for(f"an event that says {words}", reached, timeout=WITHIN_S, every=0.5)
    except TimeoutError as error:
        raise AssertionError("\n".join([str(error), *seen])) from error


@contextmanager
def upgraded(product: Product, *values: str) -> Iterator[None]:
    """The chart with these values, which need not become ready, while the block runs."""
    sets = [word for value in values for word in ("--set", value)]
    product.typed(
        "helm", "upgrade", INSTALLER, str(CHARTS / INSTALLER), "-n", NAMESPACE, *sets, timeout_s=600
    )
    try:
        yield
    finally:
        product.roll_back(INSTALLER)
        product.rolled_out()


def uses(name: str) -> dict[str, object]:
    """A pod with a share, with NVIDIA's programs where a driver is mounted."""
    pod = gpu_pod(name, 2, labels={"app": name})
    pod["spec"]["containers"][0]["image"] = SAMPLE
    return pod  # type: ignore[no-any-return]


def test_a_node_without_a_driver_says_so_and_so_does_a_pod_that_waits_for_it(
    bare: tuple[Product, Node],
) -> None:
    product, _ = bare
    product.apply(uses("waits"))
    explains(product, f"node/{NODE.name}", "DriverNotFound", "Install the NVIDIA driver on the node")
    explains(product, "pod/waits", "FailedScheduling", "node has no working GPU")
    product.delete_all()


def test_a_container_runtime_that_adds_no_driver_is_reported_on_the_pod(bare: tuple[Product, Node]) -> None:
    """No description for CDI and no runtime of NVIDIA's, as with a containerd that is too old for CDI."""
    product, node = bare
    driver.install(node, cdi=False)
    product.offers(NODE.name, gpu_mem=15)
    product.apply(uses("without"))
    product.running("app=without")
    assert product.run("kubectl", "exec", "without", "--", "nvidia-smi").code != 0
    explains(
        product,
        "pod/without",
        "GPUDriverMissing",
        "NVIDIA's runtime should have injected it",
        "no CDI description",
    )
    product.delete_all()


def test_a_containerd_without_cdi_is_reported_on_the_pod(states: Path, binaries: Path, k8s: str) -> None:
    """Version 1.7 as it comes: CDI is switched off, and no runtime of NVIDIA's is installed."""
    programs = build(k8s, ready=binaries, host="without-cdi")
    cluster = up(states / "without-cdi", programs, k8s=k8s, nodes=[NODE], host="without-cdi")
    try:
        load_images(cluster)
        product = Product(cluster.kubeconfig, cluster.bin)
        product.label(NODE.name, "cgpu")
        product.install(INSTALLER)
        product.install(SCHEDULER)
        product.offers(NODE.name, gpu_mem=15)
        product.apply(uses("without"))
        product.running("app=without")
        explains(product, "pod/without", "GPUDriverMissing", "let NVIDIA's runtime be the default")
    finally:
        down(cluster.state)


def test_directories_in_which_the_container_runtime_looks_for_no_cdi_are_named_by_the_pod(
    sound: tuple[Product, Node],
) -> None:
    product, node = sound
    with upgraded(product, "nodeAgent.cdiDirs={/var/run/cdi,/var/elsewhere}"):
        product.rolled_out()
        # What the agent before wrote where the container runtime looks.
        node.run("sh", "-c", "rm /var/run/cdi/gpushare.dev-*")
        product.apply(gpu_pod("unresolved", 2, labels={"app": "unresolved"}))
        explains(product, "pod/unresolved", "unresolvable CDI devices gpushare.dev/")
        product.delete_all()


def test_a_wrong_root_directory_of_the_kubelet_is_named_by_the_agents_pod(
    sound: tuple[Product, Node],
) -> None:
    product, _ = sound
    with upgraded(product, "nodeAgent.kubeletRootDir=/var/lib/elsewhere"):
        explains(product, "pod/gpushare-device-plugin", "FailedMount", "/var/lib/elsewhere/pod-resources")
        # The agent that works goes on.
        product.apply(uses("meanwhile"))
        product.running("app=meanwhile")


@pytest.mark.skipif(cgroups.unified(), reason="needs a machine with cgroups of version 1")
def test_a_driver_that_cannot_limit_cgroups_of_version_1_is_an_event_of_the_node(
    sound: tuple[Product, Node],
) -> None:
    product, _ = sound
    with upgraded(product, "nodeAgent.isolation.backend=driver"):
        explains(product, f"node/{NODE.name}", "IsolationUnavailable", "has no cgroups of version 2")
