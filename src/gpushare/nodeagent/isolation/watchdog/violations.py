"""Use of a GPU above an allocation, or without one. Pure.

It is computed from what the driver reports, not from what containers report: enforcement may fail or be bypassed, and processes
outside of Kubernetes are not limited at all.
"""

from collections import deque
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
#: What the driver takes of a GPU for each process beyond what it lists for it: on an H200 a process that was listed with 518 MiB took 526.8.
UNLISTED_MIB: Final = 16


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

    ``burst_mib``: how much more than its share it may use while the GPU has that free.

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
    burst_mib: int = 0

    @property
    def most_mib(self) -> int:
        """What it may use at most."""
        return self.mib + self.burst_mib


class Use(msgspec.Struct):
    """What a holder uses of its GPU. ``mib`` is that of the processes with known memory; ``unreported`` more have unknown memory."""

    holder: Holder
    mib: int = 0
    sm_percent: int = 0
    pids: list[int] = []
    unreported: int = 0


class Foreign(msgspec.Struct):
    """Memory of one GPU that is used without an allocation, in MiB."""

    mib: int = 0
    """Used by processes without an allocation."""
    pids: dict[Owner, list[int]] = {}
    """These processes, by owner."""
    ended_mib: int = 0
    """Used by processes that the driver still lists, and the kernel does not."""
    ended_pids: list[int] = []
    unlisted_mib: int = 0
    """Used, as the driver reports for the whole GPU, by no process that it lists."""
    excess_mib: int = 0
    """Used by containers above their share, where shares are enforced."""
    excess_by: list[str] = []
    """Pods of these containers, or the ResourceClaims whose share they use."""

    @property
    def certain_mib(self) -> int:
        """What is no matter of the moment at which a sample was taken: the rest may be that of a process that starts or ends."""
        return self.mib + self.excess_mib

    @property
    def total_mib(self) -> int:
        """All that is used without an allocation."""
        return self.certain_mib + self.ended_mib + self.unlisted_mib

    @property
    def kinds(self) -> tuple[object, ...]:
        """What uses the memory, without the figures and PIDs that change all the time."""
        return (
            frozenset(self.pids),
            bool(self.ended_mib),
            self.unlisted_mib >= FOREIGN_LEAST_MIB,
            frozenset(self.excess_by),
        )


class GpuMemory(NamedTuple):
    """What the driver reports as used of a whole GPU without what it reserves (``None``: it does not), and all shares of it; in MiB."""

    used_mib: int | None
    allocated_mib: int


class Seen(NamedTuple):
    """One sample: what each holder uses, and use without an allocation by GPU."""

    uses: tuple[Use, ...]
    foreign: Mapping[str, Foreign]


def seen(
    processes: Iterable[GpuProcess],
    owners: Mapping[int, Owner | None],
    holder_of: Callable[[Owner, str], Holder | None],
    gpus: Mapping[str, GpuMemory],
    *,
    enforced: bool,
) -> Seen:
    """Attribute the memory of ``gpus`` to holders. ``owners`` lacks processes that have ended, and has ``None`` for those that serve all.

    ``enforced``: containers are held to their share, so that what they use above it counts as used without an allocation.
    """
    uses: dict[Holder, Use] = {}
    foreign = {gpu: Foreign() for gpu in gpus}
    listed_mib: dict[str, int] = {}
    for process in processes:
        unmanaged = foreign.get(process.gpu)
        if unmanaged is None:
            continue
        mib = max(process.mib, 0)
        listed_mib[process.gpu] = listed_mib.get(process.gpu, 0) + mib + UNLISTED_MIB
        if process.pid not in owners:
            unmanaged.ended_mib += mib
            unmanaged.ended_pids.append(process.pid)
            continue
        owner = owners[process.pid]
        if owner is None:
            continue
        holder = holder_of(owner, process.gpu)
        if holder is None:
            unmanaged.mib += mib
            unmanaged.pids.setdefault(owner, []).append(process.pid)
            continue
        use = uses.setdefault(holder, Use(holder))
        use.mib += mib
        use.unreported += process.mib < 0
        use.sm_percent += max(process.sm_percent, 0)
        use.pids.append(process.pid)
    for use in by_limit(tuple(uses.values())):
        holder = use.holder
        if use.unreported:
            # The driver does not report what they use: up to their share it is theirs.
            listed_mib[holder.gpu] += max(holder.mib - use.mib, 0)
        if enforced and is_over_memory(use.mib, holder.most_mib):
            foreign[holder.gpu].excess_mib += use.mib - holder.most_mib
            foreign[holder.gpu].excess_by.append(
                f"ResourceClaim {holder.claim}" if holder.claim else f"pod {holder.pod}"
            )
    for gpu, memory in gpus.items():
        if memory.used_mib is not None:
            # A driver that lists no process at all may be unable to: then its memory is that of the pods with a share.
            known_mib = listed_mib.get(gpu, memory.allocated_mib)
            foreign[gpu].unlisted_mib = max(memory.used_mib - known_mib, 0)
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
            total.unreported += use.unreported
            total.pids += use.pids
    return [*single, *joint.values()]


