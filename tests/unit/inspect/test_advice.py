"""Recommendations: what is recommended, when nothing is, and the gain from following them."""

from collections.abc import Collection, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.api import names
from gpushare.api.allocation.allocation import share_of
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import ObjectMeta, OwnerReference, Pod
from gpushare.api.quantity import MemoryUnit, granted_mib
from gpushare.api.request.request import ContainerKind, ContainerRequest, Request
from gpushare.inspect.sources.agent_usage import ANSWER, used_of
from gpushare.inspect.sources.owners import Workload, workload_of
from gpushare.inspect.sources.usage_samples import Used
from gpushare.inspect.views.recommender import (
    Kinds,
    PendingPod,
    Recommendation,
    Rules,
    advise,
    duration_text,
)
from gpushare.nodeagent.isolation.watchdog.violations import Holder, Use
from gpushare.nodeagent.observability.usage_history import UsageHistory
from tests.unit.inspect.clusters import device, node, placed, pod, seen, with_allocation
from tests.unit.nodeagent.isolation.test_usage_history import Wall

quick = settings(max_examples=200, deadline=None)
T4 = 15360
HOUR = 3600.0


def used(
    pod_name: str,
    peak: int,
    p95: int = 0,
    *,
    gpu: int = 0,
    seen_s: float = HOUR,
    container: str = "main",
    **more: Any,
) -> Used:
    known: dict[str, Any] = {"last_mib": 0, "peak_percent": 0, "p95_percent": 0} | more
    return Used("default", pod_name, container, device(gpu).uuid, seen_s, peak, p95 or peak, **known)


def advised_for(
    pods: list[Pod],
    figures: list[Used],
    rules: Rules | None = None,
    *,
    mode: NodeMode = NodeMode.CGPU,
    gpus: int = 1,
    waiting: list[PendingPod] | None = None,
    whole: Collection[str] = (),
    kinds: Mapping[str, Kinds] | None = None,
) -> tuple[list[Recommendation], Any]:
    cluster = seen([node("n", "10.0.0.1", [device(index) for index in range(gpus)], mode=mode)], pods)
    workloads = {one.metadata.uid: Workload("default", "Deployment", one.metadata.name[0]) for one in pods}
    found = advise(cluster, workloads, figures, waiting or [], rules or Rules(), whole, kinds=kinds)
    return list(found.workloads), found.gain


def one(name: str, units: int, core: int = 0, gpu: int = 0) -> Pod:
    return placed(name, "n", device(gpu), units, core_percent=core)


def test_memory_is_based_on_the_peak_with_a_margin_in_whole_units() -> None:
    ([web], gain) = advised_for([one("w1", 8), one("w2", 8, gpu=0)][:1], [used("w1", 2000, 1500)])
    assert (web.memory.allocated, web.memory.recommended, web.memory.peak, web.memory.p95) == (
        8,
        3,
        2000,
        1500,
    )
    assert web.core is None
    assert (web.note, gain.free_mib) == ("", 5 * 1024)


def test_the_largest_pod_of_a_workload_decides_and_containers_add_up() -> None:
    pods = [one("w1", 5), one("w2", 5), one("w3", 5)]
    figures = [
        used("w1", 1000),
        used("w2", 1000),
        used("w2", 1500, container="side"),
        used("w3", 10, seen_s=5),
    ]
    ([web], _) = advised_for(pods, figures)
    assert (web.pods, web.seen, web.memory.recommended) == (3, 2, 3)
    assert web.note == "1 of its pods have too little history"


def test_current_use_counts_as_a_peak_and_more_can_be_advised() -> None:
    ([web], gain) = advised_for([one("w", 3)], [used("w", 1000, last_mib=3072)])
    assert (web.memory.recommended, web.note) == (4, "it uses nearly all of its memory, or more")
    assert gain.free_mib == -1024


