import asyncio

import pytest

from gpushare.kube.client.errors import ApiError
from gpushare_playground.controllers.jobcount import TRACKING, backoff_left_s
from gpushare_playground.controllers.running import Controllers
from gpushare_playground.objects import JOBS, PODS, Json
from tests.unit.playground.controllers.conftest import Cluster
from tests.unit.playground.controllers.memory_api import Events, quiet, until


async def test_a_job_starts_a_pod_that_carries_its_labels_and_completes_with_it(cluster: Cluster) -> None:
    job = cluster.job()
    await cluster.settled()
    [name] = cluster.pods()
    pod = cluster.api.get(PODS, name)
    assert name.startswith("work-")
    assert pod["metadata"]["labels"]["job-name"] == "work"
    assert pod["metadata"]["labels"]["batch.kubernetes.io/controller-uid"] == job["metadata"]["uid"]
    assert cluster.status(JOBS, "work")["active"] == 1
    cluster.start(name)
    await cluster.settled()
    assert cluster.status(JOBS, "work")["ready"] == 1
    cluster.finish(name)
    await cluster.settled()
    status = cluster.status(JOBS, "work")
    assert status["succeeded"] == 1
    assert "active" not in status
    assert status["uncountedTerminatedPods"] == {}
    assert cluster.conditions(JOBS, "work") == {"SuccessCriteriaMet": "True", "Complete": "True"}
    assert TRACKING not in cluster.api.get(PODS, name)["metadata"].get("finalizers", [])
    assert ("Normal", "Completed", "Job completed") in cluster.events.seen


async def test_completions_are_processed_with_the_requested_parallelism(cluster: Cluster) -> None:
    cluster.job(parallelism=2, completions=5)
    finished = 0
    while "Complete" not in cluster.conditions(JOBS, "work"):
        await cluster.settled()
        active = [
            name
            for name in cluster.pods()
            if not (cluster.api.get(PODS, name).get("status") or {}).get("phase")
        ]
        assert len(active) == min(2, 5 - finished)
        cluster.finish(active[0])
        finished += 1
        await cluster.settled()
    assert finished == 5
    assert cluster.status(JOBS, "work")["succeeded"] == 5
    assert len(cluster.pods()) == 5


async def test_a_work_queue_starts_no_more_once_one_pod_has_succeeded(cluster: Cluster) -> None:
    job = cluster.job(parallelism=2)
    cluster.api.change(JOBS, "default/work", spec={"completions": None})
    await cluster.settled()
    del job
    first = cluster.pods()[0]
    cluster.finish(first)
    await cluster.settled()
    assert "Complete" not in cluster.conditions(JOBS, "work")
    for name in cluster.pods():
        if name != first:
            cluster.finish(name)
    await cluster.settled()
    assert cluster.conditions(JOBS, "work")["Complete"] == "True"


async def test_failed_pods_are_replaced_until_the_backoff_limit(cluster: Cluster) -> None:
    cluster.job(backoffLimit=1)
    await cluster.settled()
    cluster.finish(cluster.pods()[0], "Failed")
    await cluster.settled()
    assert len(cluster.pods()) == 2
    for name in cluster.pods():
        cluster.finish(name, "Failed")
    await cluster.settled()
    conditions = {one["type"]: one for one in cluster.status(JOBS, "work")["conditions"]}
    assert conditions["Failed"]["reason"] == "BackoffLimitExceeded"
    assert conditions["Failed"]["message"] == "Job has reached the specified backoff limit"
    assert cluster.status(JOBS, "work")["failed"] == 2
    assert len(cluster.pods()) == 2


async def test_a_job_past_its_deadline_fails_and_its_pods_are_deleted(cluster: Cluster) -> None:
    cluster.job(activeDeadlineSeconds=100)
    await cluster.settled()
    [name] = cluster.pods()
    cluster.start(name)
    await cluster.settled()
    cluster.api.change(JOBS, "default/work", status={"startTime": "2020-01-01T00:00:00Z"})
    await cluster.settled()
    assert cluster.api.get(PODS, name)["metadata"]["deletionTimestamp"]
    assert cluster.conditions(JOBS, "work") == {"FailureTarget": "True"}
    cluster.api.drop("pods", f"default/{name}")
    await cluster.settled()
    assert cluster.conditions(JOBS, "work")["Failed"] == "True"
    assert cluster.status(JOBS, "work")["failed"] == 1


async def test_a_deleted_pod_is_replaced_and_counted_as_failed_once(cluster: Cluster) -> None:
    cluster.job()
    await cluster.settled()
    [name] = cluster.pods()
    cluster.start(name)
    await cluster.settled()
    await cluster.api.objects.delete(PODS, cluster.api.get(PODS, name))
    await cluster.settled()
    assert len([one for one in cluster.pods() if one != name]) == 1
    assert cluster.status(JOBS, "work")["failed"] == 1


