"""``kubectl inspect cgpu --why POD``: the scheduler's own record of what it decided of a pod, node by node.

Where the scheduler does not answer, what the pod's annotations and events say; and that it is no more than that.
"""

import json
import time
from collections.abc import Sequence
from typing import Any, Final

from gpushare.api import names
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

VERSION: Final = 1
_RECORDS: Final = (names.ANN_SHARE, names.ANN_ALLOCATION, names.ANN_MEM_INDEX)
_MOST_EVENTS: Final = 5
#: Events that say why a pod is gone.
_ENDED: Final = ("Preempted: ", "EvictedForDefragmentation: ")

Json = dict[str, Any]


def why(kubectl: Kubectl, options: Options, paint: Paint) -> Shown:
    """Ask the scheduler and the API server about the pod; raises ``InspectError`` where there is none."""
    namespace, _, name = options.pod.partition("/")
    pod_path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    events_path = f"/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.name%3D{name}"
    each = "/nodes" if options.details else ""
    decided = ask(kubectl, options.scheduler, f"/{options.pod}{each}", pod_path, events_path)
    pod_answer, events_answer = decided.others
    if isinstance(pod_answer, KubectlFailed):
        if pod_answer.not_found:
            last = [printable(one) for one in _events(events_answer, {})]
            if last:
                raise InspectError("", f'pod "{name}" of namespace {namespace} is gone{_ended(last)}')
            from gpushare.inspect.sources.not_found_hints import no_pod

            raise no_pod(kubectl, namespace, name)
        raise pod_answer
    pod: Json = json.loads(pod_answer)
    record = decided.told
    remarks = _nothing(pod)
    if not pod["spec"].get("nodeName") and not _has_ended(pod):
        from gpushare.inspect.sources.unknown_resources import not_offered

        found = not_offered(kubectl, [pod])
        remarks += [f"warning: {printable(one)}" for one in found]
    if _has_ended(pod):
        # The scheduler forgets a pod that has ended; what was given to it is written on it.
        record = None
    elif record is None:
        remarks.append(
            f"warning: {printable(decided.problem)}; what follows is what the pod's annotations and events say"
        )
    elif record.get("uid") not in ("", pod["metadata"].get("uid")):
        remarks.append("warning: the scheduler knows another pod of that name; this one is newer, or older")
        record = None
    if not _has_ended(pod):
        from gpushare.inspect.views.context_warning import too_small

        remarks += [f"warning: {printable(one)}" for one in too_small(kubectl, pod)]
    loose = "" if record is not None else _not_held(kubectl, pod)
    events = [] if record is not None and record["said"] == "" else _events(events_answer, pod)
    if options.output in ("json", "yaml"):
        return Shown(_document(options, pod, record, loose, events, remarks), tuple(remarks))
    lines = _of_pod(pod, record, paint)
    lines += of_defragmentation(pod, _events(events_answer, pod, reason="DefragmentationSucceeded"))
    if record is not None:
        lines += _of_record(record, details=options.details)
        lines += of_preemption(record, (pod.get("status") or {}).get("nominatedNodeName") or "")
    else:
        lines += _of_annotations(pod)
        lines += ["", _loose_text(pod["spec"]["nodeName"], loose)] if loose else []
    if events:
        lines += ["", "Events:", *(f"  {printable(one)}" for one in events)]
    return Shown("\n".join(lines) + "\n", tuple(remarks))


def _ended(events: Sequence[str]) -> str:
    """Why a pod is gone, where its last events say so, and all of these, the newest last."""
    why_gone = next((one for one in reversed(events) if one.startswith(_ENDED)), "")
    head = f": {why_gone}" if why_gone else ""
    return head if [why_gone] == events else "\n  ".join((f"{head}; its last events:", *events))


def _nothing(pod: Json) -> list[str]:
    """That no units are asked for, so that the scheduler knows nothing of the pod."""
    containers = (*(pod["spec"].get("containers") or ()), *(pod["spec"].get("initContainers") or ()))
    if not any(names.GPU_MEM in ((one.get("resources") or {}).get("limits") or {}) for one in containers):
        return []
    from gpushare.api.objects import decode_pod
    from gpushare.reasons.mistakes.pods import asks_for_nothing

    said = asks_for_nothing(decode_pod(pod))
    return [f"warning: {printable(said)}"] if said else []