@pytest.mark.parametrize(
    ("figures", "note"),
    [
        ([], "no GPU usage was recorded"),
        ([used("w", 100, seen_s=90)], "too little history: 1 min of 1 h"),
    ],
)
def test_workloads_with_too_little_history_are_named_and_not_guessed(figures: list[Used], note: str) -> None:
    ([web], gain) = advised_for([one("w", 3)], figures)
    assert (web.memory.recommended, web.note, gain.free_mib) == (None, note, 0)


def test_no_memory_is_recommended_if_the_driver_does_not_report_it() -> None:
    figures = [used("w1", 1000), used("w2", 0, memory_known=False, peak_percent=20, p95_percent=20)]
    ([web], gain) = advised_for([one("w1", 5, 60), one("w2", 5, 60)], figures, mode=NodeMode.CORE_MEM)
    assert (web.memory.recommended, web.memory_known, gain.free_mib) == (None, False, 0)
    assert web.core is not None
    assert web.core.recommended == 25
    assert web.note == "the driver does not report its memory"


def test_pods_with_whole_gpus_are_left_alone() -> None:
    pod = one("w", 15)
    ([web], gain) = advised_for([pod], [used("w", 100)], whole={pod.metadata.uid})
    assert (web.memory.recommended, web.note, gain.free_mib) == (None, "it requests whole GPUs", 0)


def test_a_share_that_happens_to_be_all_of_a_gpu_is_advised_like_any_other() -> None:
    ([web], gain) = advised_for([one("w", 15)], [used("w", 2000)])
    assert (web.memory.allocated, web.memory.recommended, web.note) == (15, 3, "")
    assert gain.free_mib == 12 * 1024


def test_pods_on_nodes_of_several_units_are_left_alone() -> None:
    nodes = [
        node("n", "10.0.0.1", [device(0)]),
        node("m", "10.0.0.2", [device(1)], unit=MemoryUnit.MIB_128),
    ]
    pods = [one("w1", 3), placed("w2", "m", device(1), 24, unit=MemoryUnit.MIB_128)]
    workloads = {each.metadata.uid: Workload("default", "Deployment", "w") for each in pods}
    (web,) = advise(seen(nodes, pods), workloads, [used("w1", 100)], [], Rules()).workloads
    assert web.note == "its pods are on nodes with different memory units"


@pytest.mark.parametrize(
    ("peak", "p95", "advised_core", "note"),
    [
        (30, 10, 15, "its peak of 30% takes longer with the recommendation"),
        (40, 10, 15, "its peak of 30% takes longer with the recommendation"),
        (14, 10, 15, ""),
        (2, 1, 5, ""),
        (30, 26, 30, "it uses all of its compute"),
        (40, 34, 30, "it uses all of its compute"),
        (50, 45, 45, "it uses all of its compute"),
        (0, 0, None, "no compute usage was recorded, or the driver does not report it"),
    ],
)
def test_compute_is_based_on_what_95_of_100_looks_found(
    peak: int, p95: int, advised_core: int | None, note: str
) -> None:
    figures = [used("w", 1000, peak_percent=peak, p95_percent=p95)]
    ([web], _) = advised_for([one("w", 2, 30)], figures, mode=NodeMode.CORE_MEM)
    assert web.core is not None
    assert (web.core.allocated, web.core.recommended, web.note) == (30, advised_core, note)


def test_a_mostly_idle_container_is_advised_what_its_work_takes() -> None:
    """From the agent's samples to the recommendation: all of its 80% in one look of 25."""
    clock = Wall()
    history, pod = UsageHistory(clock), one("w", 2, 80)
    holder = Holder("default/w", pod.metadata.uid, "main", device(0).uuid, 2048, 80)
    for look in range(1440):
        clock.now_s = 1000 + 5 * look
        history.take([Use(holder, 1000, 0 if look % 25 else 80)])
    remembered = [used_of(container) for container in ANSWER.decode(history.answer()).containers]

    ([web], _) = advised_for([pod], remembered, mode=NodeMode.CORE_MEM)

    assert web.core is not None
    assert (web.core.peak, web.core.p95, web.core.recommended) == (80, 80, 80)
    assert web.note == "it uses all of its compute"


