"""The webhook's rules against the one table of what admission takes and refuses."""

from typing import Any

import pytest

from gpushare.admission.rules import request_rules
from gpushare.api import names
from gpushare.api.node.startup_taint import STARTUP_TAINT
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.unit_conversion import Counting
from tests.admission_cases import PODS, WORKLOADS, pod, workload
from tests.admission_mistakes import SMALL, SMALL_MIB, large_words, placed_words
from tests.admission_scheduler import DEBUGS, NODE_WORDS, OF_THE_SCHEDULER
from tests.admission_users import ADMIN, SCHEDULER, User
from tests.admission_words import COUNT, RECORDS, PodCase, box, counted
from tests.admission_writes import WRITES, Write
from tests.rows import every_row
from tests.unit.admission.reviews import answered, patched, review, reviewer

OURS = [case for case in PODS if case.by == "gpushare"]
#: Whole namespaces are left out by the configuration, which tests/e2e/test_webhook.py shows.
POINTED = [case for case in OURS if not case.refused and not case.namespace_labels]


TAKEN = [case for case in OURS if not case.refused]


def said(response: dict[str, Any]) -> str:
    return "" if response["allowed"] else response["status"]["message"]


@every_row(OURS)
async def test_a_pod(case: PodCase) -> None:
    response = answered(await reviewer().validate(review("pods", pod(case, "x"))))
    assert said(response) == case.says
    assert "warnings" not in response


@every_row(POINTED)
async def test_which_scheduler_a_pod_gets(case: PodCase) -> None:
    sent = pod(case, "x")
    sent["spec"].setdefault("schedulerName", "default-scheduler")  # as the API server has filled it in
    response = answered(await reviewer().mutate(review("pods", sent)))
    assert response["allowed"]
    assert patched(sent, response.get("patch", []))["spec"]["schedulerName"] == case.scheduler


@every_row(TAKEN)
async def test_memory_amounts_become_units(case: PodCase) -> None:
    sent = settled(pod(case, "x"))
    response = answered(await reviewer().count(review("pods", sent)))
    assert response["allowed"]
    made = patched(sent, response.get("patch", []))
    assert not counted(case, made)
    assert made == sent or case.units
    assert "patch" not in answered(await reviewer().count(review("pods", made))), "it is done once"
    assert answered(await reviewer().validate(review("pods", made)))["allowed"]
    # Whichever of the two is asked first: the scheduler is the same.
    pointed = answered(await reviewer().mutate(review("pods", made)))
    before = answered(await reviewer().mutate(review("pods", sent)))
    assert pointed.get("patch") == before.get("patch")


@every_row([case for case in PODS if case.refused])
async def test_what_is_wrong_is_refused_in_the_same_words_after_that(case: PodCase) -> None:
    """Or by Kubernetes, which sees its own mistakes as they were submitted."""
    sent = settled(pod(case, "x"))
    made = patched(sent, answered(await reviewer().count(review("pods", sent))).get("patch", []))
    if case.by == "kubernetes":
        assert made == sent
    else:
        assert said(answered(await reviewer().validate(review("pods", made)))) == case.says


async def test_nothing_but_new_pods_is_counted() -> None:
    case = next(case for case in PODS if case.id == "mib")
    for body in (
        review("pods", pod(case, "x"), pod(case, "x"), operation="UPDATE"),
        review("deployments", workload("Deployment", case, "x"), group="apps"),
        review("pods", {"spec": 7}),
    ):
        response = answered(await reviewer().count(body))
        assert response["allowed"]
        assert "patch" not in response


async def test_limits_alone_are_replaced_where_requests_are_not_filled_in() -> None:
    case = next(case for case in PODS if case.id == "mib")
    patch = answered(await reviewer().count(review("pods", pod(case, "x"))))["patch"]
    assert patched(pod(case, "x"), patch)["spec"]["containers"][0]["resources"] == {
        "limits": {names.GPU_MEM: "6"}
    }


async def test_percent_needs_a_card() -> None:
    case = next(case for case in PODS if case.id == "percent")
    without = reviewer(counting=Counting())
    assert said(answered(await without.validate(review("pods", pod(case, "x"))))) == (
        f"{names.GPU_MEMORY_PERCENT} requires a reference GPU size, which is not configured in this cluster (chart value "
        f"admission.referenceGpuMemoryMiB): request {names.GPU_MEMORY} in container c"
    )
    assert "patch" not in answered(await without.count(review("pods", pod(case, "x"))))


def settled(sent: dict[str, Any]) -> dict[str, Any]:
    """As the API server fills in a pod before it asks: requests as limits, and a scheduler."""
    sent["spec"].setdefault("schedulerName", "default-scheduler")
    for one in [*sent["spec"]["containers"], *sent["spec"].get("initContainers", ())]:
        resources = one.get("resources", {})
        if "limits" in resources:
            resources["requests"] = {**resources["limits"], **resources.get("requests", {})}
    return sent


