"""What one plugin offers others, so that they need not import it; each with a stand-in for where that plugin is left out.

A plugin gets these when it is composed (``plugins.registry``) and keeps them: nothing is looked up later.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gpushare.api.objects import Pod
from gpushare.api.request.request import Request
from gpushare.ledger import Held
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.server.protocol import Victims

if TYPE_CHECKING:
    from gpushare.scheduler.framework.preemption_results import Preemption

Candidate = tuple[str, str, Request]
"""UID and key of a pod, and what it requests."""


def size_of(one: Candidate) -> int:
    """Units, on all GPUs together."""
    return one[2].memory_units * one[2].gpu_count


def largest_first(chosen: list[Candidate]) -> list[Candidate]:
    """So that what is small finds a place beside them."""
    return sorted(chosen, key=size_of, reverse=True)


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


class NodePolicies(Protocol):
    """Rules about which nodes the pods of a namespace may have."""

    @property
    def in_use(self) -> bool:
        """Whether there is any rule."""

    def governs(self, namespace: str) -> bool:
        """Whether there is one for pods of the namespace, those without a GPU among them."""

    def by_unit(self, uid: str, nodes: list[str]) -> list[list[str]]:
        """Those of ``nodes`` that the pod may have, in groups, the preferred one first."""

    def kept(self, uid: str) -> PodRecord | None:
        """The pod where it is pending because of a rule."""

    def preemptable(self, asked: Pod, victims: Mapping[str, Victims]) -> dict[str, Victims]:
        """Those nodes of ``victims`` on which others may be ended for the pod."""


class NoPolicies:
    """Every pod may have every node."""

    in_use = False

    def governs(self, namespace: str) -> bool:
        """See ``NodePolicies``."""
        return False

    def by_unit(self, uid: str, nodes: list[str]) -> list[list[str]]:
        """See ``NodePolicies``."""
        return [nodes]

    def kept(self, uid: str) -> PodRecord | None:
        """See ``NodePolicies``."""
        return None

    def preemptable(self, asked: Pod, victims: Mapping[str, Victims]) -> dict[str, Victims]:
        """See ``NodePolicies``."""
        return dict(victims)


NO_POLICIES = NoPolicies()


class MoveTargets(Protocol):
    """Whether what replaces a pod that is moved may have a node, by the rules of its namespace."""

    def objection(self, moved: Pod, node: str) -> str:
        """Why what replaces ``moved`` may not go to ``node``; empty where it may."""

    def take(self, key: str, moved: Pod, node: str) -> str:
        """The same; where nothing is objected the place counts, under ``key``, until ``give_up``."""

    def give_up(self, key: str) -> None:
        """The place counts no more, if it did."""


class AnyTarget:
    """What replaces a pod may have every node."""

    def objection(self, moved: Pod, node: str) -> str:
        """See ``MoveTargets``."""
        return ""

    def take(self, key: str, moved: Pod, node: str) -> str:
        """See ``MoveTargets``."""
        return ""

    def give_up(self, key: str) -> None:
        """See ``MoveTargets``."""


class Decisions(Protocol):
    """Takes note of what was decided about room that others have to make."""

    @property
    def now_s(self) -> float:
        """Seconds since 1970."""

    def preempted(self, uid: str, key: str, request: Request | None, found: "Preemption") -> None:
        """It was looked whose end would make room for the pod."""
