"""The guide's examples match the command's output."""

from pathlib import Path

from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import Node, Pod
from gpushare.inspect.views.node_details import details
from gpushare.inspect.views.nodes import summary
from tests.unit.inspect.clusters import V100_MIB, device, node, placed, seen

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "inspect.md"


def two_modes() -> tuple[list[Node], list[Pod]]:
    """The guide's second sample, which ``make docs-test`` also types."""
    t4s, v100 = [device(0), device(1)], device(0, V100_MIB, model="Tesla V100")
    return (
        [
            node("n1", "10.0.0.1", t4s, mode=NodeMode.CORE_MEM),
            node("n2", "10.0.0.2", [v100], mode=NodeMode.SHARE),
        ],
        [
            placed("train", "n1", t4s[0], 6, core_percent=60),
            placed("serve", "n1", t4s[1], 3, core_percent=30),
            placed("notebook", "n2", v100, 2),
        ],
    )


def test_the_guide_shows_the_real_output() -> None:
    guide = GUIDE.read_text()
    cluster = seen(*two_modes())
    for command, shown in (
        ("", summary(cluster)),
        (" -o wide", summary(cluster, wide=True)),
        (" -d", details(cluster)),
    ):
        assert f"$ kubectl inspect cgpu{command}\n{shown}" in guide
