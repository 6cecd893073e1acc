"""``kubectl inspect cgpu --why POD``: the scheduler's record of its decision about a pod, node by node.

Where the scheduler does not answer, it shows the pod's annotations and events, with a warning.
"""

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from gpushare.api import names
from gpushare.api.node.device import gpu_label, is_instance
from gpushare.api.request.pluralize import counted
from gpushare.inspect.arguments import Options
from gpushare.inspect.color import Paint
from gpushare.inspect.errors import InspectError, KubectlFailed
from gpushare.inspect.sources.decision_client import ask
from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.inspect.tabwriter import Line, aligned, printable
from gpushare.inspect.view_result import Shown
from gpushare.inspect.views.explain_preemption import of_defragmentation, of_preemption
from gpushare.inspect.views.timestamps import ago, clock, seconds_of

if TYPE_CHECKING:
    from gpushare.inspect.views.explain_claims import ClaimAnswer

VERSION: Final = 1
_RECORDS: Final = (names.ANN_SHARE, names.ANN_ALLOCATION, names.ANN_MEM_INDEX)
_MAX_EVENTS: Final = 5
#: Prefixes of events that report why a pod was evicted.
_EVICTION_EVENTS: Final = ("Preempted: ", "EvictedForDefragmentation: ")

Json = dict[str, Any]


def why(kubectl: Kubectl, options: Options, paint: Paint) -> Shown:
    """Query the scheduler and the API server about the pod; raises ``InspectError`` if it does not exist."""
    namespace, _, name = options.pod.partition("/")
    pod_path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    events_path = f"/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.name%3D{name}"
    suffix = "/nodes" if options.details else ""
    decision = ask(kubectl, options.scheduler, f"/{options.pod}{suffix}", pod_path, events_path)
    pod_answer, events_answer = decision.others
    if isinstance(pod_answer, KubectlFailed):
        if pod_answer.not_found:
            last_events = [printable(event) for event in _events(events_answer, {})]
            if last_events:
                raise InspectError(
                    "", f'pod "{name}" of namespace {namespace} is gone{_eviction_text(last_events)}'
                )
            from gpushare.inspect.sources.not_found_hints import no_pod

            raise no_pod(kubectl, namespace, name)
        raise pod_answer
    pod: Json = json.loads(pod_answer)
    record = decision.answer
    remarks = _zero_request_warnings(pod)
    claims = _explain_claims(kubectl, pod)
    remarks += [f"warning: {printable(remark)}" for remark in claims.remarks] if claims is not None else []
    if not pod["spec"].get("nodeName") and not _is_finished(pod):
        from gpushare.inspect.sources.unknown_resources import not_offered

        remarks += [f"warning: {printable(message)}" for message in not_offered(kubectl, [pod])]
    if _is_finished(pod) or (claims is not None and not _requests_share(pod)):
        # The scheduler forgets finished pods; the annotations still have the allocation. It does not know of claims.
        record = None
    elif record is None:
        remarks.append(
            f"warning: {printable(decision.problem)}; showing the pod's annotations and events instead"
        )
    elif record.get("uid") not in ("", pod["metadata"].get("uid")):
        remarks.append("warning: the scheduler's record is about another pod of that name")
        record = None
    if not _is_finished(pod):
        from gpushare.inspect.views.context_warning import too_small

        remarks += [f"warning: {printable(message)}" for message in too_small(kubectl, pod)]
    not_enforced = "" if record is not None else _why_not_enforced(kubectl, pod)
    events = [] if record is not None and record["said"] == "" else _events(events_answer, pod)
    if options.output in ("json", "yaml"):
        document = _document(pod, record, not_enforced, events, remarks)
        if claims is not None:
            document["claims"] = claims.claims
            if claims.free:
                document["freeForClaims"] = claims.free
        from gpushare.inspect.views.documents import written

        return Shown(written(document, options.output), tuple(remarks))
    lines = _of_pod(pod, record, paint, _used_beyond_request(kubectl, pod))
    lines += of_defragmentation(pod, _events(events_answer, pod, reason="DefragmentationSucceeded"))
    if record is not None:
        lines += _of_record(record, details=options.details)
        lines += of_preemption(record, (pod.get("status") or {}).get("nominatedNodeName") or "")
    else:
        lines += _of_annotations(pod, has_claims=claims is not None)
        lines += ["", _not_enforced_text(pod["spec"]["nodeName"], not_enforced)] if not_enforced else []
    lines += claims.lines if claims is not None else []
    if events:
        lines += ["", "Events:", *(f"  {printable(event)}" for event in events)]
    return Shown("\n".join(lines) + "\n", tuple(remarks))


