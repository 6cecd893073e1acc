"""A higher-priority pod preempts on one GPU of the real cluster; no pod is evicted needlessly."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster.waiting import wait_for
from tests.e2e.product.product import Product, gpu_pod

NODE = "core-mem-v100x4"
LOW = [f"low-{number}" for number in range(4)]
CLASSES = {
    "low": (10, "PreemptLowerPriority"),
    "high": (1000, "PreemptLowerPriority"),
    "polite": (2000, "Never"),
}


def pod(name: str, units: int, important: str) -> dict[str, Any]:
    made = gpu_pod(name, units, labels={"app": name.partition("-")[0]}, node=NODE)
    made["spec"]["priorityClassName"] = important
    return made


@pytest.fixture
def ranked(product: Product) -> Iterator[Product]:
    """With priority classes, higher and lower."""
    product.offers(NODE, gpu_mem=60, gpu_core=400)
    product.apply(
        *(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
                "preemptionPolicy": policy,
            }
            for name, (value, policy) in CLASSES.items()
        )
    )
    for name in CLASSES:
        product.admitted(pod("any", 1, name))
    try:
        yield product
    finally:
        product.delete_all()
        product.kubectl("delete", "priorityclass", *CLASSES)


def left(product: Product) -> list[str]:
    """The lower-priority pods that are not terminating."""
    return [
        one["metadata"]["name"]
        for one in product.pods("app=low")
        if not one["metadata"].get("deletionTimestamp")
    ]


@pytest.mark.parametrize(
    ("held", "asked"),
    [
        pytest.param(11, 8, id="where_the_sum_would_do_and_no_gpu_does"),
        pytest.param(14, 15, id="where_the_sum_is_short_too"),
    ],
)
def test_one_pod_is_evicted_and_reports_for_which_pod(ranked: Product, held: int, asked: int) -> None:
    ranked.apply(*(pod(name, held, "low") for name in LOW))
    ranked.running("app=low", 4)
    ranked.apply(pod("polite", asked, "polite"))
    wait_for("who may not preempt waits", lambda: ranked.events("polite"), timeout=60)
    assert len(left(ranked)) == 4
    ranked.kubectl("delete", "pod", "polite", "--grace-period=1")
    high = pod("high", asked, "high")
    planned = ranked.run(
        sys.executable, "-m", "gpushare", "simulate", "-o", "json", "-f", "-", stdin=json.dumps(high)
    )
    ranked.apply(high)
    ranked.running("app=high")
    wait_for("the others run on", lambda: len(left(ranked)) == 3, timeout=60)
    (victim,) = set(LOW) - set(left(ranked))
    # A bare pod: nothing recreates it, and the exit status shows that it has no place.
    assert planned.code == 3, planned.text
    (eviction,) = json.loads(planned.out)["evictions"]
    assert eviction == {"pod": f"default/{victim}", "node": NODE, "for": "default/high", "recreated": False}
    ranked.wait_for_event(victim, "default/high")
