"""What nodes can still take, over the expected offers: by the library in C, in Python, and by the definition."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.ledger.node_book import UNKNOWN_CPU_MILLI
from gpushare.ledger.placement.fragmentation import lookahead as module
from gpushare.ledger.placement.fragmentation import outlook as outlook_module
from gpushare.ledger.placement.fragmentation.lookahead import Lookahead
from gpushare.ledger.placement.fragmentation.outlook import OFFERS, SEQUENCES, Outlook
from gpushare.ledger.placement.fragmentation.state import (
    OPEN_TO_CORE,
    OPEN_TO_MEMORY,
    State,
    unusable_mib,
)
from gpushare.ledger.placement.fragmentation.workload_mix import Kind
from tests.building import ROOT, make
from tests.randomized import rounds
from tests.unit.ledger.naive_fragmentation import NaiveGpu, NaiveNode

quick = settings(max_examples=rounds(25, soak=150), deadline=None)
MIB = 128
MANY = 1 << 40

kinds = st.builds(
    Kind,
    st.integers(0, 3),
    st.integers(0, 20),
    st.sampled_from((0, 0, 5, 50, 100)),
    st.sampled_from((0, 100, 3152, 11_300, 64_000)),
    st.sampled_from((False, False, True)),
)
mixes = st.dictionaries(kinds, st.integers(1, 400), max_size=8)
gpus = st.one_of(
    st.just(NaiveGpu(20 * MIB, 20, 100, untouched=True)),
    st.builds(
        lambda units, core, shut, untouched: NaiveGpu(units * MIB, -1 if shut else units, core, untouched),
        st.integers(0, 20),
        st.sampled_from((-1, 0, 5, 55, 100)),
        st.sampled_from((False, False, False, True)),
        st.booleans(),
    ),
)


@st.composite
def node_lists(draw: st.DrawFn) -> list[NaiveNode]:
    rows = draw(st.integers(1, 4))
    nodes = st.builds(
        NaiveNode,
        st.tuples(*[gpus] * rows),
        st.sampled_from((None, 0, 99, 3152, 20_000, 96_000)),
        st.booleans(),
        st.booleans(),
        st.just(MIB),
    )
    return draw(st.lists(nodes, min_size=1, max_size=4))


def state_of(nodes: list[NaiveNode]) -> State:
    def plane(figure: str) -> np.ndarray:
        return np.array([[getattr(gpu, figure) for gpu in one.gpus] for one in nodes], np.int32).T

    return State(
        plane("fit_units"),
        plane("free_core"),
        plane("untouched") == 1,
        np.array([UNKNOWN_CPU_MILLI if one.cpu_milli is None else one.cpu_milli for one in nodes], np.int64),
        np.array([one.open_to_memory * OPEN_TO_MEMORY + one.open_to_core * OPEN_TO_CORE for one in nodes]),
    )


def after_a_pod(node: NaiveNode, units: int, cpu_milli: int) -> NaiveNode:
    """The node with less free on all of its GPUs, and closed to compute, after one pod."""
    return replace(
        node,
        gpus=tuple(replace(gpu, fit_units=gpu.fit_units - units, untouched=False) for gpu in node.gpus),
        cpu_milli=None if node.cpu_milli is None else max(node.cpu_milli - cpu_milli, 0),
        open_to_core=False,
    )


@pytest.fixture(autouse=True)
def few_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few offers, because the definition is slow."""
    for name, of in (("SEQUENCES", 3), ("OFFERS", 20)):
        for one in (outlook_module, module):
            monkeypatch.setattr(one, name, of)
    monkeypatch.setattr("gpushare.ledger.placement.fragmentation.rollout.OFFERS", 20)
    monkeypatch.setattr("tests.unit.ledger.naive_fragmentation.OFFERS", 20)


def in_python(outlook: Outlook) -> Lookahead:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(module, "_library", lambda: None)
        return Lookahead(outlook)


def test_the_library_is_built_for_these_tests() -> None:
    assert module._library() is not None, "make lookahead"


@given(
    mix=mixes,
    nodes=node_lists(),
    units=st.integers(1, 20),
    cpu_milli=st.integers(0, 20_000),
    some=st.lists(st.booleans(), min_size=16, max_size=16),
)
@quick
def test_the_library_python_and_the_definition_agree(
    mix: dict[Kind, int], nodes: list[NaiveNode], units: int, cpu_milli: int, some: list[bool]
) -> None:
    outlook = Outlook.of(mix)
    after = [after_a_pod(node, units, cpu_milli) for node in nodes]
    replaced = np.resize(some, (len(nodes[0].gpus), len(nodes)))
    for lookahead in (Lookahead(outlook), in_python(outlook)):
        for _ in ("computed", "from the table"):
            values = lookahead.values(state_of(nodes), state_of(after), replaced, MANY)
            assert values.now.tolist() == [node.value(outlook) for node in nodes]
            for row, at in zip(*replaced.nonzero(), strict=True):
                gpus = (*nodes[at].gpus[:row], after[at].gpus[row], *nodes[at].gpus[row + 1 :])
                assert values.after[row, at] == replace(after[at], gpus=gpus).value(outlook)


