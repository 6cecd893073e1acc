"""The doctor names a gang that the whole cluster could not take if it were empty, and no other."""

from typing import Any

import pytest

from gpushare.doctor.cluster_checks import CHECKS
from gpushare.doctor.findings import examine
from gpushare.model import names
from gpushare.model.device import Device, NodeMode
from gpushare.model.objects import Pod, decode_pod
from tests.unit.doctor.sound import held, node_of, sound

TWO = (Device(0, "GPU-1", 16160), Device(1, "GPU-2", 16160, healthy=False, reason="XID 79"))


def member(
    number: int, least: int, node: str = "", labels: dict[str, str] | None = None, **limits: str
) -> Pod:
    gang = {names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: str(least)}
    return decode_pod(
        {
            "metadata": {
                "name": f"g-{number}", "namespace": "default", "uid": f"u-{number}", "labels": gang | (labels or {}),
                "annotations": held() if node else {},
            },
            "spec": {
                "schedulerName": names.SCHEDULER_NAME,
                "nodeName": node,
                "containers": [{"name": "c", "resources": {"limits": limits or {names.GPU_MEM: "3"}}}],
            },
        }
    )  # fmt: skip


def said(*pods: Pod, **changes: Any) -> list[str]:
    findings = examine(sound(pods=list(pods), **changes), CHECKS)
    found = [one for one in findings if one.check == "gangs" and one.state != "ok"]
    assert {(one.state, one.subject) for one in found} <= {("warning", "gang default/g")}
    return [one.says for one in found]


def words(least: int, places: int) -> list[str]:
    return [
        f"the cluster could not take it if it were empty: {least} of its pods must run together, and there is room for {places}"
    ]


def nodes(count: int, mode: NodeMode = NodeMode.SHARE, **labels: str) -> dict[str, Any]:
    labelled = {names.LABEL_MODE: mode.value, **labels}
    return {"nodes": [node_of(f"n{at}", mode=mode, gpus=TWO, labels=labelled) for at in range(count)]}


def test_as_many_as_fit_are_well_and_one_more_is_named_with_the_room_that_there_is() -> None:
    # 15 units a GPU, lost ones too: 5 of 3 units on each.
    assert said(member(0, 20), **nodes(2)) == []
    assert said(member(0, 21), member(1, 21), **nodes(2)) == words(21, 20)


def test_of_pods_that_ask_for_different_amounts_the_least_is_counted() -> None:
    large = member(1, 20, **{names.GPU_MEM: "15"})
    assert said(member(0, 20), large, **nodes(2)) == []
    assert said(member(0, 21), large, **nodes(2)) == words(21, 20)
    assert said(member(0, 99), member(1, 99, **{names.GPU_WHOLE: "1"}), **nodes(2)) == []


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
    assert said(member(0, places, **pod), **nodes(1, mode, **labels)) == []
    assert said(member(0, places + 1, **pod), **nodes(1, mode, **labels)) == words(places + 1, places)


def test_pods_with_several_gpus_have_as_many_less_places() -> None:
    both = {names.LABEL_POD_GPU_COUNT: "2"}
    assert said(member(0, 5, labels=both, **{names.GPU_MEM: "6"}), **nodes(1)) == []
    assert said(member(0, 6, labels=both, **{names.GPU_MEM: "6"}), **nodes(1)) == words(6, 5)


def test_a_gang_that_runs_and_one_of_which_no_pod_would_fit_are_told_of_elsewhere_or_not_at_all() -> None:
    assert said(member(0, 1, "n0"), member(1, 1), **nodes(1)) == []
    assert said(member(0, 99, "n0"), **nodes(1)) == []
    assert said(member(0, 99, **{names.GPU_MEM: "16"}), **nodes(1)) == []
    assert said(member(0, 99), nodes=[]) == []
