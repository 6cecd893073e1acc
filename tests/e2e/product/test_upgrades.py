"""From the previous release to the checkout, back, and forward again, with running pods that either has started."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.api import names
from tests.e2e.cluster import THREE_NODES, Cluster, down, up, wait_for
from tests.e2e.product.conftest import load_images
from tests.e2e.product.previous import Previous, build_previous
from tests.e2e.product.product import INSTALLER, MODES, SCHEDULER, Product, gpu_pod
from tests.e2e.product.stream import ON_TWO_NODES, deployment, disagreements, stream
from tests.e2e.product.test_isolation import ALLOCATES, GOES_PAST, LEAST, MOST, SAMPLE, busy_percent

SHARE, CGPU, CORE_MEM = MODES
#: Timeout for a state, in seconds.
WITHIN_S = 120.0
#: Processes of a container that is above its memory are killed within seconds.
WATCHDOG = (
    "nodeAgent.watchdog.policy=kill,nodeAgent.watchdog.graceSeconds=2,nodeAgent.watchdog.periodSeconds=1"
)

# On every pull, test_rollouts.py does it with two settings of the checkout, and unit tests read what earlier releases wrote.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]


@dataclass(frozen=True, slots=True)
class Life:
    """Properties of a pod that change if it is evicted, restarted or moved."""

    uid: str
    container: str
    began: str
    node: str
    record: str

    @classmethod
    def of(cls, pod: Any) -> "Life":
        """The pod's current ones."""
        (status,) = pod["status"]["containerStatuses"]
        return cls(
            pod["metadata"]["uid"],
            status["containerID"],
            status["state"]["running"]["startedAt"],
            pod["spec"]["nodeName"],
            pod["metadata"]["annotations"][names.ANN_SHARE],
        )


@dataclass
class Fleet:
    """Pods that run all the time, by name."""

    cluster: Cluster
    product: Product
    previous: Previous
    lives: dict[str, Life] = field(default_factory=dict)
    tables: dict[str, list[str]] = field(default_factory=dict)

    def start(self, *pods: Any) -> None:
        """Add pods, which must exist from now on."""
        self.product.apply(*pods)
        for pod in pods:
            name = pod["metadata"]["name"]
            (found,) = self.product.running(f"app={name}", timeout_s=WITHIN_S)
            self.lives[name] = Life.of(found)
        self.tables = self._tables()

    def restart(self, name: str) -> None:
        """Kill the pod's container, so that its kubelet restarts it from the response of the agent of that time."""
        before = self.lives[name]
        container = before.container.removeprefix("containerd://")
        self.cluster.node(before.node).ctr("tasks", "kill", "--signal", "SIGKILL", container)

        def began_again() -> bool:
            (found,) = self.product.running(f"app={name}", timeout_s=WITHIN_S)
            self.lives[name] = Life.of(found)
            return self.lives[name].container != before.container

        wait_for(f"the container of {name} is started again", began_again, timeout=WITHIN_S)
        assert replace(self.lives[name], container="", began="") == replace(before, container="", began="")

    def check(self) -> None:
        """Every pod is and is counted as before, by both releases' plugins."""
        wait_for("kubelets and records agree", lambda: not disagreements(self.cluster), timeout=30)
        lives = {pod["metadata"]["name"]: Life.of(pod) for pod in self.product.pods()}
        assert lives == self.lives
        assert self._tables() == self.tables
        assert self._tables({"PYTHONPATH": self.previous.python_path}) == self.tables

    def _tables(self, environment: dict[str, str] | None = None) -> dict[str, list[str]]:
        ran = self.product.run("kubectl", "inspect", "cgpu", environment=environment)
        assert ran.code == 0, ran.text
        rows = [line.split() for line in ran.out.splitlines()]
        return {row[0]: row for row in rows if row and row[0] in MODES}


def sample(name: str, mem: int, core: int | None = None, *, node: str, **container: Any) -> Any:
    """A pod with the programs of ACK's sample, Python among them."""
    pod = gpu_pod(name, mem, core, labels={"app": name}, node=node)
    pod["spec"]["containers"][0] |= {"image": SAMPLE, **container}
    return pod


