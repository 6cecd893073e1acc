"""``kubectl inspect cgpu --pending``: every pod that waits, since when, why, and what would let it in."""

import json
import time
from typing import Any, Final

from gpushare.api.errors import ModelError
from gpushare.api.objects import decode_pod
from gpushare.api.request.describe import asks_text
from gpushare.api.request.request import request_of
from gpushare.inspect.arguments import Options
from gpushare.inspect.color import Paint
from gpushare.inspect.errors import KubectlFailed
from gpushare.inspect.sources.decision_client import ask
from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.inspect.tabwriter import Line, aligned, printable
from gpushare.inspect.view_result import Shown
from gpushare.inspect.views.timestamps import ago, seconds_of

VERSION: Final = 1
#: Pods without a node of which it is looked whether they ask for GPUs under another name.
_MOST_LOOKED_AT: Final = 500
_PENDING: Final = "/api/v1/pods?fieldSelector=status.phase%3DPending%2Cspec.nodeName%3D"

Json = dict[str, Any]


def waiting(kubectl: Kubectl, options: Options, paint: Paint) -> Shown:
    """Ask the scheduler; where it does not answer, read pods and what kube-scheduler wrote on them."""
    decided = ask(kubectl, options.scheduler, "", f"{_PENDING}&limit={_MOST_LOOKED_AT}")
    remarks: list[str] = []
    if decided.told is not None:
        # A scheduler of an earlier version tells nothing of pods without a GPU.
        found: list[Json] = decided.told["waiting"] + decided.told.get("besides", [])
        found.sort(key=lambda one: (one["since"], one["key"]))
        scheduler = decided.told["scheduler"]
        # One of an earlier version does not tell whether it leads.
        leads = scheduler.get("leads")
        if scheduler["firstAsked"] is None and not leads:
            told = "warning: no kube-scheduler has asked the scheduler that answers"
            remarks.append(
                f"{told}: another one leads" if leads is False else f"{told}; another one may lead"
            )
    else:
        remarks.append(
            f"warning: {printable(decided.problem)}; what follows is what kube-scheduler wrote on the pods"
        )
        with kubectl.start(_PENDING) as begun:
            (answer,) = begun.outcomes()
        if isinstance(answer, KubectlFailed):
            raise answer
        found = [one for pod in json.loads(answer).get("items") or () if (one := _of_pod(pod)) is not None]
        found.sort(key=lambda one: (one["since"], one["key"]))
    remarks += _not_offered(kubectl, decided.others[0], options.namespace)
    if options.namespace is not None:
        found = [one for one in found if one["key"].partition("/")[0] == options.namespace]
    if options.output:
        from gpushare.inspect.views.documents import written

        document = {
            "version": VERSION,
            "kind": "Waiting",
            "source": "conditions" if decided.told is None else "scheduler",
            "waiting": found,
            "warnings": [one.removeprefix("warning: ") for one in remarks],
        }
        return Shown(written(document, options.output), tuple(remarks))
    if not found:
        from gpushare.inspect.sources.not_found_hints import within

        where = within(kubectl, options.namespace)
        return Shown(f"No pod that asks for GPU memory waits{where}.\n", tuple(remarks))
    return Shown("\n".join(_table(found, paint)) + "\n", tuple(remarks))


def _not_offered(kubectl: Kubectl, pending: "bytes | KubectlFailed", namespace: "str | None") -> "list[str]":
    if isinstance(pending, KubectlFailed):
        return []
    from gpushare.inspect.sources.unknown_resources import not_offered

    pods = [
        pod
        for pod in json.loads(pending).get("items") or ()
        if namespace in (None, pod["metadata"]["namespace"])
    ]
    return [f"warning: {printable(one)}" for one in not_offered(kubectl, pods)]


def _table(found: "list[Json]", paint: Paint) -> list[str]:
    now_s = time.time()
    rows: list[Line] = [("NAMESPACE", "NAME", "PENDING", "ASKS FOR", "CATEGORY", "REASON")]
    for one in found:
        namespace, _, name = one["key"].partition("/")
        since = ago(now_s - one["since"]) if one["since"] else "unknown"
        rows.append((namespace, name, since, one["asks"], one["category"], one["reason"]))
    head, *lines = aligned(rows)
    told = [paint("bold", head)]
    for one, line in zip(found, lines):  # noqa: B905 (as many, and Python 3.9 knows no strict)
        told.append(line)
        if one["suggestion"]:
            told.append(paint("green", f"  suggestion: {printable(one['suggestion'])}"))
    return told


def _of_pod(pod: Json) -> "Json | None":
    meta = pod["metadata"]
    category, problem = "", ""
    try:
        request = request_of(decode_pod(pod))
        if request is None:
            return None
    except ModelError as error:
        request, category, problem = None, "request", error.problem
    conditions = (pod.get("status") or {}).get("conditions") or ()
    scheduled: Json = next((one for one in conditions if one.get("type") == "PodScheduled"), {})
    return {
        "key": f"{meta['namespace']}/{meta['name']}",
        "uid": meta["uid"],
        "since": seconds_of(meta.get("creationTimestamp") or ""),
        "asks": asks_text(request),
        "category": category,
        "reason": problem or str(scheduled.get("message") or scheduled.get("reason") or "not tried yet"),
        "suggestion": "",
    }
