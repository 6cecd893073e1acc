"""A whole run: the existing cluster, the pods to add, and their fates."""

import time
from collections.abc import Callable, Sequence

import msgspec

from gpushare.api import names
from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.errors import ModelError
from gpushare.api.json_objects import Json, key_of, name_of, spec_of, uid_of
from gpushare.api.node.enforcement_text import not_held
from gpushare.api.objects import Pod, decode_pod
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.describe import short_text
from gpushare.api.request.pluralize import counted
from gpushare.api.request.request import request_of
from gpushare.kubescheduler.filters import ignored_wishes
from gpushare.kubescheduler.resources import requests_of
from gpushare.ledger import Ledger
from gpushare.ledger.results import NodeUsage
from gpushare.simulate.engine.engine import Scheduling, Settings
from gpushare.simulate.engine.eviction import Eviction, unscheduled
from gpushare.simulate.engine.virtual_clock import JumpingClock, run
from gpushare.simulate.input.manifests import NewPod
from gpushare.simulate.snapshot import ClusterState, workload_of

ProgressFn = Callable[[int, int], None]
"""Called with the number of pods that were tried, and the total."""


class Fate(msgspec.Struct, frozen=True):
    """The fate of a pod: its node and its GPUs' shares, or why it is pending. ``is_new``: it is from the manifests.

    ``evicted_by``: the pod for which it was last evicted (it may have been recreated since); empty if it was not. ``not_held``: why its
    containers are not held to their share on its node; empty if they are, or if that is unknown.
    """

    pod: str
    workload: str
    asks: str
    node: str
    gpus: tuple[GpuShare, ...]
    why: str
    is_new: bool
    evicted_by: str = ""
    not_held: str = ""


class Moment(msgspec.Struct, frozen=True, array_like=True):
    """The state after ``arrived`` pods: MiB allocated and total, percent of compute allocated, pending pods."""

    arrived: int
    allocated_mib: int
    total_mib: int
    allocated_core: int
    waiting: int


class Result(msgspec.Struct, frozen=True):
    """A run's outcome. ``fates`` are those of the pods that were tried, in the order of arrival; evicted ones at the end."""

    settings: Settings
    fates: tuple[Fate, ...]
    curve: tuple[Moment, ...]
    nodes: tuple[NodeUsage, ...]
    ignored: tuple[str, ...]
    evictions: tuple[Eviction, ...] = ()

    @property
    def waiting(self) -> list[Fate]:
        """The pods that are pending."""
        return [fate for fate in self.fates if not fate.node]


def simulate(
    state: ClusterState,
    new_pods: Sequence[NewPod],
    settings: Settings,
    *,
    reschedule: bool = False,
    progress: ProgressFn = lambda done, of: None,
) -> Result:
    """Schedule the pending pods of ``state``, and those of ``new_pods``, onto its nodes.

    ``reschedule``: pods that hold GPUs are unscheduled first, and arrive again in the order in which they were created. Raises
    ``SimulateError``.
    """
    if reschedule:
        state = msgspec.structs.replace(state, pods=tuple(map(_unscheduled, state.pods)))
    return run(_simulated(state, new_pods, settings, progress))


