"""Predictions hold on a real kube-scheduler, and node agents report usage through the real API server."""

import json
import sys
from collections.abc import Iterator

import pytest

from tests.e2e.cluster.waiting import wait_for
from tests.e2e.product.product import Product, gpu_pod

SIMULATE = (sys.executable, "-m", "gpushare", "simulate", "-o", "json", "-f", "-")


@pytest.fixture
def planned(product: Product) -> Iterator[Product]:
    yield product
    product.delete_all()


def test_pods_are_bound_as_predicted_and_agents_are_reached_through_the_api_server(
    planned: Product,
) -> None:
    pods = [
        gpu_pod("fits", 15, labels={"app": "fits"}, node="cgpu-t4"),
        gpu_pod("core", 2, 30, labels={"app": "core"}),
        gpu_pod("late", 1, labels={"app": "late"}, node="cgpu-t4"),
    ]
    ran = planned.run(*SIMULATE, stdin=json.dumps({"kind": "List", "items": pods}))
    assert ran.code == 3, ran.text
    predicted = {one["name"]: one for one in json.loads(ran.out)["pods"]}
    assert {name: one["node"] for name, one in predicted.items()} == {
        "fits": "cgpu-t4",
        "core": "core-mem-v100x4",
        "late": None,
    }
    for name in ("fits", "core"):
        planned.apply(next(pod for pod in pods if pod["metadata"]["name"] == name))
        planned.running(f"app={name}")
        assert planned.node_of(name) == predicted[name]["node"]
    planned.apply(pods[-1])
    reason = predicted["late"]["why"].rstrip(".")
    wait_for(
        "the reason that was said", lambda: any(reason in one for one in planned.events("late")), timeout=30
    )

    document = json.loads(planned.inspect("--recommend", "-o", "json"))
    assert document["missing"] == []
    assert {one["name"] for one in document["workloads"]} == {"fits", "core"}
    assert document["since"] > 0
