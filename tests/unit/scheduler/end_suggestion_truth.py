"""Whether those who are named would let a waiting pod in with their end."""

import itertools
import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from tests.unit.scheduler.why_truth import memory

if TYPE_CHECKING:
    from tests.unit.scheduler.suggestion_truth import Judge

ENOUGH = r"(?:; the end of pods? (.+?) there would be enough)?"


def enough(judge: "Judge", node: str, gpu: int, told: str | None) -> str:
    """Those that are named, with what they have of the GPU, are as few as would do; nobody where more than three would have to end."""
    uuid = judge.naive.nodes[node].devices[gpu].uuid
    there = {
        uid: share
        for uid, one in judge.naive.holdings.items()
        for share in one.allocation.gpus
        if one.node == node and share.uuid == uuid
    }
    least = next(
        (
            count
            for count in (1, 2, 3)
            for some in itertools.combinations(there, count)
            if _would_without(judge, node, some)
        ),
        0,
    )
    # Of several pods not all sets are tried where compute counts besides.
    assert bool(told) == bool(least) or (judge.request.core_percent and least > 1 and not told), (
        told,
        least,
    )
    if told is None:
        return ""
    named = re.findall(r"default/(\S+) \((\d+ [GM]iB)(?: and (\d+)%)?\)", told)
    uids = [f"uid-{name}" for name, _, _ in named]
    for uid, (_, amount, core) in zip(uids, named, strict=True):
        assert amount == memory(there[uid].units * judge.naive.nodes[node].unit.mib)
        assert core == (str(there[uid].core_percent) if judge.request.core_percent else "")
    assert _would_without(judge, node, uids)
    assert len(uids) == least or judge.request.core_percent
    return "one end" if len(uids) == 1 else "several ends"


def _would_without(judge: "Judge", node: str, uids: Collection[str]) -> bool:
    before = judge.naive.holdings
    judge.naive.holdings = {uid: one for uid, one in before.items() if uid not in uids}
    helps = judge.naive.reason(judge.request, node) is None
    judge.naive.holdings = before
    return helps
