"""Recommends requests for workloads from their usage history, without I/O.

Memory follows the peak, because a pod with less than it needs fails. Compute follows the 95th percentile of the samples in which the
workload computed, because less compute only slows it down for a moment; a note says if that is below the peak. A workload that waited
for its share of compute would have used more: without a limit, the same work takes the busy time minus the waiting time, so the need is
p95 / (1 - throttled). Both get a margin.

What a ResourceClaim holds is treated as what a pod holds, with the usage of all containers that use it. Its amounts are in MiB.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from typing import Final, NamedTuple

from gpushare.api.quantity import MemoryUnit, granted_mib
from gpushare.api.request.request import ContainerKind, Request
from gpushare.inspect.sources.defrag_hosts import hosts_of
from gpushare.inspect.sources.owners import ClaimUsers, Workload
from gpushare.inspect.sources.usage_samples import Used
from gpushare.inspect.views.allocation_model import ClusterUsage, NodeUsage, PodShare, PodUsage
from gpushare.planning.defragmentation import Gpu, Host, room_now

_CORE_STEP: Final = 5
_MAX_CORE: Final = 100
#: Recommended memory of claims is a multiple of this.
_CLAIM_STEP_MIB: Final = 128
#: Percent by which a sample of compute usage may be off, as the driver itself samples.
_SAMPLING_ERROR: Final = 10
Kinds = Mapping[str, ContainerKind]
"""The containers of a pod in start order."""

#: Bounds of the ratio of busy time that a container waited: less is ignored, more is cut to the maximum.
_MIN_THROTTLED: Final = 0.05
_MAX_THROTTLED: Final = 0.95


class Rules(NamedTuple):
    """Rules: percent added to usage, and the seconds of history that a pod must have."""

    margin_percent: int = 15
    least_s: float = 3600.0


class PendingPod(NamedTuple):
    """A pending pod: its request, and the names of its eligible nodes."""

    request: Request
    nodes: Collection[str]


class Amount(NamedTuple):
    """Allocated and recommended amount (``None``: no recommendation) in units (MiB of claims) or percent, and usage in MiB or percent."""

    allocated: int
    recommended: int | None
    peak: int
    p95: int


class Throttled(NamedTuple):
    """Percent of busy time that the most throttled pod waited for compute, and its estimated usage without a limit."""

    percent: int
    need_percent: int


class Recommendation(NamedTuple):
    """The recommendation for a workload, per GPU. ``note``: remarks, or why there is no recommendation.

    ``unit``: ``None`` for claims, whose amounts are in MiB. ``memory_known``: false where the driver does not report its pods' memory, so that ``memory`` is too low. ``seen`` of its ``pods``
    have enough history, the longest of ``seen_s`` seconds. ``core``: ``None`` where it requests memory only.
    """

    workload: Workload
    pods: int
    seen: int
    seen_s: float
    gpus: int
    unit: MemoryUnit | None
    memory: Amount
    core: Amount | None
    note: str
    throttled: Throttled | None = None
    memory_known: bool = True


class Gain(NamedTuple):
    """The effect of following all recommendations: freed MiB (negative: more needed), and pending pods that fit."""

    free_mib: int
    waiting: int
    fit_now: int
    fit_then: int


class Advice(NamedTuple):
    """Recommendations for all workloads, sorted by namespace and name, and the gain."""

    workloads: tuple[Recommendation, ...]
    gain: Gain


class _Holding(NamedTuple):
    """A pod, or a claim, on its node, with its usage by GPU UUID."""

    node: NodeUsage
    pod: PodUsage
    used: Mapping[str, "_Need"]

    @property
    def pods(self) -> int:
        """The pod, or the number of those that use the claim."""
        return len(self.pod.users) if self.pod.claim else 1

    def amount(self, share: PodShare) -> int:
        """Units of ``share``; MiB of a claim."""
        return share.mib if self.pod.claim else share.units


class _Need(NamedTuple):
    """Usage of a GPU by all containers of a pod together."""

    seen_s: float
    peak_mib: int
    p95_mib: int
    peak_percent: int
    p95_percent: int
    need_percent: int = 0
    throttled: float = 0.0
    memory_known: bool = True


def advise(
    cluster: ClusterUsage,
    workloads: Mapping[str, Workload],
    used: Iterable[Used],
    waiting: Sequence[PendingPod],
    rules: Rules,
    whole: Collection[str] = (),
    claim_users: "Mapping[str, ClaimUsers] | None" = None,
    kinds: "Mapping[str, Kinds] | None" = None,
) -> Advice:
    """Recommendations for all pods and claims with a share.

    ``workloads``: their owners by UID; ``whole``: UIDs of pods that request whole GPUs; ``claim_users``: by ``namespace/name`` of the claim;
    ``kinds``: the containers of pods, by ``namespace/name``.
    """
    samples: dict[tuple[str, str, str], list[Used]] = {}
    for sample in used:
        samples.setdefault((sample.namespace, sample.pod, sample.uid), []).append(sample)
    by_workload: dict[Workload, list[_Holding]] = {}
    for node in cluster.nodes:
        for pod in node.pods:
            if pod.shares and pod.uid in workloads:
                need = _needs(_samples_of(pod, samples, claim_users or {}), kinds or {})
                by_workload.setdefault(workloads[pod.uid], []).append(_Holding(node, pod, need))
    recommended = {
        workload: _recommended(workload, by_workload[workload], rules, whole)
        for workload in sorted(by_workload)
    }
    return Advice(tuple(recommended.values()), _gain(cluster, workloads, recommended, waiting))


def _samples_of(
    pod: PodUsage,
    samples: "Mapping[tuple[str, str, str], Sequence[Used]]",
    claim_users: "Mapping[str, ClaimUsers]",
) -> "list[Used]":
    """The samples of the pod's containers, or of those that use the claim."""

    def of(name: str, uid: str) -> "Sequence[Used]":
        return samples.get((pod.namespace, name, uid)) or samples.get((pod.namespace, name, ""), ())

    if not pod.claim:
        return list(of(pod.name, pod.uid))
    users = claim_users.get(f"{pod.namespace}/{pod.claim}")
    return [
        sample
        for name, uid, container in (users.containers if users is not None else ())
        for sample in of(name, uid)
        if sample.container == container
    ]


