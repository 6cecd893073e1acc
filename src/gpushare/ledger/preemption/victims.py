"""Whose end would make room for a request: the fewest and least important pods of one node, and never in vain.

A GPU at a time (or as many as the request needs), as room on several GPUs together helps nobody. Of the pods that may
go, as many as possible are kept, the most important first, so that no victim is one too many; and the smallest first, where
fewer end that way and none that is more important.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from gpushare.api.request.request import Request
from gpushare.ledger.node_book import GpuBook, NodeBook
from gpushare.ledger.quota.reclaim import NoRule, Rule
from gpushare.ledger.results import Held


class Rank(NamedTuple):
    """How much a pod counts: its priority, and when it was made (any number that grows).

    ``leaving``: it is ending already, and need not be made to. ``guarded``: its PodDisruptionBudget has none to spare.
    """

    priority: int
    made: int = 0
    leaving: bool = False
    guarded: bool = False


class Plan(NamedTuple):
    """Room on ``rows`` of ``node`` once ``victims`` (UIDs, most important first) and those that leave already are gone."""

    node: str
    rows: tuple[int, ...]
    victims: tuple[str, ...]
    cost: tuple[int, ...]
    """Smaller is better, as kube-scheduler has it: guarded victims, the highest priority, the sum, the number, age."""
    in_place_of_others: bool = False
    """Whether room there that is kept for less important pods has to go to this one."""


#: Nodes with a plan that are compared, and nodes that are looked at for them, each of which takes some tenths of a millisecond.
ENOUGH: Final = 8
MOST_TRIED: Final = 64
#: The same where quotas say who may go: a look at such a node takes longer.
MOST_TRIED_BY_RULE: Final = 40

RankFn = Callable[[str], Rank | None]
"""The rank of a pod that may have to go for this request; ``None``: it stays."""
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
    """The cheapest plan of the first of ``stages`` that has one, of so many nodes (``ENOUGH``), and that ``rule`` allows.

    ``forced`` pods go in any case. Stages are in the order of what their plans cost. At most ``MOST_TRIED`` nodes are looked at in all,
    with a ``rule`` ``MOST_TRIED_BY_RULE``.
    """
    is_free = isinstance(rule, NoRule)
    left = MOST_TRIED if is_free else MOST_TRIED_BY_RULE
    for books in stages:
        best: Plan | None = None
        found = 0
        # Stages know nothing of rules: none of them may use up all looks on nodes where the rule lets nobody go.
        most = left if is_free else (left + 1) // 2
        for book in islice(books, most):
            left -= 1
            plan = plan_of(book, held, request, rank, forced, rule)
            if plan is None:
                continue
            if best is None or plan.cost < best.cost:
                best = plan
            found += 1
            if best.cost == ():
                return best
            if found == ENOUGH:
                break
        if best is not None or not left:
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
    if not request.by_gpu and (book.kept_memory if request.wants_core else book.kept_core):
        return None  # room there is kept for a pod of the other kind
    ranks = {uid: found for uid in book.uids() if (found := rank(uid)) is not None}
    leaving = {uid for uid, one in ranks.items() if one.leaving} | set(forced)
    others = _other_kind(book, held, request)
    if not others <= ranks.keys() | leaving:
        return None  # who asks for memory alone and who asks for compute too are never on one node
    leaving |= others
    must = others | set(forced)
    if rule.together(must, ()) is None:
        return None
    rooms = [
        _Room(book, held, gpu) for gpu in book.present if gpu.device is not None and gpu.device.in_service
    ]
    best: Plan | None = None
    for some in _choices(rooms, request):
        gone = _fewest(book, held, request, some, ranks, leaving, must, rule)
        if gone is None:
            continue
        rows = tuple(room.gpu.row for room in some if room.fits(request, gone | leaving))
        victims = (gone | others) - {uid for uid, one in ranks.items() if one.leaving} - set(forced)
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
        """What a pod has here of memory and of compute, each as a part of all."""
        mib, core_percent = self._shares.get(uid, (0, 0))
        return mib / self._device.total_mib + core_percent / 100

    def fits(self, request: Request, away: set[str]) -> bool:
        """Whether the request fits here without the pods that are ``away``."""
        gpu, device, node = self.gpu, self._device, self._node
        going = self._shares.keys() & away
        if request.whole_device and (len(going) < len(self._shares) or gpu.kept_pods or device.foreign_mib):
            return False
        if node.max_pods is not None and len(self._shares) + gpu.kept_pods - len(going) >= node.max_pods:
            return False
        free_mib = device.total_mib - gpu.taken_mib
        free_core = 100 - gpu.used_core - gpu.kept_core
        for uid in going:
            mib, core_percent = self._shares[uid]
            free_mib += mib
            free_core += core_percent
        if request.wants_core and (not node.mode.gives_core or free_core < request.core_percent):
            return False
        return free_mib >= 0 and ((free_mib + 1) * gpu.units - 1) // device.total_mib >= request.memory_units


def _choices(rooms: list[_Room], request: Request) -> Iterator[list[_Room]]:
    if request.gpu_count == 1:
        yield from ([room] for room in rooms)
    else:
        yield rooms


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
    """The cheapest set of pods without which enough of ``rooms`` fit, besides those that leave (``must`` are of them)."""
    assert book.devices is not None
    cap = book.devices.max_node_pods
    if cap is not None:
        cap -= book.kept_memory + book.kept_core
    there = book.uids() if cap is not None or rule.short else set()
    # At the node's cap of pods, and at that of a quota, the end of any of them helps.
    any_helps = rule.short or (cap is not None and len(there - leaving) >= cap)
    candidates = (
        (there if any_helps else {uid for room in rooms for uid in room.gpu.pods}) & ranks.keys()
    ) - leaving

    def fit(gone: set[str]) -> bool:
        away = gone | leaving
        if cap is not None and len(there - away) >= cap:
            return False
        if sum(room.fits(request, away) for room in rooms) < request.gpu_count:
            return False
        return rule.enough(gone | must)

    if not fit(candidates):
        return None
    by_worth = _by_worth(candidates, ranks)
    may_go = set(rule.together(must, by_worth[::-1]) or ())
    if len(may_go) < len(candidates) and not fit(may_go):
        # Not all may go together. The least important were taken first; in their place a larger one may do.
        may_go = set(rule.together(must, sorted(by_worth, key=lambda uid: -_mib(held(uid)))) or ())
        if not fit(may_go):
            return None
    gone = _without_those_that_may_stay(may_go, _by_worth(may_go, ranks), fit)
    if len(gone) > 1:
        # Of equally important ones the oldest stayed. Where the smallest stay in their place, one large one may do for many.
        highest = max(ranks[uid].priority for uid in gone)
        smallest = sorted(
            _by_worth(may_go, ranks),
            key=lambda uid: (
                not ranks[uid].guarded,
                ranks[uid].priority <= highest,
                sum(room.part_of(uid) for room in rooms),
            ),
        )
        fewer = _without_those_that_may_stay(may_go, smallest, fit)
        gone = min(gone, fewer, key=lambda some: _cost(some, ranks))
    return gone


def _without_those_that_may_stay(
    may_go: set[str], in_turn: Iterable[str], fit: Callable[[set[str]], bool]
) -> set[str]:
    gone = set(may_go)
    for uid in in_turn:
        gone.discard(uid)
        if not fit(gone):
            gone.add(uid)
    return gone


def _mib(held: Held) -> int:
    return sum(share.mib for share in held.allocation.gpus)


def _by_worth(uids: Collection[str], ranks: dict[str, Rank]) -> tuple[str, ...]:
    """The most important first; of equals the one that is there for longest, for it has most to lose."""
    return tuple(
        sorted(uids, key=lambda uid: (not ranks[uid].guarded, -ranks[uid].priority, ranks[uid].made, uid))
    )


def _cost(victims: Collection[str], ranks: dict[str, Rank]) -> tuple[int, ...]:
    if not victims:
        return ()
    found = [ranks[uid] for uid in victims]
    highest = max(one.priority for one in found)
    return (
        sum(one.guarded for one in found),
        highest,
        sum(one.priority + (1 << 31) for one in found),
        len(found),
        -min(one.made for one in found if one.priority == highest),
    )


def sequence_from(names: Sequence[str], start: int) -> list[str]:
    """``names`` from the one at ``start`` on and around: so that not always the same nodes are looked at first."""
    at = start % len(names) if names else 0
    return [*names[at:], *names[:at]]
