"""``kubectl inspect cgpu --recommend``: reads allocations and usage history, and renders the recommendations."""

import re
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from gpushare.api.errors import ModelError
from gpushare.api.objects import Node, Pod
from gpushare.api.request.request import listed_containers, request_of
from gpushare.inspect.arguments import HEADROOM, LENGTH, MIN_HISTORY, MOST_HEADROOM, Options
from gpushare.inspect.errors import UsageError
from gpushare.inspect.sources.agent_usage import figures_of_agents, paths_of
from gpushare.inspect.sources.cluster_source import read
from gpushare.inspect.sources.decision_client import pending_pods
from gpushare.inspect.sources.kubectl import Kubectl, Round
from gpushare.inspect.sources.owners import Workload, users_of_claims, workload_of
from gpushare.inspect.sources.prometheus import figures_of_prometheus
from gpushare.inspect.sources.usage_samples import Figures
from gpushare.inspect.tabwriter import aligned, printable
from gpushare.inspect.view_result import Shown
from gpushare.inspect.views.allocation_model import usage_of
from gpushare.inspect.views.documents import written
from gpushare.inspect.views.recommender import (
    Advice,
    Amount,
    PendingPod,
    Recommendation,
    Rules,
    advise,
    duration_text,
)
from gpushare.kubescheduler.required_nodes import wanted_by
from gpushare.reasons.categories import NOT_ROOM

#: docs/guide/right-sizing.md has the schema.
SCHEMA_VERSION: Final = 1
_LENGTHS_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
#: Default window of a Prometheus; agents report all that they recorded.
_PROMETHEUS_WINDOW: Final = "7d"


class _Query(NamedTuple):
    rules: Rules
    prometheus: str
    window: str
    """As requested; empty: the source's default."""


def recommended(kubectl: Kubectl, options: Options, begun: Round | None = None) -> Shown:
    """The recommendations in the format of ``options``; ``begun`` as in ``render.look``. Raises ``InspectError``."""
    query = _query(dict(options.advice))
    nodes, held, waiting, claims, claims_problem = read(kubectl, None, begun)
    cluster = usage_of(nodes, [*held, *waiting], claims)
    if query.prometheus:
        figures = figures_of_prometheus(kubectl, query.prometheus, query.window or _PROMETHEUS_WINDOW)
    else:
        nodes_with_pods = [node.name for node in cluster.nodes if node.pods]
        window_s = _seconds(query.window) if query.window else None
        figures = figures_of_agents(
            kubectl, options.scheduler.partition("/")[0], paths_of(nodes, held), nodes_with_pods, window_s
        )
    workloads = {
        pod.metadata.uid: workload_of(pod)
        for pod in held
        if options.namespace in (None, pod.metadata.namespace)
    }
    claim_users = users_of_claims(held)
    for claim in claims:
        if options.namespace in (None, claim.metadata.namespace):
            meta, users = claim.metadata, claim_users.get(claim.key)
            workloads[meta.uid] = (
                Workload(meta.namespace, "ResourceClaim", meta.name) if users is None else users.workload
            )
    blocked = _blocked_otherwise(kubectl, options) if waiting else frozenset()
    whole = {pod.metadata.uid for pod in held if _requests_whole_gpus(pod)}
    advice = advise(
        cluster,
        workloads,
        figures.used,
        _pending_requests(nodes, waiting, blocked),
        query.rules,
        whole,
        claim_users,
        {pod.key: {container.name: kind for _, container, kind in listed_containers(pod)} for pod in held},
    )
    problems = filter(None, (*cluster.warnings, claims_problem, *figures.missing))
    remarks = tuple(f"warning: {printable(text)}" for text in problems)
    if options.output in ("json", "yaml"):
        return Shown(written(_structured(advice, figures, query), options.output), remarks)
    return Shown(_table(advice, figures, query), remarks)


def _query(flags: Mapping[str, str]) -> _Query:
    margin = flags.get("--headroom", str(HEADROOM)).removesuffix("%")
    if not re.fullmatch(r"\d{1,3}", margin, re.ASCII) or int(margin) > MOST_HEADROOM:
        raise UsageError("", f"--headroom={margin} is not a number of percent from 0 to {MOST_HEADROOM}")
    window = flags.get("--window", "")
    if window and not _seconds(window):
        raise UsageError("", f"--window={window} is not a duration, such as 12h or 7d")
    min_history = flags.get("--min-history", MIN_HISTORY)
    min_history_s = _seconds(min_history)
    if min_history_s is None:
        raise UsageError("", f"--min-history={min_history} is not a duration, such as 90s, 30m or 1d")
    return _Query(Rules(int(margin), min_history_s), flags.get("--prometheus", ""), window)


def _seconds(text: str) -> float | None:
    if not re.fullmatch(LENGTH, text, re.ASCII):
        return None
    return int(text[:-1]) * _LENGTHS_S[text[-1]]


def _requests_whole_gpus(pod: Pod) -> bool:
    """Whether the pod requests exclusive GPUs, by count or by label."""
    try:
        request = request_of(pod)
    except ModelError:
        return False
    return request is not None and request.whole_device


def _blocked_otherwise(kubectl: Kubectl, options: Options) -> Collection[str]:
    """UIDs of pods that the scheduler keeps pending for other reasons than capacity; empty if it does not answer."""
    pending = pending_pods(kubectl, options.scheduler)
    return {str(pod["uid"]) for pod in pending if pod["category"] in NOT_ROOM}


