"""The text of every documented sample, byte for byte (golden/SOURCES.md names their sources)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import Node
from gpushare.api.quantity import MemoryUnit
from gpushare.inspect.views.allocation_model import ClusterUsage
from gpushare.inspect.views.node_details import details
from gpushare.inspect.views.nodes import summary
from tests.unit.inspect.clusters import (
    V100_MIB,
    device,
    first_generation,
    foreign_node,
    node,
    placed,
    pod,
    second_generation,
    seen,
)

GOLDEN = Path(__file__).parent / "golden"
SHANGHAI = "cn-shanghai.192.168.6.104"
BEIJING = "cn-beijing.192.16x.x.xx"
HANGZHOU = "cn-hangzhou.192.168.2.167"
FOUR = "cn-shanghai.192.0.2.109"


def beijing(number: int) -> Node:
    return foreign_node(f"{BEIJING}{number}", f"192.16x.x.xx{number}", 1, 15)


def four_gpus(*units: int) -> ClusterUsage:
    pods = [pod(f"p{gpu}", FOUR, n, second_generation({gpu: n})) for gpu, n in enumerate(units) if n]
    return seen([foreign_node(FOUR, "192.0.2.109", 4, 15)], pods)


def original_guide() -> ClusterUsage:
    first, second = "cn-shanghai.i-uf61h64dz1tmlob9hmtb", "cn-shanghai.i-uf61h64dz1tmlob9hmtc"
    return seen(
        [foreign_node(first, "192.168.0.71", 1, 15), foreign_node(second, "192.168.0.70", 1, 15)],
        [
            pod("binpack-1-0", first, 3, first_generation(0, 3)),
            pod("binpack-1-1", second, 3, first_generation(0, 3)),
            pod("binpack-1-2", first, 3, first_generation(0, 3)),
        ],
    )


def pending() -> ClusterUsage:
    return seen(
        [foreign_node("alpha", "10.0.0.1", 2, 15), foreign_node("beta", "10.0.0.2", 1, 15)],
        [
            pod("serving-0", "alpha", 4, first_generation(1, 4)),
            pod("serving-1", "beta", 5),
            pod("serving-2", "beta", 2, first_generation(0, 2), namespace="other"),
        ],
    )


def unit_128() -> ClusterUsage:
    unit = MemoryUnit.MIB_128
    gpu = device(0, V100_MIB)
    return seen(
        [node(SHANGHAI, "192.168.6.104", [gpu], unit=unit)], [placed("a-0", SHANGHAI, gpu, 16, unit=unit)]
    )


def two_units() -> ClusterUsage:
    unit = MemoryUnit.MIB_128
    gpu = device(0, V100_MIB)
    nodes = [
        node("alpha", "10.0.0.1", [gpu]),
        node("beta", "10.0.0.2", [gpu, device(1, V100_MIB)], unit=unit),
        node("gamma", "10.0.0.3", [gpu]),
    ]
    return seen(nodes, [placed("a-0", "alpha", gpu, 3), placed("b-0", "beta", gpu, 16, unit=unit)])


def compute() -> ClusterUsage:
    nodes = [
        node("alpha", "10.0.0.1", [device(index) for index in range(2)], mode=NodeMode.CORE_MEM),
        node(
            "beta",
            "10.0.0.2",
            [
                device(0),
                device(1, 2 * V100_MIB, model="Tesla V100"),
                device(2, healthy=False, reason="XID 79"),
            ],
        ),
    ]
    pods = [placed(f"cuda-{n}", "alpha", device(1), 2, core_percent=30) for n in range(3)]
    return seen(nodes, [*pods, placed("big-0", "beta", device(1, 2 * V100_MIB), 20, namespace="other")])


Form = Callable[[ClusterUsage], str]


def wide(cluster: ClusterUsage) -> str:
    return summary(cluster, wide=True)


def wide_details(cluster: ClusterUsage) -> str:
    return details(cluster, wide=True)


SAMPLES: dict[str, tuple[Form, Callable[[], ClusterUsage]]] = {
    "install_tool": (summary, lambda: seen([foreign_node(SHANGHAI, "192.168.6.104", 1, 15)])),
    "spec_example_2": (
        summary,
        lambda: seen(
            [foreign_node(SHANGHAI, "192.168.6.104", 1, 15)],
            [pod("job-x", SHANGHAI, 3, second_generation({0: 3}))],
        ),
    ),
    "two_gpus": (summary, lambda: seen([foreign_node("cn-shanghai.192.168.0.4", "192.168.0.4", 2, 7)])),
    "one_pod": (
        summary,
        lambda: seen(
            [foreign_node("cn-beijing.192.168.1.105", "192.168.1.105", 1, 14)],
            [pod("binpack-0", "cn-beijing.192.168.1.105", 3, first_generation(0, 3))],
        ),
    ),
    "three_nodes_empty": (summary, lambda: seen([beijing(3), beijing(1), beijing(2)])),
    "three_nodes_one_pod": (
        summary,
        lambda: seen(
            [beijing(1), beijing(2), beijing(3)],
            [pod("binpack-0", f"{BEIJING}3", 3, first_generation(0, 3))],
        ),
    ),
    "original_guide": (summary, original_guide),
    "binpack": (summary, lambda: four_gpus(15, 9)),
    "spread": (summary, lambda: four_gpus(4, 4, 0, 4)),
    "details_two_pods": (
        details,
        lambda: seen(
            [foreign_node(HANGZHOU, "192.168.2.167", 1, 15)],
            [pod(f"app-3g-v1-{n}", HANGZHOU, 4, first_generation(0, 4)) for n in range(2)],
        ),
    ),
    "details_no_pod": (details, lambda: seen([foreign_node("node5", "10.202.115.1", 1, 7)])),
    "pending": (summary, pending),
    "details_pending": (details, pending),
    "unit_128": (summary, unit_128),
    "two_units": (summary, two_units),
    "details_two_units": (details, two_units),
    "compute": (summary, compute),
    "wide": (wide, compute),
    "details_compute": (details, compute),
    "details_wide": (wide_details, compute),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_is_printed_byte_for_byte(name: str) -> None:
    form, cluster = SAMPLES[name]
    assert form(cluster()) == (GOLDEN / f"{name}.txt").read_text()


def test_every_golden_file_is_used() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(SAMPLES)


@pytest.mark.parametrize("name", ["install_tool", "spec_example_2", "details_two_pods"])
def test_the_same_figures_from_our_own_agent_print_the_same(name: str) -> None:
    form, cluster = SAMPLES[name]
    (foreign,) = cluster().nodes
    gpu = device(0)
    pods = [placed(one.name, foreign.name, gpu, one.shares[0].units) for one in foreign.pods]
    ours = seen([node(foreign.name, foreign.address, [gpu])], pods)
    assert form(ours) == (GOLDEN / f"{name}.txt").read_text()