What = Literal["memory", "compute"]


class Finding(NamedTuple):
    """A holder went above its share, or (``due``) has been above it for the whole grace period."""

    what: What
    use: Use
    due: bool


class OveruseState(msgspec.Struct):
    """How long a holder has been above its share, less how long it has been below it since; as of ``at_s``."""

    holder: Holder
    what: What
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
        self._above: dict[tuple[Holder, What], OveruseState] = {}
        self._reported: dict[tuple[Holder, What], float] = {}

    def states(self) -> tuple[OveruseState, ...]:
        """All that ``restore`` needs in another process."""
        return tuple(map(msgspec.structs.replace, self._above.values()))

    def restore(self, states: Iterable[OveruseState], now_s: float) -> None:
        """Continue after nobody watched for a while: up to the grace period counts neither way, the rest as time below the share.

        So a holder gains nothing by the end of the watching process, and is not accused of what nobody saw.
        """
        for state in states:
            below_s = max(0.0, now_s - state.at_s - self._grace_s)
            spent_s = max(0.0, state.spent_s - below_s)
            if spent_s or not below_s:
                self._above[state.holder, state.what] = OveruseState(
                    state.holder, state.what, spent_s, now_s, state.above and not below_s
                )

    def judge(self, uses: Iterable[Use], now_s: float) -> list[Finding]:
        """New findings, in the order of ``uses``. Due ones are repeated once per grace period while they last."""
        over: dict[tuple[Holder, What], Use] = {}
        for use in uses:
            if is_over_memory(use.mib, use.holder.most_mib):
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
            state = self._above.setdefault(key, OveruseState(*key, 0.0, now_s, above=False))
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
    """Memory of each GPU that is used without an allocation, as published: rounded, and changed only as far as the last samples agree.

    It is raised immediately by what is certain, and lowered, or raised by the rest, only after ``FOREIGN_SAMPLES`` samples.
    """

    def __init__(self) -> None:
        self._published_mib: dict[str, int] = {}
        self._last_mib: dict[str, deque[int]] = {}

    def take(self, gpu: str, foreign: Foreign) -> int:
        """Take in a sample of the GPU (UUID); returns what is published of it now, in MiB."""
        last_mib = self._last_mib.setdefault(gpu, deque(maxlen=FOREIGN_SAMPLES))
        last_mib.append(foreign.total_mib)
        published_mib = max(self.published(gpu), _rounded(foreign.certain_mib), _rounded(min(last_mib)))
        if len(last_mib) == FOREIGN_SAMPLES:
            published_mib = min(published_mib, _rounded(max(last_mib)))
        self._published_mib[gpu] = published_mib
        return published_mib

    def published(self, gpu: str) -> int:
        """MiB of the GPU that are not to be allocated."""
        return self._published_mib.get(gpu, 0)


def _rounded(mib: int) -> int:
    return 0 if mib < FOREIGN_LEAST_MIB else -(-mib // FOREIGN_STEP_MIB) * FOREIGN_STEP_MIB