def _document(
    options: Options,
    pod: Json,
    record: "Json | None",
    loose: str,
    events: Sequence[str],
    remarks: Sequence[str],
) -> str:
    from gpushare.inspect.views.documents import written

    meta, spec = pod["metadata"], pod["spec"]
    annotations = meta.get("annotations") or {}
    return written(
        {
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
                **({"notHeld": loose} if loose else {}),
            },
            "record": record,
            "events": list(events),
            "warnings": [one.removeprefix("warning: ") for one in remarks],
        },
        options.output,
    )


def _of_pod(pod: Json, record: "Json | None", paint: Paint) -> list[str]:
    meta = pod["metadata"]
    node = pod["spec"].get("nodeName", "")
    made = seconds_of(meta.get("creationTimestamp") or "")
    head = paint("bold", f"{meta['namespace']}/{meta['name']}")
    if _has_ended(pod):
        state = f"has ended, on node {node}" if node else "has ended"
    elif node:
        state = paint("green", f"is on node {node}")
    else:
        state = paint("yellow", f"waits since {clock(made)} ({ago(time.time() - made)})")
    lines = [f"{head} {state}"]
    if record is not None:
        rows: list[Line] = [("asks for:", record["asks"])] if record["asks"] else []
        waiting = record["waiting"]
        if waiting is not None:
            rows += [("reason:", waiting["reason"]), ("suggestion:", waiting["suggestion"])]
            rows += [("category:", waiting["category"])]
        lines += aligned(rows)
    return lines


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
        how = f"failed: {bind['error']}" if bind["error"] else "done"
        lines += ["", printable(f"Binding to node {bind['node']} at {clock(bind['at'])}: {how}")]
    holds = record["holds"]
    if holds is not None:
        sure = "" if holds["confirmed"] else " (reserved; the API server has not said so yet)"
        lines += ["", printable(f"Holds on node {holds['node']}{sure}:")]
        lines += [f"  {line}" for line in aligned([_share(gpu) for gpu in holds["gpus"]])]
        # A scheduler of an earlier version tells nothing of it.
        ails = [one for one in (gpu.get("outOfService", "") for gpu in holds["gpus"]) if one]
        if ails:
            lines.append(
                printable(
                    f"Out of service: {'; '.join(ails)}. The pod keeps its share; nothing new is placed there."
                )
            )
        if loose := holds.get("notHeld", ""):
            lines.append(_loose_text(holds["node"], loose))
    if record["kept"]:
        lines += [
            "",
            printable(f"Room is kept for it on node {record['kept']} until others have ended there."),
        ]
    return lines if len(lines) > 1 else []


def _not_held(kubectl: Kubectl, pod: Json) -> str:
    """Why the node of a pod that runs does not hold what it gives now, where no scheduler tells it; empty where it does, or nobody knows."""
    node = pod["spec"].get("nodeName", "")
    annotations = pod["metadata"].get("annotations") or {}
    if not node or _has_ended(pod) or not any(one in annotations for one in _RECORDS):
        return ""
    from gpushare.inspect.sources.enforcement import why_not_held

    return why_not_held(kubectl, node, annotations)


def _loose_text(node: str, why_loose: str) -> str:
    from gpushare.api.node.enforcement_text import not_held_text

    return printable(not_held_text(node, why_loose))