def _needs(used: Iterable[Used], kinds: "Mapping[str, Kinds]") -> dict[str, _Need]:
    """Usage by GPU. Peaks of containers that run together are added up, as they may have coincided."""
    by_pod: dict[tuple[str, str], dict[str, _Need]] = {}
    for sample in used:
        by_container = by_pod.setdefault((sample.gpu, f"{sample.namespace}/{sample.pod}"), {})
        need = _need_of(sample)
        before = by_container.get(sample.container)
        by_container[sample.container] = need if before is None else _sum(before, need)
    by_gpu: dict[str, _Need] = {}
    for (gpu, pod), by_container in by_pod.items():
        together = _of_pod(by_container, kinds.get(pod))
        if together is not None:
            by_gpu[gpu] = _sum(by_gpu[gpu], together) if gpu in by_gpu else together
    return by_gpu


def _of_pod(by_container: "Mapping[str, _Need]", kinds: "Kinds | None") -> _Need | None:
    """What a pod needs. An init container runs beside the sidecars before it; containers that the pod no longer has do not count."""
    if kinds is None or "" in by_container:
        return reduce(_sum, by_container.values())
    lasting: _Need | None = None
    most: list[_Need] = []
    for container, kind in kinds.items():
        need = by_container.get(container)
        if need is None:
            continue
        together = need if lasting is None else _sum(lasting, need)
        most.append(together)
        if kind is not ContainerKind.INIT:
            lasting = together
    return reduce(_maximum, most) if most else None


def _need_of(sample: Used) -> _Need:
    return _Need(
        sample.seen_s,
        max(sample.peak_mib, sample.last_mib),
        sample.p95_mib,
        sample.peak_percent,
        sample.p95_percent,
        _need_percent(sample),
        sample.throttled,
        sample.memory_known,
    )


def _sum(one: _Need, other: _Need) -> _Need:
    return _Need(
        max(one.seen_s, other.seen_s),
        one.peak_mib + other.peak_mib,
        one.p95_mib + other.p95_mib,
        one.peak_percent + other.peak_percent,
        one.p95_percent + other.p95_percent,
        one.need_percent + other.need_percent,
        max(one.throttled, other.throttled),
        one.memory_known and other.memory_known,
    )


def _maximum(one: _Need, other: _Need) -> _Need:
    return _Need(
        max(one.seen_s, other.seen_s),
        max(one.peak_mib, other.peak_mib),
        max(one.p95_mib, other.p95_mib),
        max(one.peak_percent, other.peak_percent),
        max(one.p95_percent, other.p95_percent),
        max(one.need_percent, other.need_percent),
        max(one.throttled, other.throttled),
        one.memory_known and other.memory_known,
    )


