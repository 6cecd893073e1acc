"""Arrivals and departures on openb's traces, the FGD policy for comparison, and the upper bound of all policies."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.placement.bound import most_percent
from benchmarks.placement.departures import FGD, FGD_ALL, POLICIES, run, table
from benchmarks.placement.fgd import Fgd, kind_of
from benchmarks.placement.openb import MILLI, TraceNode, TracePod
from benchmarks.placement.replay import replay

ONE = TraceNode("one", 8000, 8000, 1, "T4")
TWO = TraceNode("two", 16000, 16000, 2, "T4")
LARGE = TraceNode("large", 32000, 64000, 4, "G2")
quick = settings(max_examples=60, deadline=None)


def pod(milli: int, gpus: int = 1, cpu: int = 1000, lifetime_s: float = 600.0, model: str = "") -> TracePod:
    return TracePod(cpu, 100, gpus, milli, frozenset(filter(None, [model])), "", lifetime_s)


pods = st.lists(
    st.builds(
        pod,
        st.sampled_from((100, 340, 500, 510, 1000)),
        st.sampled_from((1, 1, 1, 2)),
        st.sampled_from((0, 1000, 9000)),
        st.sampled_from((1.0, 600.0, 9000.0)),
        st.sampled_from(("", "", "T4")),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("policy", POLICIES)
def test_with_twice_the_load_the_cluster_is_full_and_pods_wait_under_every_policy(policy: str) -> None:
    found = run([ONE, TWO], [pod(MILLI)], policy, 2.0, 2.0, 42)
    assert found.allocated_percent == pytest.approx(100, abs=1)
    assert found.refused_percent > 40
    assert found.wait_p99_s > 600
    assert found.waiting


@pytest.mark.parametrize("policy", POLICIES)
def test_with_little_load_no_pod_waits_and_every_request_is_allocated(policy: str) -> None:
    nodes = [LARGE._replace(name=f"node-{number}") for number in range(5)]
    found = run(nodes, [pod(500, lifetime_s=600.0)], policy, 0.3, 8.0, 7)
    assert found.allocated_percent == pytest.approx(30, abs=5)
    assert (found.refused_percent, found.wait_p99_s, found.waiting) == (0.0, 0.0, 0)
    assert found.curve[-1][0] == 8.0


def test_equal_seeds_give_equal_runs_and_every_policy_the_same_arrivals() -> None:
    known = [pod(300), pod(MILLI, lifetime_s=3000.0), pod(0, 0, 2000)]
    runs = {policy: run([TWO, LARGE], known, policy, 0.9, 3.0, 42) for policy in (*POLICIES, *POLICIES)}
    for policy, found in runs.items():
        assert found == run([TWO, LARGE], known, policy, 0.9, 3.0, 42)


def test_the_table_has_the_mean_of_the_seeds() -> None:
    first = run([ONE], [pod(MILLI)], FGD, 0.5, 1.0, 1)
    lines = table([first._replace(allocated_percent=40.0), first._replace(allocated_percent=60.0)])
    assert len(lines) == 2
    assert lines[1].split()[:3] == ["50%", FGD, "50.00%"]


def naive(free: list[int], cpu: int, model: str, known: list[TracePod]) -> float:
    """The definition, kind by kind and GPU by GPU."""
    total = 0.0
    for one in known:
        takes = cpu >= one.cpu_milli and sum(milli >= one.gpu_milli for milli in free) >= one.gpus
        takes = takes and (not one.models or model in one.models)
        total += sum(milli for milli in free if not takes or milli < one.gpu_milli)
    return total / len(known)


@given(known=pods, free=st.lists(st.sampled_from((0, 200, 400, 900, 1000)), min_size=4, max_size=4), one=pods)
@quick
def test_fragmentation_grows_as_defined(known: list[TracePod], free: list[int], one: list[TracePod]) -> None:
    fgd = Fgd([LARGE], known, random.Random(1))
    for at, milli in enumerate(free):
        fgd.take(0, [at], MILLI - milli)
    request, cpu = one[0]._replace(gpus=1, models=frozenset()), 10_000
    chosen = fgd.choose(request, fgd.free[0].astype(int) * 0 + [0], fgd.free[0] * 0 + cpu)
    growths = {
        at: naive(
            [*free[:at], milli - request.gpu_milli, *free[at + 1 :]], cpu - request.cpu_milli, "G2", known
        )
        for at, milli in enumerate(free)
        if milli >= request.gpu_milli
    }
    if not growths:
        assert chosen is None
    else:
        assert chosen is not None
        assert growths[chosen[1][0]] == pytest.approx(min(growths.values()))


def test_fgd_places_pods_without_a_gpu_only_if_it_chooses_for_all_pods() -> None:
    """Placed otherwise, they take processors that pods with GPUs need."""
    known = [pod(MILLI, 4, 32000), *[pod(0, 0, 2000)] * 30]
    both = [
        run([LARGE, LARGE._replace(name="other")], known, policy, 0.4, 4.0, 3) for policy in (FGD, FGD_ALL)
    ]
    assert both[0].allocated_percent < both[1].allocated_percent


def test_two_pods_with_more_than_half_a_gpu_do_not_fit_on_one_in_any_division() -> None:
    assert most_percent([ONE], [pod(600), pod(600)]) == pytest.approx(60)
    assert most_percent([TWO], [pod(600), pod(600)]) == pytest.approx(60)
    assert most_percent([ONE], [pod(340)] * 4) == pytest.approx(68)


def test_processors_and_models_limit_the_allocation() -> None:
    assert most_percent([TWO], [pod(MILLI, cpu=16000)] * 2) == pytest.approx(50)
    assert most_percent([ONE], [pod(MILLI, model="G2")]) == 0


@given(arriving=pods, policy=st.sampled_from(("binpack", "fragmentation", "hami-spread-spread")))
@quick
def test_no_policy_allocates_more_than_the_bound(arriving: list[TracePod], policy: str) -> None:
    nodes = [ONE, TWO, LARGE]
    assert replay(nodes, arriving, policy, 1).percent <= most_percent(nodes, arriving) + 1e-6


def test_pods_are_of_one_kind_if_their_requests_are_equal() -> None:
    assert kind_of(pod(300)._replace(name="a")) == kind_of(pod(300)._replace(name="b", lifetime_s=1.0))
