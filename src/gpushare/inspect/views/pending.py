"""``kubectl inspect cgpu --pending``: every pending pod, since when, with reason and suggestion."""

import json
import time
from typing import Any, Final

from gpushare.api import names
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
#: Pods without a node that are checked for requests of GPUs under another name.
_MAX_CHECKED: Final = 500
_PENDING: Final = "/api/v1/pods?fieldSelector=status.phase%3DPending%2Cspec.nodeName%3D"

Json = dict[str, Any]


def waiting(kubectl: Kubectl, options: Options, paint: Paint) -> Shown:
    """Query the scheduler; where it does not answer, read pods and kube-scheduler's conditions on them."""
    decision = ask(kubectl, options.scheduler, "", f"{_PENDING}&limit={_MAX_CHECKED}")
    remarks: list[str] = []
    if decision.answer is not None:
        # Schedulers of earlier versions do not report pods without a GPU.
        pods: list[Json] = decision.answer["waiting"] + decision.answer.get("besides", [])
        scheduler = decision.answer["scheduler"]
        # Schedulers of earlier versions do not report whether they lead.
        leads = scheduler.get("leads")
        if scheduler["firstAsked"] is None and not leads:
            warning = "warning: kube-scheduler has not called the replica that answered"
            remarks.append(
                f"{warning}: another one leads" if leads is False else f"{warning}; another one may lead"
            )
    else:
        remarks.append(
            f"warning: {printable(decision.problem)}; showing kube-scheduler's conditions of the pods instead"
        )
        with kubectl.start(_PENDING) as call:
            (answer,) = call.outcomes()
        if isinstance(answer, KubectlFailed):
            raise answer
        pods = [
            record
            for pod in json.loads(answer).get("items") or ()
            if pod["spec"].get("schedulerName") != names.PLACEHOLDER_SCHEDULER
            and (record := _of_pod(pod)) is not None
        ]
    remarks += _not_offered(kubectl, decision.others[0], options.namespace)
    remarks += _unread(decision.others[0])
    pods += _with_claims(kubectl, decision.others[0], {pod["key"] for pod in pods})
    pods.sort(key=lambda pod: (pod["since"], pod["key"]))
    if options.namespace is not None:
        pods = [record for record in pods if record["key"].partition("/")[0] == options.namespace]
    if options.output:
        from gpushare.inspect.views.documents import written

        document = {
            "version": VERSION,
            "kind": "Waiting",
            "source": "conditions" if decision.answer is None else "scheduler",
            "waiting": pods,
            "warnings": [remark.removeprefix("warning: ") for remark in remarks],
        }
        return Shown(written(document, options.output), tuple(remarks))
    if not pods:
        from gpushare.inspect.sources.not_found_hints import within

        where = within(kubectl, options.namespace)
        return Shown(f"No pod that requests GPU memory is pending{where}.\n", tuple(remarks))
    return Shown("\n".join(_table(pods, paint)) + "\n", tuple(remarks))


def _unread(pending: "bytes | KubectlFailed") -> "list[str]":
    if isinstance(pending, KubectlFailed) or not (json.loads(pending).get("metadata") or {}).get("continue"):
        return []
    return [
        f"warning: of the cluster's pending pods only the first {_MAX_CHECKED} were checked for ResourceClaims and for "
        "resources that no node offers"
    ]


def _not_offered(kubectl: Kubectl, pending: "bytes | KubectlFailed", namespace: "str | None") -> "list[str]":
    if isinstance(pending, KubectlFailed):
        return []
    from gpushare.inspect.sources.unknown_resources import not_offered

    pods = [
        pod
        for pod in json.loads(pending).get("items") or ()
        if namespace in (None, pod["metadata"]["namespace"])
    ]
    return [f"warning: {printable(message)}" for message in not_offered(kubectl, pods)]


def _with_claims(kubectl: Kubectl, pending: "bytes | KubectlFailed", known: "set[str]") -> "list[Json]":
    """Records of pending pods with claims on GPUs, which only kube-scheduler handles, without those that are ``known``."""
    if isinstance(pending, KubectlFailed):
        return []
    from gpushare.inspect.views.explain_claims import pending_with_claims

    pods = json.loads(pending).get("items") or ()
    return [record for record in pending_with_claims(kubectl, pods) if record["key"] not in known]


def _table(pods: "list[Json]", paint: Paint) -> list[str]:
    now_s = time.time()
    rows: list[Line] = [("NAMESPACE", "NAME", "PENDING", "REQUESTS", "CATEGORY", "REASON")]
    for pod in pods:
        namespace, _, name = pod["key"].partition("/")
        since = ago(now_s - pod["since"]) if pod["since"] else "unknown"
        rows.append((namespace, name, since, pod["asks"], pod["category"], pod["reason"]))
    head, *lines = aligned(rows)
    output = [paint("bold", head)]
    for pod, line in zip(pods, lines):  # noqa: B905 (same length, and Python 3.9 has no strict)
        output.append(line)
        if pod["suggestion"]:
            output.append(paint("green", f"  suggestion: {printable(pod['suggestion'])}"))
    return output


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
    scheduled: Json = next((item for item in conditions if item.get("type") == "PodScheduled"), {})
    return {
        "key": f"{meta['namespace']}/{meta['name']}",
        "uid": meta["uid"],
        "since": seconds_of(meta.get("creationTimestamp") or ""),
        "asks": asks_text(request),
        "category": category,
        "reason": problem or str(scheduled.get("message") or scheduled.get("reason") or "not tried yet"),
        "suggestion": "",
    }
