"""Pods move for a pending one, if the chart enables it; that one is retried immediately when they have left."""

from tests.e2e.cluster.waiting import wait_for
from tests.e2e.product.broken_up import APPS, FOUR, ROOMY, broken_up
from tests.e2e.product.product import SCHEDULER, Product

#: Far below the five minutes after which kube-scheduler tries every pod by itself.
AT_ONCE_S = 120.0


def test_a_pod_moves_where_enabled_and_the_pending_one_runs(product: Product) -> None:
    with broken_up(product, roomy=True) as before:
        report = product.inspect("--fragmentation")
        assert "1 would fit after moves" in report, report
        assert {pod["metadata"]["uid"] for name in APPS for pod in product.pods(f"app={name}")} == before
        options = ("enabled=true", "intervalSeconds=1", "minPendingSeconds=1")
        product.upgrade(
            SCHEDULER, *(argument for one in options for argument in ("--set", f"defragmentation.{one}"))
        )
        try:
            product.running("app=wide", timeout_s=AT_ONCE_S)
            assert product.node_of("wide") == FOUR
            for name in APPS:
                product.running(f"app={name}")
            now = {
                pod["metadata"]["uid"]: pod["spec"]["nodeName"]
                for name in APPS
                for pod in product.pods(f"app={name}")
            }
            assert [node for uid, node in now.items() if uid not in before] == [ROOMY], now
            wait_for(
                "an event that says so",
                lambda: any(
                    "DefragmentationSucceeded" in one and f"of {FOUR}" in one
                    for one in product.events("wide")
                ),
                timeout=30,
            )
        finally:
            product.upgrade(SCHEDULER, "--reset-values")