@pytest.mark.parametrize("kind", WORKLOADS)
@every_row(OURS)
async def test_a_template(kind: str, case: PodCase) -> None:
    version, resource = WORKLOADS[kind]
    group = version.rpartition("/")[0]
    sent = workload(kind, case, "x")
    response = answered(await reviewer().validate(review(resource, sent, group=group)))
    assert said(response) == case.says
    again = review(resource, sent, sent, operation="UPDATE", group=group)
    assert answered(await reviewer().validate(again))["allowed"], (
        "what is there already can be scaled and cleared"
    )
    empty = workload(kind, PODS[0], "x")
    changed = review(resource, sent, empty, operation="UPDATE", group=group)
    assert said(answered(await reviewer().validate(changed))) == case.says


@every_row(OURS)
async def test_likely_mistakes_are_admitted_with_a_warning(case: PodCase) -> None:
    for kind, (version, resource) in {"Pod": ("v1", "pods"), **WORKLOADS}.items():
        sent = pod(case, "x") if kind == "Pod" else workload(kind, case, "x")
        body = review(resource, sent, group=version.rpartition("/")[0])
        response = answered(await reviewer().warn(body))
        assert response.pop("warnings", []) == list(case.warns)
        assert response == {"uid": "u-1", "allowed": True}


async def test_amounts_that_admission_wrote_itself_cause_no_warning() -> None:
    case = PodCase("counted", (box(mem="8192"),), annotations={names.ANN_REQUESTED: "{}"})
    assert "warnings" not in answered(await reviewer().warn(review("pods", pod(case, "x"))))


async def test_units_of_128_mib_are_eight_times_as_many() -> None:
    case = next(case for case in PODS if case.id == "asks-mib-as-units")
    small = reviewer(counting=Counting(MemoryUnit.MIB_128))
    assert "warnings" not in answered(await small.warn(review("pods", pod(case, "x"))))
    more = PodCase("more", (box(mem="8193"),))
    [warning] = answered(await small.warn(review("pods", pod(more, "x"))))["warnings"]
    assert warning == large_words(("c", "8193")).replace("1GiB", "128MiB")


@every_row([*SMALL, *SMALL_MIB])
async def test_less_than_a_context_takes_is_warned_about_where_a_unit_is_so_small(case: PodCase) -> None:
    small = reviewer(counting=Counting(MemoryUnit.MIB_128))
    sent = review("deployments", workload("Deployment", case, "x"), group="apps")
    assert answered(await small.warn(sent)).get("warnings", []) == list(case.warns)
    assert "warnings" not in answered(await reviewer().warn(sent))


async def test_a_label_that_is_read_when_a_pod_is_placed_is_warned_about_once_it_is() -> None:
    bound = settled(pod(PodCase("bound", (box(mem="3"),), spec={"nodeName": "n1"}), "x"))
    waits = settled(pod(PodCase("waits", (box(mem="3"),)), "x"))
    other = settled(pod(PodCase("other", (box(),), spec={"nodeName": "n1"}), "x"))

    async def warned(before: dict[str, Any], **labels: str) -> list[str]:
        now = {**before, "metadata": {**before["metadata"], "labels": labels}}
        response = answered(await reviewer().warn(review("pods", now, before, operation="UPDATE")))
        assert response["allowed"]
        return list(response.get("warnings", []))

    for label, value in ((COUNT, "3"), (names.LABEL_POD_COMPUTE_CLASS, "batch")):
        assert await warned(bound, **{label: value}) == [placed_words(label)]
    assert await warned(bound, team="x") == await warned(waits, **{COUNT: "3"}) == []
    assert await warned(other, **{COUNT: "3"}) == []


async def test_nothing_is_warned_about_that_is_not_written() -> None:
    case = next(case for case in PODS if case.id == "asks-4Gi")
    for body in (
        review("pods", None, pod(case, "x"), operation="DELETE"),
        review("pods/status", pod(case, "x"), operation="UPDATE"),
        review("pods", {"spec": 7}),
        review("services", {}),
        review("pods", pod(PodCase("no-number", (box(mem="four"),)), "x")),
    ):
        assert answered(await reviewer().warn(body)) == {"uid": "u-1", "allowed": True}


@every_row([*WRITES, *OF_THE_SCHEDULER, DEBUGS])
async def test_a_write(write: Write) -> None:
    body = review(
        write.resource, write.new, write.old, operation=write.operation, name=write.name, user=write.user
    )
    assert said(answered(await reviewer().validate(body))) == write.says


async def test_of_a_nodes_taints_the_scheduler_takes_the_startup_taint_alone() -> None:
    own = [{"key": "mine", "effect": "NoExecute"}]
    before = {"metadata": {"name": "n1"}, "spec": {"taints": [{"key": STARTUP_TAINT}, *own]}}

    async def of(user: User, **spec: Any) -> str:
        now = {"metadata": {"name": "n1", "resourceVersion": "2"}, "spec": spec}
        body = review("nodes", now, before, operation="UPDATE", name="n1", user=user)
        return said(answered(await reviewer().validate(body)))

    assert await of(SCHEDULER, taints=own) == ""
    assert await of(SCHEDULER, taints=[]) == await of(SCHEDULER) == NODE_WORDS
    assert await of(SCHEDULER, taints=own, unschedulable=True) == NODE_WORDS
    assert await of(ADMIN) == ""


def test_the_table_names_the_same_records() -> None:
    assert request_rules.RECORDS == RECORDS