def _of_answer(record: Json, answer: Json, *, details: bool) -> list[str]:
    scheduler = record["scheduler"]
    refusing = answer["nodes"] - answer["fits"] - answer["leftOut"]
    lines = [
        printable(
            f"Scheduler {scheduler['name']} was asked at {clock(record['asked'])} about {counted(answer['nodes'], 'node')}: "
            f"{answer['fits']} take it, {refusing} refuse"
            + (f", {answer['leftOut']} not for it now ({record['leftOut']})" if answer["leftOut"] else "")
        )
    ]
    if answer["sampled"] < refusing:
        lines.append(f"(of the reasons there was time for those of {counted(answer['sampled'], 'node')})")
    if record["notOffered"]:
        lines.append(
            f"({counted(record['notOffered'], 'more node')} not asked about: kube-scheduler's own rules refuse them, or it had enough)"
        )
    if details and record["nodes"] is not None:
        rows = [("NODE", "ANSWER"), *((one["node"], one["reason"] or "takes it") for one in record["nodes"])]
        return [*lines, *aligned(rows)]
    if details:
        lines.append("(what was said of each node is not kept any more: the next decision will be)")
    if answer["groups"]:
        rows_: list[Line] = [("NODES", "REASON", "FOR EXAMPLE")]
        for group in answer["groups"]:
            such = group["examples"][0]
            more = such["reason"].removeprefix(group["reason"]).strip()
            between = "" if more.startswith(";") else " "
            rows_.append((str(group["nodes"]), group["reason"], f"{such['node']}{between}{more}".strip()))
        lines += aligned(rows_)
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
        printable(f"Scores above the least, of {counted(scores['nodes'], 'node')}, best first: {best}"),
    ]


def _of_choice(record: Json) -> list[str]:
    choice = record["choice"]
    if choice is None:
        return []
    rows: list[Line] = [("GPU", "FREE BEFORE(MiB)", "LEFT OVER(MiB)", "PODS BEFORE", "")]
    rows += [
        (
            str(gpu["index"]),
            str(gpu["freeMiB"]),
            str(gpu["leftMiB"]),
            str(gpu["pods"]),
            "chosen" if gpu["chosen"] else "",
        )
        for gpu in choice["gpus"]
    ]
    head = f"GPUs of node {choice['node']} that could take it, by {choice['placement']} ({choice['why']}):"
    return ["", printable(head), *(f"  {line}" for line in aligned(rows))]


def _share(gpu: Json) -> Line:
    compute = f"{gpu['corePercent']}% compute" if gpu["corePercent"] else ""
    share = (f"GPU {gpu['index']}", f"{gpu['MiB']} MiB", counted(gpu["units"], "unit"), gpu["uuid"])
    # Told where containers have different GPUs, by schedulers of this version on.
    containers = gpu.get("containers")
    if containers is None:
        return (*share, compute)
    several = "s" if len(containers) > 1 else ""
    return (*share, f"container{several} {', '.join(containers)}" if containers else "no container", compute)


def _of_annotations(pod: Json) -> list[str]:
    annotations = pod["metadata"].get("annotations") or {}
    rows: list[Line] = [(f"{key}:", annotations[key]) for key in _RECORDS if key in annotations]
    if not rows and pod["spec"].get("nodeName"):
        return ["", "It has no record of a GPU."]
    condition = _condition(pod)
    if condition:
        rows.append(("kube-scheduler says:", condition))
    return ["", *aligned(rows)] if rows else []


def _has_ended(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _condition(pod: Json) -> str:
    for one in (pod.get("status") or {}).get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return str(one.get("message") or one.get("reason") or "")
    return ""


def _events(answer: "bytes | KubectlFailed", pod: Json, *, reason: str = "") -> list[str]:
    """The last events about the pod, the newest last; ``reason``: those alone."""
    if isinstance(answer, KubectlFailed):
        return []
    uid = pod.get("metadata", {}).get("uid")
    found = [
        one
        for one in json.loads(answer).get("items") or ()
        if _is_about(one.get("involvedObject") or {}, uid) and reason in ("", one.get("reason"))
    ]
    found.sort(key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or ""))
    return [f"{one.get('reason', '')}: {one.get('message', '')}" for one in found[-_MOST_EVENTS:]]


def _is_about(it: Json, uid: "str | None") -> bool:
    """Whether an event's object is the pod; other kinds may have its name, and of a pod that is gone no UID is known."""
    return it.get("kind", "Pod") == "Pod" and (uid is None or it.get("uid") in (uid, None))
