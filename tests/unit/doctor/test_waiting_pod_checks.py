"""Pods that wait for something unavailable: another plugin's resource, a scheduler that does not run."""

from typing import Any

import pytest

from gpushare.api import names
from gpushare.api.objects import PodCondition
from gpushare.doctor.cluster.registry import CHECKS
from gpushare.doctor.findings import Finding, examine
from tests.unit.doctor.healthy_cluster import node_of, sound
from tests.unit.doctor.test_cluster_checks import waiting


def of_the_pod(**facts: Any) -> list[Finding]:
    return [one for one in examine(sound(**facts), CHECKS) if one.subject == "pod default/w"]


def test_another_plugins_resource_is_reported_if_no_node_offers_it() -> None:
    pods = [waiting("default-scheduler", **{"nvidia.com/gpu": "1"})]
    (one,) = of_the_pod(pods=pods)
    assert (one.subject, one.message) == (
        "pod default/w",
        "container c asks for nvidia.com/gpu, which no node offers to pods",
    )
    assert one.suggestion == "write aliyun.com/gpu-mem for a share, or aliyun.com/gpu for a whole one"
    none = [node_of(allocatable={names.GPU_MEM: "15", "nvidia.com/gpu": "0"})]
    assert len(of_the_pod(pods=pods, nodes=none)) == 1
    nodes = [node_of(allocatable={names.GPU_MEM: "15", "nvidia.com/gpu": "1"})]
    assert of_the_pod(pods=pods, nodes=nodes) == []


@pytest.mark.parametrize(
    ("scheduler", "looked", "expected"),
    [
        (
            "ack-co-schedular",
            False,
            "schedulerName ack-co-schedular is similar to ack-co-scheduler, but gpushare ignores it",
        ),
        ("volcano", False, "no scheduler has handled it: none seems to run for schedulerName volcano"),
        ("volcano", True, "it waits for scheduler volcano, which does not support GPU shares"),
    ],
)
def test_a_pod_with_another_scheduler_is_reported_with_whether_that_one_runs(
    scheduler: str, looked: bool, expected: str
) -> None:
    pod = waiting(scheduler)
    pod.status.conditions = [PodCondition("PodScheduled", "False")] if looked else None
    (one,) = of_the_pod(pods=[pod])
    assert one.message.startswith(expected)
    assert "schedulerName: ack-co-scheduler" in one.suggestion


def test_placeholder_pods_for_node_autoscalers_are_nobodys_pods() -> None:
    assert of_the_pod(pods=[waiting(names.PLACEHOLDER_SCHEDULER)]) == []


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("4096", "4096 looks like MiB: write aliyun.com/gpu-mem: 4, or gpushare.dev/gpu-memory: 4096Mi"),
        ("1Gi", "write aliyun.com/gpu-mem as a number of units, without Mi or Gi"),
    ],
)
def test_mib_written_as_units_are_reported_with_the_number_of_units(written: str, expected: str) -> None:
    (one,) = of_the_pod(pods=[waiting("ack-co-scheduler", **{names.GPU_MEM: written})])
    assert one.suggestion == expected
