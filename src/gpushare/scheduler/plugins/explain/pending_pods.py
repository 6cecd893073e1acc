"""Why each pod waits, in one line and in one of few kinds, and what would let it fit: worked out when somebody asks."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

from gpushare.api.request.describe import asks_text
from gpushare.api.request.request import Request
from gpushare.reasons import kube_scheduler
from gpushare.reasons.categories import Category, category_of
from gpushare.reasons.summary import Summary, fitting_text, reason_text, sampled, summarized
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.plugins.explain.decision_log import Bind, Cut, Decision, DecisionLog, Waiting, cut
from gpushare.scheduler.plugins.explain.suggestions import Suggestions

#: Seconds after which a pod that has room and no binding is said to be left by kube-scheduler.
_UNDER_WAY_S: Final = 30.0
#: Seconds after which a pod on which no scheduler has written anything is said to have none.
_NOBODY_S: Final = 10.0
#: Seconds after a question in which its outcome is not on the pod yet: what stands there may be of an earlier cycle.
_WRITTEN_S: Final = 2.0
#: Seconds for which holds what the ledger said of a request, and how many requests that is looked up for in that time.
_HOLDS_S: Final = 10.0
_MOST_REQUESTS: Final = 8


def categories(decisions: DecisionLog) -> dict[str, int]:
    """How many pods wait, by ``Category``."""
    found = dict.fromkeys((one.value for one in Category), 0)
    for record in decisions.view.waiting.values():
        category, _ = _why(decisions, record, decisions.get(record.uid))
        found[category.value] += 1
    return found


def each_waiting(decisions: DecisionLog) -> Iterator[Waiting]:
    """Every pod that waits, in no order; the cluster may change between two of them."""
    suggestions = _suggestions(decisions)
    for uid in list(decisions.view.waiting):
        if (record := decisions.view.waiting.get(uid)) is not None:
            yield _waiting(decisions, record, suggestions)


def each_besides(decisions: DecisionLog) -> Iterator[Waiting]:
    """Every pod without a GPU of ours that was refused a node and waits, as ``each_waiting``."""
    suggestions = _suggestions(decisions)
    for uid in decisions.uids():
        if (record := decisions.besides(uid)) is not None:
            yield _waiting(decisions, record, suggestions)


def longest_first(found: Iterable[Waiting]) -> list[Waiting]:
    """In the order in which people read them."""
    return sorted(found, key=lambda one: (one.since, one.key))


def waiting(decisions: DecisionLog, uid: str) -> Waiting | None:
    """The pod as it waits; ``None`` where it does not, or nothing of ours keeps it."""
    record = decisions.view.waiting.get(uid) or decisions.besides(uid)
    return None if record is None else _waiting(decisions, record, _suggestions(decisions))


def category(decisions: DecisionLog, uid: str) -> str:
    """What kind of reason the pod has to wait; empty where it does not."""
    record = decisions.view.waiting.get(uid)
    return "" if record is None else _why(decisions, record, decisions.of(uid))[0].value


def _suggestions(decisions: DecisionLog) -> Suggestions:
    return Suggestions(
        decisions.view, decisions.asked_by, decisions.in_turn, decisions.gangs, decisions.quotas
    )


def _waiting(decisions: DecisionLog, record: PodRecord, suggestions: Suggestions) -> Waiting:
    one = decisions.of(record.uid)
    category, reason = _why(decisions, record, one)
    return Waiting(
        key=record.pod,
        uid=record.uid,
        since=epoch_s(record.created),
        asks=asks_text(record.request),
        category=category.value,
        reason=reason,
        suggestion=suggestions.of(
            record,
            category,
            None if one is None else _asked(one),
        ),
    )


def _asked(one: Decision) -> Sequence[str] | None:
    """The nodes of kube-scheduler's last question, where they are still kept."""
    return one.each.names if one.each is not None else None


