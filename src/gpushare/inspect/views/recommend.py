"""``kubectl inspect cgpu --recommend``: reads who holds what and what was used of it, and sets the advice in its form."""

import re
import time
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from gpushare.api.errors import ModelError
from gpushare.api.objects import ListMeta, Node, Pod
from gpushare.api.request.request import request_of
from gpushare.inspect.arguments import HEADROOM, LENGTH, MIN_HISTORY, MOST_HEADROOM, Options
from gpushare.inspect.errors import UnreadableAnswer, UsageError
from gpushare.inspect.sources.agent_usage import figures_of_agents, paths_of
from gpushare.inspect.sources.decision_client import all_waiting
from gpushare.inspect.sources.kubectl import Kubectl, Round
from gpushare.inspect.sources.owners import workload_of
from gpushare.inspect.sources.paths import begin, nodes_path, pods_path
from gpushare.inspect.sources.prometheus import figures_of_prometheus
from gpushare.inspect.sources.usage_samples import Figures
from gpushare.inspect.tabwriter import aligned, printable
from gpushare.inspect.view_result import Shown
from gpushare.inspect.views.allocation_model import usage_of
from gpushare.inspect.views.documents import written
from gpushare.inspect.views.recommender import Advice, Advised, Amount, Rules, Waits, advise, told_s
from gpushare.kubescheduler.required_nodes import wanted_by
from gpushare.reasons.categories import NOT_ROOM

#: docs/guide/right-sizing.md has the schema.
SCHEMA_VERSION: Final = 1
_LENGTHS_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
#: How far back a Prometheus is asked; agents tell all that they remember.
_PROMETHEUS_WINDOW: Final = "7d"


class _Nodes(msgspec.Struct, gc=False):
    items: list[Node] | None = None


class _Pods(msgspec.Struct, gc=False):
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[Pod] | None = None


_NODES: Final = msgspec.json.Decoder(_Nodes)
_PODS: Final = msgspec.json.Decoder(_Pods)


class _Asked(NamedTuple):
    rules: Rules
    prometheus: str
    window: str
    """As it was asked for; empty: whatever the source does without."""


def advised(kubectl: Kubectl, options: Options, begun: Round | None = None) -> Shown:
    """The advice in the form that ``options`` ask for; ``begun`` as with ``show.look``. Raises ``InspectError``."""
    asked = _asked(dict(options.advice))
    nodes, pods = _read(kubectl, begun)
    cluster = usage_of(nodes, pods)
    held = [pod for pod in pods if pod.spec.node_name]
    if asked.prometheus:
        figures = figures_of_prometheus(kubectl, asked.prometheus, asked.window or _PROMETHEUS_WINDOW)
    else:
        wanted = [node.name for node in cluster.nodes if node.pods]
        window_s = _seconds(asked.window) if asked.window else None
        figures = figures_of_agents(
            kubectl, options.scheduler.partition("/")[0], paths_of(nodes, held), wanted, window_s
        )
    workloads = {
        pod.metadata.uid: workload_of(pod)
        for pod in held
        if options.namespace in (None, pod.metadata.namespace)
    }
    kept = _kept(kubectl, options) if any(not pod.spec.node_name for pod in pods) else frozenset()
    whole = {pod.metadata.uid for pod in held if _asks_for_whole(pod)}
    advice = advise(cluster, workloads, figures.used, _waiting(nodes, pods, kept), asked.rules, whole)
    remarks = tuple(f"warning: {printable(text)}" for text in (*cluster.warnings, *figures.missing))
    if options.output in ("json", "yaml"):
        return Shown(written(_structured(advice, figures, asked), options.output), remarks)
    return Shown(_table(advice, figures, asked), remarks)


def _asked(said: Mapping[str, str]) -> _Asked:
    margin = said.get("--headroom", str(HEADROOM)).removesuffix("%")
    if not re.fullmatch(r"\d{1,3}", margin, re.ASCII) or int(margin) > MOST_HEADROOM:
        raise UsageError("", f"--headroom={margin} is not a number of percent from 0 to {MOST_HEADROOM}")
    window = said.get("--window", "")
    if window and not _seconds(window):
        raise UsageError("", f"--window={window} is no length of time, such as 12h or 7d")
    least = said.get("--min-history", MIN_HISTORY)
    least_s = _seconds(least)
    if least_s is None:
        raise UsageError("", f"--min-history={least} is no length of time, such as 90s, 30m or 1d")
    return _Asked(Rules(int(margin), least_s), said.get("--prometheus", ""), window)


def _seconds(text: str) -> float | None:
    if not re.fullmatch(LENGTH, text, re.ASCII):
        return None
    return int(text[:-1]) * _LENGTHS_S[text[-1]]


def _read(kubectl: Kubectl, begun: Round | None) -> tuple[list[Node], list[Pod]]:
    nodes_answer, answer = (begun or begin(kubectl, None)).finish()
    nodes = _decoded(_NODES, nodes_answer, nodes_path(None)).items or []
    pods: list[Pod] = []
    while True:
        page = _decoded(_PODS, answer, pods_path(None))
        pods += [pod for pod in page.items or () if not pod.finished]
        if not page.metadata.continue_:
            return nodes, pods
        (answer,) = kubectl.start(pods_path(None, page.metadata.continue_)).finish()


def _decoded(decoder: Any, answer: bytearray, path: str) -> Any:
    try:
        return decoder.decode(answer)
    except msgspec.DecodeError as error:
        raise UnreadableAnswer(
            f"answer to {path}",
            f"is not what an API server sends ({error}); see what `kubectl get --raw '{path}'` prints",
        ) from None


