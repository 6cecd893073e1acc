"""Requests in MiB or percent, which admission has converted to a unit, fit only on nodes with the same unit."""

import pytest
from msgspec import structs

from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import Request
from gpushare.ledger import Ledger, Refused
from tests.unit.ledger.ledger_samples import V100, asks, node


def counted_in(unit: MemoryUnit, units: int) -> Request:
    return structs.replace(asks(units), unit_mib=unit.mib)


def test_a_request_counted_in_another_unit_does_not_fit_there() -> None:
    """The request is six units of 1 GiB; six units of 128 MiB would be an eighth of that."""
    ledger = Ledger()
    ledger.set_node(node("gib", V100))
    ledger.set_node(node("small", V100, unit=MemoryUnit.MIB_128))
    request = counted_in(MemoryUnit.GIB, 6)
    verdict = ledger.filter(request, ["gib", "small", "none"])
    assert verdict.fits == ["gib"]
    assert verdict.hopeless == {
        "small": "the request for 6 GiB was counted in units of 1 GiB when it was submitted, the node counts in 128 MiB; "
        "delete the pod, so that it is recreated"
    }
    assert set(verdict.refused) == {"none"}
    with pytest.raises(Refused, match="was counted in units of 1 GiB") as refused:
        ledger.reserve("a", "default/a", request, "small")
    assert refused.value.hopeless
    assert ledger.evictions.plan(request, ["small"], lambda uid: None) is None
    assert ledger.best(request, ["small", "none"]) is None
    assert ledger.best(request, ["small", "gib"]) == "gib"
    assert ledger.evictions.scattered(request, ["small", "gib"]) == ["gib"]
    assert ledger.reserve("a", "default/a", request, "gib").gpus[0].mib == V100 * 6 // 15
    assert ledger.filter(asks(6), ["gib", "small"]).fits == ["gib", "small"], "units are units anywhere"


def test_a_request_counted_in_the_nodes_unit_is_refused_only_for_lack_of_memory() -> None:
    ledger = Ledger()
    ledger.set_node(node("small", 1280, unit=MemoryUnit.MIB_128))
    verdict = ledger.filter(counted_in(MemoryUnit.MIB_128, 11), ["small"])
    assert verdict.hopeless == {"small": "requests 1408 MiB, but the largest GPU has 1280 MiB"}
