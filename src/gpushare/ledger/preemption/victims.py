"""The victims that make room for a request: the fewest and least important pods of one node, and only if that is enough.

Planned for one GPU at a time (or as many as the request needs), because room scattered over GPUs does not help. Of the pods
that may be evicted as many as possible are reprieved, the most important first, so that no victim is superfluous. If reprieving
the smallest first results in fewer victims, none of them more important, that is preferred.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from gpushare.api.request.request import Request
from gpushare.ledger.node_book import GpuBook, NodeBook
from gpushare.ledger.quota.reclaim import NoRule, Rule
from gpushare.ledger.results import Held


class Rank(NamedTuple):
    """The importance of a pod: its priority, and its creation time (any number that grows).

    ``leaving``: it is terminating already. ``guarded``: its PodDisruptionBudget allows no disruption.
    """

    priority: int
    made: int = 0
    leaving: bool = False
    guarded: bool = False


class Plan(NamedTuple):
    """Room on ``rows`` of ``node`` once ``victims`` (UIDs, most important first) and terminating pods are gone."""

    node: str
    rows: tuple[int, ...]
    victims: tuple[str, ...]
    cost: tuple[int, ...]
    """Less is better, as in kube-scheduler: guarded victims, the highest priority, the sum of priorities, the number, age."""
    in_place_of_others: bool = False
    """Whether nominations of less important pods there have to be replaced by this one."""


#: Nodes with a plan that are compared, and nodes that are examined to find them, each of which takes some tenths of a millisecond.
ENOUGH: Final = 8
MOST_TRIED: Final = 64
#: The same if quotas restrict victims: examining a node then takes longer.
MOST_TRIED_BY_RULE: Final = 40

RankFn = Callable[[str], Rank | None]
"""The rank of a pod that may be evicted for this request; ``None``: it may not."""
HeldFn = Callable[[str], Held]
_NO_RULE: Final = NoRule()


def first_plan(
    stages: Iterable[Iterable[NodeBook]],
    held: HeldFn,
    request: Request,
    rank: RankFn,
    *,
    forced: Collection[str] = (),
    rule: Rule = _NO_RULE,
) -> Plan | None:
    """The cheapest plan that ``rule`` allows, of the first of ``stages`` that has any; compares up to ``ENOUGH`` nodes.

    ``forced`` pods are evicted in any case. Stages are ordered by the cost of their plans. At most ``MOST_TRIED`` nodes are examined
    in total, ``MOST_TRIED_BY_RULE`` with a ``rule``.
    """
    is_unrestricted = isinstance(rule, NoRule)
    remaining = MOST_TRIED if is_unrestricted else MOST_TRIED_BY_RULE
    for books in stages:
        best: Plan | None = None
        plans = 0
        # Stages do not consider rules: none may use up the whole budget on nodes where the rule allows no eviction.
        most = remaining if is_unrestricted else (remaining + 1) // 2
        for book in islice(books, most):
            remaining -= 1
            plan = plan_of(book, held, request, rank, forced, rule)
            if plan is None:
                continue
            if best is None or plan.cost < best.cost:
                best = plan
            plans += 1
            if best.cost == ():
                return best
            if plans == ENOUGH:
                break
        if best is not None or not remaining:
            return best
    return None


def plan_of(
    book: NodeBook,
    held: HeldFn,
    request: Request,
    rank: RankFn,
    forced: Collection[str] = (),
    rule: Rule = _NO_RULE,
) -> Plan | None:
    """The cheapest plan on one node."""
    if book.devices is None or book.standing[2 if request.by_gpu else 0]:
        return None
    if request.gpu_count > 1 and not book.devices.mode.gives_several:
        return None
    if request.unit_mib not in (0, book.devices.unit.mib):
        return None
    if not request.by_gpu and (
        book.nominated_memory_pods if request.wants_core else book.nominated_core_pods
    ):
        return None  # a pod of the other kind is nominated there
    ranks = {uid: uid_rank for uid in book.uids() if (uid_rank := rank(uid)) is not None}
    leaving = {uid for uid, uid_rank in ranks.items() if uid_rank.leaving} | set(forced)
    others = _other_kind(book, held, request)
    if not others <= ranks.keys() | leaving:
        return None  # pods with memory alone and pods with compute too are never on one node
    leaving |= others
    must = others | set(forced)
    if rule.together(must, ()) is None:
        return None
    rooms = [
        _Room(book, held, gpu)
        for gpu in book.present
        if gpu.device is not None and gpu.device.in_service and gpu.suits(request)
    ]
    best: Plan | None = None
    for group in [[room] for room in rooms] if request.gpu_count == 1 else [rooms]:
        victims = _fewest(book, held, request, group, ranks, leaving, must, rule)
        if victims is None:
            continue
        rows = tuple(room.gpu.row for room in group if room.fits(request, victims | leaving))
        victims = (
            (victims | others) - {uid for uid, uid_rank in ranks.items() if uid_rank.leaving} - set(forced)
        )
        plan = Plan(book.name, rows[: request.gpu_count], _by_worth(victims, ranks), _cost(victims, ranks))
        if best is None or plan.cost < best.cost:
            best = plan
    return best


class _Room:
    """A GPU in service, and what each of its pods holds of it: MiB and percent."""

    __slots__ = ("_device", "_node", "_shares", "gpu")

    def __init__(self, book: NodeBook, held: HeldFn, gpu: GpuBook) -> None:
        assert gpu.device is not None
        assert book.devices is not None
        self.gpu = gpu
        self._device = gpu.device
        self._node = book.devices
        self._shares: dict[str, tuple[int, int]] = {}
        for uid in gpu.pods:
            mib = core_percent = 0
            for share in map(book.counted, held(uid).allocation.gpus):
                if share.uuid == gpu.device.uuid:
                    mib += share.mib
                    core_percent += share.core_percent
            self._shares[uid] = (mib, core_percent)

    def part_of(self, uid: str) -> float:
        """The sum of a pod's fractions of the GPU's memory and compute."""
        mib, core_percent = self._shares.get(uid, (0, 0))
        return mib / self._device.total_mib + core_percent / 100

    def fits(self, request: Request, away: set[str]) -> bool:
        """Whether the request fits here without the pods ``away``."""
        gpu, device, node = self.gpu, self._device, self._node
        going = self._shares.keys() & away
        if request.whole_device and (
            len(going) < len(self._shares) or gpu.nominated_pods or device.foreign_mib
        ):
            return False
        if node.max_pods is not None and len(self._shares) + gpu.nominated_pods - len(going) >= node.max_pods:
            return False
        free_mib = device.total_mib - gpu.taken_mib
        free_core = 100 - gpu.used_core - gpu.nominated_core
        for uid in going:
            mib, core_percent = self._shares[uid]
            free_mib += mib
            free_core += core_percent
        if request.wants_core and (not node.mode.gives_core or free_core < request.core_percent):
            return False
        return free_mib >= 0 and ((free_mib + 1) * gpu.units - 1) // device.total_mib >= request.memory_units


def _other_kind(book: NodeBook, held: HeldFn, request: Request) -> set[str]:
    if request.by_gpu or not (book.memory_pods if request.wants_core else book.core_pods):
        return set()
    return {
        uid
        for uid in book.uids()
        if any(share.core_percent for share in held(uid).allocation.gpus) != request.wants_core
    }


def _fewest(
    book: NodeBook,
    held: HeldFn,
    request: Request,
    rooms: list[_Room],
    ranks: dict[str, Rank],
    leaving: set[str],
    must: set[str],
    rule: Rule,
) -> set[str] | None:
    """The cheapest set of victims with which enough of ``rooms`` fit, in addition to ``leaving`` (which include ``must``)."""
    assert book.devices is not None
    cap = book.devices.max_node_pods
    if cap is not None:
        cap -= book.nominated_memory_pods + book.nominated_core_pods
    on_node = book.uids() if cap is not None or rule.short else set()
    # At the node's pod cap, and if a quota is full, evicting any of its pods helps.
    any_helps = rule.short or (cap is not None and len(on_node - leaving) >= cap)
    candidates = (
        (on_node if any_helps else {uid for room in rooms for uid in room.gpu.pods}) & ranks.keys()
    ) - leaving

    def fit(victims: set[str]) -> bool:
        away = victims | leaving
        if cap is not None and len(on_node - away) >= cap:
            return False
        if sum(room.fits(request, away) for room in rooms) < request.gpu_count:
            return False
        return rule.enough(victims | must)

    if not fit(candidates):
        return None
    by_worth = _by_worth(candidates, ranks)
    evictable = set(rule.together(must, by_worth[::-1]) or ())
    if len(evictable) < len(candidates) and not fit(evictable):
        # Not all may be evicted together. The least important were taken first; larger ones instead may be enough.
        evictable = set(rule.together(must, sorted(by_worth, key=lambda uid: -_mib(held(uid)))) or ())
        if not fit(evictable):
            return None
    victims = _reprieve(evictable, _by_worth(evictable, ranks), fit)
    if len(victims) > 1:
        # Of equally important pods the oldest were reprieved. Reprieving the smallest instead may leave one large victim for many.
        highest = max(ranks[uid].priority for uid in victims)
        smallest = sorted(
            _by_worth(evictable, ranks),
            key=lambda uid: (
                not ranks[uid].guarded,
                ranks[uid].priority <= highest,
                sum(room.part_of(uid) for room in rooms),
            ),
        )
        fewer = _reprieve(evictable, smallest, fit)
        victims = min(victims, fewer, key=lambda uids: _cost(uids, ranks))
    return victims


def _reprieve(evictable: set[str], order: Iterable[str], fit: Callable[[set[str]], bool]) -> set[str]:
    victims = set(evictable)
    for uid in order:
        victims.discard(uid)
        if not fit(victims):
            victims.add(uid)
    return victims


def _mib(held: Held) -> int:
    return sum(share.mib for share in held.allocation.gpus)


def _by_worth(uids: Collection[str], ranks: dict[str, Rank]) -> tuple[str, ...]:
    """The most important first; of equal pods the oldest, which has most to lose."""
    return tuple(
        sorted(uids, key=lambda uid: (not ranks[uid].guarded, -ranks[uid].priority, ranks[uid].made, uid))
    )


def _cost(victims: Collection[str], ranks: dict[str, Rank]) -> tuple[int, ...]:
    if not victims:
        return ()
    victim_ranks = [ranks[uid] for uid in victims]
    highest = max(rank.priority for rank in victim_ranks)
    return (
        sum(rank.guarded for rank in victim_ranks),
        highest,
        sum(rank.priority + (1 << 31) for rank in victim_ranks),
        len(victim_ranks),
        -min(rank.made for rank in victim_ranks if rank.priority == highest),
    )


def sequence_from(names: Sequence[str], start: int) -> list[str]:
    """``names`` rotated to begin at ``start``, so that not always the same nodes are examined first."""
    at = start % len(names) if names else 0
    return [*names[at:], *names[:at]]