@quick
@given(
    st.integers(1, 50),
    st.integers(0, 100),
    st.sampled_from(range(5, 100, 5)),
    st.integers(0, 60),
    st.sampled_from((0.0, 0.4)),
)
def test_a_throttled_container_is_advised_what_its_work_takes_without_a_limit(
    compute_ms: int, between_ms: int, given_percent: int, margin: int, other_share: float
) -> None:
    """Naive: a program alternates between computing and other work; with a limit it also waits to stay within its share."""
    free_percent = 100 * compute_ms / (compute_ms + between_ms)
    cycle_ms = max(100 * compute_ms / given_percent, compute_ms + between_ms)
    waited = 1 - (compute_ms + between_ms) / cycle_ms
    busy = round(100 * compute_ms / cycle_ms)
    figures = [used("w", 1000, peak_percent=busy, p95_percent=busy, throttled=waited)]
    if other_share:
        figures.append(used("w", 10, container="side", peak_percent=1, p95_percent=1, throttled=0.0))
    ([web], _) = advised_for([one("w", 2, given_percent)], figures, Rules(margin), mode=NodeMode.CORE_MEM)
    assert web.core is not None
    assert web.core.recommended is not None
    if waited < 0.05:
        assert web.throttled is None
        return
    assert web.throttled is not None
    assert web.throttled.percent == round(100 * waited)
    # A whole percent of the busy time weighs more in the estimate, the more waiting there was.
    rough = 1 / (1 - min(waited, 0.95)) + 2
    if waited <= 0.95:
        assert abs(web.throttled.need_percent - min(free_percent, 100)) <= rough
    assert web.core.recommended >= min(given_percent, 100)
    assert web.core.recommended >= min((free_percent - rough) * (1 + margin / 100), 100) or waited > 0.95
    assert web.core.recommended <= max((free_percent + rough) * (1 + margin / 100) + 6, given_percent)
    assert web.note.startswith(
        f"it was throttled {web.throttled.percent}% of the time: without a limit it would use"
    )


def test_throttling_is_not_reported_for_pods_that_request_no_compute() -> None:
    figures = [used("w", 1000, peak_percent=30, p95_percent=30, throttled=0.5)]
    ([web], _) = advised_for([one("w", 2)], figures)
    assert (web.core, web.throttled, web.note) == (None, None, "")


def test_several_gpus_are_advised_by_the_one_that_needs_most() -> None:
    wide = pod("w", "n", 16, labels={names.LABEL_POD_GPU_COUNT: "2"})
    wide = with_allocation(wide, [share_of(device(index), 15, 8, 0) for index in range(2)], MemoryUnit.GIB)
    ([web], gain) = advised_for([wide], [used("w", 1000), used("w", 3000, gpu=1)], gpus=2)
    assert (web.gpus, web.memory.allocated, web.memory.recommended) == (2, 8, 4)
    assert gain.free_mib == 2 * 4 * 1024


def request(units: int, core: int = 0) -> Request:
    return Request(units, core, (ContainerRequest("c", ContainerKind.APP, 0, units, core),))


def test_pending_pods_are_counted_where_they_may_go() -> None:
    waiting = [PendingPod(request(units), {"n"}) for units in (2, 4, 4, 9)]
    waiting += [PendingPod(request(1), ()), PendingPod(request(1, 30), {"n"})]
    (_, gain) = advised_for([one("w", 13)], [used("w", 4000)], waiting=waiting)
    assert (gain.waiting, gain.fit_now, gain.fit_then) == (6, 1, 3)


