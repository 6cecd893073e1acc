"""The scheduler's decisions, as people read them: through the real API server's proxy of the chart's Service."""

import json
from typing import Any

from gpushare.api import names
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.product.product import Product, gpu_pod


def why(product: Product, pod: str) -> dict[str, Any]:
    """The leader's decision: the API server forwards to any replica, sometimes to a different one each time."""

    def answer() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(product.inspect("--why", pod, "-o", "json"))
        return found if found["record"] and found["record"]["scheduler"]["leads"] else {}

    return wait_for("the leader answers", answer, timeout=60)


def waiting(product: Product) -> dict[str, dict[str, Any]]:
    document = json.loads(product.inspect("--pending", "-o", "json"))
    assert document["source"] == "scheduler", document["warnings"]
    return {one["key"]: one for one in document["waiting"]}


def test_the_leader_reports_where_a_pod_is_and_why_another_is_pending(product: Product) -> None:
    labels = {names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: "2"}
    product.apply(gpu_pod("goes", 3, labels={"app": "goes"}), gpu_pod("stays", 3, labels=labels))
    product.running("app=goes")

    def asked_about() -> dict[str, Any]:
        stays = waiting(product).get("default/stays", {})
        return stays if stays.get("category") == "gang" else {}

    stays = wait_for("the other is listed, and was asked about", asked_about, timeout=60)
    gone = why(product, "goes")

    assert gone["source"] == "scheduler", gone["warnings"]
    assert gone["record"]["holds"]["node"] == product.node_of("goes")
    chosen = [gpu["index"] for gpu in gone["record"]["choice"]["gpus"] if gpu["chosen"]]
    assert chosen == [gpu["index"] for gpu in gone["record"]["holds"]["gpus"]]
    assert stays["suggestion"] == "1 more pod of gang default/g: 1 of 2 is there"
    product.delete_all()


def test_usage_of_pods_is_shown_next_to_their_allocation(product: Product) -> None:
    product.apply(gpu_pod("uses", 3, labels={"app": "uses"}))
    product.running("app=uses")

    def known() -> bool:
        document = json.loads(product.inspect("--pods", "-o", "json"))
        return [one["usedMiB"] is not None for one in document["pods"] if one["name"] == "uses"] == [True]

    wait_for("its node's agent reports", known, timeout=60)
    product.delete_all()
