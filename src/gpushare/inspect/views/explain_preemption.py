"""Lines of ``--why`` on preemption and defragmentation: the pods evicted or moved for this pod, and those that it is evicted for."""

from typing import Any, Final

from gpushare.api import names
from gpushare.inspect.tabwriter import Line, aligned, printable
from gpushare.inspect.views.timestamps import clock

_MAX_NAMED: Final = 8

Json = dict[str, Any]


def of_preemption(record: Json, nominated: str) -> list[str]:
    """Lines on the scheduler's record of preemption; ``nominated`` is the nominated node in the pod's status."""
    # Schedulers of earlier versions do not report it.
    preemption = record.get("preemption")
    if (
        preemption is not None
        and record["state"] != "waiting"
        and not _by_kube_scheduler(preemption)
        and not preemption["room"]
    ):
        # The pod has a node by now: that an earlier preemption found no victims no longer matters.
        preemption = None
    lines = (
        []
        if preemption is None
        else ["", *_of_kube_scheduler(preemption)]
        if _by_kube_scheduler(preemption)
        else ["", *_of_extender(preemption)]
    )
    if nominated and record["state"] == "waiting":
        lines += ["", f"Its nominated node is {printable(nominated)}: capacity is being freed for it there."]
    awaited = record.get("awaited") or ()
    if awaited:
        lines.append(printable(f"It is waiting for {_named(awaited)} to terminate."))
    for victim_of in record.get("endsFor") or ():
        verb, condition = (
            ("is", "")
            if victim_of["by"] == "gpushare"
            else ("will be", ", if kube-scheduler chooses that node")
        )
        lines += [
            "",
            printable(
                f"It {verb} evicted for pod {victim_of['pod']}, on node {victim_of['node']}{condition}."
            ),
        ]
    return lines


def of_defragmentation(pod: Json, events: "list[str]") -> "list[str]":
    """Lines on pods moved for this pod; ``events`` are those of defragmentation, the newest last; the API server expires them."""
    stamp = (pod["metadata"].get("annotations") or {}).get(names.ANN_ROOM_MADE, "")
    if events:
        return ["", printable(f"Defragmentation: capacity was freed for it {events[-1].partition(': ')[2]}.")]
    if not stamp.isdecimal():
        return []
    when = clock(int(stamp) / 1e9)
    return ["", f"Defragmentation: at {when} pods were moved for it; the events that name them have expired."]


def _by_kube_scheduler(preemption: Json) -> bool:
    return bool(preemption["by"] == "kube-scheduler")


def _of_kube_scheduler(preemption: Json) -> list[str]:
    count = len(preemption["room"])
    head = (
        f"Preemption: kube-scheduler proposed victims at {clock(preemption['at'])} on {preemption['nodes']} node"
        f"{'' if preemption['nodes'] == 1 else 's'}, of which {count} would then have enough capacity"
    )
    lines = [head + (", and it chooses one:" if count else ".")]
    if preemption["room"]:
        rows: list[Line] = [("NODE", "VICTIMS", "ADDED BY GPUSHARE")]
        for node in preemption["room"]:
            kube_victims = [victim for victim in node["victims"] if not victim["besides"]]
            our_victims = [victim for victim in node["victims"] if victim["besides"]]
            rows.append((node["node"], _named(kube_victims) or "-", _named(our_victims) or "-"))
        lines += [f"  {line}" for line in aligned(rows)]
    for refusal in preemption["refused"]:
        examples = f" (such as {', '.join(refusal['examples'])})" if refusal["examples"] else ""
        lines.append(printable(f"  not on {refusal['nodes']}: {refusal['reason']}{examples}"))
    return lines


def _of_extender(preemption: Json) -> list[str]:
    when = clock(preemption["at"])
    if not preemption["room"]:
        return [printable(f"Preemption: no victims at {when}: {preemption['said']}.")]
    (node,) = preemption["room"]
    if not node["victims"]:
        return [
            printable(
                f"Preemption: capacity on node {node['node']} is reserved for it since {when}: {preemption['said']}."
            )
        ]
    return [
        printable(f"Preemption: at {when} it preempted {_named(node['victims'])} on node {node['node']}.")
    ]


def _named(victims: "list[Json]") -> str:
    texts = [
        f"{victim['pod']} (priority {victim['priority']})"
        if victim["pod"]
        else f"the pod with UID {victim['uid']}"
        for victim in victims[:_MAX_NAMED]
    ]
    more = len(victims) - len(texts)
    return ", ".join(texts) + (f" and {more} more" if more > 0 else "")
