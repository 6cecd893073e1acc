"""Requests in MiB and in percent of a card become units when pods are submitted, and every reader finds units."""

import json

import pytest

from gpushare.api import names
from gpushare.api.quantity import MemoryUnit
from tests.integration.whole.seen import Json, is_running, node_of, record_of, waits_because
from tests.integration.whole.world import World, gpu_pod, shared_node

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: 16384 MiB on one GPU, and 16160 on each of four: the smaller is the card of which percent is meant, 15 units.
NODES = (shared_node("four", "core-mem-4"), shared_node("single", "v100-16384"))
MEMORY, PERCENT = names.GPU_MEMORY, names.GPU_MEMORY_PERCENT


def asked(pod: Json, container: str = "main") -> Json:
    """Limits and requests of a container as they are stored, without what is not ours."""
    listed = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]
    return next(dict(one["resources"]) for one in listed if one["name"] == container)


def units(amount: int) -> Json:
    return {which: {names.GPU_MEM: str(amount)} for which in ("limits", "requests")}


def mib_of(pod: Json) -> list[int]:
    """What it holds of each of its GPUs, by its record."""
    return [share["mib"] for share in record_of(pod)]


def note(unit_mib: int, **containers: str) -> Json:
    return {"unitMib": unit_mib, "cardMib": 16160, "containers": containers}


async def test_a_deployment_in_mib_runs_in_units_and_keeps_what_was_written(seen: World) -> None:
    spec = gpu_pod("x", None, limits={MEMORY: "6144Mi"}, node="single")["spec"]
    template = {"metadata": {"labels": {"app": "mib"}}, "spec": {**spec, "restartPolicy": "Always"}}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "mib", "namespace": "default"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "mib"}}, "template": template},
    }
    try:
        assert (await seen.apply(deployment)).code == 0
        pods = await seen.pods.until(
            lambda: (found := [one for one in seen.pods.items.values() if is_running(one)])[1:] and found,
            "both pods run",
        )
        for pod in pods:
            assert asked(pod) == units(6)
            assert mib_of(pod) == [6144]
            assert pod["spec"]["schedulerName"] == names.SCHEDULER_NAME
            assert json.loads(pod["metadata"]["annotations"][names.ANN_REQUESTED]) == note(
                1024, main="6144Mi"
            )
            described = (await seen.kubectl("describe", "pod", pod["metadata"]["name"])).out
            assert f"{names.GPU_MEM}:  6" in described
            assert f"{MEMORY}:" not in described
        written = json.loads((await seen.kubectl("get", "deployment", "mib", "-o", "json")).out)
        assert written["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {MEMORY: "6Gi"}
        shown = (await seen.kubectl("inspect", "cgpu", "single")).out
        assert "12/16" in shown
    finally:
        await seen.kubectl("delete", "deployment", "mib")


async def test_four_quarters_are_on_one_card(seen: World) -> None:
    quarters = [f"quarter-{number}" for number in range(4)]
    await seen.create(*(gpu_pod(name, None, limits={PERCENT: 25}, node="four") for name in quarters))
    await seen.run_all(*quarters)
    assert {asked(seen.pod(name))["limits"][names.GPU_MEM] for name in quarters} == {"3"}
    assert len({record_of(seen.pod(name))[0]["uuid"] for name in quarters}) == 1


async def test_init_containers_and_sidecars_are_counted_as_in_units(seen: World) -> None:
    pod = gpu_pod("mixed", 2, limits={}, node="single")
    first, beside = (json.loads(json.dumps(pod["spec"]["containers"][0])) for _ in range(2))
    first |= {"name": "first", "command": ["true"], "resources": {"limits": {MEMORY: "9Gi"}}}
    beside |= {"name": "beside", "restartPolicy": "Always", "resources": {"limits": {MEMORY: "1025Mi"}}}
    pod["spec"]["initContainers"] = [first, beside]
    await seen.create(pod)
    await seen.run_all("mixed")
    found = seen.pod("mixed")
    assert [asked(found, name)["limits"][names.GPU_MEM] for name in ("main", "first", "beside")] == [
        "2",
        "9",
        "2",
    ]
    # The first runs before the others: it is the most that the pod has at once.
    assert mib_of(found) == [9216]
    assert json.loads(found["metadata"]["annotations"][names.ANN_REQUESTED]) == note(
        1024, first="9216Mi", beside="1025Mi"
    )


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (
            {MEMORY: "6144"},
            f"{MEMORY} must be a whole number of MiB up to 16Ti, such as 6144Mi or 6Gi: container main asks for 6144",
        ),
        ({PERCENT: 110}, f"{PERCENT} must be a whole number from 1 to 100: container main asks for 110"),
        (
            {PERCENT: 5},
            "is less than one unit of 1GiB on a card of 16160 MiB: container main asks for 5; ask for 7 or more",
        ),
        (
            {names.GPU_MEM: 2, MEMORY: "2Gi"},
            f"is asked for in one way: container main asks for {names.GPU_MEM} and {MEMORY}",
        ),
    ],
)
async def test_what_is_not_clear_cannot_be_submitted(seen: World, limits: Json, says: str) -> None:
    pod = gpu_pod("unclear", None, limits=limits)
    ran = await seen.apply(pod)
    assert ran.code == 1
    assert says in ran.err
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "unclear", "namespace": "default"},
        "spec": {"template": {"spec": pod["spec"]}},
    }
    ran = await seen.apply(job)
    assert ran.code == 1
    assert says in ran.err
    assert seen.pods.items == {}


async def test_when_the_unit_changes_no_pod_gets_less_than_it_asked_for(seen: World) -> None:
    """20 units of 1 GiB are on no GPU; 20 units of 128 MiB would be, and are not what was asked for."""
    large = gpu_pod("large", None, limits={MEMORY: "20Gi"}, node="single")
    await seen.create(large, gpu_pod("there", None, limits={MEMORY: "6Gi"}, node="single"))
    await seen.run_all("there")
    try:
        await seen.cluster.set_unit(MemoryUnit.MIB_128)
        await seen.offers("single", 128)
        reason = "the request for 20 GiB was counted in units of 1 GiB when it was submitted, the node counts in 128 MiB"
        await seen.pods.until(
            lambda: reason in waits_because(seen.pod("large")),
            "it waits, and says so",
            tell=lambda: waits_because(seen.pod("large")),
        )
        await seen.create(gpu_pod("new", None, limits={MEMORY: "6Gi"}, node="single"))
        await seen.run_all("new")
        assert asked(seen.pod("new")) == units(48)
        assert mib_of(seen.pod("there")) == mib_of(seen.pod("new")) == [6144]
        assert node_of(seen.pod("large")) == ""
    finally:
        await seen.cluster.set_unit(MemoryUnit.GIB)
        await seen.offers("single", 16)
