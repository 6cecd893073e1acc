"""Which GPU a pod gets on the real cluster, as labels and annotations of its node have it."""

import json
from collections.abc import Iterator

import pytest

from gpushare.api import names
from tests.e2e.cluster import Cluster
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.product.product import Product, gpu_pod
from tests.e2e.product.stream import settle

NODE = "core-mem-v100x4"
UNITS = 15


@pytest.fixture
def labelled(product: Product) -> Iterator[Product]:
    """Labels and the annotation of this node are as before afterwards."""
    product.offers(NODE, gpu_mem=4 * UNITS, gpu_core=400)
    try:
        yield product
    finally:
        keys = (names.LABEL_PLACEMENT, names.LABEL_MAX_PODS, names.LABEL_MAX_NODE_PODS)
        product.kubectl("label", "node", NODE, *(f"{key}-" for key in keys))
        product.kubectl("annotate", "node", NODE, f"{names.ANN_CORDONED}-")


def given(cluster: Cluster, product: Product, app: str, count: int) -> list[int]:
    """Indexes of the GPUs of ``count`` running pods, in order."""
    return sorted(
        json.loads(pod["metadata"]["annotations"][names.ANN_SHARE])["gpus"][0]["index"]
        for pod in settle(cluster, product, app, count)
    )


def pods(app: str, count: int, mem: int) -> list[dict[str, object]]:
    return [gpu_pod(f"{app}-{number}", mem, 10, labels={"app": app}, node=NODE) for number in range(count)]


def refusal(product: Product, pod: str, words: str) -> None:
    wait_for(
        f"{pod} is told: {words}",
        lambda: any(words in event for event in product.events(pod)),
        timeout=30,
        every=0.3,
    )


@pytest.mark.parametrize(("policy", "used"), [("binpack", 1), ("spread", 4), ("fragmentation", 1)])
def test_four_small_pods_take_the_gpus_that_the_nodes_policy_would_fill(
    cluster: Cluster, labelled: Product, policy: str, used: int
) -> None:
    labelled.kubectl("label", "node", NODE, f"{names.LABEL_PLACEMENT}={policy}", "--overwrite")
    labelled.apply(*pods(policy, 4, 3))
    assert len(set(given(cluster, labelled, policy, 4))) == used


def test_a_cordoned_gpu_keeps_what_runs_there_and_takes_nothing_new(
    cluster: Cluster, labelled: Product
) -> None:
    labelled.apply(*pods("before", 1, 3))
    (there,) = given(cluster, labelled, "before", 1)
    labelled.kubectl("annotate", "node", NODE, f"{names.ANN_CORDONED}={there}")
    labelled.apply(*pods("after", 3, UNITS))
    assert given(cluster, labelled, "after", 3) == [index for index in range(4) if index != there]
    labelled.apply(*pods("late", 1, 3))
    refusal(labelled, "late-0", f"GPU {there} is cordoned")
    assert given(cluster, labelled, "before", 1) == [there]
    labelled.kubectl("annotate", "node", NODE, f"{names.ANN_CORDONED}-")
    assert given(cluster, labelled, "late", 1) == [there], "whoever waited goes in when the cordon goes"


@pytest.mark.parametrize(
    ("label", "most", "words"),
    [
        pytest.param(names.LABEL_MAX_PODS, 4, "1 pod", id="on_each_gpu"),
        pytest.param(names.LABEL_MAX_NODE_PODS, 1, "1 pod", id="on_the_node"),
    ],
)
def test_no_more_pods_than_its_label_allows_come_to_a_node(
    cluster: Cluster, labelled: Product, label: str, most: int, words: str
) -> None:
    labelled.kubectl("label", "node", NODE, f"{label}=1")
    labelled.apply(*pods("capped", most, 3))
    assert given(cluster, labelled, "capped", most) == list(range(most))
    labelled.apply(*pods("beyond", 1, 3))
    refusal(labelled, "beyond-0", words)
    labelled.kubectl("label", "node", NODE, f"{label}=2", "--overwrite")
    labelled.running("app=beyond")