def _pending_requests(nodes: list[Node], pods: list[Pod], blocked: Collection[str]) -> list[PendingPod]:
    """Pending pods that request a share of one GPU, the smallest first. Only node selectors and node affinity limit their nodes.

    Pods in ``blocked`` are left out: more capacity would not admit them.
    """
    pending = []
    for pod in pods:
        if pod.metadata.uid in blocked:
            continue
        try:
            request = request_of(pod)
        except ModelError:
            continue
        if request is not None and request.is_ordinary:
            pending.append(PendingPod(request, wanted_by(pod, nodes)))
    return sorted(pending, key=lambda waits: (waits.request.memory_units, waits.request.core_percent))


# --- for people --------------------------------------------------------------------------------------


def _table(advice: Advice, figures: Figures, query: _Query) -> str:
    if not advice.workloads:
        return "No pod has a share of a GPU.\n"
    lines = [["NAMESPACE", "WORKLOAD", "PODS", "SEEN", "USED(peak/p95)", "gpu-mem", "RECOMMENDED"]]
    core = any(entry.core for entry in advice.workloads)
    lines[0] += ["CORE USED(peak/p95)", "core", "RECOMMENDED"] if core else []
    lines[0].append("NOTE")
    for entry in advice.workloads:
        line = [
            entry.workload.namespace,
            f"{entry.workload.kind} {entry.workload.name}",
            str(entry.pods),
            duration_text(entry.seen_s),
            f"{entry.memory.peak}/{entry.memory.p95} MiB" if entry.memory_known else "-",
            *_amounts(entry.memory, entry.gpus, str if entry.unit is not None else _quantity),
        ]
        if core:
            line += (
                ["-", "-", "-"]
                if entry.core is None
                else [f"{entry.core.peak}/{entry.core.p95} %", *_amounts(entry.core, 1)]
            )
        lines.append([*line, entry.note])
    gain = advice.gain
    summary = [
        f"Usage from {figures.source}; {query.rules.margin_percent}% headroom.",
        _history(advice, figures, query),
        f"Following all recommendations would {'free' if gain.free_mib >= 0 else 'take'} {abs(gain.free_mib) / 1024:.1f} GiB of GPU memory.",
    ]
    if gain.waiting:
        summary.append(
            f"Pending pods that request a share of one GPU: {gain.waiting}; {gain.fit_then} would fit then, {gain.fit_now} fit now."
        )
    return "\n".join([*aligned(lines), "", *summary]) + "\n"


def _longest_s(advice: Advice) -> float:
    return max((entry.seen_s for entry in advice.workloads), default=0.0)


def _history(advice: Advice, figures: Figures, query: _Query) -> str:
    """A sentence on the history that the recommendations are based on."""
    longest_s = duration_text(_longest_s(advice))
    longest = f"The longest history of a pod is {longest_s}; recommendations are only as representative as that period."
    if not query.window:
        return longest
    reach = query.window if figures.begins is None else duration_text(max(time.time() - figures.begins, 0.0))
    return f"Based on the usage of the last {query.window}, recorded for {reach}. {longest}"


def _amounts(amount: Amount, gpus: int, text: Callable[[int], str] = str) -> list[str]:
    times = f"{gpus} × " if gpus > 1 else ""
    return [
        f"{times}{text(amount.allocated)}",
        "-" if amount.recommended is None else f"{times}{text(amount.recommended)}",
    ]


def _quantity(mib: int) -> str:
    """MiB as written in a claim: ``3Gi``, ``1280Mi``."""
    return f"{mib}Mi" if mib % 1024 else f"{mib // 1024}Gi"


# --- for programs ------------------------------------------------------------------------------------


def _structured(advice: Advice, figures: Figures, query: _Query) -> dict[str, Any]:
    gain, rules = advice.gain, query.rules
    window = query.window or (_PROMETHEUS_WINDOW if query.prometheus else "")
    return {
        "version": SCHEMA_VERSION,
        "kind": "Advice",
        "source": figures.source,
        "since": figures.since,
        "windowSeconds": _seconds(window) if window else None,
        "from": figures.begins,
        "historySeconds": _longest_s(advice),
        "missing": list(figures.missing),
        "marginPercent": rules.margin_percent,
        "leastHistorySeconds": rules.least_s,
        "workloads": [_workload(entry) for entry in advice.workloads],
        "gain": {
            "freeMiB": gain.free_mib,
            "waiting": gain.waiting,
            "fitNow": gain.fit_now,
            "fitThen": gain.fit_then,
        },
    }


def _workload(entry: Recommendation) -> dict[str, Any]:
    core = None
    if entry.core is not None:
        core = {
            "givenPercent": entry.core.allocated,
            "advisedPercent": entry.core.recommended,
            "peakPercent": entry.core.peak,
            "p95Percent": entry.core.p95,
            "throttledPercent": 0 if entry.throttled is None else entry.throttled.percent,
            "needPercent": entry.core.p95 if entry.throttled is None else entry.throttled.need_percent,
        }
    return {
        "namespace": entry.workload.namespace,
        "kind": entry.workload.kind,
        "name": entry.workload.name,
        "pods": entry.pods,
        "podsSeen": entry.seen,
        "seenSeconds": entry.seen_s,
        "gpusPerPod": entry.gpus,
        "unit": "1MiB" if entry.unit is None else entry.unit.setting,
        "memory": {
            "givenUnits": entry.memory.allocated,
            "advisedUnits": entry.memory.recommended,
            "peakMiB": entry.memory.peak if entry.memory_known else None,
            "p95MiB": entry.memory.p95 if entry.memory_known else None,
        },
        "core": core,
        "note": entry.note,
    }
