"""The doctor names a gang that would not fit into the empty cluster, and no other."""

from typing import Any

import pytest

from gpushare.api import names
from gpushare.api.node.device import Device
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import Pod, decode_pod
from gpushare.doctor.cluster.facts import Json
from gpushare.doctor.cluster.registry import CHECKS
from gpushare.doctor.findings import examine
from tests.unit.doctor.healthy_cluster import ago, held, node_of, sound

TWO = (Device(0, "GPU-1", 16160), Device(1, "GPU-2", 16160, healthy=False, reason="XID 79"))


def member(
    number: int,
    least: int,
    node: str = "",
    labels: dict[str, str] | None = None,
    *,
    owner: str = "",
    age_s: float = 0,
    phase: str = "Pending",
    **limits: str,
) -> Pod:
    """``owner``: KIND/UID of its controller."""
    kind, _, uid = owner.partition("/")
    gang = {names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: str(least)}
    return decode_pod(
        {
            "metadata": {
                "name": f"g-{number}", "namespace": "default", "uid": f"u-{number}", "labels": gang | (labels or {}),
                "annotations": held() if node else {}, "creationTimestamp": ago(age_s),
                "ownerReferences": [{"kind": kind, "name": uid, "uid": uid, "controller": True}] if owner else [],
            },
            "status": {"phase": phase},
            "spec": {
                "schedulerName": names.SCHEDULER_NAME,
                "nodeName": node,
                "containers": [{"name": "c", "resources": {"limits": limits or {names.GPU_MEM: "3"}}}],
            },
        }
    )  # fmt: skip


def messages(*pods: Pod, **changes: Any) -> list[str]:
    findings = examine(sound(pods=list(pods), **changes), CHECKS)
    found = [one for one in findings if one.check == "gangs" and one.state != "ok"]
    assert {(one.state, one.subject) for one in found} <= {("warning", "gang default/g")}
    return [one.message for one in found]


def words(least: int, places: int) -> list[str]:
    return [
        f"it would not fit the empty cluster: {least} of its pods must run together, and only {places} fit"
    ]


def nodes(count: int, mode: NodeMode = NodeMode.SHARE, **labels: str) -> dict[str, Any]:
    labelled = {names.LABEL_MODE: mode.value, **labels}
    return {"nodes": [node_of(f"n{at}", mode=mode, gpus=TWO, labels=labelled) for at in range(count)]}


def test_a_gang_that_fits_is_ok_and_one_member_more_is_reported_with_the_room() -> None:
    # 15 units a GPU, lost ones too: 5 of 3 units on each.
    assert messages(member(0, 20), **nodes(2)) == []
    assert messages(member(0, 21), member(1, 21), **nodes(2)) == words(21, 20)


def test_of_pods_with_different_requests_the_smallest_is_counted() -> None:
    large = member(1, 20, **{names.GPU_MEM: "15"})
    assert messages(member(0, 20), large, **nodes(2)) == []
    assert messages(member(0, 21), large, **nodes(2)) == words(21, 20)
    assert messages(member(0, 99), member(1, 99, **{names.GPU_WHOLE: "1"}), **nodes(2)) == []


@pytest.mark.parametrize(
    ("pod", "mode", "labels", "places"),
    [
        ({names.GPU_MEM: "1", names.GPU_CORE: "30"}, NodeMode.CORE_MEM, {}, 6),
        ({names.GPU_MEM: "1"}, NodeMode.CGPU, {names.LABEL_MAX_PODS: "2"}, 4),
        ({names.GPU_MEM: "1"}, NodeMode.CGPU, {names.LABEL_MAX_NODE_PODS: "3"}, 3),
        ({names.GPU_WHOLE: "1"}, NodeMode.TOPOLOGY, {}, 2),
        ({names.GPU_WHOLE: "2"}, NodeMode.TOPOLOGY, {}, 1),
    ],
)
def test_caps_compute_and_whole_gpus_count(
    pod: dict[str, str], mode: NodeMode, labels: dict[str, str], places: int
) -> None:
    assert messages(member(0, places, **pod), **nodes(1, mode, **labels)) == []
    assert messages(member(0, places + 1, **pod), **nodes(1, mode, **labels)) == words(places + 1, places)