def _asks_for_whole(pod: Pod) -> bool:
    """Whether it asks for GPUs that nobody else uses, by their number or by its label."""
    try:
        request = request_of(pod)
    except ModelError:
        return False
    return request is not None and request.whole_device


def _kept(kubectl: Kubectl, options: Options) -> Collection[str]:
    """UIDs of pods that something else than room keeps, as the scheduler says; of none where it does not answer."""
    waiting = all_waiting(kubectl, options.scheduler)
    return {str(one["uid"]) for one in waiting if one["category"] in NOT_ROOM}


def _waiting(nodes: list[Node], pods: list[Pod], kept: Collection[str]) -> list[Waits]:
    """The pods that wait for a share of one GPU, the smallest first. Of what keeps them from nodes selectors and node affinity are looked at.

    Those that are ``kept`` are left out: room is of no use to them yet.
    """
    found = []
    for pod in pods:
        if pod.spec.node_name or pod.metadata.uid in kept:
            continue
        try:
            request = request_of(pod)
        except ModelError:
            continue
        if request is not None and request.is_ordinary:
            found.append(Waits(request, wanted_by(pod, nodes)))
    return sorted(found, key=lambda one: (one.request.memory_units, one.request.core_percent))


# --- for people --------------------------------------------------------------------------------------


def _table(advice: Advice, figures: Figures, asked: _Asked) -> str:
    if not advice.workloads:
        return "No pod holds a share of a GPU.\n"
    lines = [["NAMESPACE", "WORKLOAD", "PODS", "SEEN", "USED(peak/p95)", "gpu-mem", "RECOMMENDED"]]
    core = any(one.core for one in advice.workloads)
    lines[0] += ["CORE USED(peak/p95)", "core", "RECOMMENDED"] if core else []
    lines[0].append("NOTE")
    for one in advice.workloads:
        line = [
            one.workload.namespace,
            f"{one.workload.kind} {one.workload.name}",
            str(one.pods),
            told_s(one.seen_s),
            f"{one.memory.peak}/{one.memory.p95} MiB" if one.memory_told else "-",
            *_amounts(one.memory, one.gpus),
        ]
        if core:
            line += (
                ["-", "-", "-"]
                if one.core is None
                else [f"{one.core.peak}/{one.core.p95} %", *_amounts(one.core, 1)]
            )
        lines.append([*line, one.note])
    gain = advice.gain
    told = [
        f"Figures of {figures.source}; {asked.rules.margin_percent}% on top of what was used.",
        _history(advice, figures, asked),
        f"Following all of it would {'free' if gain.free_mib >= 0 else 'take'} {abs(gain.free_mib) / 1024:.1f} GiB of GPU memory.",
    ]
    if gain.waiting:
        told.append(
            f"Pending pods that request a share of one GPU: {gain.waiting}; {gain.fit_then} would find room then, {gain.fit_now} find it now."
        )
    return "\n".join([*aligned(lines), "", *told]) + "\n"


def _longest_s(advice: Advice) -> float:
    return max((one.seen_s for one in advice.workloads), default=0.0)


def _history(advice: Advice, figures: Figures, asked: _Asked) -> str:
    """How long the memory is on which the advice is based."""
    longest_s = told_s(_longest_s(advice))
    longest = f"The longest history of a pod is {longest_s}: it is as good as that time was usual."
    if not asked.window:
        return longest
    told = asked.window if figures.begins is None else told_s(max(time.time() - figures.begins, 0.0))
    return f"What was used in the last {asked.window} counts, as far back as {told}. {longest}"


def _amounts(amount: Amount, gpus: int) -> list[str]:
    times = f"{gpus} × " if gpus > 1 else ""
    return [f"{times}{amount.given}", "-" if amount.advised is None else f"{times}{amount.advised}"]


# --- for programs ------------------------------------------------------------------------------------


def _structured(advice: Advice, figures: Figures, asked: _Asked) -> dict[str, Any]:
    gain, rules = advice.gain, asked.rules
    window = asked.window or (_PROMETHEUS_WINDOW if asked.prometheus else "")
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
        "workloads": [_workload(one) for one in advice.workloads],
        "gain": {
            "freeMiB": gain.free_mib,
            "waiting": gain.waiting,
            "fitNow": gain.fit_now,
            "fitThen": gain.fit_then,
        },
    }


def _workload(one: Advised) -> dict[str, Any]:
    core = None
    if one.core is not None:
        core = {
            "givenPercent": one.core.given,
            "advisedPercent": one.core.advised,
            "peakPercent": one.core.peak,
            "p95Percent": one.core.p95,
            "throttledPercent": 0 if one.throttled is None else one.throttled.percent,
            "needPercent": one.core.p95 if one.throttled is None else one.throttled.need_percent,
        }
    return {
        "namespace": one.workload.namespace,
        "kind": one.workload.kind,
        "name": one.workload.name,
        "pods": one.pods,
        "podsSeen": one.seen,
        "seenSeconds": one.seen_s,
        "gpusPerPod": one.gpus,
        "unit": one.unit.setting,
        "memory": {
            "givenUnits": one.memory.given,
            "advisedUnits": one.memory.advised,
            "peakMiB": one.memory.peak if one.memory_told else None,
            "p95MiB": one.memory.p95 if one.memory_told else None,
        },
        "core": core,
        "note": one.note,
    }
