"""``--why`` reports that a pod's share is smaller than a CUDA context."""

from typing import Any

import msgspec
import pytest

from gpushare.api import names
from gpushare.api.node.device import Device, devices_annotation
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import Node
from gpushare.api.quantity import MemoryUnit
from gpushare.inspect.color import Paint
from gpushare.inspect.views.explain import why
from tests.unit.inspect.clusters import device, node, placed, pod
from tests.unit.inspect.test_views import Answers, both, options

POD, NODE = "/api/v1/namespaces/default/pods/pod", "/api/v1/nodes/n"
NODES = "/api/v1/nodes?limit=100"


def a_node(context_mib: int, mode: NodeMode = NodeMode.CGPU) -> Node:
    there = node("n", "10.0.0.1", [device(0)], mode=mode)
    gpu: Device = msgspec.structs.replace(device(0), context_mib=context_mib)
    assert there.metadata.annotations is not None
    there.metadata.annotations[names.ANN_DEVICES] = devices_annotation(mode, MemoryUnit.GIB, (gpu,))
    return there


def warnings_of(its: Any, path: str, answer: Any) -> list[str]:
    kubectl = Answers(**{POD: msgspec.to_builtins(its), path: answer})
    shown = why(kubectl, options("--why", "pod"), Paint())
    warnings = [one for one in shown.remarks if "CUDA context" in one]
    document = both(lambda form: why(kubectl, options("--why", "pod", "-o", form), Paint()))
    assert [f"warning: {one}" for one in document["warnings"] if "CUDA context" in one] == warnings
    return warnings


def test_a_running_pod_is_compared_with_its_node() -> None:
    its = placed("pod", "n", device(0), 1)
    (warning,) = warnings_of(its, NODE, msgspec.to_builtins(a_node(1500)))
    assert warning.startswith("warning: container ")
    assert " MiB of GPU 0 of node n, less than the 1500 MiB that a CUDA context takes there; " in warning
    assert warning.endswith("request 2 units of 1GiB or more of each GPU")
    assert warnings_of(its, NODE, msgspec.to_builtins(a_node(518))) == []
    assert warnings_of(its, NODE, msgspec.to_builtins(a_node(1500, NodeMode.SHARE))) == []


def test_a_pending_pod_is_compared_with_all_nodes() -> None:
    its = pod("pod", "", 1)
    (warning,) = warnings_of(its, NODES, {"items": [msgspec.to_builtins(a_node(1500))]})
    assert (
        " of a GPU of node n, less than the 1500 MiB that a CUDA context takes there, the least of 1 GPU"
        in warning
    )
    assert warnings_of(its, NODES, {"items": [msgspec.to_builtins(a_node(one)) for one in (1500, 518)]}) == []


@pytest.mark.parametrize(
    "answer",
    ["Error from server (Forbidden): no", {"metadata": "broken"}, {"items": [{"metadata": "broken"}]}],
)
def test_unreadable_answers_are_ignored(answer: Any) -> None:
    assert warnings_of(placed("pod", "n", device(0), 1), NODE, answer) == []
    assert warnings_of(pod("pod", "", 1), NODES, answer) == []


def test_nodes_are_not_read_for_shares_into_which_any_context_fits() -> None:
    def read(path: str) -> Any:
        pytest.fail(f"{path} is read")

    assert warnings_of(pod("pod", "", 16), "/api/v1/nodes", read) == []
    assert warnings_of(placed("pod", "n", device(0), 4), "/api/v1/nodes?", read) == []
