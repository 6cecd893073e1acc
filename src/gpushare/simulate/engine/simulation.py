"""A whole run: what is there, what comes, and what has become of it."""

import time
from collections.abc import Callable, Sequence

import msgspec

from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.errors import ModelError
from gpushare.api.json_objects import Json, key_of, name_of, spec_of, uid_of
from gpushare.api.node.enforcement_text import not_held
from gpushare.api.objects import decode_pod
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.describe import short_text
from gpushare.api.request.pluralize import counted
from gpushare.api.request.request import request_of
from gpushare.kubescheduler.filters import ignored_wishes
from gpushare.ledger import Ledger
from gpushare.ledger.results import NodeUsage
from gpushare.simulate.engine.engine import Scheduling, Settings
from gpushare.simulate.engine.eviction import Eviction, taken_off
from gpushare.simulate.engine.virtual_clock import JumpingClock, run
from gpushare.simulate.input.manifests import Wished
from gpushare.simulate.snapshot import ClusterState, workload_of

ProgressFn = Callable[[int, int], None]
"""Told how many pods were looked at, of how many."""


class Fate(msgspec.Struct, frozen=True):
    """What has become of a pod: its node and its GPUs' shares, or why it waits. ``is_new``: it came with the manifests.

    ``evicted_by``: for whom it was ended last, and may have been recreated since; empty where it was not. ``not_held``: why its
    containers are not held to their share on its node; empty where they are, or nobody says.
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
    """How it stood once ``arrived`` pods had come: MiB given and there, percent of compute given, pods that wait."""

    arrived: int
    given_mib: int
    total_mib: int
    given_core: int
    waiting: int


class Result(msgspec.Struct, frozen=True):
    """A run's outcome. ``fates`` are those of the pods that were looked at, in the order in which they came; the evicted at the end."""

    settings: Settings
    fates: tuple[Fate, ...]
    curve: tuple[Moment, ...]
    nodes: tuple[NodeUsage, ...]
    unheeded: tuple[str, ...]
    evictions: tuple[Eviction, ...] = ()

    @property
    def waiting(self) -> list[Fate]:
        """Those that have found no place."""
        return [fate for fate in self.fates if not fate.node]


def simulate(
    state: ClusterState,
    wished: Sequence[Wished],
    settings: Settings,
    *,
    reschedule: bool = False,
    progress: ProgressFn = lambda done, of: None,
) -> Result:
    """Schedule the pods of ``state`` that wait, and those of ``wished``, onto its nodes.

    ``reschedule``: pods that hold GPUs are taken off first, and come again in the order in which they were made. Raises
    ``SimulateError``.
    """
    if reschedule:
        state = msgspec.structs.replace(state, pods=tuple(map(_taken_off, state.pods)))
    return run(_simulated(state, wished, settings, progress))


async def _simulated(
    state: ClusterState, wished: Sequence[Wished], settings: Settings, progress: ProgressFn
) -> Result:
    scheduling = Scheduling(state, settings, JumpingClock(time.time_ns()))
    came = {key_of(pod): workload_of(pod) for pod in state.waiting}
    refused: dict[str, str] = {}
    for one in wished:
        key = key_of(one.pod)
        came[key] = one.workload
        if one.refused:
            refused[key] = f"admission refuses it: {one.refused}"
        else:
            scheduling.arrive(one.pod)
    new = {key_of(one.pod) for one in wished}
    pods = {key_of(one.pod): one.pod for one in wished} | scheduling.pods
    # Those that name their node are not asked about.
    queue = [key for key in came if key not in refused and not spec_of(pods[key]).get("nodeName")]
    curve = [_moment(scheduling.ledger, 0, 0)]
    waiting: set[str] = set()
    seen: set[str] = set()

    counted = 0

    def told(key: str, why: str) -> None:
        nonlocal counted
        for eviction in scheduling.evictions[counted:]:
            waiting.add(eviction.victim)
            counted += 1
        if why and key in seen:
            return  # it was tried again
        (waiting.add if why else waiting.discard)(key)
        seen.add(key)
        curve.append(_moment(scheduling.ledger, len(seen), len(waiting)))
        progress(len(seen), max(len(queue), len(seen)))

    waits = refused | await scheduling.schedule(queue, told)
    pods |= scheduling.pods
    evicted_by = {one.victim: one.by for one in scheduling.evictions}
    for key in evicted_by:
        came.setdefault(key, workload_of(pods[key]))
    if evicted_by:
        # The last of them have come to no try.
        curve.append(
            _moment(scheduling.ledger, len(seen), sum(key in waits and key not in refused for key in came))
        )
    fates = []
    for key, workload in came.items():
        held = scheduling.ledger.held(uid_of(pods[key]))
        node = "" if key in waits else str(spec_of(pods[key]).get("nodeName") or "")
        gpus = () if held is None or not node else held.allocation.gpus
        unit = settings.unit if held is None else held.allocation.unit or settings.unit
        asks = _asks(pods[key], unit)
        where = scheduling.ledger.node(node)
        loose = "" if where is None else not_held(where, gpus)
        fates.append(
            Fate(
                key,
                workload,
                asks,
                node,
                gpus,
                waits.get(key, ""),
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
            *sorted({wish for key in (*queue, *evicted_by) for wish in ignored_wishes(pods[key])}),
            *(_repelling(state) if queue else ()),
        ),
        tuple(scheduling.evictions),
    )


def _repelling(state: ClusterState) -> list[str]:
    """What pods with a node ask of those that come beside them."""
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


def _taken_off(pod: Json) -> Json:
    """The pod as it was before it was scheduled; as it is where it asks for no GPU."""
    if not spec_of(pod).get("nodeName"):
        return pod
    try:
        request = request_of(decode_pod(pod))
    except ModelError:
        return pod
    if request is None:
        return pod
    return taken_off(pod)


def _asks(pod: Json, unit: MemoryUnit) -> str:
    """``?`` for what cannot be understood."""
    try:
        request = request_of(decode_pod(pod))
    except ModelError:
        return "?"
    return "no GPU" if request is None else short_text(request, unit)
