"""Clusters that a page shows as samples, printed by a program in place of kubectl: ``<!-- sample: NAME -->``."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from gpushare.api.node.device import Device
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import Node, Pod
from tests.integration.inspect.conftest import ScriptedKubectl
from tests.integration.inspect.test_command import listed
from tests.integration.inspect.test_pods import two_nodes
from tests.unit.inspect.clusters import T4_MIB, first_generation, foreign_node, node, placed, pod
from tests.unit.inspect.test_documented_examples import two_modes

Seen = tuple[Sequence[Node], Sequence[Pod]]


def _one_node() -> Seen:
    name = "cn-shanghai.192.168.6.104"
    return [foreign_node(name, "192.168.6.104", 1, 15)], [pod("job-x", name, 3, first_generation(0, 3))]


def _gpus(of: str, count: int) -> list[Device]:
    """A node's GPUs of 15 GiB; ``of`` is in their UUIDs."""
    return [Device(index, f"GPU-{of}{index}", T4_MIB, "Tesla T4") for index in range(count)]


def _six_moves() -> Seen:
    """Room for a pod of 8 once one of 6 has moved; the GPU with 9 free is for pods that request compute."""
    first, second, third = _gpus("a", 2), _gpus("b", 2), _gpus("c", 1)
    nodes = [
        node("gpu-1", "10.0.0.1", first),
        node("gpu-2", "10.0.0.2", second),
        node("gpu-3", "10.0.0.3", third, mode=NodeMode.CORE_MEM),
    ]
    pods = [
        placed("ten", "gpu-1", first[0], 10),
        placed("six", "gpu-1", first[1], 6),
        placed("stays", "gpu-1", first[1], 6),
        *(placed(f"other-{gpu.index}", "gpu-2", gpu, 8) for gpu in second),
        placed("compute", "gpu-3", third[0], 6, core_percent=50),
        pod("eight", "", 8, phase="Pending"),
    ]
    return nodes, pods


def _wide_waits() -> Seen:
    """No GPU has 14 of its 15 free, and one would if the smaller of two pods moved."""
    four, single = _gpus("a", 4), _gpus("b", 1)
    nodes = [node("four", "10.0.0.1", four), node("single", "10.0.0.2", single)]
    apps = [placed(f"app-{gpu.index}-6d5f", "four", gpu, 8) for gpu in four]
    return nodes, [*apps, placed("other", "single", single[0], 5), pod("wide", "", 14, phase="Pending")]


def _from(cluster: Callable[[], Seen]) -> Callable[[ScriptedKubectl, Path], object]:
    def answer(program: ScriptedKubectl, _: Path) -> None:
        nodes, pods = cluster()
        program.answer("/api/v1/nodes", listed(list(nodes)))
        program.answer("'/api/v1/pods?'*", listed(list(pods)))

    return answer


SAMPLES: Final[dict[str, Callable[[ScriptedKubectl, Path], object]]] = {
    "one node": _from(_one_node),
    "two modes": _from(two_modes),
    "six moves": _from(_six_moves),
    "wide waits": _from(_wide_waits),
    "real use": two_nodes,
}


def kubectl(name: str, folder: Path) -> Path:
    """A program that prints the sample like kubectl, written below ``folder``."""
    assert name in SAMPLES, f"no sample is called {name}; there are {', '.join(SAMPLES)}"
    made = Path(tempfile.mkdtemp(prefix="sample-", dir=folder))
    program = ScriptedKubectl(made)
    SAMPLES[name](program, made)
    return program.path
