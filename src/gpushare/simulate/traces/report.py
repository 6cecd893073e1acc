"""What is told of a replayed list: tables for people, and the same as JSON."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from gpushare.api.node.device import Placement
from gpushare.api.request.pluralize import counted
from gpushare.inspect.tabwriter import aligned
from gpushare.simulate.traces.min_nodes import EnoughNodes
from gpushare.simulate.traces.openb import MILLI, TracePod
from gpushare.simulate.traces.replay import Landed, Refusals
from gpushare.simulate.traces.timed import Stay
from gpushare.simulate.traces.traces import Replayed, ReplayedInTime

API_VERSION: Final = "gpushare.dev/trace-replay/v1"


def table(found: Replayed | ReplayedInTime, *, details: bool = False) -> str:
    """A row for each policy, for each reason why pods have no place, and with ``details`` for each pod."""
    return (
        _in_time(found, details=details)
        if isinstance(found, ReplayedInTime)
        else _at_once(found, details=details)
    )


def _at_once(found: Replayed, *, details: bool) -> str:
    lines = [["POLICY", "GPUS GIVEN", "PODS DROPPED"]]
    lines += [
        [policy.value, f"{outcome.percent:.2f}%", str(outcome.dropped)]
        for policy, outcome in found.outcomes.items()
    ]
    head = f"{found.name}: {counted(found.pods, 'pod')} on {counted(found.gpus, 'GPU')} of {counted(found.nodes, 'node')}\n"
    landed = {policy: outcome.landed for policy, outcome in found.outcomes.items()}
    pods = [["POLICY", "NAME", "ASKS", "NODE", "GPU", "WHY"]]
    pods += [
        [policy.value, one.pod.name, asked(one.pod), one.node or "dropped", *_gpus_and_why(one)]
        for policy, all_of_it in landed.items()
        for one in all_of_it
    ]
    parts = [lines, _reasons(landed, "DROPPED"), _enough(found.enough, "DROPPED"), pods if details else []]
    return _joined(head, parts)


def _in_time(found: ReplayedInTime, *, details: bool) -> str:
    lines = [["POLICY", "MEAN GIVEN", "MOST GIVEN", "PODS THAT WAITED", "LONGEST WAIT", "NEVER PLACED"]]
    lines += [
        [
            policy.value,
            f"{outcome.mean_percent:.2f}%",
            f"{outcome.most_percent:.2f}%",
            str(outcome.waited),
            long(outcome.longest_wait_s),
            str(outcome.never),
        ]
        for policy, outcome in found.outcomes.items()
    ]
    head = f"{found.name}: {counted(found.pods, 'pod')} on {counted(found.gpus, 'GPU')} of {counted(found.nodes, 'node')}, by the list's own times\n"
    stays = {policy: outcome.stays for policy, outcome in found.outcomes.items()}
    pods = [["POLICY", "NAME", "ASKS", "CAME(s)", "BEGAN(s)", "ENDED(s)", "NODE", "GPU", "WHY"]]
    pods += [
        [
            policy.value,
            one.pod.name,
            asked(one.pod),
            *("-" if at_s is None else str(at_s) for at_s in (one.pod.created_s, one.began_s, one.ended_s)),
            one.node or "waits",
            *_gpus_and_why(one),
        ]
        for policy, all_of_it in stays.items()
        for one in all_of_it
    ]
    parts = [
        lines,
        _reasons(stays, "NEVER PLACED"),
        _enough(found.enough, "WAITING"),
        pods if details else [],
    ]
    return _joined(head, parts)


def _joined(head: str, parts: Iterable[list[list[str]]]) -> str:
    return "\n".join([head, *("\n".join(aligned(part)) + "\n" for part in parts if part)])


def _gpus_and_why(one: Landed | Stay) -> list[str]:
    return [",".join(map(str, one.gpus)) or "-", why(one.refusals) or "-"]


def _reasons(by_policy: Mapping[Placement, Sequence[Landed | Stay]], heading: str) -> list[list[str]]:
    """For each reason how many pods had it of some node, and of how many nodes each."""
    lines = [
        [policy.value, reason, str(pods), str(round(nodes / pods))]
        for policy, landed in by_policy.items()
        for reason, (pods, nodes) in left_for(landed).items()
    ]
    return [["POLICY", "REASON", f"PODS {heading}", "NODES EACH"], *lines] if lines else []


def _enough(enough: Mapping[Placement, EnoughNodes], heading: str) -> list[list[str]]:
    lines = [
        [policy.value, str(one.nodes), str(one.gpus), f"{one.percent:.2f}%", str(one.left)]
        for policy, one in enough.items()
    ]
    return [["POLICY", "NODES ENOUGH", "GPUS", "GIVEN THEN", f"STILL {heading}"], *lines] if lines else []


def left_for(landed: Iterable[Landed | Stay]) -> dict[str, tuple[int, int]]:
    """Of pods with GPUs that have no node: by reason how many had it of some node, and the sum of these nodes."""
    pods: Counter[str] = Counter()
    nodes: Counter[str] = Counter()
    for one in landed:
        if not one.node and one.pod.gpus:
            pods.update(one.refusals.keys())
            nodes.update(one.refusals)
    return {reason: (count, nodes[reason]) for reason, count in pods.most_common()}


def why(refusals: Refusals) -> str:
    """``too few processors free (3 nodes), too few GPUs (1 node)``."""
    return ", ".join(f"{reason} ({counted(nodes, 'node')})" for reason, nodes in refusals.items())


def asked(pod: TracePod) -> str:
    """``46% of a GPU``, ``2 GPUs``, ``no GPU``."""
    if not pod.gpus:
        return "no GPU"
    if pod.gpu_milli == MILLI:
        return counted(pod.gpus, "GPU")
    part = f"{100 * pod.gpu_milli / MILLI:g}% of a GPU"
    return part if pod.gpus == 1 else f"{pod.gpus} × {part}"


def long(seconds: int) -> str:
    """So many seconds for people: ``1d3h``, ``2h5m``, ``7m``; ``-`` for none."""
    if not seconds:
        return "-"
    minutes = -(-seconds // 60)
    hours, days = minutes // 60, minutes // 1440
    if days:
        return f"{days}d{hours % 24}h"
    return f"{hours}h{minutes % 60}m" if hours else f"{minutes}m"


def structured(found: Replayed | ReplayedInTime) -> dict[str, Any]:
    """The same for programs; the schema is in docs/guide/simulate.md."""
    return {
        "apiVersion": API_VERSION,
        "list": found.name,
        "nodes": found.nodes,
        "gpus": found.gpus,
        "pods": found.pods,
        "byTime": isinstance(found, ReplayedInTime),
        "policies": _policies_in_time(found) if isinstance(found, ReplayedInTime) else _policies(found),
    }


def _policies_in_time(found: ReplayedInTime) -> list[dict[str, Any]]:
    return [
        {
            "policy": policy.value,
            "meanGivenPercent": round(outcome.mean_percent, 4),
            "mostGivenPercent": round(outcome.most_percent, 4),
            "waited": outcome.waited,
            "longestWaitSeconds": outcome.longest_wait_s,
            "never": outcome.never,
            "neverFor": _left_for(outcome.stays),
            "enough": _enough_of(found.enough.get(policy)),
            "curve": [
                {"seconds": one.at_s, "givenPercent": round(one.given_percent, 3), "waiting": one.waiting}
                for one in outcome.curve
            ],
            "pods": [
                _pod(one)
                | {
                    "cameSeconds": one.pod.created_s,
                    "beganSeconds": one.began_s,
                    "endedSeconds": one.ended_s,
                }
                for one in outcome.stays
            ],
        }
        for policy, outcome in found.outcomes.items()
    ]


def _policies(found: Replayed) -> list[dict[str, Any]]:
    return [
        {
            "policy": policy.value,
            "givenPercent": round(outcome.percent, 4),
            "dropped": outcome.dropped,
            "droppedFor": _left_for(outcome.landed),
            "enough": _enough_of(found.enough.get(policy)),
            "curve": [
                {"askedPercent": round(asked, 3), "givenPercent": round(given, 3)}
                for asked, given in outcome.curve
            ],
            "pods": [_pod(one) for one in outcome.landed],
        }
        for policy, outcome in found.outcomes.items()
    ]


def _left_for(landed: Iterable[Landed | Stay]) -> list[dict[str, Any]]:
    return [
        {"reason": reason, "pods": pods, "nodes": nodes} for reason, (pods, nodes) in left_for(landed).items()
    ]


def _enough_of(one: EnoughNodes | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {
        "nodes": one.nodes,
        "gpus": one.gpus,
        "givenPercent": round(one.percent, 4),
        "left": one.left,
        "most": one.most,
    }


def _pod(one: Landed | Stay) -> dict[str, Any]:
    return {
        "name": one.pod.name,
        "asks": asked(one.pod),
        "node": one.node or None,
        "gpus": list(one.gpus),
        "why": why(one.refusals),
    }
