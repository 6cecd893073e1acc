"""What ``--why`` tells of preemption and defragmentation: whose end, or move, made room for a pod or would, and for whom this one has to go."""

from typing import Any, Final

from gpushare.api import names
from gpushare.inspect.tabwriter import Line, aligned, printable
from gpushare.inspect.views.timestamps import clock

_MOST_NAMED: Final = 8

Json = dict[str, Any]


def of_preemption(record: Json, nominated: str) -> list[str]:
    """Lines on what the scheduler told; ``nominated`` is the node that the pod's status names."""
    # A scheduler of an earlier version tells nothing of it.
    found = record.get("preemption")
    if found is not None and record["state"] != "waiting" and not _asked(found) and not found["room"]:
        # It has found a place since: that nobody was ended for it before is no news.
        found = None
    lines = [] if found is None else ["", *_of_scheduler(found)] if _asked(found) else ["", *_of_us(found)]
    if nominated and record["state"] == "waiting":
        lines += ["", f"Its status names node {printable(nominated)}: room is made for it there."]
    awaited = record.get("awaited") or ()
    if awaited:
        lines.append(printable(f"It waits for the end of {_named(awaited)}."))
    for one in record.get("endsFor") or ():
        sure = (
            "has to end"
            if one["by"] == "gpushare"
            else "would have to end, where kube-scheduler takes this node,"
        )
        lines += ["", printable(f"It {sure} for pod {one['pod']}, on node {one['node']}.")]
    return lines


def of_defragmentation(pod: Json, events: "list[str]") -> "list[str]":
    """Lines on who moved for the pod; ``events`` are those that say so, the newest last, as long as the API server keeps them."""
    stamp = (pod["metadata"].get("annotations") or {}).get(names.ANN_ROOM_MADE, "")
    if events:
        return ["", printable(f"Defragmentation: room was made for it {events[-1].partition(': ')[2]}.")]
    if not stamp.isdecimal():
        return []
    at = clock(int(stamp) / 1e9)
    return ["", f"Defragmentation: at {at} others were moved for it; who they were no event says any more."]


def _asked(found: Json) -> bool:
    return bool(found["by"] == "kube-scheduler")


def _of_scheduler(found: Json) -> list[str]:
    count = len(found["room"])
    head = (
        f"Preemption: kube-scheduler said at {clock(found['at'])} whom it would end on {found['nodes']} node"
        f"{'' if found['nodes'] == 1 else 's'}: that leaves room on GPUs of {count}"
    )
    lines = [head + (", of which it takes one:" if count else ".")]
    if found["room"]:
        rows: list[Line] = [("NODE", "WOULD END", "AND BESIDES")]
        for one in found["room"]:
            thought = [victim for victim in one["victims"] if not victim["besides"]]
            more = [victim for victim in one["victims"] if victim["besides"]]
            rows.append((one["node"], _named(thought) or "-", _named(more) or "-"))
        lines += [f"  {line}" for line in aligned(rows)]
    for one in found["refused"]:
        such = f" (such as {', '.join(one['examples'])})" if one["examples"] else ""
        lines.append(printable(f"  not on {one['nodes']}: {one['reason']}{such}"))
    return lines


def _of_us(found: Json) -> list[str]:
    at = clock(found["at"])
    if not found["room"]:
        return [printable(f"Preemption: nobody was ended for it at {at}: {found['said']}.")]
    (room,) = found["room"]
    if not room["victims"]:
        return [
            printable(f"Preemption: room is kept for it on node {room['node']} since {at}: {found['said']}.")
        ]
    return [
        printable(
            f"Preemption: at {at} room was made for it on node {room['node']} by ending {_named(room['victims'])}."
        )
    ]


def _named(victims: "list[Json]") -> str:
    told = [
        f"{one['pod']} (priority {one['priority']})" if one["pod"] else f"the pod with UID {one['uid']}"
        for one in victims[:_MOST_NAMED]
    ]
    more = len(victims) - len(told)
    return ", ".join(told) + (f" and {more} more" if more > 0 else "")