@pytest.mark.parametrize("made", [Lookahead, in_python])
def test_a_call_ends_with_the_node_that_takes_the_last_step_and_the_next_one_continues(
    made: Callable[[Outlook], Lookahead],
) -> None:
    lookahead = made(Outlook.of({Kind(1, 3): 1}))
    nodes = [NaiveNode((NaiveGpu(0, units, 0),), None, True, False, MIB) for units in (3, 4, 5)]
    state, none = state_of(nodes), np.zeros((1, 3), np.bool_)
    # In each sequence the first pod fits, and the second is tried where something is left.
    computed = [5 + 1 + outlook_module.SEQUENCES * tried for tried in (1, 2, 2)]
    first = lookahead.values(state, state, none, computed[0] + 1)
    assert (first.now.size, first.steps) == (2, 1 - computed[1])
    second = lookahead.values(state, state, none, 2 * 5 + 1)
    assert (second.now.size, second.steps) == (3, 1 - computed[2])
    assert second.now.tolist() == [3 * outlook_module.SEQUENCES] * 3


@pytest.mark.parametrize("made", [Lookahead, in_python])
def test_more_states_than_the_table_holds_are_still_computed(
    made: Callable[[Outlook], Lookahead], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SLOTS", 8)
    monkeypatch.setattr("gpushare.ledger.placement.fragmentation.rollout._MOST_VALUES", 8)
    lookahead = made(outlook := Outlook.of({Kind(1, 7): 1}))
    nodes = [NaiveNode((NaiveGpu(0, units, 0),), None, True, False, MIB) for units in range(1, 100)]
    state, none = state_of(nodes), np.zeros((1, len(nodes)), np.bool_)
    for _ in range(2):
        values = lookahead.values(state, state, none, MANY)
        assert values.now.tolist() == [node.value(outlook) for node in nodes]


def test_kinds_are_offered_as_often_as_they_arrive_and_always_in_the_same_order() -> None:
    mix = {Kind(1, 8): 30, Kind(0, 0, 0, 1000): 99, Kind(1, 2): 10, Kind(2, 8): 20}
    outlook = Outlook.of(mix)
    assert outlook.kinds == (Kind(1, 2), Kind(1, 8), Kind(2, 8)), "pods without a GPU are not offered"
    drawn = outlook_module.SEQUENCES * outlook_module.OFFERS
    assert [outlook.offers.count(number) for number in range(3)] == [drawn // 6, drawn // 2, drawn // 3]
    assert Outlook.of(dict(reversed(mix.items()))) == outlook
    assert Outlook.of({}).offers == ()


@given(mix=mixes, nodes=node_lists())
@quick
def test_fragments_are_those_of_the_definition(mix: dict[Kind, int], nodes: list[NaiveNode]) -> None:
    free_mib = np.array([[gpu.free_mib for gpu in node.gpus] for node in nodes], np.int64).T
    weight = sum(weight for kind, weight in mix.items() if kind.gpus)
    expected = sum(node.unusable(mix) for node in nodes)
    assert unusable_mib(state_of(nodes), free_mib, mix) == (-(-expected // weight) if weight else 0)


_UNDER_SANITIZERS = """
import sys
import numpy as np
from gpushare.ledger.placement.fragmentation import lookahead
from gpushare.ledger.placement.fragmentation.outlook import Outlook
from gpushare.ledger.placement.fragmentation.state import State
from gpushare.ledger.placement.fragmentation.workload_mix import MOST_KINDS, Kind

lookahead.__file__ = sys.argv[1]
assert lookahead._library() is not None
random = np.random.default_rng(1)
kinds = {Kind(int(random.integers(1, 5)), number, 0, 100 * (number % 7)): 1 for number in range(MOST_KINDS)}
for rows in (1, 8, 70):
    for mix in ({}, kinds):
        outlook = Outlook.of(mix)
        values = lookahead.Lookahead(outlook)
        planes = [random.integers(-1, 300, (rows, 9)) for _ in range(2)]
        state = State(*planes, planes[0] > 9, random.integers(0, 9999, 9), random.integers(0, 4, 9))
        values.values(state, state, random.random((rows, 9)) < 0.5, 1 << 40)
"""


@pytest.mark.sanitized
def test_the_library_stays_within_its_arrays_under_sanitizers() -> None:
    make("lookahead", "sanitize", ROOT / "build" / "lookahead" / "lock")
    runtime = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    result = subprocess.run(
        [sys.executable, "-c", _UNDER_SANITIZERS, ROOT / "build" / "lookahead" / "lookahead.py"],
        env=os.environ
        | {
            "LD_PRELOAD": runtime.stdout.strip(),
            "ASAN_OPTIONS": "detect_leaks=0",
            "PYTHONPATH": str(ROOT / "src"),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_sequences_have_the_measured_number_and_length() -> None:
    """docs/measurements compare other numbers."""
    assert (SEQUENCES, OFFERS) == (24, 64)