async def _simulated(
    state: ClusterState, new_pods: Sequence[NewPod], settings: Settings, progress: ProgressFn
) -> Result:
    scheduling = Scheduling(state, settings, JumpingClock(time.time_ns()))
    workloads = {key_of(pod): workload_of(pod) for pod in state.waiting}
    refused: dict[str, str] = {}
    for new_pod in new_pods:
        key = key_of(new_pod.pod)
        workloads[key] = new_pod.workload
        if new_pod.refused:
            refused[key] = f"admission rejects it: {new_pod.refused}"
        else:
            scheduling.arrive(new_pod.pod)
    new = {key_of(one.pod) for one in new_pods}
    pods = {key_of(one.pod): one.pod for one in new_pods} | scheduling.pods
    # Pods that name their node are not scheduled.
    queue = [key for key in workloads if key not in refused and not spec_of(pods[key]).get("nodeName")]
    curve = [_moment(scheduling.ledger, 0, 0)]
    waiting: set[str] = set()
    attempted: set[str] = set()

    evictions_seen = 0

    def on_attempt(key: str, reason: str) -> None:
        nonlocal evictions_seen
        for eviction in scheduling.evictions[evictions_seen:]:
            waiting.add(eviction.victim)
            evictions_seen += 1
        if reason and key in attempted:
            return  # it was retried
        (waiting.add if reason else waiting.discard)(key)
        attempted.add(key)
        curve.append(_moment(scheduling.ledger, len(attempted), len(waiting)))
        progress(len(attempted), max(len(queue), len(attempted)))

    reasons = refused | await scheduling.schedule(queue, on_attempt)
    pods |= scheduling.pods
    evicted_by = {eviction.victim: eviction.by for eviction in scheduling.evictions}
    for key in evicted_by:
        workloads.setdefault(key, workload_of(pods[key]))
    if evicted_by:
        # The last evicted pods were not attempted again.
        curve.append(
            _moment(
                scheduling.ledger,
                len(attempted),
                sum(key in reasons and key not in refused for key in workloads),
            )
        )
    fates = []
    for key, workload in workloads.items():
        held = scheduling.ledger.held(uid_of(pods[key]))
        node = "" if key in reasons else str(spec_of(pods[key]).get("nodeName") or "")
        read = decode_pod(pods[key])
        by_claims = scheduling.claims.shares_of(read) if node else ()
        gpus = by_claims if held is None or not node else (*held.allocation.gpus, *by_claims)
        unit = settings.unit if held is None else held.allocation.unit or settings.unit
        asks = _asks(read, unit, scheduling.claims.asks_of(read))
        where = scheduling.ledger.node(node)
        loose = "" if where is None else not_held(where, gpus)
        fates.append(
            Fate(
                key,
                workload,
                asks,
                node,
                gpus,
                reasons.get(key, ""),
                key in new,
                evicted_by.get(key, ""),
                loose,
            )
        )
    return Result(
        settings,
        tuple(fates),
        tuple(curve),
        tuple(scheduling.ledger.usage(name_of(node)) for node in state.nodes),
        (
            *sorted(
                {wish for key in (*queue, *evicted_by) for wish in ignored_wishes(pods[key])}
                - {"resourceClaims"}
            ),
            *([names.GPU_SHARE] if any(names.GPU_SHARE in requests_of(pods[key]) for key in queue) else []),
            *(_repelling(state) if queue else ()),
            *scheduling.claims.ignored(
                decode_pod(pod) for pod in pods.values() if spec_of(pod).get("resourceClaims")
            ),
        ),
        tuple(scheduling.evictions),
    )


def _repelling(state: ClusterState) -> list[str]:
    """Required anti-affinity of bound pods against new ones, which is not simulated."""
    asking = sum(
        bool(
            ((spec_of(pod).get("affinity") or {}).get("podAntiAffinity") or {}).get(
                "requiredDuringSchedulingIgnoredDuringExecution"
            )
        )
        for pod in state.pods
        if spec_of(pod).get("nodeName")
    )
    return [f"affinity.podAntiAffinity of {counted(asking, 'pod')} with a node already"] if asking else []


def _moment(ledger: Ledger, arrived: int, waiting: int) -> Moment:
    totals = ledger.totals()
    return Moment(arrived, totals.used_mib, totals.total_mib, totals.used_core, waiting)


def _unscheduled(pod: Json) -> Json:
    """The pod as it was before it was scheduled; unchanged if it requests no GPU."""
    if not spec_of(pod).get("nodeName"):
        return pod
    try:
        request = request_of(decode_pod(pod))
    except ModelError:
        return pod
    if request is None:
        return pod
    return unscheduled(pod)


def _asks(pod: Pod, unit: MemoryUnit, by_claims: list[str]) -> str:
    """The request as text, with that of its claims; ``?`` if it cannot be parsed."""
    try:
        request = request_of(pod)
    except ModelError:
        return "?"
    requests = [*([] if request is None else [short_text(request, unit)]), *by_claims]
    return " and ".join(requests) or "no GPU"
