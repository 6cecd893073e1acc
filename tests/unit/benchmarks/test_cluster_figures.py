"""Figures that the cluster benchmark computes from metrics and runs; wrong ones would look as good as right ones."""

import pytest

from benchmarks.cluster.__main__ import load_of
from benchmarks.cluster.measuring import Run, percentile
from benchmarks.cluster.metrics import attempts, sums_of
from benchmarks.cluster.report import figures_of, table
from benchmarks.cluster.variants import ALONE, OURS

BEFORE = """
scheduler_scheduling_algorithm_duration_seconds_sum 1
scheduler_scheduling_algorithm_duration_seconds_count 10
scheduler_scheduling_attempt_duration_seconds_sum{profile="p",result="scheduled"} 2
scheduler_scheduling_attempt_duration_seconds_count{profile="p",result="scheduled"} 10
scheduler_framework_extension_point_duration_seconds_sum{extension_point="Filter",profile="p",status="Success"} 0.5
scheduler_framework_extension_point_duration_seconds_count{extension_point="Filter",profile="p",status="Success"} 10
gpushare_scheduler_extender_request_duration_seconds_sum{verb="filter"} 0.1
gpushare_scheduler_extender_request_duration_seconds_count{verb="filter"} 10
"""
AFTER = """
scheduler_scheduling_algorithm_duration_seconds_sum 1.5
scheduler_scheduling_algorithm_duration_seconds_count 110
scheduler_scheduling_attempt_duration_seconds_sum{profile="p",result="scheduled"} 4
scheduler_scheduling_attempt_duration_seconds_count{profile="p",result="scheduled"} 110
scheduler_scheduling_attempt_duration_seconds_sum{profile="p",result="unschedulable"} 9
scheduler_framework_extension_point_duration_seconds_sum{extension_point="Filter",profile="p",status="Success"} 0.6
scheduler_framework_extension_point_duration_seconds_sum{extension_point="Filter",profile="p",status="Unschedulable"} 0.1
scheduler_framework_extension_point_duration_seconds_count{extension_point="Filter",profile="p",status="Success"} 110
scheduler_framework_extension_point_duration_seconds_sum{extension_point="Bind",profile="p",status="Success"} 7
gpushare_scheduler_extender_request_duration_seconds_sum{verb="filter"} 0.3
gpushare_scheduler_extender_request_duration_seconds_count{verb="filter"} 110
scheduler_schedule_attempts_total{profile="p",result="scheduled"} 110
scheduler_schedule_attempts_total{profile="p",result="unschedulable"} 5
"""


def a_run(rate: float, extender_ms: float | None) -> Run:
    cpu = {"kube-apiserver": 6.0, "kube-scheduler": 4.0, "everything": 20.0}
    if extender_ms is not None:
        cpu["extender"] = extender_ms
    return Run(rate, cpu, {"kube-scheduler": 100.0}, {}, {}, burst_s=[0.1, 0.3], steady_s=[0.01])


def test_stages_are_differences_of_two_readings() -> None:
    before, after = sums_of(BEFORE), sums_of(AFTER)
    stages = after.stages_since(before)
    assert stages["choosing"] == pytest.approx(5.0)
    assert stages["plugins"] == pytest.approx(2.0)  # Filter of either status, and not Bind
    assert stages["extender and rest"] == pytest.approx(3.0)
    assert stages["binding"] == pytest.approx(15.0)
    assert after.verbs_since(before) == {"filter": pytest.approx(2.0)}
    assert attempts(AFTER) == 115


def test_without_placed_pods_there_are_no_stages() -> None:
    same = sums_of(BEFORE)
    assert same.stages_since(same) == {}
    assert same.verbs_since(same) == {}


def test_ratios_use_medians_with_minimum_and_maximum_of_the_turns() -> None:
    runs = {
        ALONE: [a_run(rate, None) for rate in (100.0, 110.0, 90.0)],
        OURS: [a_run(rate, 2.5) for rate in (80.0, 55.0, 81.0)],
    }
    figures = figures_of(1000, 0, runs)
    assert figures["ratio_ours_1000_adaptive"] == (0.8, "ratio")
    assert figures["ratio_least_ours_1000_adaptive"] == (0.5, "ratio")
    assert figures["ratio_most_ours_1000_adaptive"] == (0.9, "ratio")
    # Without the CPU time of other processes.
    assert figures["ratio_by_cpu_ours_1000_adaptive"] == (0.8, "ratio")
    assert figures["bound_burst_p50_ms_ours_1000_adaptive"] == (300.0, "ms")
    assert "ratio_alone_1000_adaptive" not in figures
    text = table(1000, 0, runs)
    assert "pods/s of each turn: alone: 100, 110, 90; ours: 80, 55, 81" in text


def test_percentiles_are_among_the_measured_times() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile([1.0], 0.99) == 1.0


@pytest.mark.parametrize(("nodes", "share", "pods"), [(1000, 100, 800), (1000, 0, 1904), (5000, 100, 300)])
def test_fewer_pods_are_created_where_each_costs_more(nodes: int, share: int, pods: int) -> None:
    assert load_of(nodes, share, quick=False).backlog == pods
