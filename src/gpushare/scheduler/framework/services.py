"""Services that plugins offer to each other, as protocols, so that no plugin imports another. Each has a stand-in for a missing plugin.

The stand-ins inherit the methods of their protocols: these answer as if there were no gangs, quotas or policies. The registry (``plugins.registry``) passes them to a plugin's constructor; nothing is looked up later.
"""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gpushare.api.objects import Pod
from gpushare.api.request.amounts import Amounts
from gpushare.api.request.request import Request
from gpushare.ledger import Held
from gpushare.ledger.quota.accounting import Over
from gpushare.ledger.quota.reclaim import Claim
from gpushare.process.event import Event
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.server.protocol import Victims

if TYPE_CHECKING:
    from gpushare.scheduler.framework.preemption_results import Preemption

Candidate = tuple[str, str, Request]
"""UID, key and request of a pod."""


def size_of(one: Candidate) -> int:
    """Memory units on all requested GPUs together."""
    return one[2].memory_units * one[2].gpu_count


def largest_first(chosen: list[Candidate]) -> list[Candidate]:
    """Sorted by size, as small pods still fit after large ones are placed."""
    return sorted(chosen, key=size_of, reverse=True)


class Standing(NamedTuple):
    """The state of a gang as seen by one of its pending pods.

    ``there``: how many of its pods exist and stay, or have succeeded.
    ``running``: how many run.
    ``need``: how many must find room at the same time, this pod included; zero or less if enough run.
    ``candidates``: the pods that could take that room, this pod first.
    ``members``: UIDs of all its pods.
    ``offered``: by UID, the nodes of kube-scheduler's last filter request for the pod.
    ``wrong``: a pod that can never be placed as it is written.
    ``planned``: the node that the gang's plan has for this pod; ``is_planned``: whether there is a plan.
    ``resting``: the gang gives way to others for some seconds.
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
    """A pod of a gang, its request, and the nodes that it may have."""

    record: PodRecord
    request: Request
    nodes: list[str]


class GangRoom(NamedTuple):
    """Room reserved for the gang ``key`` for another ``left_s`` seconds: ``come`` of ``least`` pods run or have reached ``Permit``."""

    key: str
    come: int
    least: int
    left_s: float
    held: Sequence[Held]


class Gangs(Protocol):
    """Pods that run together or not at all."""

    def together_with(self, uid: str) -> list[str]:
        """UIDs of all pods of a pod's gang; only its own for a pod without a gang."""
        return [uid]

    def wanting(self, uid: str, nodes: list[str]) -> list[Wanting]:
        """The pods of a pod's gang that need room together with it, the largest first. ``nodes`` are those that may take the pod itself."""
        return []

    def standing(self, uid: str) -> Standing | None:
        """The state of a pending pod's gang; ``None`` for a pod without a gang or without a GPU request."""
        return None

    def keepers(self, request: Request, nodes: Collection[str]) -> dict[str, str]:
        """By node, the gangs (in words) whose reservations alone keep the node from taking the request."""
        return {}

    def kept_rooms(self) -> Iterable[GangRoom]:
        """The current reservations of gangs."""
        return ()


class NoGangs(Gangs):
    """Stand-in without gangs: each pod is placed on its own."""


NO_GANGS = NoGangs()


