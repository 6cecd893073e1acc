import pytest

from gpushare_playground.objects import PODS, STATEFUL_SETS, Json
from tests.unit.playground.controllers.conftest import Cluster


def add_set(cluster: Cluster, name: str = "web", **spec: object) -> Json:
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "a"}]}}
    return cluster.api.add(
        STATEFUL_SETS,
        {
            "metadata": {"name": name},
            "spec": {"replicas": 3, "serviceName": "svc", "template": template, **spec},
        },
    )


async def test_pods_come_up_one_after_the_other_under_stable_names(cluster: Cluster) -> None:
    add_set(cluster)
    await cluster.settled()
    assert cluster.pods() == ["web-0"]
    cluster.start("web-0", ready=False)
    await cluster.settled()
    assert cluster.pods() == ["web-0"]
    await_ready = ["web-0", "web-1", "web-2"]
    for number, name in enumerate(await_ready):
        assert cluster.pods() == await_ready[: number + 1]
        cluster.start(name)
        await cluster.settled()
    pod = cluster.api.get(PODS, "web-2")
    assert pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == "2"
    assert pod["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] == "web-2"
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("web-2", "svc")
    status = cluster.status(STATEFUL_SETS, "web")
    assert (status["replicas"], status["readyReplicas"], status["updatedReplicas"]) == (3, 3, 3)
    assert status["currentRevision"] == status["updateRevision"]


async def test_parallel_pods_are_created_at_the_same_time(cluster: Cluster) -> None:
    add_set(cluster, podManagementPolicy="Parallel")
    await cluster.settled()
    assert cluster.pods() == ["web-0", "web-1", "web-2"]


async def test_scaling_down_takes_the_highest_number_first_and_waits_for_it(cluster: Cluster) -> None:
    add_set(cluster)
    await cluster.run_all()
    cluster.scale(STATEFUL_SETS, "web", 1)
    await cluster.settled()
    going = [
        name for name in cluster.pods() if cluster.api.get(PODS, name)["metadata"].get("deletionTimestamp")
    ]
    assert going == ["web-2"]
    await cluster.run_all()
    assert cluster.pods() == ["web-0"]
    assert cluster.status(STATEFUL_SETS, "web")["replicas"] == 1


async def test_a_new_template_replaces_pods_from_the_highest_number_down(cluster: Cluster) -> None:
    add_set(cluster, replicas=2)
    await cluster.run_all()
    before = cluster.status(STATEFUL_SETS, "web")["updateRevision"]
    changed = {"spec": {"containers": [{"name": "c", "image": "b"}]}}
    cluster.api.change(STATEFUL_SETS, "default/web", spec={"template": changed})
    await cluster.settled()
    assert cluster.api.get(PODS, "web-1")["metadata"].get("deletionTimestamp")
    assert not cluster.api.get(PODS, "web-0")["metadata"].get("deletionTimestamp")
    await cluster.run_all()
    images = {cluster.api.get(PODS, name)["spec"]["containers"][0]["image"] for name in cluster.pods()}
    assert images == {"b"}
    status = cluster.status(STATEFUL_SETS, "web")
    assert status["currentRevision"] == status["updateRevision"] != before


async def test_a_failed_pod_is_recreated_under_its_name(cluster: Cluster) -> None:
    add_set(cluster, replicas=1)
    await cluster.run_all()
    uid = cluster.api.get(PODS, "web-0")["metadata"]["uid"]
    cluster.finish("web-0", "Failed")
    await cluster.settled()
    assert cluster.pods() == ["web-0"]
    assert cluster.api.get(PODS, "web-0")["metadata"]["uid"] != uid


async def test_a_pod_of_that_name_that_belongs_to_someone_else_is_left_alone(cluster: Cluster) -> None:
    cluster.api.add(PODS, {"metadata": {"name": "web-0"}})
    add_set(cluster, replicas=1)
    await cluster.settled()
    assert "ownerReferences" not in cluster.api.get(PODS, "web-0")["metadata"]
    assert any(reason == "FailedCreate" and "web-0" in note for _, reason, note in cluster.events.seen)


@pytest.mark.parametrize(
    "more",
    [
        {"volumeClaimTemplates": [{"metadata": {"name": "data"}}]},
        {"ordinals": {"start": 1}},
        {"updateStrategy": {"type": "OnDelete"}},
        {"updateStrategy": {"rollingUpdate": {"partition": 1}}},
    ],
)
async def test_a_set_with_an_unsupported_field_makes_no_pods_and_names_it(
    cluster: Cluster, more: Json
) -> None:
    add_set(cluster, **more)
    await cluster.settled()
    assert cluster.pods() == []
    [(kind, reason, note)] = cluster.events.seen
    assert (kind, reason) == ("Warning", "Unsupported")
    assert next(iter(more)) in note
