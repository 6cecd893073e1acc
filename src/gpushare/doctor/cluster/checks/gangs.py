"""Pending gangs: whether they will ever have enough pods, and whether the whole cluster could ever run them together."""

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

#: Seconds after which a gang with too few pods is reported: controllers create pods within seconds.
_LONG_S: Final = 180.0


def gangs(facts: ClusterFacts) -> Iterator[Result]:
    """Whether each pending gang gets as many pods as must run together, and whether these would fit if all nodes were empty and healthy.

    A gang of which no pod would fit is reported by its pods.
    """
    if isinstance(facts.pods, Unread) or isinstance(facts.nodes, Unread):
        return
    empty = Ledger.of(map(emptied, devices_of(facts.nodes).values()))
    succeeded = _succeeded(facts.pods)
    for key, (members, least) in sorted(_gangs(facts.pods).items()):
        held = sum(bool(pod.spec.node_name) for pod, _ in members)
        # Pods that have succeeded count as running.
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
                f"it would not fit the empty cluster: {least} of its pods must run together, and only {places} fit",
                f"add nodes, request less, or lower {names.LABEL_GANG_LEAST} on all of its pods",
            )


def _lacking(facts: ClusterFacts, key: str, pods: Sequence[Pod], least: int) -> Result | None:
    """The finding about a gang with too few pods: they are never created, or none has been created for long."""
    owners = (
        {}
        if isinstance(facts.owners, Unread)
        else {str(at(owner, "metadata", "uid")): owner for owner in facts.owners}
    )
    makers = {owner.uid for pod in pods for owner in pod.metadata.owner_references or () if owner.controller}
    controlled = all(any(owner.controller for owner in pod.metadata.owner_references or ()) for pod in pods)
    if controlled and makers <= owners.keys():
        runs = any(pod.spec.node_name for pod in pods)
        made = {uid: _at_once(owners[uid], runs=runs) for uid in makers}
        if sum(made.values()) < least:
            listed = ", ".join(
                f"{at(owners[uid], 'kind')} {name_of(owners[uid])} creates {made[uid]} at a time"
                for uid in sorted(made)
            )
            return warning(
                f"gang {key}",
                f"it can never be complete: {least} pods must run together, but {listed}",
                f"let it create as many (parallelism of a Job, replicas of others, podManagementPolicy: Parallel of a StatefulSet), or lower {names.LABEL_GANG_LEAST} on all of its pods",
            )
    if len(pods) >= least or isinstance(facts.server_time_s, Unread):
        return None
    # No pod was added since the youngest was created.
    youngest_s = max(seconds_of(pod.metadata.creation_timestamp) for pod in pods)
    waited_s = facts.server_time_s - youngest_s
    if not youngest_s or waited_s < _LONG_S:
        return None
    return warning(
        f"gang {key}",
        f"{least} of its pods must run together, and there are {len(pods)}; the last was created {waited_s / 60:.0f} min ago",
        f"create the others, or lower {names.LABEL_GANG_LEAST} on all of its pods",
    )


def _at_once(owner: Json, *, runs: bool) -> int:
    """The most pods that a Job, ReplicaSet or StatefulSet has at the same time; ``runs``: some of them run already."""
    if at(owner, "kind") == "Job":
        parallelism, completions = at(owner, "spec", "parallelism"), at(owner, "spec", "completions")
        at_once = 1 if parallelism is None else int(parallelism)
        return at_once if completions is None else min(at_once, int(completions))
    replicas = int(at(owner, "spec", "replicas") or 0)
    one_by_one = at(owner, "kind") == "StatefulSet" and at(owner, "spec", "podManagementPolicy") != "Parallel"
    # The next pod is created when the one before is ready, which it is not before the gang runs.
    return min(1, replicas) if one_by_one and not runs else replicas


def _succeeded(pods: Sequence[Pod]) -> Counter[str]:
    """The number of succeeded pods by gang."""
    counts: Counter[str] = Counter()
    for pod in pods:
        if pod.status.phase == "Succeeded":
            with suppress(InvalidRequest):
                gang = gang_of(pod)
                counts.update(() if gang is None else (gang.key,))
    return counts


def _gangs(pods: Sequence[Pod]) -> dict[str, tuple[list[tuple[Pod, Request]], int]]:
    """Gangs of our scheduler by key: their unfinished pods with their requests, and how many must run together."""
    members: dict[str, list[tuple[Pod, Request]]] = defaultdict(list)
    least: dict[str, int] = {}
    for pod in pods:
        if pod.finished or pod.spec.scheduler_name != names.SCHEDULER_NAME:
            continue
        try:
            gang, request = gang_of(pod), request_of(pod)
        except InvalidRequest:
            continue  # reported as a finding about the pod
        if gang is not None and request is not None:
            members[gang.key].append((pod, request))
            least[gang.key] = max(gang.least, least.get(gang.key, 0))
    return {key: (gang_pods, least[key]) for key, gang_pods in members.items()}


def _smallest(requests: Sequence[Request]) -> Request | None:
    """The request that is no larger than any other in any respect; ``None`` if there is none, so that nothing is known about all."""
    return next((request for request in requests if all(_within(request, other) for other in requests)), None)


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
    """How many pods with ``request`` the nodes of ``empty`` can take together, at most ``least``; the ledger is restored afterwards."""
    nodes = empty.node_names()
    placed = 0
    while placed < least and (node := empty.best(request, nodes)) is not None:
        empty.reserve(str(placed), str(placed), request, node)
        placed += 1
    for number in range(placed):
        empty.release(str(number))
    return placed
