"""The nodes with which a playground starts."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """A node: its name, a preset of ``gpushare_playground.gpus``, and its labels."""

    name: str
    preset: str
    labels: tuple[tuple[str, str], ...]

    @property
    def mode(self) -> str:
        """The value of the label ``ack.node.gpu.schedule``."""
        return dict(self.labels).get("ack.node.gpu.schedule", "default")


def node(name: str, preset: str, mode: str) -> NodeDescription:
    """A node in one of the documented modes."""
    return NodeDescription(name, preset, (("ack.node.gpu.schedule", mode),))


DEFAULT_NODES: Final = (
    node("share-v100", "v100-16384", "share"),
    node("cgpu-t4", "t4", "cgpu"),
    node("core-mem-v100x4", "core-mem-4", "core_mem"),
)
"""One node of each kind that the documentation's examples use (spec §3)."""
