"""What a pod asks of another GPU scheduler, as far as gpushare has the same."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpushare.api.objects import Pod


class Untranslatable(ValueError):
    """A request that has no equivalent here; ``str()`` names it, says why and what to write instead."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a container gets of each GPU: memory in MiB or in percent, the other is 0; compute in percent, 0: no limit."""

    mib: int = 0
    memory_percent: int = 0
    core_percent: int = 0


@dataclass(frozen=True, slots=True)
class Translation:
    """A pod's request. ``shares`` are by container, ``gpus`` is the number of GPUs that each of them gets.

    ``annotations`` are ours; the pod's resources and annotations of the names in ``resources`` and ``replaced`` are removed.
    """

    shares: Mapping[str, Share]
    gpus: int = 1
    annotations: Mapping[str, str] = field(default_factory=dict)
    resources: frozenset[str] = frozenset()
    replaced: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Product:
    """A GPU scheduler whose requests can be accepted.

    ``scheduler`` is its scheduler's name in pods, ``percent`` what it calls memory in percent of a GPU. ``read`` returns ``None`` for
    a pod that does not ask for a share in its words, and raises ``Untranslatable``.
    """

    name: str
    scheduler: str
    percent: str
    read: Callable[[Pod], Translation | None]


def amounts(asked: Mapping[str, str]) -> str:
    """``container a asks for 3, container b asks for x``; by container."""
    return ", ".join(f"container {name} requests {text}" for name, text in asked.items())


def containers(listed: Mapping[str, object]) -> str:
    """``container a, container b``."""
    return ", ".join(f"container {name}" for name in listed)