async def test_a_succeeded_pod_counts_even_if_it_is_deleted_before_it_was_seen(cluster: Cluster) -> None:
    cluster.job(completions=2)
    await cluster.settled()
    [name] = cluster.pods()
    cluster.finish(name)
    await cluster.api.objects.delete(PODS, cluster.api.get(PODS, name))
    await cluster.settled()
    assert cluster.status(JOBS, "work")["succeeded"] == 1
    assert name not in cluster.pods()
    [other] = cluster.pods()
    cluster.finish(other)
    await cluster.settled()
    assert cluster.status(JOBS, "work")["succeeded"] == 2


async def test_lower_parallelism_stops_pods_without_counting_them_as_failed(cluster: Cluster) -> None:
    cluster.job(parallelism=3, completions=3)
    await cluster.settled()
    cluster.api.change(JOBS, "default/work", spec={"parallelism": 1})
    await cluster.settled()
    assert len(cluster.pods()) == 1
    assert cluster.status(JOBS, "work")["active"] == 1
    assert "failed" not in cluster.status(JOBS, "work")


async def test_pods_of_a_deleted_job_lose_the_finalizer_and_go(cluster: Cluster) -> None:
    job = cluster.job()
    await cluster.settled()
    [name] = cluster.pods()
    await cluster.api.objects.delete(JOBS, job)
    await cluster.api.objects.delete(PODS, cluster.api.get(PODS, name))
    await cluster.settled()
    assert cluster.pods() == []


@pytest.mark.parametrize("more", [{"completionMode": "Indexed"}, {"suspend": True}])
async def test_a_job_with_an_unsupported_field_makes_no_pods_and_names_it(
    cluster: Cluster, more: Json
) -> None:
    cluster.job(**more)
    await cluster.settled()
    assert cluster.pods() == []
    [(kind, reason, note)] = cluster.events.seen
    assert (kind, reason) == ("Warning", "Unsupported")
    assert next(iter(more)) in note


async def test_a_lagging_watch_never_makes_a_second_pod(cluster: Cluster) -> None:
    cluster.job(parallelism=2, completions=2)
    cluster.api.lagging = True
    await cluster.settled()
    for _ in range(5):
        # The Job's own changes arrive, those of its pods do not.
        cluster.api.caches[JOBS].upsert(cluster.api.get(JOBS, "work"))
        await cluster.settled()
    assert len(cluster.pods()) == 2
    cluster.api.lagging = False
    cluster.api.deliver()
    await cluster.settled()
    assert len(cluster.pods()) == 2


async def test_a_creation_whose_response_is_lost_is_not_repeated_under_another_name(cluster: Cluster) -> None:
    cluster.api.lose_next_answer = "POST"
    cluster.job()
    await until(lambda: cluster.status(JOBS, "work").get("active") == 1)
    assert len(cluster.pods()) == 1


async def test_a_refused_pod_is_an_event_and_is_created_once_it_is_admitted(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(plural: str, key: str, sent: Json, path: str) -> Json:
        raise ApiError(403, "Forbidden", "exceeded quota: gpu", path)

    with monkeypatch.context() as refusing:
        refusing.setattr(cluster.api, "_create", refuse)
        cluster.job()
        event = ("Warning", "FailedCreate", "Error creating: exceeded quota: gpu")
        await until(lambda: event in cluster.events.seen)
    await until(cluster.pods)


async def test_a_restarted_controller_continues_where_the_old_one_stopped(
    cluster: Cluster,
) -> None:
    cluster.job(completions=3)
    await cluster.settled()
    cluster.finish(cluster.pods()[0])
    await cluster.settled()
    restarted = Controllers(cluster.api.objects, cluster.api.caches, lambda _: Events())
    task = asyncio.create_task(restarted.run())
    await quiet(lambda: restarted.is_idle and cluster.controllers.is_idle)
    assert cluster.status(JOBS, "work")["succeeded"] == 1
    assert len(cluster.pods()) == 2
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_the_wait_for_a_replacement_doubles_with_each_failure_since_the_last_success() -> None:
    def pod(phase: str, second: int) -> dict[str, object]:
        terminated = {"state": {"terminated": {"finishedAt": f"1970-01-01T00:00:{second:02}Z"}}}
        return {"metadata": {"name": "p"}, "status": {"phase": phase, "containerStatuses": [terminated]}}

    failed = [pod("Failed", 1), pod("Failed", 20)]
    assert backoff_left_s(failed[:1], 5.0, 10.0) == 6.0
    assert backoff_left_s(failed, 20.0, 10.0) == 20.0
    assert backoff_left_s([*failed, pod("Succeeded", 21)], 22.0, 10.0) == 0.0
    assert backoff_left_s([], 22.0, 10.0) == 0.0
