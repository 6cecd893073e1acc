"""Requests of new pods are precomputed before they are offered: no answer changes."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from gpushare.api.node.device import Placement
from gpushare.api.request.request import Request
from gpushare.ledger import Ledger
from gpushare.ledger.placement.fragmentation.growth import Growth
from gpushare.ledger.placement.score_cache import LeftOver
from gpushare.scheduler.cache.cache import NodeRecord
from gpushare.scheduler.framework.precompute import Precomputer
from tests.unit.ledger.ledger_samples import asks, counts
from tests.unit.scheduler.framework.test_fragmentation_fed import node_object, pod, reader, seen, view


class Worked:
    """Counts computations over all columns, and over changed ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        for kind in (Growth, LeftOver):
            monkeypatch.setattr(kind, "_compute", self._counted(kind._compute))

    def _counted(self, work_out: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: Any, **named: Any) -> object:
            self.times += 1
            return work_out(*arguments, **named)

        return counted


@pytest.mark.parametrize("policy", Placement)
@pytest.mark.parametrize("request_", [asks(3), asks(3, 30), asks(2, gpus=2), asks(2, whole=True), counts(1)])
def test_a_precomputed_request_is_answered_without_further_work(
    policy: Placement, request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, other = Ledger(node_policy=policy), Ledger(node_policy=policy)
    for one in (ledger, other):
        one.set_node(reader(policy).read(node_object()).devices)
        one.arrived(asks(5))
    worked = Worked(monkeypatch)
    ledger.precompute(request_)
    assert worked.times
    worked.times = 0
    answers = [
        ledger.filter(request_, ("n1",)),
        ledger.best(request_, ("n1",)),
        ledger.score(request_, ("n1",)),
    ]
    assert worked.times == 0
    assert answers == [
        other.filter(request_, ("n1",)),
        other.best(request_, ("n1",)),
        other.score(request_, ("n1",)),
    ]


def test_each_request_is_computed_once_however_many_pods_have_it() -> None:
    done = []
    scene = view()
    precomputer = Precomputer(scene.ledger, lambda: done.append(1))
    scene.pod_arrived.subscribe(precomputer.arrived)
    record = reader().read(node_object())
    scene.upsert_node(NodeRecord(record.devices, ""))
    for name, units in (("a", 3), ("b", 3), ("c", 5), ("a", 3)):
        seen(scene, pod(name, units))
    seen(scene, pod("d", 4, node="n1"))
    while precomputer.work_out_one():
        pass
    assert len(done) == 2, "3 and 5: a pod with a node is not filtered again"


def test_more_requests_than_are_remembered_are_not_precomputed() -> None:
    done = []
    precomputer = Precomputer(Ledger(), lambda: done.append(1))
    for units in range(1, 1000):
        precomputer.arrived(asks(units))
    while precomputer.work_out_one():
        pass
    assert len(done) == 256


async def test_later_requests_are_precomputed_too_with_the_lowest_precedence() -> None:
    order = []
    precomputer = Precomputer(Ledger(), lambda: order.append("precomputed"))
    running = asyncio.create_task(precomputer.run())
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(30):
        for units in (1, 2):
            precomputer.arrived(asks(units))
            precomputer.arrived(asks(units + 10))
            loop.call_soon(order.append, "other")
            while order.count("precomputed") < 2 * units:
                await asyncio.sleep(0)
    assert order[:3] == ["other", "precomputed", "precomputed"]
    assert order.count("precomputed") == 4
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