def test_freed_compute_lets_others_in() -> None:
    figures = [used("w", 1000, peak_percent=20, p95_percent=10)]
    waiting = [PendingPod(request(1, 50), {"n"})]
    (_, gain) = advised_for([one("w", 2, 60)], figures, mode=NodeMode.CORE_MEM, waiting=waiting)
    assert (gain.fit_now, gain.fit_then) == (0, 1)


@quick
@given(st.integers(1, 14), st.integers(0, T4), st.integers(0, 400))
def test_never_less_is_advised_than_was_used(given_units: int, peak: int, margin: int) -> None:
    ([web], _) = advised_for([one("w", given_units)], [used("w", peak)], Rules(margin))
    units = web.memory.recommended
    assert units is not None
    assert units == 15 or granted_mib(T4, units, 15) * 100 >= peak * (100 + margin)
    assert granted_mib(T4, units, 15) >= peak
    assert units == 1 or granted_mib(T4, units - 1, 15) * 100 < peak * (100 + margin)


def test_times_are_short() -> None:
    assert [duration_text(one) for one in (7, 61, 7300, 200000)] == ["7 s", "1 min", "2 h", "2 d"]


def test_the_owner_of_a_pod_is_found() -> None:
    def made(*owners: OwnerReference, **labels: str) -> Pod:
        return Pod(ObjectMeta(name="p", namespace="x", labels=labels, owner_references=list(owners)))

    replica_set = OwnerReference("ReplicaSet", "web-abc", controller=True)
    assert workload_of(made()) == ("x", "Pod", "p")
    assert workload_of(made(OwnerReference("Odd", "o"), OwnerReference("Job", "j", controller=True))) == (
        "x",
        "Job",
        "j",
    )
    assert workload_of(made(replica_set)) == ("x", "ReplicaSet", "web-abc")
    labelled = made(replica_set)
    labelled.metadata.labels = {"pod-template-hash": "abc"}
    assert workload_of(labelled) == ("x", "Deployment", "web")


@pytest.mark.parametrize("since", [[], [used("w-0", 300, gpu=1, seen_s=120.0)]])
def test_history_on_another_gpu_counts_for_a_pod_that_is_known_by_name(since: list[Used]) -> None:
    ([web], _) = advised_for([one("w-0", 14, gpu=1)], [used("w-0", 12000), *since], gpus=2)
    assert (web.memory.peak, web.memory.recommended) == (12000, 14)


def test_containers_that_do_not_run_together_are_not_added_up() -> None:
    kinds: Kinds = {
        "convert": ContainerKind.INIT,
        "cache": ContainerKind.SIDECAR,
        "warm": ContainerKind.INIT,
        "main": ContainerKind.APP,
        "other": ContainerKind.APP,
    }
    peaks = {"convert": 5000, "cache": 1000, "warm": 4500, "main": 3000, "other": 900, "renamed": 9000}
    figures = [used("w", peak, container=container) for container, peak in peaks.items()]

    def peak(*left_out: str) -> int:
        counted = [sample for sample in figures if sample.container not in left_out]
        ([web], _) = advised_for([one("w", 15)], counted, kinds={"default/w": kinds})
        return web.memory.peak

    assert peak() == 4500 + 1000
    assert peak("warm") == 5000
    assert peak("warm", "convert") == 1000 + 3000 + 900
    ([web], _) = advised_for([one("w", 15)], figures[-1:], kinds={"default/w": kinds})
    assert web.note == "no GPU usage was recorded"


def test_a_recreated_pod_with_its_name_has_only_its_own_history() -> None:
    pod = one("w-0", 8)
    before, now = used("w-0", 4000, uid="uid-before"), used("w-0", 2000, uid=pod.metadata.uid, seen_s=60.0)
    ([web], _) = advised_for([pod], [before, now], Rules(least_s=30.0))
    assert (web.memory.peak, web.seen_s, web.memory.recommended) == (2000, 60.0, 3)

    ([web], _) = advised_for([pod], [before])
    assert web.note == "no GPU usage was recorded"