def _need_percent(used: Used) -> int:
    """Percent of a GPU's time that a container would use if it were not throttled."""
    if used.throttled < _MIN_THROTTLED:
        return used.p95_percent
    need = used.p95_percent / (1.0 - min(used.throttled, _MAX_THROTTLED))
    return min(-(-int(need * 10) // 10), _MAX_CORE)


def _throttled(needs: Sequence[_Need]) -> Throttled | None:
    worst = max(needs, key=lambda need: (need.need_percent, need.throttled), default=None)
    if worst is None or worst.throttled < _MIN_THROTTLED:
        return None
    return Throttled(round(100 * worst.throttled), min(worst.need_percent, _MAX_CORE))


def _recommended(
    workload: Workload, holdings: Sequence[_Holding], rules: Rules, whole: Collection[str]
) -> Recommendation:
    allocated = max(holding.amount(share) for holding in holdings for share in holding.pod.shares)
    allocated_core = max(share.core_percent for holding in holdings for share in holding.pod.shares)
    gpus = max(len(holding.pod.shares) for holding in holdings)
    unit = None if holdings[0].pod.claim else holdings[0].node.unit
    pods = sum(holding.pods for holding in holdings)
    seen = [
        holding for holding in holdings if any(need.seen_s >= rules.least_s for need in holding.used.values())
    ]
    pods_seen = sum(holding.pods for holding in seen)
    longest_s = max((need.seen_s for holding in holdings for need in holding.used.values()), default=0.0)
    needs = [need for holding in holdings for need in holding.used.values()]
    memory = Amount(
        allocated,
        None,
        max((need.peak_mib for need in needs), default=0),
        max((need.p95_mib for need in needs), default=0),
    )
    core = None
    if allocated_core:
        core = Amount(
            allocated_core,
            None,
            max((need.peak_percent for need in needs), default=0),
            max((need.p95_percent for need in needs), default=0),
        )
    throttled = _throttled(needs) if core is not None and core.peak else None
    memory_known = all(need.memory_known for need in needs)
    no_advice_reason = _why_nothing(holdings, seen, longest_s, rules, whole)
    notes = [no_advice_reason]
    if not no_advice_reason:
        if core is not None:
            core, note = _core(core, throttled, rules)
            notes.append(note)
        if memory_known:
            memory = memory._replace(recommended=max(_memory(holding, rules) for holding in holdings))
        else:
            notes.append("the driver does not report its memory")
        if memory.recommended is not None and memory.recommended > allocated:
            notes.append("it uses nearly all of its memory, or more")
        if len(seen) < len(holdings):
            notes.append(f"{pods - pods_seen} of its pods have too little history")
    return Recommendation(
        workload,
        pods,
        pods_seen,
        longest_s,
        gpus,
        unit,
        memory,
        core,
        "; ".join(filter(None, notes)),
        throttled,
        memory_known,
    )


def _why_nothing(
    holdings: Sequence[_Holding],
    seen: Sequence[_Holding],
    longest_s: float,
    rules: Rules,
    whole: Collection[str],
) -> str:
    if len({holding.node.unit for holding in holdings if not holding.pod.claim}) > 1:
        return "its pods are on nodes with different memory units"
    if any(holding.pod.uid in whole for holding in holdings):
        # It needs exclusive GPUs, regardless of memory.
        return "it requests whole GPUs"
    if not any(holding.used for holding in holdings):
        return "no GPU usage was recorded"
    if not seen:
        return f"too little history: {duration_text(longest_s)} of {duration_text(rules.least_s)}"
    return ""


def _memory(holding: _Holding, rules: Rules) -> int:
    """The smallest amount that covers the peak, with margin, on each of the GPUs: units, or MiB of a claim.

    The peak on any GPU counts, as a pod known by its name only may have run on others before.
    """
    result = 1
    peak_mib = max((need.peak_mib for need in holding.used.values()), default=0)
    for share in holding.pod.shares:
        total_mib = share.device.total_mib
        # A container may use several claims, of different sizes.
        own = holding.used.get(share.device.uuid) if holding.pod.claim else None
        wanted_mib = -(-(peak_mib if own is None else own.peak_mib) * (100 + rules.margin_percent) // 100)
        if holding.pod.claim:
            steps = max(-(-wanted_mib // _CLAIM_STEP_MIB), 1)
            result = max(result, min(steps * _CLAIM_STEP_MIB, total_mib))
            continue
        device_units = holding.node.unit.count_in(total_mib)
        units = min(-(-wanted_mib * device_units // max(total_mib, 1)), device_units)
        while units < device_units and granted_mib(total_mib, units, device_units) < wanted_mib:
            units += 1
        result = max(result, units)
    return result


def _core(core: Amount, throttled: Throttled | None, rules: Rules) -> tuple[Amount, str]:
    if not core.peak:
        return core, "no compute usage was recorded, or the driver does not report it"
    if throttled is not None:
        wanted = -(-throttled.need_percent * (100 + rules.margin_percent) // 100)
        return core._replace(recommended=max(_stepped(wanted), min(core.allocated, _MAX_CORE))), (
            f"it was throttled {throttled.percent}% of the time: without a limit it would use about {throttled.need_percent}%"
        )
    if core.p95 > core.allocated - _CORE_STEP:
        # It is limited by its share, so its real need is unknown, but not lower. Slightly higher figures are sampling errors.
        recommended = core.allocated if core.p95 <= core.allocated + _SAMPLING_ERROR else _stepped(core.p95)
        return core._replace(recommended=recommended), "it uses all of its compute"
    recommended = _stepped(-(-core.p95 * (100 + rules.margin_percent) // 100))
    # It cannot use more than its share: a higher sample is a sampling error.
    most = min(core.peak, core.allocated)
    slower = f"its peak of {most}% takes longer with the recommendation" if recommended < most else ""
    return core._replace(recommended=recommended), slower


def _stepped(percent: int) -> int:
    return min(max(-(-percent // _CORE_STEP) * _CORE_STEP, _CORE_STEP), _MAX_CORE)


# --- gain ---------------------------------------------------------------------------------------------


def _gain(
    cluster: ClusterUsage,
    workloads: Mapping[str, Workload],
    recommended: Mapping[Workload, Recommendation],
    waiting: Sequence[PendingPod],
) -> Gain:
    free_mib = 0
    freed: dict[tuple[str, int], tuple[int, int]] = {}
    for node in cluster.nodes:
        for pod in node.pods:
            advice = recommended.get(workloads[pod.uid]) if pod.uid in workloads else None
            if advice is None:
                continue
            for share in pod.shares:
                if pod.claim:
                    # Pending pods that request GPU memory go to other nodes.
                    free_mib += (
                        0 if advice.memory.recommended is None else share.mib - advice.memory.recommended
                    )
                    continue
                units = share.units - (
                    share.units if advice.memory.recommended is None else advice.memory.recommended
                )
                core = 0
                if advice.core is not None and advice.core.recommended is not None:
                    core = share.core_percent - advice.core.recommended
                free_mib += units * node.unit.mib
                before = freed.get((node.name, share.device.index), (0, 0))
                freed[node.name, share.device.index] = (before[0] + units, before[1] + core)
    hosts = list(hosts_of(cluster))
    afterwards = [
        host._replace(
            gpus=tuple(_freed(gpu, freed.get((host.name, gpu.device_index), (0, 0))) for gpu in host.gpus)
        )
        for host in hosts
    ]
    return Gain(free_mib, len(waiting), _fitting(hosts, waiting), _fitting(afterwards, waiting))


def _freed(gpu: Gpu, more: tuple[int, int]) -> Gpu:
    return gpu._replace(free_units=gpu.free_units + more[0], free_core=gpu.free_core + more[1])


def _fitting(hosts: Sequence[Host], waiting: Sequence[PendingPod]) -> int:
    """Number of pending pods that fit if they are placed one after the other; only those that request a share of one GPU."""
    remaining = list(hosts)
    count = 0
    for request, nodes in waiting:
        for number, host in enumerate(remaining):
            if host.name not in nodes:
                continue
            spot = room_now(host, request) if host.may_hold(request) else None
            if spot is not None:
                remaining[number] = _with(host, spot.gpu, request)
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


def duration_text(seconds: float) -> str:
    """``2 d``, ``3 h``, ``5 min``, ``7 s``: the largest that is not 0."""
    for name, length_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length_s:
            return f"{seconds // length_s:.0f} {name}"
    return f"{seconds:.0f} s"
