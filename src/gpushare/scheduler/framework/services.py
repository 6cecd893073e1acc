"""What one plugin offers others, so that they need not import it; each with a stand-in for where that plugin is left out.

A plugin gets these when it is composed (``plugins.registry``) and keeps them: nothing is looked up later.
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


class PodQuotas(Protocol):
    """How much the pods of a namespace may hold together. What a pod is charged follows from what it requests and holds.

    ``uid`` is that of a pending pod, if nothing else is said.
    """

    changed: Event[[]]
    """Called when charges or limits changed."""

    @property
    def in_use(self) -> bool:
        """Whether there is any quota."""

    @property
    def followed(self) -> Container[str]:
        """Namespaces in which every pod counts, those without a GPU, too."""

    def observe(self, uid: str, pod: str, amounts: Amounts) -> None:
        """A pod (``namespace/name``) is asked about, or room is kept for it, perhaps before the watch has shown it."""

    def refusal(self, uid: str) -> str:
        """Why the pod may not have what it requests now; empty where it may, or has been admitted."""

    def passed(self, uid: str) -> str:
        """Which limit is passed by what the pod holds; empty where none is."""

    def again(self, record: PodRecord) -> str:
        """Why what replaces a bound pod would not be admitted; empty where it would."""

    def over(self, uid: str, whole_units: int = 0) -> list[Over]:
        """Every quota that keeps the pod back, its own first; ``whole_units``: where it holds so many units of whole GPUs."""

    def over_together(
        self, asking: Iterable[tuple[str, int]], among: Collection[str]
    ) -> tuple[list[Over], bool]:
        """Every quota that keeps pods back together, and whether one is too small even when nobody else holds anything.

        ``asking``: UIDs with the units that each would hold, 0 for what it requests. What ``among`` hold counts beside it.
        """

    def least_asking(self, uids: Iterable[str]) -> list[str]:
        """These pods, those that request the least GPU memory first."""

    def whole_refusals(self, uid: str, request: Request, nodes: list[str]) -> dict[str, str]:
        """Those of ``nodes`` whose GPUs the pod may not have whole, for the units that these count, and why."""

    def whole_is_let_in(self, pod: Pod, request: Request, node: str, gone: Collection[str]) -> bool:
        """Whether the pod may have whole GPUs of the node once ``gone`` (UIDs) have ended for it."""

    def by_charge(
        self, amounts: Amounts, request: Request, nodes: list[str]
    ) -> list[tuple[Amounts, list[str]]]:
        """What a pod would be charged, and on which of ``nodes``, the least first."""

    def claim(self, uid: str, pod: str, amounts: Amounts) -> Claim | None:
        """Which pods may be ended for the pod; ``None`` where priorities alone decide that."""

    def keep(self, uid: str) -> None:
        """Charge a pod without a GPU that waits for others to end."""

    def keeps(self, uid: str) -> bool:
        """Whether it is charged so."""

    def unkeep(self, uid: str) -> None:
        """It is not any more."""

    def ended(self, uid: str) -> None:
        """The scheduler has asked for the end of a bound pod."""


class NoQuotas:
    """Every pod may have what it requests."""

    in_use = False
    followed: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.changed: Event[[]] = Event()

    def observe(self, uid: str, pod: str, amounts: Amounts) -> None:
        """See ``PodQuotas``."""

    def refusal(self, uid: str) -> str:
        """See ``PodQuotas``."""
        return ""

    def passed(self, uid: str) -> str:
        """See ``PodQuotas``."""
        return ""

    def again(self, record: PodRecord) -> str:
        """See ``PodQuotas``."""
        return ""

    def over(self, uid: str, whole_units: int = 0) -> list[Over]:
        """See ``PodQuotas``."""
        return []

    def over_together(
        self, asking: Iterable[tuple[str, int]], among: Collection[str]
    ) -> tuple[list[Over], bool]:
        """See ``PodQuotas``."""
        return [], False

    def least_asking(self, uids: Iterable[str]) -> list[str]:
        """See ``PodQuotas``."""
        return list(uids)

    def whole_refusals(self, uid: str, request: Request, nodes: list[str]) -> dict[str, str]:
        """See ``PodQuotas``."""
        return {}

    def whole_is_let_in(self, pod: Pod, request: Request, node: str, gone: Collection[str]) -> bool:
        """See ``PodQuotas``."""
        return True

    def by_charge(
        self, amounts: Amounts, request: Request, nodes: list[str]
    ) -> list[tuple[Amounts, list[str]]]:
        """See ``PodQuotas``."""
        return [(amounts, nodes)]

    def claim(self, uid: str, pod: str, amounts: Amounts) -> Claim | None:
        """See ``PodQuotas``."""
        return None

    def keep(self, uid: str) -> None:
        """See ``PodQuotas``."""

    def keeps(self, uid: str) -> bool:
        """See ``PodQuotas``."""
        return False

    def unkeep(self, uid: str) -> None:
        """See ``PodQuotas``."""

    def ended(self, uid: str) -> None:
        """See ``PodQuotas``."""


NO_QUOTAS = NoQuotas()


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
