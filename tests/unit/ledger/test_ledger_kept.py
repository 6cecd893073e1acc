"""Cached results of the ledger are never stale, however small its caches are."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushare.api.node.device import Placement
from gpushare.ledger import Ledger
from gpushare.ledger import columns as columns_module
from gpushare.ledger.fit.reasons import UNKNOWN_NODE
from gpushare.ledger.fit.single_gpu import left_over
from gpushare.ledger.placement import score_cache as cache_module
from gpushare.ledger.placement.fragmentation import growth as growth_module
from tests.unit.ledger.ledger_samples import asks, node

quick = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
NAMES = [f"n{number}" for number in range(40)]


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few columns, so that the arrays have to grow."""
    monkeypatch.setattr(columns_module.Columns.__init__, "__defaults__", (4, 1))


@pytest.fixture
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches so small that entries are dropped all the time."""
    monkeypatch.setattr(columns_module, "MOST_NOTED", 7)
    monkeypatch.setattr(cache_module, "MOST_KEPT", 2)


#: (what, node, units): nodes are added, removed and resized, pods start and end, and requests are filtered.
steps = st.lists(
    st.tuples(
        st.sampled_from(("node", "goes", "pod", "ends", "ask", "ask")), st.integers(0, 39), st.integers(1, 4)
    ),
    max_size=60,
)


def play(ledger: Ledger, what: str, number: int, units: int) -> None:
    name = NAMES[number]
    if what == "node":
        ledger.set_node(node(name, *[1024 * (units + number % 3)] * units))
    elif what == "goes":
        ledger.remove_node(name)
    elif what == "pod" and ledger.filter(asks(units), [name]).fits:
        ledger.reserve(f"u{number}", "p", asks(units), name)
    elif what == "ends":
        ledger.release(f"u{number}")


@pytest.mark.usefixtures("small_caches")
@quick
@given(steps=steps)
def test_small_caches_are_never_stale(steps: list[tuple[str, int, int]]) -> None:
    _check(steps)


@quick
@given(steps=steps)
def test_large_caches_are_never_stale(steps: list[tuple[str, int, int]]) -> None:
    _check(steps)


def _check(steps: list[tuple[str, int, int]]) -> None:
    ledger = Ledger()
    for what, number, units in steps:
        if what == "ask":
            request = asks(units)
            assert np.array_equal(ledger._left.of(request), left_over(ledger._books.columns, request))
            assert len(ledger._left._cache) <= cache_module.MOST_KEPT
        else:
            play(ledger, what, number, units)
    for units in range(1, 5):
        fresh = Ledger()
        for name in NAMES:
            if (devices := ledger.node(name)) is not None:
                fresh.set_node(devices)
        for held in list(ledger._held.values()):
            fresh.hold(held.uid, held.pod, held.node, held.allocation)
        request = asks(units)
        assert ledger.filter(request, NAMES) == fresh.filter(request, NAMES)
        assert ledger.score(request, NAMES) == fresh.score(request, NAMES)


def test_found_names_are_looked_up_again_once_a_node_was_added_or_removed() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", 1024))
    assert ledger.filter(asks(1), ["n1", "n2"]).fits == ["n1"]
    ledger.set_node(node("n2", 1024))
    assert ledger.filter(asks(1), ["n1", "n2"]).fits == ["n1", "n2"]
    ledger.remove_node("n1")
    assert ledger.filter(asks(1), ["n1", "n2"]).refused == {"n1": UNKNOWN_NODE}
    ledger.set_node(node("n3", 512))
    assert ledger.filter(asks(1), ["n1", "n2"]).fits == ["n2"]
    assert ledger.standing_out(asks(1), ["n1", "n2"]) == [("n2", 10)]


def test_a_list_that_its_owner_changed_is_not_taken_for_the_cached_one() -> None:
    ledger = Ledger()
    for name in ("n1", "n2"):
        ledger.set_node(node(name, 1024))
    ledger.reserve("u", "p", asks(1), "n1")
    names = ["n1", "n2"]
    fits = ledger.filter(asks(1), names).fits
    assert fits == ["n2"]
    fits.insert(0, "n1")
    assert ledger.score(asks(1), fits) == [0, 10]
    names.reverse()
    assert ledger.score(asks(1), names) == [10, 0]


def test_what_a_request_would_add_to_fragments_is_cached_for_few_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(growth_module, "MOST_KEPT", 2)
    ledger = Ledger(node_policy=Placement.FRAGMENTATION)
    ledger.set_node(node("n0", 16384))
    for units in (1, 2, 3, 1):
        ledger.score(asks(units), ["n0"])
    assert len(ledger._growth._cache) == 2
