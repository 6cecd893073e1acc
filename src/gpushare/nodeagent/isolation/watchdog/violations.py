"""Use of a GPU above an allocation, or without one. Pure.

It is computed from what the driver reports, not from what containers report: enforcement may fail or be bypassed, and processes
outside of Kubernetes are not limited at all.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from gpushare.api.node.overuse_threshold import is_over_compute, is_over_memory
from gpushare.nodeagent.isolation.options import CorePolicy
from gpushare.nodeagent.isolation.watchdog.cgroups import Owner

#: Less unmanaged memory than this is ignored: a display server's, a monitor's. Any CUDA context has more.
FOREIGN_LEAST_MIB: Final = 64
#: Unmanaged memory is published in these steps, and lowered only after so many lower samples in a row: else every small change
#: would be written on the node.
FOREIGN_STEP_MIB: Final = 64
FOREIGN_SAMPLES: Final = 3


class GpuProcess(NamedTuple):
    """One process on a GPU (UUID). ``mib`` and what is in percent of the GPU's time are -1 if the driver does not report it.

    ``kind`` is its type as in nvidia-smi: ``C`` for compute, ``G`` for graphics, ``M`` through MPS, or several (``C+G``).
    """

    gpu: str
    pid: int
    mib: int
    sm_percent: int = -1
    kind: str = ""
    copy_percent: int = -1
    """Part of the time in which it reads or writes GPU memory."""
    encode_percent: int = -1
    decode_percent: int = -1


class Holder(NamedTuple):
    """A container with a share of ``gpu``, or its pod (``container`` empty) while containers cannot be told apart.

    With a ``claim`` (``namespace/name``) the share is that ResourceClaim's, and one limit for all containers that use it. No
    ``core_policy``: the node's.
    """

    pod: str
    uid: str
    container: str
    gpu: str
    mib: int
    core_percent: int
    claim: str = ""
    core_policy: CorePolicy | None = None


class Use(msgspec.Struct):
    """What a holder uses of its GPU. ``mib`` is that of the processes with known memory; ``untold`` more have unknown memory."""

    holder: Holder
    mib: int = 0
    sm_percent: int = 0
    pids: list[int] = []
    untold: int = 0


class Foreign(msgspec.Struct):
    """Unmanaged use of a GPU: processes without an allocation, by owner."""

    mib: int = 0
    pids: dict[Owner, list[int]] = {}


class Seen(NamedTuple):
    """One sample: what each holder uses, and unmanaged use by GPU."""

    uses: tuple[Use, ...]
    foreign: Mapping[str, Foreign]


def seen(
    processes: Iterable[GpuProcess],
    owners: Mapping[int, Owner],
    holder_of: Callable[[Owner, str], Holder | None],
) -> Seen:
    """Attribute processes to holders. Those without an owner have ended meanwhile, or serve all."""
    uses: dict[Holder, Use] = {}
    foreign: dict[str, Foreign] = {}
    for process in processes:
        owner = owners.get(process.pid)
        if owner is None:
            continue
        holder = holder_of(owner, process.gpu)
        if holder is None:
            unmanaged = foreign.setdefault(process.gpu, Foreign())
            unmanaged.mib += max(process.mib, 0)
            unmanaged.pids.setdefault(owner, []).append(process.pid)
            continue
        use = uses.setdefault(holder, Use(holder))
        use.mib += max(process.mib, 0)
        use.untold += process.mib < 0
        use.sm_percent += max(process.sm_percent, 0)
        use.pids.append(process.pid)
    return Seen(tuple(uses.values()), foreign)


def by_limit(uses: Sequence[Use]) -> list[Use]:
    """``uses`` with those of one ResourceClaim added up, in the name of the claim alone: they have one limit."""
    single = [use for use in uses if not use.holder.claim]
    joint: dict[Holder, Use] = {}
    for use in uses:
        if use.holder.claim:
            holder = use.holder._replace(pod="", uid="", container="")
            total = joint.setdefault(holder, Use(holder))
            total.mib += use.mib
            total.sm_percent += use.sm_percent
            total.untold += use.untold
            total.pids += use.pids
    return [*single, *joint.values()]


What = Literal["memory", "compute"]


class Finding(NamedTuple):
    """A holder went above its share, or (``due``) has been above it for the whole grace period."""

    what: What
    use: Use
    due: bool


class _Above(msgspec.Struct):
    """How long a holder has been above its share, less how long it has been below it since; as of ``at_s``."""

    spent_s: float
    at_s: float
    above: bool


class Overuse:
    """Tracks which holders are above their share, and for how long. Times are seconds of one monotonic clock.

    Time below the share reduces the time above it second by second instead of resetting it: else a tenant that knows when samples
    are taken could be above nearly always.
    """

    def __init__(self, grace_s: float, core_policy: CorePolicy = "hard") -> None:
        self._grace_s = grace_s
        self._core_policy = core_policy
        self._above: dict[tuple[Holder, What], _Above] = {}
        self._reported: dict[tuple[Holder, What], float] = {}

    def judge(self, uses: Iterable[Use], now_s: float) -> list[Finding]:
        """New findings, in the order of ``uses``. Due ones are repeated once per grace period while they last."""
        over: dict[tuple[Holder, What], Use] = {}
        for use in uses:
            if is_over_memory(use.mib, use.holder.mib):
                over[use.holder, "memory"] = use
            # Where containers may use compute that others leave idle, more than the share is no violation.
            is_limit = (use.holder.core_policy or self._core_policy) == "hard"
            if is_limit and is_over_compute(use.sm_percent, use.holder.core_percent):
                over[use.holder, "compute"] = use
        for old in [key for key, reported_s in self._reported.items() if now_s - reported_s >= self._grace_s]:
            del self._reported[old]
        self._count(over.keys(), now_s)
        findings = []
        for key, use in over.items():
            state = self._above.setdefault(key, _Above(0.0, now_s, above=False))
            if state.above and state.spent_s >= self._grace_s:
                state.spent_s = 0.0
                findings.append(Finding(key[1], use, due=True))
            # A short peak of compute is not reported, and repeated ups and downs only once.
            elif not state.above and key[1] == "memory" and key not in self._reported:
                self._reported[key] = now_s
                findings.append(Finding(key[1], use, due=False))
            state.above = True
        return findings

    def _count(self, over: Container[tuple[Holder, What]], now_s: float) -> None:
        """Add the time since the last sample, for holders that were above then or before."""
        for key, state in list(self._above.items()):
            passed_s = now_s - state.at_s
            state.spent_s = max(0.0, state.spent_s + (passed_s if state.above else -passed_s))
            state.at_s = now_s
            if key not in over:
                state.above = False
                if not state.spent_s:
                    del self._above[key]


class ForeignBook:
    """Unmanaged memory of each GPU as published: rounded, raised immediately and lowered slowly."""

    def __init__(self) -> None:
        self._reported: dict[str, int] = {}
        self._lower: dict[str, list[int]] = {}

    def take(self, held_mib: Mapping[str, int]) -> bool:
        """Take in a sample of all GPUs, in MiB by UUID; whether ``published`` changed."""
        before = dict(self._reported)
        for gpu in self._reported.keys() | held_mib.keys():
            now_mib = _rounded(held_mib.get(gpu, 0))
            if now_mib >= self._reported.get(gpu, 0):
                self._lower.pop(gpu, None)
            else:
                samples = self._lower.setdefault(gpu, [])
                samples.append(now_mib)
                if len(samples) < FOREIGN_SAMPLES:
                    continue
                now_mib = max(samples)
                del self._lower[gpu]
            if now_mib:
                self._reported[gpu] = now_mib
            else:
                self._reported.pop(gpu, None)
        return self._reported != before

    def published(self, gpu: str) -> int:
        """MiB of the GPU that are not to be allocated."""
        return self._reported.get(gpu, 0)


def _rounded(mib: int) -> int:
    return 0 if mib < FOREIGN_LEAST_MIB else -(-mib // FOREIGN_STEP_MIB) * FOREIGN_STEP_MIB