def _eviction_text(events: Sequence[str]) -> str:
    """Why a deleted pod was evicted, if its last events report it, and these events, the newest last."""
    why_gone = next((event for event in reversed(events) if event.startswith(_EVICTION_EVENTS)), "")
    text = f": {why_gone}" if why_gone else ""
    return text if [why_gone] == events else "\n  ".join((f"{text}; its last events:", *events))


def _zero_request_warnings(pod: Json) -> list[str]:
    """A warning if the pod requests zero units, so that the scheduler ignores it."""
    containers = (*(pod["spec"].get("containers") or ()), *(pod["spec"].get("initContainers") or ()))
    if not any(
        names.GPU_MEM in ((container.get("resources") or {}).get("limits") or {}) for container in containers
    ):
        return []
    from gpushare.api.objects import decode_pod
    from gpushare.reasons.mistakes.pods import requests_zero_units

    message = requests_zero_units(decode_pod(pod))
    return [f"warning: {printable(message)}"] if message else []


def _document(
    pod: Json,
    record: "Json | None",
    not_enforced: str,
    events: Sequence[str],
    remarks: Sequence[str],
) -> Json:
    meta, spec = pod["metadata"], pod["spec"]
    annotations = meta.get("annotations") or {}
    return {
        "version": VERSION,
        "kind": "Why",
        "source": "annotations" if record is None else "scheduler",
        "pod": {
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
            "node": spec.get("nodeName", ""),
            "phase": (pod.get("status") or {}).get("phase", ""),
            "annotations": {key: annotations[key] for key in _RECORDS if key in annotations},
            "condition": _condition(pod),
            **({"notHeld": not_enforced} if not_enforced else {}),
            **({"memoryLimit": limit} if (limit := annotations.get(names.ANN_GPU_MEMORY_LIMIT)) else {}),
        },
        "record": record,
        "events": list(events),
        "warnings": [remark.removeprefix("warning: ") for remark in remarks],
    }


def _used_beyond_request(kubectl: Kubectl, pod: Json) -> str:
    """What a running pod uses now, if it may use more than it requests."""
    annotations, node = pod["metadata"].get("annotations") or {}, pod["spec"].get("nodeName", "")
    if names.ANN_GPU_MEMORY_LIMIT not in annotations or not node or _is_finished(pod):
        return ""
    from gpushare.inspect.sources.pod_usage import used_now

    return used_now(kubectl, f"{pod['metadata']['namespace']}/{pod['metadata']['name']}", node)


def _of_pod(pod: Json, record: "Json | None", paint: Paint, used: str = "") -> list[str]:
    meta = pod["metadata"]
    node = pod["spec"].get("nodeName", "")
    created = seconds_of(meta.get("creationTimestamp") or "")
    head = paint("bold", f"{meta['namespace']}/{meta['name']}")
    if _is_finished(pod):
        state = f"has ended, on node {node}" if node else "has ended"
    elif node:
        state = paint("green", f"is on node {node}")
    else:
        state = paint("yellow", f"has been pending since {clock(created)} ({ago(time.time() - created)})")
    lines = [f"{head} {state}"]
    rows: list[Line] = []
    if record is not None and record["asks"]:
        rows.append(("requests:", record["asks"]))
    limit = (meta.get("annotations") or {}).get(names.ANN_GPU_MEMORY_LIMIT)
    if limit:
        rows.append(("may use:", f"{limit} of GPU memory, while the GPU has it free"))
    if used:
        rows.append(("uses now:", used))
    if record is not None:
        waiting = record["waiting"]
        if waiting is not None:
            rows += [("reason:", waiting["reason"]), ("suggestion:", waiting["suggestion"])]
            rows += [("category:", waiting["category"])]
    return lines + aligned(rows)


