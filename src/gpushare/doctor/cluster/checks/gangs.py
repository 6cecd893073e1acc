"""Gangs that wait: whether there will ever be so many pods, and whether the whole cluster could ever take them together."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from gpushare.api import names
from gpushare.api.crd.resource_policy import seconds_of
from gpushare.api.errors import InvalidRequest
from gpushare.api.objects import Pod
from gpushare.api.request.pod_group import gang_of
from gpushare.api.request.request import Request, request_of
from gpushare.doctor.cluster.facts import ClusterFacts, Json, at, devices_of, name_of
from gpushare.doctor.findings import Result, Unread, warning
from gpushare.ledger import Ledger
from gpushare.ledger.fit.empty_node import emptied

#: Seconds after which a gang that lacks pods is reported: controllers create theirs within seconds.
_LONG_S: Final = 180.0


def gangs(facts: ClusterFacts) -> Iterator[Result]:
    """Whether each gang that waits gets as many pods as must run together, and whether these would fit if every node were empty and every GPU well.

    A gang of pods of which not one would fit is reported by its pods.
    """
    if isinstance(facts.pods, Unread) or isinstance(facts.nodes, Unread):
        return
    empty = Ledger.of(map(emptied, devices_of(facts.nodes).values()))
    succeeded = _succeeded(facts.pods)
    for key, (members, least) in sorted(_gangs(facts.pods).items()):
        held = sum(bool(pod.spec.node_name) for pod, _ in members)
        # Those that have succeeded count as if they ran on.
        if held == len(members) or held + succeeded[key] >= least:
            continue
        lacking = _lacking(facts, key, [pod for pod, _ in members], least - succeeded[key])
        if lacking is not None:
            yield lacking
        request = _smallest([request for _, request in members])
        if request is None or not empty.node_names():
            continue
        places = _places(request, empty, least)
        if 0 < places < least:
            yield warning(
                f"gang {key}",
                f"the cluster could not take it if it were empty: {least} of its pods must run together, and there is room for {places}",
                f"add nodes, ask for less, or lower {names.LABEL_GANG_LEAST} on all of its pods",
            )


def _lacking(facts: ClusterFacts, key: str, pods: Sequence[Pod], least: int) -> Result | None:
    """What is to be said of a gang that lacks pods: that they never come, or that they have not come for long."""
    owners = (
        {}
        if isinstance(facts.owners, Unread)
        else {str(at(one, "metadata", "uid")): one for one in facts.owners}
    )
    makers = {one.uid for pod in pods for one in pod.metadata.owner_references or () if one.controller}
    controlled = all(any(one.controller for one in pod.metadata.owner_references or ()) for pod in pods)
    if controlled and makers <= owners.keys():
        runs = any(pod.spec.node_name for pod in pods)
        made = {uid: _at_once(owners[uid], runs=runs) for uid in makers}
        if sum(made.values()) < least:
            listed = ", ".join(
                f"{at(owners[uid], 'kind')} {name_of(owners[uid])} makes {made[uid]} at once"
                for uid in sorted(made)
            )
            return warning(
                f"gang {key}",
                f"it never has its pods: {least} must run together, and {listed}",
                f"let it make as many (parallelism of a Job, replicas of others, podManagementPolicy: Parallel of a StatefulSet), or lower {names.LABEL_GANG_LEAST} on all of its pods",
            )
    if len(pods) >= least or isinstance(facts.server_time_s, Unread):
        return None
    # Since the youngest came nothing has been added.
    youngest_s = max(seconds_of(pod.metadata.creation_timestamp) for pod in pods)
    waited_s = facts.server_time_s - youngest_s
    if not youngest_s or waited_s < _LONG_S:
        return None
    return warning(
        f"gang {key}",
        f"{least} of its pods must run together, and there are {len(pods)}; the last came {waited_s / 60:.0f} min ago",
        f"make the others, or lower {names.LABEL_GANG_LEAST} on all of its pods",
    )


def _at_once(owner: Json, *, runs: bool) -> int:
    """How many pods a Job, ReplicaSet or StatefulSet has at the same time, at the most; ``runs``: some of them do already."""
    if at(owner, "kind") == "Job":
        parallelism, completions = at(owner, "spec", "parallelism"), at(owner, "spec", "completions")
        at_once = 1 if parallelism is None else int(parallelism)
        return at_once if completions is None else min(at_once, int(completions))
    replicas = int(at(owner, "spec", "replicas") or 0)
    one_by_one = at(owner, "kind") == "StatefulSet" and at(owner, "spec", "podManagementPolicy") != "Parallel"
    # The next is made when the one before is ready, which it is not before the gang runs.
    return min(1, replicas) if one_by_one and not runs else replicas


def _succeeded(pods: Sequence[Pod]) -> Counter[str]:
    """Of each gang how many pods have."""
    found: Counter[str] = Counter()
    for pod in pods:
        if pod.status.phase == "Succeeded":
            with suppress(InvalidRequest):
                gang = gang_of(pod)
                found.update(() if gang is None else (gang.key,))
    return found


def _gangs(pods: Sequence[Pod]) -> dict[str, tuple[list[tuple[Pod, Request]], int]]:
    """Gangs of our scheduler by key: their pods that have not ended, each with what it asks for, and how many must run together."""
    members: dict[str, list[tuple[Pod, Request]]] = defaultdict(list)
    least: dict[str, int] = {}
    for pod in pods:
        if pod.finished or pod.spec.scheduler_name != names.SCHEDULER_NAME:
            continue
        try:
            gang, request = gang_of(pod), request_of(pod)
        except InvalidRequest:
            continue  # the pod is reported by itself
        if gang is not None and request is not None:
            members[gang.key].append((pod, request))
            least[gang.key] = max(gang.least, least.get(gang.key, 0))
    return {key: (some, least[key]) for key, some in members.items()}


def _smallest(requests: Sequence[Request]) -> Request | None:
    """The one that asks for no more than any other; ``None`` where there is none, so that nothing holds of all."""
    return next((one for one in requests if all(_within(one, other) for other in requests)), None)


def _within(request: Request, other: Request) -> bool:
    return (
        request.by_gpu is other.by_gpu
        and request.unit_mib == other.unit_mib
        and request.gpu_count <= other.gpu_count
        and request.memory_units <= other.memory_units
        and request.core_percent <= other.core_percent
        and request.whole_device <= other.whole_device
    )


def _places(request: Request, empty: Ledger, least: int) -> int:
    """How many pods with ``request`` the nodes of ``empty`` take together, ``least`` at the most; they hold nothing afterwards."""
    nodes = empty.node_names()
    placed = 0
    while placed < least and (node := empty.best(request, nodes)) is not None:
        empty.reserve(str(placed), str(placed), request, node)
        placed += 1
    for number in range(placed):
        empty.release(str(number))
    return placed