def _why(decisions: DecisionLog, record: PodRecord, one: Decision | None) -> tuple[Category, str]:
    if record.problem:
        return Category.REQUEST, record.problem
    if record.unplaced.gates:
        return Category.GATES, kube_scheduler.gated_text(record.unplaced)
    summary = None if one is None else one.summary
    if one is not None and one.raw is not None:
        # Not all of it is summed up: what stands for the pod is needed alone.
        summary = sampled(*(one.raw if isinstance(one.raw, Cut) else cut(one.raw)))
    if one is not None and _refused_later(decisions, record, one, summary):
        return _unasked(decisions, record)
    if one is not None and one.bind is not None:
        return _of_bind(one.bind)
    if one is None or summary is None:
        return _unasked(decisions, record)
    if summary.fits:
        ago_s = decisions.now_s - one.asked_s
        own = kube_scheduler.says(record.unplaced)
        if own and ago_s >= _UNDER_WAY_S:
            return Category.RULES, f"{fitting_text(summary.fitting, summary.fits)}, but {own}"
        then = "its binding is awaited" if ago_s < _UNDER_WAY_S else "kube-scheduler has not bound it"
        return Category.SCHEDULER, f"{fitting_text(summary.fitting, summary.fits)}: {then}"
    category = summary.category if summary.nodes else Category.NODE
    return category, reason_text(summary)


def _refused_later(decisions: DecisionLog, record: PodRecord, one: Decision, summary: Summary | None) -> bool:
    """Whether kube-scheduler has looked at the pod since, and its own rules left no node to ask about.

    After a cycle in which we refused nodes it writes our reasons on the pod: where none of them is there any more, a later cycle ended
    without us. (When that was it does not write.) Of a pod that had room what stands there may be of the cycle before.
    """
    if one.bind is not None:
        last_s, refused = one.bind.at_s, bool(one.bind.error)
    else:
        last_s, refused = one.asked_s, summary is not None and not summary.fits
    return refused and decisions.now_s - last_s >= _WRITTEN_S and kube_scheduler.refuse_all(record.unplaced)


def _unasked(decisions: DecisionLog, record: PodRecord) -> tuple[Category, str]:
    """kube-scheduler asks about nodes alone that pass its own rules: where none does, it has said so on the pod.

    Where it has none with enough by its own sums of GPUs, the ledger says more. What that says of a request holds for ``_HOLDS_S``:
    thousands of pods ask for the same, and metrics ask often.
    """
    refusal = decisions.quotas.refusal(record.uid)
    if refusal:
        return Category.QUOTA, refusal
    request = record.request
    unplaced = record.unplaced
    age_s = decisions.now_s - epoch_s(record.created)
    if kube_scheduler.is_unserved(unplaced, decisions.asked_by) and age_s >= _NOBODY_S:
        return Category.UNSERVED, kube_scheduler.unserved_text(unplaced)
    own = kube_scheduler.says(unplaced)
    summary = None if request is None else _by_ledger(decisions, request)
    if summary is not None and summary.nodes and not summary.fits:
        if own and not kube_scheduler.lacks_gpus(unplaced):
            return Category.RULES, f"{own}; and of their GPUs {reason_text(summary)}"
        return summary.category, f"kube-scheduler has not asked about any node; {reason_text(summary)}"
    if own:
        return Category.RULES, own
    since = "it started" if decisions.first_asked_s is None else "it leads"
    return Category.UNASKED, f"kube-scheduler has not asked this scheduler about it since {since}"


def _by_ledger(decisions: DecisionLog, request: Request) -> Summary | None:
    """What the ledger says of every node now, or said a moment ago; ``None`` where too many different requests wait."""
    known = decisions.by_ledger
    found = known.get(request)
    if found is not None and found[0] > decisions.now_s - _HOLDS_S:
        return found[1]
    for old in [one for one, (at_s, _) in known.items() if at_s <= decisions.now_s - _HOLDS_S]:
        del known[old]
    if len(known) >= _MOST_REQUESTS:
        return None
    names = decisions.view.ledger.node_names()
    summary, _ = summarized(names, decisions.view.ledger.filter(request, names))
    known[request] = (decisions.now_s, summary)
    return summary


def _of_bind(bind: Bind) -> tuple[Category, str]:
    if not bind.error:
        return Category.BINDING, f"bound to node {bind.node} a moment ago"
    category = category_of(bind.error.removeprefix(f"node {bind.node}: "))
    return Category.BINDING if category is Category.NODE else category, bind.error


def epoch_s(stamp: str) -> float:
    """Seconds since 1970 of an RFC 3339 time; 0 where there is none."""
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return 0.0
