"""Why each pod is pending: a category, a one-line reason and a suggestion. Computed on demand."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

from gpushare.api.request.describe import asks_text
from gpushare.api.request.request import Request
from gpushare.reasons import kube_scheduler
from gpushare.reasons.categories import Category, category_of
from gpushare.reasons.summary import Summary, fitting_text, reason_text, summarized
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.plugins.explain.decision_log import Bind, Decision, DecisionLog, PendingPod
from gpushare.scheduler.plugins.explain.suggestions import Suggestions

#: Seconds after which a pod that has room but is not bound counts as left by kube-scheduler.
_BINDING_GRACE_S: Final = 30.0
#: Seconds after which a pod on which no scheduler has written anything counts as having no scheduler.
_UNSERVED_S: Final = 10.0
#: Seconds that kube-scheduler may take to write the outcome of a cycle on the pod. Until then the pod may show that of an earlier cycle.
_STATUS_DELAY_S: Final = 2.0
#: Seconds for which the ledger's answer for a request is cached, and the most requests cached at a time.
_LEDGER_CACHE_S: Final = 10.0
_MAX_CACHED_REQUESTS: Final = 8


def each_pending_pod(decisions: DecisionLog) -> Iterator[PendingPod]:
    """Every pending pod, in no particular order. The cluster may change during the iteration."""
    suggestions = _suggestions(decisions)
    for uid in list(decisions.view.waiting):
        if (record := decisions.view.waiting.get(uid)) is not None:
            yield _explained(decisions, record, suggestions)


def each_non_gpu_pod(decisions: DecisionLog) -> Iterator[PendingPod]:
    """Every pending pod that requests no GPU of ours and was refused a node; see ``each_pending_pod``."""
    suggestions = _suggestions(decisions)
    for uid in decisions.uids():
        if (record := decisions.pending_non_gpu_pod(uid)) is not None:
            yield _explained(decisions, record, suggestions)


def longest_first(pods: Iterable[PendingPod]) -> list[PendingPod]:
    """Sort pods for display: the longest pending first."""
    return sorted(pods, key=lambda pod: (pod.since, pod.key))


def pending_pod(decisions: DecisionLog, uid: str) -> PendingPod | None:
    """The pending pod with its reason; ``None`` if it is not pending or this scheduler does not hold it back."""
    record = decisions.view.waiting.get(uid) or decisions.pending_non_gpu_pod(uid)
    return None if record is None else _explained(decisions, record, _suggestions(decisions))


def category(decisions: DecisionLog, uid: str) -> str:
    """Category of the reason why the pod is pending; empty if it is not pending."""
    record = decisions.view.waiting.get(uid)
    return "" if record is None else _category_and_reason(decisions, record, decisions.of(uid))[0].value


def _suggestions(decisions: DecisionLog) -> Suggestions:
    return Suggestions(
        decisions.view, decisions.asked_by, decisions.in_turn, decisions.gangs, decisions.quotas
    )


def _explained(decisions: DecisionLog, record: PodRecord, suggestions: Suggestions) -> PendingPod:
    decision = decisions.of(record.uid)
    category, reason = _category_and_reason(decisions, record, decision)
    asked = None if decision is None or decision.each is None else decision.each.names
    return PendingPod(
        key=record.pod,
        uid=record.uid,
        since=epoch_s(record.created),
        asks=asks_text(record.request),
        category=category.value,
        reason=reason,
        suggestion=suggestions.of(record, category, asked),
    )


def _category_and_reason(
    decisions: DecisionLog, record: PodRecord, decision: Decision | None
) -> tuple[Category, str]:
    """``decision`` is summarized (``DecisionLog.of``)."""
    if record.problem:
        return Category.REQUEST, record.problem
    if record.unplaced.gates:
        return Category.GATES, kube_scheduler.gated_text(record.unplaced)
    summary = None if decision is None else decision.summary
    if decision is not None and _refused_by_kube_scheduler_since(decisions, record, decision, summary):
        return _never_asked(decisions, record)
    if decision is not None and decision.bind is not None:
        return _bind_reason(decision.bind)
    if decision is None or summary is None:
        return _never_asked(decisions, record)
    if summary.fits:
        ago_s = decisions.now_s - decision.asked_s
        kube_scheduler_reason = kube_scheduler.description(record.unplaced)
        if kube_scheduler_reason and ago_s >= _BINDING_GRACE_S:
            return (
                Category.RULES,
                f"{fitting_text(summary.fitting, summary.fits)}, but {kube_scheduler_reason}",
            )
        status = "waiting for its Binding" if ago_s < _BINDING_GRACE_S else "kube-scheduler has not bound it"
        return Category.SCHEDULER, f"{fitting_text(summary.fitting, summary.fits)}: {status}"
    category = summary.category if summary.nodes else Category.NODE
    return category, reason_text(summary)


def _refused_by_kube_scheduler_since(
    decisions: DecisionLog, record: PodRecord, decision: Decision, summary: Summary | None
) -> bool:
    """Whether kube-scheduler has tried the pod again since, and its own rules left no node to ask us about.

    After a cycle in which we refused nodes, kube-scheduler writes our reasons on the pod. If none of them is there any more, a later
    cycle failed without asking us; kube-scheduler does not write when. For a pod that had room, the status may be that of the cycle before.
    """
    if decision.bind is not None:
        answered_s, refused = decision.bind.at_s, bool(decision.bind.error)
    else:
        answered_s, refused = decision.asked_s, summary is not None and not summary.fits
    return (
        refused
        and decisions.now_s - answered_s >= _STATUS_DELAY_S
        and kube_scheduler.refuse_all(record.unplaced)
    )


def _never_asked(decisions: DecisionLog, record: PodRecord) -> tuple[Category, str]:
    """Reason for a pod that kube-scheduler has not asked about. It asks only about nodes that pass its own rules.

    If no node passes, kube-scheduler has written so on the pod. If that is because of its own sums of GPUs, the ledger knows more. The
    ledger's answer for a request is cached for ``_LEDGER_CACHE_S``, as thousands of pods request the same and metrics need it often.
    """
    refusal = decisions.quotas.refusal(record.uid)
    if refusal:
        return Category.QUOTA, refusal
    request = record.request
    unplaced = record.unplaced
    age_s = decisions.now_s - epoch_s(record.created)
    if kube_scheduler.is_unserved(unplaced, decisions.asked_by) and age_s >= _UNSERVED_S:
        return Category.UNSERVED, kube_scheduler.unserved_text(unplaced)
    kube_scheduler_reason = kube_scheduler.description(unplaced)
    summary = None if request is None else _by_ledger(decisions, request)
    if summary is not None and summary.nodes and not summary.fits:
        if kube_scheduler_reason and not kube_scheduler.lacks_gpus(unplaced):
            return Category.RULES, f"{kube_scheduler_reason}; GPU capacity: {reason_text(summary)}"
        return summary.category, f"kube-scheduler has not offered any node for it; {reason_text(summary)}"
    if kube_scheduler_reason:
        return Category.RULES, kube_scheduler_reason
    since = "it started" if decisions.first_asked_s is None else "it leads"
    return Category.UNASKED, f"kube-scheduler has not called the GPU extender for this pod since {since}"


def _by_ledger(decisions: DecisionLog, request: Request) -> Summary | None:
    """The ledger's answer about all nodes, at most ``_LEDGER_CACHE_S`` old; ``None`` if too many different requests are pending."""
    cache = decisions.by_ledger
    cached = cache.get(request)
    if cached is not None and cached[0] > decisions.now_s - _LEDGER_CACHE_S:
        return cached[1]
    for expired in [
        cached_request
        for cached_request, (at_s, _) in cache.items()
        if at_s <= decisions.now_s - _LEDGER_CACHE_S
    ]:
        del cache[expired]
    if len(cache) >= _MAX_CACHED_REQUESTS:
        return None
    names = decisions.view.ledger.node_names()
    summary, _ = summarized(names, decisions.view.ledger.filter(request, names))
    cache[request] = (decisions.now_s, summary)
    return summary


def _bind_reason(bind: Bind) -> tuple[Category, str]:
    if not bind.error:
        return Category.BINDING, f"bound to node {bind.node} a moment ago"
    category = category_of(bind.error.removeprefix(f"node {bind.node}: "))
    return Category.BINDING if category is Category.NODE else category, bind.error


def epoch_s(stamp: str) -> float:
    """Seconds since 1970 of an RFC 3339 time; 0 if it cannot be parsed."""
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return 0.0
