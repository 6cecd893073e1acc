"""Every reason and every suggestion is grammatical for one and for several: pods, GPUs, nodes."""

import re
from collections.abc import Callable, Iterator

import pytest

from gpushare.api.node.device import NodeDevices
from gpushare.api.node.modes import MODES, NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.pod_group import Gang
from gpushare.api.request.request import Request
from gpushare.ledger.fit import reasons
from gpushare.reasons.phrases import on_nodes
from gpushare.reasons.summary import Example, Group, Summary, fitting_text, reason_text
from tests.unit.ledger.test_ledger_reasons import CASES
from tests.unit.scheduler.world import World, gpu_node

THINGS = "pod|node|GPU|share|unit|reason"
WRONG = [
    # one, and more than one is said; several, and one is
    re.compile(rf"(?<![\d/.])\b1 (?:more )?(?:{THINGS})s\b"),
    re.compile(rf"(?<![\d/.])\b(?:[2-9]|[1-9]\d+) (?:more )?(?:{THINGS})\b"),
    re.compile(
        r"\b1 (?:have|are|give|share)\b|\bthere are 1\b|\b1 others\b|\b1 of \d+ (?:pods )?(?:have|are)\b"
    ),
    re.compile(r"\b(?:[2-9]|[1-9]\d+) (?:has|is|gives|shares)\b|\bthere is [2-9]"),
    re.compile(r"\b[2-9] nodes: node\b|\bnode node\b|\b[2-9] nodes (?:gives|has|is|shares)\b"),
]

COUNTED: dict[str, Callable[[int], str]] = {
    "pods of the other kind": lambda count: reasons.mixed(Request(1, 0, ()), count),
    "pods without compute": lambda count: reasons.mixed(Request(1, 5, ()), count),
    "the cap of a node": reasons.node_at_cap,
    "the cap of a GPU": reasons.at_cap,
    "GPUs of a node": lambda count: reasons.too_few_gpus(count, 0),
    "whole GPUs": lambda count: reasons.too_few_free(
        Request(0, 0, (), count, whole_device=True, by_gpu=True), 0, ()
    ),
    "large GPUs": lambda count: reasons.too_few_large(Request(8, 0, (), count), 8192, tuple(range(count))),
    "healthy GPUs": lambda count: reasons.too_few_healthy(
        Request(8, 0, (), count), 8192, "GPU 0 is cordoned"
    ),
    "free GPUs": lambda count: reasons.too_few_free(Request(8, 0, (), 2), 8192, tuple(range(count))),
    "GPUs below their cap": lambda count: reasons.too_few_below_cap(
        Request(8, 0, (), 2), 8192, count, tuple(range(count))
    ),
    "nodes with room": lambda count: fitting_text([f"n{number}" for number in range(count)], count),
}


# : GPUs by their indices, which are no counts, and of how many some are present.
NUMBERED = re.compile(r"\bGPUs \d+(?:, \d+)* and \d+\b|\bGPU \d+\b|\bof \d+(?= (?:is|are) there\b)")


def right(text: str) -> None:
    text = NUMBERED.sub("…", text)
    for wrong in WRONG:
        assert not wrong.search(text), text


def texts_of_a_node() -> Iterator[str]:
    """All reasons for which a node is refused."""
    yield from (reason for _, _, _, reason, _ in CASES.values())
    yield from (write(count) for write in COUNTED.values() for count in (1, 2))
    yield reasons.UNKNOWN_NODE
    yield NodeMode.MPS.one_gpu_text
    for mode in MODES.values():
        bare = NodeDevices("n", mode, MemoryUnit.GIB, ())
        yield from filter(None, reasons.standing_refusals(bare))
        yield from filter(None, reasons.standing_refusals(gpu_node("n", 8192, mode=mode)))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("subject", COUNTED)
def test_counts_in_a_reason_are_grammatical(subject: str, count: int) -> None:
    right(COUNTED[subject](count))


@pytest.mark.parametrize("count", [1, 2])
def test_each_reason_of_a_node_is_grammatical_for_one_node_and_for_several(count: int) -> None:
    for text in texts_of_a_node():
        right(on_nodes(count, text))
        head = text.partition(" (")[0].partition("; ")[0]
        right(on_nodes(count, head))
        one = Group("node", head, True, count, (Example("n1", text),))
        right(reason_text(Summary(count, 0, 0, count, (one,), ())))
        # More than one reason, more than are shown, and some that stand for all.
        groups = (one,) + (
            Group("size", "requests 8 GiB", True, count, (Example("n2", "requests 8 GiB"),)),
        ) * 4
        right(reason_text(Summary(9 * count, 0, 0, 5 * count, groups, ())))


def test_counts_of_nodes_are_marked_as_such() -> None:
    text = reasons.standing_refusals(gpu_node("n", 8192, mode=NodeMode.CGPU))[1]
    head = "node offers no compute"
    assert on_nodes(1, head) == "1 node offers no compute"
    assert on_nodes(2, head) == "2 nodes: each offers no compute"
    assert on_nodes(1, "other reasons") == "1 node for another reason"
    assert on_nodes(2, "other reasons") == "2 nodes for other reasons"

    alone = Group("node", head, True, 2, (Example("n1", text),))
    line = reason_text(Summary(2, 0, 0, 2, (alone,), ()))
    assert line.startswith("none of 2 nodes fits: each offers no compute (it is in mode cgpu; ")
    size = Group("size", "requests 9 GiB, but the largest GPU has 8 GiB", True, 1, (Example("n3", "x"),))
    assert reason_text(Summary(3, 0, 0, 3, (alone, size), ())) == (
        "none of 3 nodes fits; 2 nodes: each offers no compute; 1 node: requests 9 GiB, but the largest GPU has 8 GiB"
    )


@pytest.mark.parametrize("least", [1, 2, 3])
def test_reasons_of_a_gang_are_grammatical(world: World, least: int) -> None:
    world.add_node(gpu_node("n1", 2048))
    gang = Gang("default/g", least)
    labels = {
        "pod-group.scheduling.sigs.k8s.io/name": "g",
        "pod-group.scheduling.sigs.k8s.io/min-available": str(least),
    }
    for number in range(3):
        world.create(f"p{number}", 4, labels=labels)
        request = world.view.waiting["uid-p0"].request
        assert request is not None
        verdict = world.gangs.verdict("uid-p0", "default/p0", gang, request, ["n1"])
        assert verdict is not None
        right("; ".join((verdict.refused | verdict.hopeless).values()))
        for one in world.decisions.waiting():
            right(one.suggestion)
