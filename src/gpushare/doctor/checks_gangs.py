"""Gangs that wait: whether the whole cluster could ever take so many pods together."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpushare.doctor.cluster_facts import ClusterFacts, devices_of
from gpushare.doctor.findings import Said, Unread, warning
from gpushare.model import names
from gpushare.model.device import NodeDevices, NodeMode
from gpushare.model.errors import InvalidRequest
from gpushare.model.gang import gang_of
from gpushare.model.objects import Pod
from gpushare.model.request import Request, request_of


class _Least(NamedTuple):
    """What each pod of a gang asks for at the least: units and percent on each of so many GPUs."""

    gpus: int
    units: int
    core_percent: int
    whole: bool
    by_gpu: bool
    unit_mib: int


def gangs_that_fit(facts: ClusterFacts) -> Iterator[Said]:
    """Whether so many pods as must run together would fit if every node were empty and every GPU well.

    A gang of pods of which not one would fit is told of by its pods.
    """
    if isinstance(facts.pods, Unread) or isinstance(facts.nodes, Unread):
        return
    known = list(devices_of(facts.nodes).values())
    for key, (members, least) in sorted(_gangs(facts.pods).items()):
        held = sum(bool(pod.spec.node_name) for pod, _ in members)
        asked = _least([request for _, request in members])
        if held == len(members) or held >= least or asked is None or not known:
            continue
        places = sum(_places(asked, node) for node in known)
        if 0 < places < least:
            yield warning(
                f"gang {key}",
                f"the cluster could not take it if it were empty: {least} of its pods must run together, and there is room for {places}",
                f"add nodes, ask for less, or lower {names.LABEL_GANG_LEAST} on all of its pods",
            )


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
            continue  # the pod is told of by itself
        if gang is not None and request is not None:
            members[gang.key].append((pod, request))
            least[gang.key] = max(gang.least, least.get(gang.key, 0))
    return {key: (some, least[key]) for key, some in members.items()}


def _least(requests: Sequence[Request]) -> _Least | None:
    """``None`` where some count GPUs and others share them, so that nothing holds of all."""
    if len({one.by_gpu for one in requests}) != 1:
        return None
    units = {one.unit_mib for one in requests}
    return _Least(
        gpus=min(one.gpu_count for one in requests),
        units=min(one.memory_units for one in requests),
        core_percent=min(one.core_percent for one in requests),
        whole=all(one.whole_device for one in requests),
        by_gpu=requests[0].by_gpu,
        unit_mib=units.pop() if len(units) == 1 else 0,
    )


def _places(asked: _Least, node: NodeDevices) -> int:
    """How many such pods the node could hold at the most, never too few."""
    mode = node.mode
    if (mode is not NodeMode.TOPOLOGY if asked.by_gpu else not mode.shares_memory) or (
        asked.unit_mib not in (0, node.unit.mib)
        or (asked.core_percent and not mode.gives_core)
        or (asked.gpus > 1 and not mode.gives_several)
    ):
        return 0
    on_each = [
        0 if node.units_of(one) < asked.units else _on_gpu(asked, node, node.units_of(one))
        for one in node.devices
    ]
    places = sum(on_each) // asked.gpus if sum(map(bool, on_each)) >= asked.gpus else 0
    return places if node.max_node_pods is None else min(places, node.max_node_pods)


def _on_gpu(asked: _Least, node: NodeDevices, units: int) -> int:
    if asked.whole or asked.by_gpu:
        return 1
    bounds = [units // max(1, asked.units)]
    if asked.core_percent:
        bounds.append(100 // asked.core_percent)
    if node.max_pods is not None:
        bounds.append(node.max_pods)
    return min(bounds)
