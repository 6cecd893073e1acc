"""What workloads should ask for, by what they have used: pure, and never a guess.

Memory goes by the most that was used, as a pod that has less than it needs fails: never less than that is advised. Compute goes by what
95 of 100 looks found of those that found it computing, as one that has less is slower for a moment; where that is less than its peak, it is
said. Who waited for its share of compute would have used more: without a limit the same work takes the time less what was waited, so
that it is busy for p95 / (1 - waited). Both get a margin.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from gpushare.api.quantity import MemoryUnit, granted_mib
from gpushare.api.request.request import Request
from gpushare.inspect.sources.defrag_hosts import hosts_of
from gpushare.inspect.sources.owners import Workload
from gpushare.inspect.sources.usage_samples import Used
from gpushare.inspect.views.allocation_model import ClusterUsage, NodeUsage, PodUsage
from gpushare.planning.defragmentation import Gpu, Host, room_now

_CORE_STEP: Final = 5
_MOST_CORE: Final = 100
#: Percent by which a look at the use of compute may be wrong: the driver samples.
_ROUGH: Final = 10
#: Parts of the time at work for which a container waited: less than this is no news, and more says no more.
_THROTTLED: Final = 0.05
_MOST_THROTTLED: Final = 0.95


class Rules(NamedTuple):
    """How it is advised: percent on top of what was used, and for how many seconds a pod must have been seen."""

    margin_percent: int = 15
    least_s: float = 3600.0


class Waits(NamedTuple):
    """A pod that waits: what it asks for, and the nodes (names) that it selects."""

    request: Request
    nodes: Collection[str]


class Amount(NamedTuple):
    """What is given and advised (``None``: nothing can be), and what was used: units and MiB, or percent twice."""

    given: int
    advised: int | None
    peak: int
    p95: int


class Throttled(NamedTuple):
    """For how many percent of the time at work the most throttled pod waited for compute, and about what it would use without a limit."""

    percent: int
    need_percent: int


class Advised(NamedTuple):
    """What a workload should ask for on each GPU. ``note`` says what else is to be known, or why nothing is advised.

    ``memory_told``: else the driver does not tell how much memory its pods hold, and ``memory`` says less than they do. ``seen`` of its ``pods`` were seen for long enough, the longest for ``seen_s`` seconds. ``core``: ``None`` where it asks for memory alone.
    """

    workload: Workload
    pods: int
    seen: int
    seen_s: float
    gpus: int
    unit: MemoryUnit
    memory: Amount
    core: Amount | None
    note: str
    throttled: Throttled | None = None
    memory_told: bool = True


class Gain(NamedTuple):
    """What following all advice would bring: MiB that come free (less than 0: are missing), and waiting pods that fit."""

    free_mib: int
    waiting: int
    fit_now: int
    fit_then: int


class Advice(NamedTuple):
    """For all workloads, in order of namespace and name, and the gain."""

    workloads: tuple[Advised, ...]
    gain: Gain


class _Holding(NamedTuple):
    """A pod on its node, with what was seen of it by GPU."""

    node: NodeUsage
    pod: PodUsage
    used: Mapping[str, "_Need"]


class _Need(NamedTuple):
    """What the containers of a pod used of a GPU together."""

    seen_s: float
    peak_mib: int
    p95_mib: int
    peak_percent: int
    p95_percent: int
    need_percent: int = 0
    throttled: float = 0.0
    memory_told: bool = True


def advise(
    cluster: ClusterUsage,
    workloads: Mapping[str, Workload],
    used: Iterable[Used],
    waiting: Sequence[Waits],
    rules: Rules,
    whole: Collection[str] = (),
) -> Advice:
    """Advice for all pods that hold a share. ``workloads``: what made each, by UID; ``whole``: UIDs of those that ask for whole GPUs."""
    needs = _needs(used)
    by_workload: dict[Workload, list[_Holding]] = {}
    for node in cluster.nodes:
        for pod in node.pods:
            if pod.shares and pod.uid in workloads:
                seen = needs.get((pod.namespace, pod.name, pod.uid)) or needs.get(
                    (pod.namespace, pod.name, ""), {}
                )
                by_workload.setdefault(workloads[pod.uid], []).append(_Holding(node, pod, seen))
    advised = {
        workload: _advised(workload, by_workload[workload], rules, whole) for workload in sorted(by_workload)
    }
    return Advice(tuple(advised.values()), _gain(cluster, workloads, advised, waiting))


def _needs(used: Iterable[Used]) -> dict[tuple[str, str, str], dict[str, _Need]]:
    """By pod (with its UID) and GPU. Peaks of containers are added up: nobody knows whether they were at the same time."""
    found: dict[tuple[str, str, str], dict[str, _Need]] = {}
    for one in used:
        by_gpu = found.setdefault((one.namespace, one.pod, one.uid), {})
        before = by_gpu.get(one.gpu, _Need(0.0, 0, 0, 0, 0))
        by_gpu[one.gpu] = _Need(
            max(before.seen_s, one.seen_s),
            before.peak_mib + max(one.peak_mib, one.last_mib),
            before.p95_mib + one.p95_mib,
            before.peak_percent + one.peak_percent,
            before.p95_percent + one.p95_percent,
            before.need_percent + _need_percent(one),
            max(before.throttled, one.throttled),
            before.memory_told and one.memory_told,
        )
    return found


def _need_percent(one: Used) -> int:
    """What a container would use of a GPU's time if it never waited for it."""
    if one.throttled < _THROTTLED:
        return one.p95_percent
    need = one.p95_percent / (1.0 - min(one.throttled, _MOST_THROTTLED))
    return min(-(-int(need * 10) // 10), _MOST_CORE)


def _throttled(told: Sequence[_Need]) -> Throttled | None:
    worst = max(told, key=lambda need: (need.need_percent, need.throttled), default=None)
    if worst is None or worst.throttled < _THROTTLED:
        return None
    return Throttled(round(100 * worst.throttled), min(worst.need_percent, _MOST_CORE))


def _advised(
    workload: Workload, holdings: Sequence[_Holding], rules: Rules, whole: Collection[str]
) -> Advised:
    given = max(share.units for one in holdings for share in one.pod.shares)
    given_core = max(share.core_percent for one in holdings for share in one.pod.shares)
    gpus = max(len(one.pod.shares) for one in holdings)
    unit = holdings[0].node.unit
    seen = [one for one in holdings if any(need.seen_s >= rules.least_s for need in one.used.values())]
    longest_s = max((need.seen_s for one in holdings for need in one.used.values()), default=0.0)
    told = [need for one in holdings for need in one.used.values()]
    memory = Amount(
        given,
        None,
        max((one.peak_mib for one in told), default=0),
        max((one.p95_mib for one in told), default=0),
    )
    core = None
    if given_core:
        core = Amount(
            given_core,
            None,
            max((one.peak_percent for one in told), default=0),
            max((one.p95_percent for one in told), default=0),
        )
    throttled = _throttled(told) if core is not None and core.peak else None
    memory_told = all(need.memory_told for need in told)
    why = _why_nothing(holdings, seen, longest_s, rules, whole)
    notes = [why]
    if not why:
        if core is not None:
            core, note = _core(core, throttled, rules)
            notes.append(note)
        if memory_told:
            memory = memory._replace(advised=max(_units(one, rules) for one in holdings))
        else:
            notes.append("how much memory it holds is not told by the driver")
        if memory.advised is not None and memory.advised > given:
            notes.append("it uses nearly all that it has, or more")
        if len(seen) < len(holdings):
            notes.append(f"{len(holdings) - len(seen)} of its pods were seen too shortly")
    return Advised(
        workload,
        len(holdings),
        len(seen),
        longest_s,
        gpus,
        unit,
        memory,
        core,
        "; ".join(filter(None, notes)),
        throttled,
        memory_told,
    )


def _why_nothing(
    holdings: Sequence[_Holding],
    seen: Sequence[_Holding],
    longest_s: float,
    rules: Rules,
    whole: Collection[str],
) -> str:
    if len({one.node.unit for one in holdings}) > 1:
        return "its pods are on nodes with different memory units"
    if any(one.pod.uid in whole for one in holdings):
        # It wants nobody beside it, whatever its memory.
        return "it asks for whole GPUs"
    if not any(one.used for one in holdings):
        return "it was not seen to use a GPU"
    if not seen:
        return f"too little history: {told_s(longest_s)} of {told_s(rules.least_s)}"
    return ""


def _units(one: _Holding, rules: Rules) -> int:
    """The least units with which the pod would have had enough on each of its GPUs."""
    most = 1
    for share in one.pod.shares:
        need = one.used.get(share.device.uuid)
        if need is None:
            continue
        total_mib = share.device.total_mib
        device_units = one.node.unit.count_in(total_mib)
        wanted_mib = -(-need.peak_mib * (100 + rules.margin_percent) // 100)
        units = min(-(-wanted_mib * device_units // max(total_mib, 1)), device_units)
        while units < device_units and granted_mib(total_mib, units, device_units) < wanted_mib:
            units += 1
        most = max(most, units)
    return most


def _core(core: Amount, throttled: Throttled | None, rules: Rules) -> tuple[Amount, str]:
    if not core.peak:
        return core, "it was not seen to compute, or the driver does not tell"
    if throttled is not None:
        wanted = -(-throttled.need_percent * (100 + rules.margin_percent) // 100)
        return core._replace(advised=max(_stepped(wanted), min(core.given, _MOST_CORE))), (
            f"it waited for compute {throttled.percent}% of the time: without a limit it would use about {throttled.need_percent}%"
        )
    if core.p95 > core.given - _CORE_STEP:
        # It is held to its share: what it would use is not known, less is not enough. A little more is how use is measured.
        advised = core.given if core.p95 <= core.given + _ROUGH else _stepped(core.p95)
        return core._replace(advised=advised), "it uses all the compute that it has"
    advised = _stepped(-(-core.p95 * (100 + rules.margin_percent) // 100))
    # More than was given cannot be had: a look that found more is one of the rough ones.
    most = min(core.peak, core.given)
    slower = f"for moments it used {most}%: with what is advised they take longer" if advised < most else ""
    return core._replace(advised=advised), slower


def _stepped(percent: int) -> int:
    return min(max(-(-percent // _CORE_STEP) * _CORE_STEP, _CORE_STEP), _MOST_CORE)


# --- what it would bring ------------------------------------------------------------------------------


def _gain(
    cluster: ClusterUsage,
    workloads: Mapping[str, Workload],
    advised: Mapping[Workload, Advised],
    waiting: Sequence[Waits],
) -> Gain:
    free_mib = 0
    freed: dict[tuple[str, int], tuple[int, int]] = {}
    for node in cluster.nodes:
        for pod in node.pods:
            found = advised.get(workloads[pod.uid]) if pod.uid in workloads else None
            if found is None:
                continue
            for share in pod.shares:
                units = share.units - (share.units if found.memory.advised is None else found.memory.advised)
                core = 0
                if found.core is not None and found.core.advised is not None:
                    core = share.core_percent - found.core.advised
                free_mib += units * node.unit.mib
                before = freed.get((node.name, share.device.index), (0, 0))
                freed[node.name, share.device.index] = (before[0] + units, before[1] + core)
    hosts = list(hosts_of(cluster))
    then = [
        host._replace(
            gpus=tuple(_freed(gpu, freed.get((host.name, gpu.device_index), (0, 0))) for gpu in host.gpus)
        )
        for host in hosts
    ]
    return Gain(free_mib, len(waiting), _fitting(hosts, waiting), _fitting(then, waiting))


def _freed(gpu: Gpu, more: tuple[int, int]) -> Gpu:
    return gpu._replace(free_units=gpu.free_units + more[0], free_core=gpu.free_core + more[1])


def _fitting(hosts: Sequence[Host], waiting: Sequence[Waits]) -> int:
    """How many of the pods that wait find a place one after the other; those for a share of one GPU alone."""
    left = list(hosts)
    count = 0
    for request, nodes in waiting:
        for number, host in enumerate(left):
            if host.name not in nodes:
                continue
            spot = room_now(host, request) if host.may_hold(request) else None
            if spot is not None:
                left[number] = _with(host, spot.gpu, request)
                count += 1
                break
    return count


def _with(host: Host, index: int, request: Request) -> Host:
    gpus = tuple(
        gpu._replace(
            free_units=gpu.free_units - request.memory_units,
            free_core=gpu.free_core - request.core_percent,
            spare_pods=gpu.spare_pods - 1,
        )
        if gpu.device_index == index
        else gpu
        for gpu in host.gpus
    )
    core = request.wants_core
    return host._replace(
        gpus=gpus,
        spare_pods=host.spare_pods - 1,
        core_pods=host.core_pods + core,
        memory_pods=host.memory_pods + (not core),
    )


def told_s(seconds: float) -> str:
    """``2 d``, ``3 h``, ``5 min``, ``7 s``: the largest that is not 0."""
    for name, length_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length_s:
            return f"{seconds // length_s:.0f} {name}"
    return f"{seconds:.0f} s"