class PodQuotas(Protocol):
    """Limits on what the pods of a namespace may hold together. A pod's charge follows from what it requests and holds.

    ``uid`` is the UID of a pending pod unless stated otherwise.
    """

    changed: Event[[]]
    """Called after charges or limits changed."""

    @property
    def in_use(self) -> bool:
        """Whether any quota is in force."""
        return False

    @property
    def followed(self) -> Container[str]:
        """Namespaces in which every pod is charged, pods without a GPU included."""
        return frozenset()

    def observe(self, uid: str, pod: str, amounts: Amounts) -> None:
        """Note a pod (``namespace/name``) that is filtered, or gets a reservation, perhaps before the watch shows it."""
        return

    def refusal(self, uid: str) -> str:
        """Why the quotas do not admit the pod's request now; empty if they do, or did."""
        return ""

    def passed(self, uid: str) -> str:
        """Which limit is exceeded with what the pod holds; empty if none is."""
        return ""

    def again(self, record: PodRecord) -> str:
        """Why a replacement of a bound pod would not be admitted; empty if it would."""
        return ""

    def over(self, uid: str, whole_units: int = 0) -> list[Over]:
        """Every quota that does not admit the pod, its own first. ``whole_units``: assume that it holds so many units of whole GPUs."""
        return []

    def over_together(
        self, asking: Iterable[tuple[str, int]], among: Collection[str]
    ) -> tuple[list[Over], bool]:
        """Every quota that does not admit pods together, and whether one is too small even if no other pod holds anything.

        ``asking``: UIDs with the units that each pod would hold, 0 for its request. What the pods ``among`` hold is counted as well.
        """
        return [], False

    def least_asking(self, uids: Iterable[str]) -> list[str]:
        """The pods ``uids``, sorted by requested GPU memory, the smallest first."""
        return list(uids)

    def whole_refusals(self, uid: str, request: Request, nodes: list[str]) -> dict[str, str]:
        """By node, why the pod may not have its GPUs whole: these are charged with all of their units."""
        return {}

    def whole_is_let_in(self, pod: Pod, request: Request, node: str, gone: Collection[str]) -> bool:
        """Whether the pod may have whole GPUs of the node after the eviction of the pods ``gone`` (UIDs)."""
        return True

    def by_charge(
        self, amounts: Amounts, request: Request, nodes: list[str]
    ) -> list[tuple[Amounts, list[str]]]:
        """``nodes`` grouped by what the pod would be charged there, the smallest charge first."""
        return [(amounts, nodes)]

    def claim(self, uid: str, pod: str, amounts: Amounts) -> Claim | None:
        """Which pods may be evicted for the pod; ``None`` if priorities alone decide that."""
        return None

    def keep(self, uid: str) -> None:
        """Charge a pod without a GPU that is pending until its victims have ended."""
        return

    def keeps(self, uid: str) -> bool:
        """Whether ``keep`` charges the pod."""
        return False

    def unkeep(self, uid: str) -> None:
        """Undo ``keep``."""
        return

    def ended(self, uid: str) -> None:
        """The scheduler has evicted a bound pod."""
        return


class NoQuotas(PodQuotas):
    """Stand-in without quotas: every pod may have what it requests."""

    def __init__(self) -> None:
        self.changed = Event()


NO_QUOTAS = NoQuotas()


class NodePolicies(Protocol):
    """Policies that restrict the nodes of a namespace's pods."""

    @property
    def in_use(self) -> bool:
        """Whether there is any policy."""
        return False

    def governs(self, namespace: str) -> bool:
        """Whether the namespace has a policy. It applies to pods without a GPU as well."""
        return False

    def by_unit(self, uid: str, nodes: list[str]) -> list[list[str]]:
        """The nodes of ``nodes`` that the pod may have, in groups, the preferred group first."""
        return [nodes]

    def kept(self, uid: str) -> PodRecord | None:
        """The record of a pod that is pending because of a policy."""
        return None

    def preemptable(self, asked: Pod, victims: Mapping[str, Victims]) -> dict[str, Victims]:
        """The nodes of ``victims`` on which pods may be evicted for the pod."""
        return dict(victims)


class NoPolicies(NodePolicies):
    """Stand-in without policies: every pod may have every node."""


NO_POLICIES = NoPolicies()


class MoveTargets(Protocol):
    """Whether the policies of its namespace allow the replacement of a moved pod on a node."""

    def objection(self, moved: Pod, node: str) -> str:
        """Why the replacement of ``moved`` may not be placed on ``node``; empty if it may."""
        return ""

    def take(self, key: str, moved: Pod, node: str) -> str:
        """As ``objection``; without an objection the place is also reserved, under ``key``, until ``give_up``."""
        return ""

    def give_up(self, key: str) -> None:
        """Release the place reserved under ``key``, if any."""
        return


class AnyTarget(MoveTargets):
    """Stand-in without policies: a replacement may have every node."""


class Decisions(Protocol):
    """Records decisions about preemption."""

    @property
    def now_s(self) -> float:
        """Seconds since 1970."""

    def preempted(self, uid: str, key: str, request: Request | None, found: "Preemption") -> None:
        """Record the result ``found`` of a search for victims that would make room for the pod."""