def _of_record(record: Json, *, details: bool) -> list[str]:
    scheduler = record["scheduler"]
    lines = [""]
    if record["said"]:
        since = scheduler["firstAsked"] or scheduler["started"]
        lines.append(printable(f"Scheduler {scheduler['name']} (since {clock(since)}): {record['said']}."))
    answer = record["answer"]
    if answer is not None:
        lines += _of_answer(record, answer, details=details)
    lines += _of_scores(record)
    lines += _of_choice(record)
    bind = record["bind"]
    if bind is not None:
        outcome = f"failed: {bind['error']}" if bind["error"] else "done"
        lines += ["", printable(f"Binding to node {bind['node']} at {clock(bind['at'])}: {outcome}")]
    holds = record["holds"]
    if holds is not None:
        unconfirmed = "" if holds["confirmed"] else " (reserved; not confirmed by the API server yet)"
        lines += ["", printable(f"Holds on node {holds['node']}{unconfirmed}:")]
        lines += [f"  {line}" for line in aligned([_share(gpu) for gpu in holds["gpus"]])]
        # Schedulers of earlier versions do not report it.
        out_of_service = [text for text in (gpu.get("outOfService", "") for gpu in holds["gpus"]) if text]
        if out_of_service:
            lines.append(
                printable(
                    f"Out of service: {'; '.join(out_of_service)}. The pod keeps its share; nothing new is placed there."
                )
            )
        if not_enforced := holds.get("notHeld", ""):
            lines.append(_not_enforced_text(holds["node"], not_enforced))
    if record["kept"]:
        lines += [
            "",
            printable(
                f"Capacity on node {record['kept']} is reserved for it until other pods there have terminated."
            ),
        ]
    return lines if len(lines) > 1 else []


def _why_not_enforced(kubectl: Kubectl, pod: Json) -> str:
    """Why the pod's node does not enforce its share, from annotations; empty where it does or that is unknown."""
    node = pod["spec"].get("nodeName", "")
    annotations = pod["metadata"].get("annotations") or {}
    if not node or _is_finished(pod) or not any(key in annotations for key in _RECORDS):
        return ""
    from gpushare.inspect.sources.enforcement import why_not_enforced

    return why_not_enforced(kubectl, node, annotations)


def _not_enforced_text(node: str, reason: str) -> str:
    from gpushare.api.node.enforcement_text import not_held_text

    return printable(not_held_text(node, reason))


def _of_answer(record: Json, answer: Json, *, details: bool) -> list[str]:
    scheduler = record["scheduler"]
    refusing = answer["nodes"] - answer["fits"] - answer["leftOut"]
    lines = [
        printable(
            f"Scheduler {scheduler['name']} filtered {counted(answer['nodes'], 'node')} at {clock(record['asked'])}: "
            f"{answer['fits']} fit, {refusing} do not"
            + (f", {answer['leftOut']} excluded for now ({record['leftOut']})" if answer["leftOut"] else "")
        )
    ]
    if answer["sampled"] < refusing:
        lines.append(
            f"(reasons of {counted(answer['sampled'], 'node')} only; the rest was not evaluated in time)"
        )
    if record["notOffered"]:
        lines.append(
            f"({counted(record['notOffered'], 'more node')} not offered by kube-scheduler: excluded by its own rules, or enough nodes were found)"
        )
    if details and record["nodes"] is not None:
        rows = [
            ("NODE", "RESULT"),
            *((node["node"], node["reason"] or "fits") for node in record["nodes"]),
        ]
        return [*lines, *aligned(rows)]
    if details:
        lines.append(
            "(per-node results are no longer stored; run this again after the next scheduling attempt)"
        )
    if answer["groups"]:
        group_rows: list[Line] = [("NODES", "REASON", "EXAMPLE")]
        for group in answer["groups"]:
            example = group["examples"][0]
            detail = example["reason"].removeprefix(group["reason"]).strip()
            separator = "" if detail.startswith(";") else " "
            group_rows.append(
                (str(group["nodes"]), group["reason"], f"{example['node']}{separator}{detail}".strip())
            )
        lines += aligned(group_rows)
    return lines


