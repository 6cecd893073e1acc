"""Whether what is advised to a pod is true where pods of the other kind are in its way."""

import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from tests.unit.scheduler.suggestion_truth import Judge

KINDS = "a node without pods of the other kind: those with GPU memory alone and those with compute too are never together on one"
KINDS_ENDED = r"node (\w+) would do once pods? (.+?) ha(?:s|ve) ended"
KINDS_LABEL = r"`kubectl label node (\w+) ack.node.gpu.schedule=(\w+) --overwrite`"


def of_kinds(judge: "Judge", suggestion: str) -> str:
    for node in judge.of_kind():
        assert judge.naive.of_kind(node, core=not judge.request.core_percent)
        nobody = judge.naive.nodes[node].devices
        devices = tuple(msgspec.structs.replace(one, foreign_mib=0) for one in nobody)
        assert judge.would(node, emptied=True, devices=devices)
    found = re.fullmatch(rf"{KINDS}(?:: (?:{KINDS_ENDED})?(?:; or )?(?:{KINDS_LABEL})?)?", suggestion)
    assert found, suggestion
    ended, there, labelled, mode = found.groups()
    if not judge.known:
        assert (ended, labelled) == (None, None)
        return "kinds of some"
    pods = {node: _pods_there(judge, node) for node in judge.of_kind()}
    few = {
        node: len(its)
        for node, its in pods.items()
        if 0 < len(its) <= 3 and judge.would(node, emptied=True, kept=True)
    }
    assert bool(ended) == bool(few), (suggestion, few)
    if ended:
        assert few[ended] == min(few.values()) or judge.naive.kept
        assert re.split(", | and ", there) == sorted(pods[ended])
    idle = [
        node
        for node in judge.open
        if not judge.naive.pods_of(node)
        and not judge.naive.nodes[node].refusal
        and judge.kinds[node] == "node"
    ]
    would = [node for node in idle if judge.would(node, mode=judge.mode())]
    assert bool(labelled) == bool(would), (suggestion, would)
    if labelled:
        assert labelled in would
        assert mode == judge.mode().value
    return "kinds" + (", ends" if ended else "") + (", label" if labelled else "")


def _pods_there(judge: "Judge", node: str) -> list[str]:
    return [one.pod for one in judge.naive.holdings.values() if one.node == node]