def test_pods_with_several_gpus_have_fewer_places() -> None:
    both = {names.LABEL_POD_GPU_COUNT: "2"}
    assert messages(member(0, 5, labels=both, **{names.GPU_MEM: "6"}), **nodes(1)) == []
    assert messages(member(0, 6, labels=both, **{names.GPU_MEM: "6"}), **nodes(1)) == words(6, 5)


def test_running_gangs_and_gangs_that_never_fit_are_not_reported_here() -> None:
    assert messages(member(0, 1, "n0"), member(1, 1), **nodes(1)) == []
    assert messages(member(0, 99, "n0"), **nodes(1)) == []
    assert messages(member(0, 99, **{names.GPU_MEM: "16"}), **nodes(1)) == []
    assert messages(member(0, 99), nodes=[]) == []


def owner(kind: str, uid: str, **spec: Any) -> Json:
    return {"kind": kind, "metadata": {"name": uid, "namespace": "default", "uid": uid}, "spec": spec}


JOB = "Job/j"
NEVER = "it can never be complete: 5 pods must run together, but "


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (owner("Job", "x", parallelism=3), "Job default/x creates 3 at a time"),
        (owner("Job", "x", parallelism=9, completions=4), "Job default/x creates 4 at a time"),
        (owner("Job", "x"), "Job default/x creates 1 at a time"),
        (owner("Job", "x", parallelism=5, completions=5), ""),
        (owner("ReplicaSet", "x", replicas=4), "ReplicaSet default/x creates 4 at a time"),
        (owner("ReplicaSet", "x", replicas=5), ""),
        (
            owner("StatefulSet", "x", replicas=4, podManagementPolicy="Parallel"),
            "StatefulSet default/x creates 4 at a time",
        ),
        (owner("StatefulSet", "x", replicas=5, podManagementPolicy="Parallel"), ""),
        (owner("StatefulSet", "x", replicas=5), "StatefulSet default/x creates 1 at a time"),
    ],
)
def test_a_gang_whose_owner_creates_too_few_pods_is_named_immediately(made: Json, expected: str) -> None:
    pod = member(0, 5, owner=f"{made['kind']}/x")
    assert messages(pod, owners=[made]) == ([NEVER + expected] if expected else [])


def test_the_pods_of_all_owners_count_together() -> None:
    pods = [member(at, 5, owner=f"Job/{at}") for at in range(2)]
    made = [owner("Job", str(at), parallelism=2 + at) for at in range(2)]
    assert messages(*pods, owners=made) == []
    few = [owner("Job", str(at), parallelism=2) for at in range(2)]
    assert messages(*pods, owners=few) == [
        NEVER + "Job default/0 creates 2 at a time, Job default/1 creates 2 at a time"
    ]


def test_a_long_wait_is_reported_if_the_number_of_pods_is_unknown() -> None:
    long = ["5 of its pods must run together, and there are 2; the last was created 4 min ago"]
    young, old = member(0, 5, age_s=240), member(1, 5, age_s=2400)
    assert messages(young, old) == long
    assert messages(member(0, 5, age_s=100), old) == []
    assert messages(*(member(at, 5, age_s=2400) for at in range(5)), **nodes(1)) == []
    with_owner = [member(at, 5, owner=JOB, age_s=240) for at in range(2)]
    assert messages(*with_owner, owners=[owner("Job", "j", parallelism=5)]) == long
    assert messages(*with_owner) == long, "its owner is gone"


def test_pods_that_have_succeeded_count_like_running_ones() -> None:
    done = [member(at, 5, "n1", owner=JOB, age_s=2400, phase="Succeeded") for at in range(3)]
    last = [member(at, 5, owner=JOB, age_s=2400) for at in range(3, 5)]
    assert messages(*done, *last, owners=[owner("Job", "j", parallelism=2)]) == []


def test_a_running_ordered_statefulset_creates_the_rest_one_by_one() -> None:
    pods = [member(0, 5, "n1", owner="StatefulSet/s"), member(1, 5, owner="StatefulSet/s")]
    assert messages(*pods, owners=[owner("StatefulSet", "s", replicas=5)]) == []