def _of_scores(record: Json) -> list[str]:
    scores = record["scores"]
    if scores is None:
        return []
    if not scores["best"]:
        return ["", f"Scores: all {counted(scores['nodes'], 'node')} are equally good."]
    best = ", ".join(f"{node} +{score}" for node, score in scores["best"])
    return [
        "",
        printable(f"Scores above the lowest, of {counted(scores['nodes'], 'node')}, best first: {best}"),
    ]


def _of_choice(record: Json) -> list[str]:
    choice = record["choice"]
    if choice is None:
        return []
    rows: list[Line] = [("GPU", "FREE BEFORE(MiB)", "LEFT OVER(MiB)", "PODS BEFORE", "")]
    rows += [
        (
            # Schedulers of earlier versions report no UUIDs here.
            gpu_label(gpu["index"], instance=is_instance(gpu.get("uuid", ""))),
            str(gpu["freeMiB"]),
            str(gpu["leftMiB"]),
            str(gpu["pods"]),
            "chosen" if gpu["chosen"] else "",
        )
        for gpu in choice["gpus"]
    ]
    head = f"GPUs of node {choice['node']} with enough capacity, by {choice['placement']} ({choice['why']}):"
    return ["", printable(head), *(f"  {line}" for line in aligned(rows))]


def _share(gpu: Json) -> Line:
    compute = f"{gpu['corePercent']}% compute" if gpu["corePercent"] else ""
    label = gpu_label(gpu["index"], instance=is_instance(gpu["uuid"]))
    share = (f"GPU {label}", f"{gpu['MiB']} MiB", counted(gpu["units"], "unit"), gpu["uuid"])
    # Reported since this version, where containers have different GPUs.
    containers = gpu.get("containers")
    if containers is None:
        return (*share, compute)
    several = "s" if len(containers) > 1 else ""
    return (*share, f"container{several} {', '.join(containers)}" if containers else "no container", compute)


def _of_annotations(pod: Json, *, has_claims: bool) -> list[str]:
    annotations = pod["metadata"].get("annotations") or {}
    rows: list[Line] = [(f"{key}:", annotations[key]) for key in _RECORDS if key in annotations]
    if not rows and pod["spec"].get("nodeName"):
        if has_claims:
            return []
        return ["", "It has no GPU allocation."]
    condition = _condition(pod)
    if condition:
        rows.append(("kube-scheduler says:", condition))
    return ["", *aligned(rows)] if rows else []


def _explain_claims(kubectl: Kubectl, pod: Json) -> "ClaimAnswer | None":
    """What is known of the pod's claims on our GPUs; ``None`` for a pod without any."""
    from gpushare.api.objects import decode_pod
    from gpushare.inspect.views.explain_claims import explain_claims, is_claiming

    if not is_claiming(decode_pod(pod)) or _is_finished(pod):
        return None
    answer = explain_claims(kubectl, pod)
    return answer if answer.lines else None


def _requests_share(pod: Json) -> bool:
    from gpushare.api.objects import decode_pod
    from gpushare.api.request.request import requests_share

    return requests_share(decode_pod(pod))


def _is_finished(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _condition(pod: Json) -> str:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "")
    return ""


def _events(answer: "bytes | KubectlFailed", pod: Json, *, reason: str = "") -> list[str]:
    """The last events about the pod, the newest last; ``reason``: only events with that reason."""
    if isinstance(answer, KubectlFailed):
        return []
    uid = pod.get("metadata", {}).get("uid")
    events = [
        event
        for event in json.loads(answer).get("items") or ()
        if _is_about(event.get("involvedObject") or {}, uid) and reason in ("", event.get("reason"))
    ]
    events.sort(key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
    return [f"{event.get('reason', '')}: {event.get('message', '')}" for event in events[-_MAX_EVENTS:]]


def _is_about(involved: Json, uid: "str | None") -> bool:
    """Whether an event is about the pod and not another object of that name; ``uid`` is ``None`` for a deleted pod."""
    return involved.get("kind", "Pod") == "Pod" and (uid is None or involved.get("uid") in (uid, None))