@pytest.fixture(scope="module")
def fleet(states: Path, binaries: Path, k8s: str) -> Iterator[Fleet]:
    """The previous release, installed on its own cluster, with a pod of each mode."""
    previous = build_previous()
    cluster = up(states / "upgrades", binaries, k8s=k8s, nodes=THREE_NODES)
    try:
        product = Product(cluster.kubeconfig, cluster.bin)
        previous.load(cluster)
        load_images(cluster)
        for node, mode in MODES.items():
            product.label(node, mode)
        product.install(INSTALLER, "--set", WATCHDOG, charts=previous.charts)
        product.install(SCHEDULER, charts=previous.charts)
        product.rolled_out()
        for node, mem in ((SHARE, 16), (CGPU, 15), (CORE_MEM, 60)):
            product.offers(node, gpu_mem=mem)
        fleet = Fleet(cluster, product, previous)
        fleet.start(
            sample("counted", 3, node=SHARE),
            sample("sliced", 3, node=CGPU),
            sample("busy", 2, 30, node=CORE_MEM, command=["bandwidthTest"]),
        )
        yield fleet
    finally:
        down(cluster.state)


def upgrade(product: Product) -> None:
    """In the order of docs/operation/operate.md."""
    for chart in (INSTALLER, SCHEDULER):
        product.upgrade(chart)


def roll_back(product: Product) -> None:
    """In the reverse order, as there."""
    for chart in (SCHEDULER, INSTALLER):
        product.roll_back(chart)


def test_pods_keep_their_shares_and_limits_over_an_upgrade_its_rollback_and_another_upgrade(
    fleet: Fleet,
) -> None:
    product = fleet.product
    works(fleet, "at-first")
    for name, change in (("upgraded", upgrade), ("rolled-back", roll_back), ("upgraded-again", upgrade)):
        product.apply(deployment("passing", 3, 1, affinity=ON_TWO_NODES))
        product.running("app=passing", 3)
        with stream(fleet.cluster, "passing"):
            change(product)
            product.rolled_out()
        product.kubectl("delete", "deployment", "passing", "--cascade=foreground")
        wait_for("they are gone", lambda: not product.pods("app=passing"), timeout=WITHIN_S)
        fleet.check()
        works(fleet, name)


def works(fleet: Fleet, step: str) -> None:
    """Running and restarted containers are held to their limits, a new pod is, too, and nodes are full when
    they should be.
    """
    product = fleet.product
    for name in limited(fleet):
        holds_memory(product, name)
    # Of the first release and of the previous step.
    for name in {limited(fleet)[0], limited(fleet)[-1]}:
        fleet.restart(name)
        holds_memory(product, name)
    fleet.start(sample(f"new-{step}", 2, 10, node=CORE_MEM))
    holds_memory(product, f"new-{step}")
    holds_compute(product)
    fills(product, SHARE, 13)
    fills(product, CGPU, 12)
    fleet.check()


def limited(fleet: Fleet) -> list[str]:
    """Idle pods whose memory is limited, in order of creation."""
    return [name for name in fleet.lives if name not in ("counted", "busy")]


def holds_memory(product: Product, name: str) -> None:
    """The container's programs see its share and get no more, and one that bypasses the libraries is killed
    by the agent.
    """
    limit = product.environment(name)[names.ENV_MEM_LIMIT]
    reported = product.kubectl("exec", name, "--", "python3", "-c", ALLOCATES).split()
    assert reported == [limit, *"00002"], name
    result = product.run("kubectl", "exec", name, "--", "python3", "-c", GOES_PAST)
    assert (result.out.split(), result.code) == (["0", "0", "0"], 137), (name, result.text)


def holds_compute(product: Product) -> None:
    """The busy container gets its 30% of the GPU's time."""
    percentages: list[int] = []

    def settled() -> bool:
        percentages.append(busy_percent(product, "busy"))
        return LEAST <= percentages[-1] <= MOST

    try:
        wait_for("its utilization is about 30%", settled, timeout=WITHIN_S, every=0.5)
    except TimeoutError as error:
        raise AssertionError(f"{error}; seen: {percentages}") from error


def fills(product: Product, node: str, free: int) -> None:
    """The scheduler counts exactly ``free`` units as free on the node."""
    product.apply(gpu_pod("fills", free, labels={"app": "fills"}, node=node))
    product.running("app=fills", timeout_s=WITHIN_S)
    product.apply(gpu_pod("over", 1, labels={"app": "over"}, node=node))
    product.wait_for_event("over", "FailedScheduling")
    assert not product.node_of("over")
    product.kubectl("delete", "pod", "over", "fills", "--grace-period=1", "--timeout=60s")
