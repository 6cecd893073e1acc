import pytest

from gpushare_playground.controllers.rollout import Limits, SetSize, limits_of, roll
from gpushare_playground.objects import DEPLOYMENTS, PODS, REPLICA_SETS, Json
from tests.unit.playground.controllers.conftest import Cluster


def template(image: str) -> Json:
    return {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}}


def add_deployment(cluster: Cluster, **spec: object) -> Json:
    selector = {"matchLabels": {"app": "web"}}
    defaults = {"replicas": 2, "selector": selector, "template": template("a")}
    return cluster.api.add(DEPLOYMENTS, {"metadata": {"name": "web"}, "spec": {**defaults, **spec}})


async def test_a_deployment_makes_a_set_and_pods_and_reports_as_rollout_status_reads_it(
    cluster: Cluster,
) -> None:
    add_deployment(cluster)
    await cluster.settled()
    assert cluster.conditions(DEPLOYMENTS, "web") == {"Available": "False", "Progressing": "True"}
    await cluster.run_all()
    [name] = cluster.api.named(REPLICA_SETS)
    suffix = name.removeprefix("web-")
    owned = cluster.api.get(REPLICA_SETS, name)
    assert owned["spec"]["selector"]["matchLabels"] == {"app": "web", "pod-template-hash": suffix}
    assert owned["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"
    assert all(pod.startswith(f"{name}-") for pod in cluster.pods())
    status = cluster.status(DEPLOYMENTS, "web")
    counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    assert [status[count] for count in counts] == [2, 2, 2, 2]
    assert status["observedGeneration"] == 1
    assert cluster.conditions(DEPLOYMENTS, "web") == {"Available": "True", "Progressing": "True"}
    progressing = next(one for one in status["conditions"] if one["type"] == "Progressing")
    assert progressing["reason"] == "NewReplicaSetAvailable"


async def test_scaling_follows_in_both_directions(cluster: Cluster) -> None:
    add_deployment(cluster)
    await cluster.run_all()
    cluster.scale(DEPLOYMENTS, "web", 4)
    await cluster.run_all()
    assert len(cluster.pods()) == 4
    cluster.scale(DEPLOYMENTS, "web", 1)
    await cluster.run_all()
    assert len(cluster.pods()) == 1
    assert cluster.status(DEPLOYMENTS, "web")["observedGeneration"] == 3


async def test_a_new_template_takes_over_and_going_back_counts_a_new_revision(cluster: Cluster) -> None:
    add_deployment(cluster)
    await cluster.run_all()
    [first] = cluster.api.named(REPLICA_SETS)
    cluster.api.change(DEPLOYMENTS, "default/web", spec={"template": template("b")})
    await cluster.run_all()
    images = [cluster.api.get(PODS, name)["spec"]["containers"][0]["image"] for name in cluster.pods()]
    assert images == ["b", "b"]
    assert len(cluster.api.named(REPLICA_SETS)) == 2
    cluster.api.change(DEPLOYMENTS, "default/web", spec={"template": template("a")})
    await cluster.run_all()
    annotations = cluster.api.get(REPLICA_SETS, first)["metadata"]["annotations"]
    assert annotations["deployment.kubernetes.io/revision"] == "3"
    current = cluster.api.get(DEPLOYMENTS, "web")["metadata"]["annotations"]
    assert current == {"deployment.kubernetes.io/revision": "3"}
    sizes = ("deployment.kubernetes.io/desired-replicas", "deployment.kubernetes.io/max-replicas")
    assert [annotations[name] for name in sizes] == ["2", "3"]
    assert cluster.api.get(REPLICA_SETS, first)["spec"]["replicas"] == 2


async def test_pods_stay_within_surge_and_availability_while_rolling(cluster: Cluster) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    add_deployment(cluster, replicas=3, strategy=strategy)
    await cluster.run_all()
    cluster.api.change(DEPLOYMENTS, "default/web", spec={"template": template("b")})
    while True:
        await cluster.settled()
        pods = [cluster.api.get(PODS, name) for name in cluster.pods()]
        ready = [pod for pod in pods if pod.get("status") and not pod["metadata"].get("deletionTimestamp")]
        staying = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
        assert len(ready) >= 3
        assert len(staying) <= 4
        going = [pod for pod in pods if pod["metadata"].get("deletionTimestamp")]
        fresh = [pod for pod in pods if not pod.get("status")]
        if not going and not fresh:
            break
        if going:
            cluster.api.drop("pods", f"default/{going[0]['metadata']['name']}")
        elif fresh:
            cluster.start(fresh[0]["metadata"]["name"])
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {"b"}


async def test_recreate_starts_nothing_new_before_the_last_old_pod_is_gone(cluster: Cluster) -> None:
    add_deployment(cluster, replicas=1, strategy={"type": "Recreate"})
    await cluster.run_all()
    [old] = cluster.pods()
    cluster.api.change(DEPLOYMENTS, "default/web", spec={"template": template("b")})
    await cluster.settled()
    assert cluster.pods() == [old]
    cluster.api.drop("pods", f"default/{old}")
    await cluster.settled()
    [new] = cluster.pods()
    assert cluster.api.get(PODS, new)["spec"]["containers"][0]["image"] == "b"


async def test_old_sets_beyond_the_history_limit_are_deleted(cluster: Cluster) -> None:
    add_deployment(cluster, replicas=1, revisionHistoryLimit=1)
    for image in ("b", "c", "d"):
        await cluster.run_all()
        cluster.api.change(DEPLOYMENTS, "default/web", spec={"template": template(image)})
    await cluster.run_all()
    assert len(cluster.api.named(REPLICA_SETS)) == 2


async def test_a_set_deletes_the_least_valuable_pod_first(cluster: Cluster) -> None:
    add_deployment(cluster, replicas=3)
    await cluster.settled()
    pending, cheap, dear = cluster.pods()
    cluster.start(cheap)
    cluster.start(dear)
    cost = {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "-5"}}
    cluster.api.change(PODS, f"default/{cheap}", metadata=cost)
    await cluster.settled()
    cluster.scale(DEPLOYMENTS, "web", 2)
    await cluster.settled()
    assert pending not in cluster.pods()
    cluster.scale(DEPLOYMENTS, "web", 1)
    await cluster.run_all()
    assert cluster.pods() == [dear]


@pytest.mark.parametrize(
    ("replicas", "surge", "unavailable", "limits"),
    [
        (4, "25%", "25%", Limits(4, 1, 1)),
        (1, "25%", "25%", Limits(1, 1, 0)),
        (3, 0, 0, Limits(3, 0, 1)),
        (2, 1, 5, Limits(2, 1, 2)),
    ],
)
def test_percentages_round_as_kubernetes_rounds_them(
    replicas: int, surge: int | str, unavailable: int | str, limits: Limits
) -> None:
    assert limits_of(replicas, surge, unavailable) == limits


def test_old_pods_that_are_not_ready_are_removed_before_ready_ones() -> None:
    sizes = roll(Limits(4, 1, 1), SetSize("new", 1, 1), [SetSize("old", 4, 2)])
    assert sizes == {"old": 2}
