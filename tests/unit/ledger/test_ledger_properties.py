"""Counting in MiB equals counting in units while the unit stays, and the order of events does not matter."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.api.node.modes import MODES
from gpushare.api.quantity import MemoryUnit
from gpushare.ledger import Ledger, Refused
from tests.randomized import rounds
from tests.unit.ledger.ledger_samples import asks, holding, node, share

quick = settings(max_examples=rounds(60, soak=150), deadline=None)


@quick
@given(
    total_mib=st.one_of(st.integers(1, 4096), st.integers(1, 200_000)),
    unit=st.sampled_from(MemoryUnit),
    steps=st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60),
)
def test_counting_in_mib_equals_counting_in_units_while_the_unit_stays(
    total_mib: int, unit: MemoryUnit, steps: list[tuple[bool, int]]
) -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", total_mib, unit=unit))
    total_units = total_mib // unit.mib
    by_units: dict[str, int] = {}
    for number, (arrives, amount) in enumerate(steps):
        if arrives:
            fits = sum(by_units.values()) + amount <= total_units
            assert ledger.filter(asks(amount), ["n1"]).fits == (["n1"] if fits else [])
            try:
                ledger.reserve(f"u{number}", "p", asks(amount), "n1")
            except Refused:
                assert not fits
            else:
                assert fits
                by_units[f"u{number}"] = amount
        elif by_units:
            uid = list(by_units)[amount % len(by_units)]
            ledger.release(uid)
            del by_units[uid]
        (gpu,) = ledger.usage("n1").gpus
        assert gpu.used_units == sum(by_units.values())
        assert gpu.used_mib <= gpu.total_mib


@quick
@given(unit=st.sampled_from(MemoryUnit), total_mib=st.integers(128, 200_000), data=st.data())
def test_a_gpu_takes_as_many_single_units_as_it_has(
    unit: MemoryUnit, total_mib: int, data: st.DataObject
) -> None:
    """The hardest case for MiB: as many roundings as possible."""
    ledger = Ledger()
    ledger.set_node(node("n1", total_mib, unit=unit))
    total_units = total_mib // unit.mib
    for number in range(total_units):
        ledger.reserve(f"u{number}", "p", asks(1), "n1")
    assert ledger.filter(asks(1), ["n1"]).fits == []
    gone = data.draw(st.integers(0, total_units))
    for number in range(gone):
        ledger.release(f"u{number}")
    if gone:
        assert ledger.filter(asks(gone), ["n1"]).fits == ["n1"]
    assert ledger.filter(asks(gone + 1), ["n1"]).fits == []


LedgerEvent = Callable[[Ledger], object]

node_events: st.SearchStrategy[list[LedgerEvent]] = st.lists(
    st.one_of(
        st.just(lambda ledger: ledger.remove_node("n1")),
        st.builds(
            lambda sizes, mode, unit: (
                lambda ledger: ledger.set_node(node("n1", *sizes, mode=mode, unit=unit))
            ),
            st.lists(st.sampled_from((900, 4096, 5000)), max_size=3),
            st.sampled_from(list(MODES.values())),
            st.sampled_from(MemoryUnit),
        ),
    ),
    max_size=4,
)


def pod_events(uid: str) -> st.SearchStrategy[list[LedgerEvent]]:
    return st.lists(
        st.one_of(
            st.just(lambda ledger: ledger.release(uid)),
            st.builds(
                lambda on, gpu, mib, units, of, core: (
                    lambda ledger: ledger.hold(
                        uid, uid, on, holding(share(f"{on}-gpu{gpu}", mib, units, of, core))
                    )
                ),
                st.sampled_from(("n1", "n2")),
                st.integers(0, 3),
                st.integers(0, 3000),
                st.integers(1, 4),
                st.integers(1, 8),
                st.sampled_from((0, 10)),
            ),
        ),
        max_size=4,
    )


@quick
@given(
    histories=st.tuples(node_events, pod_events("a"), pod_events("b"), pod_events("c")),
    random=st.randoms(use_true_random=False),
    request_units=st.integers(1, 20),
)
def test_only_the_order_of_events_about_one_object_matters(
    histories: tuple[list[LedgerEvent], ...], random: object, request_units: int
) -> None:
    in_order, mixed = Ledger(), Ledger()
    for history in histories:
        for event in history:
            event(in_order)
    order = [number for number, history in enumerate(histories) for _ in history]
    random.shuffle(order)  # type: ignore[attr-defined]
    left = [iter(history) for history in histories]
    for number in order:
        next(left[number])(mixed)
    for name in ("n1", "n2"):
        assert mixed.usage(name) == in_order.usage(name)
    assert mixed.totals() == in_order.totals()
    for request in (asks(request_units), asks(request_units, 5)):
        assert mixed.filter(request, ["n1", "n2"]) == in_order.filter(request, ["n1", "n2"])
        assert mixed.score(request, ["n1", "n2"]) == in_order.score(request, ["n1", "n2"])
