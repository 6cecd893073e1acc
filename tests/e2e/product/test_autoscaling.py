"""Support for cluster-autoscaler, with the permissions of the chart: placeholder pods, and the startup taint."""

from collections.abc import Iterator

import pytest

from gpushare.api import names
from gpushare.api.node.startup_taint import STARTUP_TAINT
from gpushare.scheduler.plugins.autoscaling.settings import INSTANCE_TYPE
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.product.audit import calls, granted
from tests.e2e.product.broken_up import APPS, FOUR, ROOMY, broken_up
from tests.e2e.product.product import SCHEDULER, Json, Product

NAMESPACE = "gpushare-placeholders"
ROLES = ("ack-co-scheduler:startup-taint", "ack-co-scheduler:placeholders")


@pytest.fixture
def scaled(product: Product) -> Iterator[Product]:
    """The product as configured for cluster-autoscaler."""
    options = (
        "removeStartupTaint=true",
        "placeholderPods.enabled=true",
        "placeholderPods.minPendingSeconds=1",
    )
    product.kubectl("label", "node", FOUR, f"{INSTANCE_TYPE}=gpu.four")
    product.upgrade(SCHEDULER, *(argument for one in options for argument in ("--set", f"autoscaling.{one}")))
    yield product
    product.upgrade(SCHEDULER, "--reset-values")
    product.kubectl("label", "node", FOUR, f"{INSTANCE_TYPE}-")
    gone = product.run("kubectl", "wait", "--for=delete", f"namespace/{NAMESPACE}", "--timeout=60s")
    assert gone.code == 0, (
        f"{gone.text}\n{product.run('kubectl', 'get', 'namespace', NAMESPACE, '-o', 'yaml').text}"
    )


def unschedulable(pod: Json) -> bool:
    """Whether cluster-autoscaler considers it."""
    return any(
        (one["type"], one["status"], one.get("reason")) == ("PodScheduled", "False", "Unschedulable")
        for one in pod["status"].get("conditions") or ()
    )


def test_placeholder_pods_and_startup_taint_work_with_the_charts_permissions(
    cluster: Cluster, scaled: Product, k8s: str
) -> None:
    scaled.kubectl("taint", "node", ROOMY, f"{STARTUP_TAINT}=:NoSchedule")
    wait_for("a node with GPUs loses it", lambda: STARTUP_TAINT not in tainted(scaled, ROOMY), timeout=60)
    if semantic(k8s) >= (1, 30):
        outputs: list[str] = []
        try:
            wait_for(
                "nothing else of a node is the scheduler's", lambda: refused(scaled, outputs), timeout=30
            )
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{outputs}") from error
    with broken_up(scaled, roomy=False):
        wait_for(
            "a placeholder pod asks for a node",
            lambda: [unschedulable(pod) for pod in scaled.pods("", NAMESPACE)] == [True],
            timeout=60,
        )
        (made,) = scaled.pods("", NAMESPACE)
        (wide,) = scaled.pods("app=wide")
        assert made["metadata"]["labels"] == {names.LABEL_STANDS_FOR: wide["metadata"]["uid"]}
        assert not made["spec"].get("nodeName")
        assert "stand-in" not in scaled.inspect("--fragmentation")
        scaled.wait_for_event("wide", "ScaleUpRequested")
        scaled.kubectl("delete", "deployment", APPS[0])
        scaled.running("app=wide")
        wait_for("none is left", lambda: not scaled.pods("", NAMESPACE), timeout=60)
    roles = [role for kind in ("clusterroles", "roles") for role in scaled.json("get", kind, "-A")["items"]]
    rights = set(granted((role for role in roles if role["metadata"]["name"] in ROLES), (SCHEDULER,)))
    assert len(rights) == 3
    used = {call.right for call in calls(cluster, (SCHEDULER,)) if call.of_ours and not call.forbidden}
    assert rights <= used, f"rights that were not used: {rights - used}"


def tainted(product: Product, node: str) -> list[str]:
    """The keys of its taints."""
    return [one["key"] for one in product.json("get", "node", node)["spec"].get("taints") or ()]


def refused(product: Product, outputs: list[str]) -> bool:
    """Whether a policy keeps the scheduler's account from other changes that the permission on nodes would allow."""
    outputs.clear()
    account = f"--as=system:serviceaccount:kube-system:{SCHEDULER}"
    for command in (
        ("label", "node", FOUR, "stolen=yes", "--overwrite"),
        ("taint", "node", FOUR, "stolen=yes:PreferNoSchedule", "--overwrite"),
        ("cordon", FOUR),
    ):
        ran = product.run("kubectl", account, *command)
        outputs.append(ran.text)
        # For a refused cordon kubectl prints that, and exits with 0.
        if "may change a node only to remove its startup taint" not in ran.text:
            product.kubectl("label", "node", FOUR, "stolen-")
            product.run("kubectl", "taint", "node", FOUR, "stolen-")
            product.kubectl("uncordon", FOUR)
            return False
    return True


def semantic(version: str) -> tuple[int, ...]:
    """``1.36`` as numbers."""
    return tuple(map(int, version.split(".")))
