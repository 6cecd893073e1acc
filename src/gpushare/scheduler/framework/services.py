"""What one plugin offers others, so that they need not import it; each with a stand-in for where that plugin is left out.

A plugin gets these when it is composed (``plugins.registry``) and keeps them: nothing is looked up later.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from gpushare.api.request.request import Request
from gpushare.ledger import Held
from gpushare.scheduler.cache.pod_records import PodRecord

Candidate = tuple[str, str, Request]
"""UID and key of a pod, and what it requests."""


class Standing(NamedTuple):
    """How the gang of a pending pod stands for that pod.

    Of ``there`` pods (UIDs: ``members``) that stay, or have succeeded, so many run; ``need`` have to find room at once, the pod among
    them: none or less where enough run. ``candidates`` could, the pod first, on the nodes of ``offered`` where they were asked about. ``wrong`` can
    never, as it is; ``planned`` is the node on which its gang's plan has it; ``resting``: its gang gives way to others for some seconds.
    """

    there: int
    running: int
    need: int
    candidates: list[Candidate]
    members: Collection[str]
    offered: Mapping[str, list[str]]
    wrong: PodRecord | None
    planned: str
    is_planned: bool
    resting: bool


class Wanting(NamedTuple):
    """A pod of a gang, what it requests, and the nodes that it may have."""

    record: PodRecord
    request: Request
    nodes: list[str]


class GangRoom(NamedTuple):
    """Room that is kept for the gang ``key``, of whose ``least`` pods so many run or have ``come`` to be bound, for ``left_s`` seconds."""

    key: str
    come: int
    least: int
    left_s: float
    held: Sequence[Held]


class Gangs(Protocol):
    """Pods that run together or not at all."""

    def together_with(self, uid: str) -> list[str]:
        """UIDs of all pods of a pod's gang; of one without a gang its own."""

    def wanting(self, uid: str, nodes: list[str]) -> list[Wanting]:
        """Who of a pod's gang needs room at once with it, the largest first. ``nodes`` may take the pod itself."""

    def standing(self, uid: str) -> Standing | None:
        """How its gang stands for a pending pod; ``None`` for one without a gang, or that requests no GPU."""

    def keepers(self, request: Request, nodes: Collection[str]) -> dict[str, str]:
        """Those of ``nodes`` that would take the request if gangs kept no room there, and these gangs, in words."""

    def kept_rooms(self) -> Iterable[GangRoom]:
        """What is kept now."""


class NoGangs:
    """Each pod is placed for itself."""

    def together_with(self, uid: str) -> list[str]:
        """See ``Gangs``."""
        return [uid]

    def wanting(self, uid: str, nodes: list[str]) -> list[Wanting]:
        """See ``Gangs``."""
        return []

    def standing(self, uid: str) -> Standing | None:
        """See ``Gangs``."""
        return None

    def keepers(self, request: Request, nodes: Collection[str]) -> dict[str, str]:
        """See ``Gangs``."""
        return {}

    def kept_rooms(self) -> Iterable[GangRoom]:
        """See ``Gangs``."""
        return ()


NO_GANGS = NoGangs()
