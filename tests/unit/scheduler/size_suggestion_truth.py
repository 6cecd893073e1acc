"""Whether what is advised to a pod that is larger than every node is true."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.quantity import MemoryUnit

if TYPE_CHECKING:
    from tests.unit.scheduler.suggestion_truth import Judge

DIVIDED = r', or label the pod aliyun.com/gpu-count: "(\d+)", which divides it between (\d+) GPUs of one node'


def of_size(judge: "Judge", suggestion: str) -> str:
    if judge.request.core_percent > 100:
        return larger(judge, suggestion)
    divided = re.search(f"{DIVIDED}$", suggestion)
    over, _ = spread_over(judge, {node: {} for node in judge.open})
    assert (int(divided[1]), int(divided[2])) == (over, over) if divided else not over, (suggestion, over)
    larger(judge, suggestion[: divided.start()] if divided else suggestion)
    return "size" if divided is None else "size, divided"


def larger(judge: "Judge", suggestion: str, *, mode: str = "") -> str:
    """A larger node, or a smaller request."""
    request = judge.request
    if request.core_percent > 100:
        assert suggestion == (
            "ask for 100% compute at most, all containers together: no GPU has more, however large"
        )
        return "size of compute"
    if request.gpu_count == 1 and not request.by_gpu:
        assert suggestion == f"a node{mode} with larger GPUs; or ask for less"
    else:
        found = re.fullmatch(
            rf"a node{mode} with (\d+) GPUs or more"
            r"(?:; or ask for fewer| that are as large as each of those asked for; or ask for less)",
            suggestion,
        )
        assert found, suggestion
        assert int(found[1]) == request.gpu_count
        assert ("fewer" in suggestion) == request.by_gpu
    devices = tuple(
        Device(index, f"GPU-new-{index}", request.memory_units * 1024) for index in range(request.gpu_count)
    )
    judge.naive.nodes["new"] = NodeDevices("new", judge.mode(), MemoryUnit.GIB, devices)
    taken = judge.naive.reason(request, "new") is None
    del judge.naive.nodes["new"]
    assert taken
    return "larger"


def spread_over(judge: "Judge", nodes: Mapping[str, Mapping[str, Any]]) -> tuple[int, dict[str, int]]:
    """On how many GPUs of one of ``nodes``, changed so, the pod would have as much in all, and how many pods have to end there; 0 for none."""
    request = judge.request
    if request.by_gpu or request.core_percent or request.unit_mib or request.apart:
        return 0, {}
    for count in range(request.gpu_count + 1, 9):
        units, rest = divmod(request.memory_units * request.gpu_count, count)
        divided = msgspec.structs.replace(request, memory_units=units, gpu_count=count)
        whole = not rest and not any(one.memory_units % count for one in request.containers)
        found = {node: judge.once(node, divided, **changes) for node, changes in nodes.items() if whole}
        if useful := {node: once for node, once in found.items() if once is not None}:
            return count, useful
    return 0, {}
