"""Who uses more of a GPU than they were given, and who uses it without having been given any. Pure.

What is judged is what the driver says, not what containers say of themselves: whatever holds a container to its share
may fail or be got past, and processes outside of Kubernetes are held by nothing.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from gpushare.api.node.overuse_threshold import is_over_compute, is_over_memory
from gpushare.nodeagent.isolation.watchdog.cgroups import Owner

#: Less than this that others hold is passed over: a display server's, a monitor's. Any CUDA context has more.
FOREIGN_LEAST_MIB: Final = 64
#: What others hold is told in steps of this, and as less only when so many looks in a row found less: else every small
#: change would be written on the node.
FOREIGN_STEP_MIB: Final = 64
FOREIGN_LOOKS: Final = 3


class GpuProcess(NamedTuple):
    """One process on a GPU (UUID). ``mib`` and what is in percent of the GPU's time are -1 where the driver does not tell.

    ``kind`` says what it does there as nvidia-smi does: ``C`` for compute, ``G`` for graphics, ``M`` through MPS, or several (``C+G``).
    """

    gpu: str
    pid: int
    mib: int
    sm_percent: int = -1
    kind: str = ""
    copy_percent: int = -1
    """How much of the time it has the GPU's memory read or written."""
    encode_percent: int = -1
    decode_percent: int = -1


class Holder(NamedTuple):
    """Who was given a share of ``gpu``: a container, or a whole pod (``container`` empty) where it cannot be told apart."""

    pod: str
    uid: str
    container: str
    gpu: str
    mib: int
    core_percent: int


class Use(msgspec.Struct):
    """What a holder uses of its GPU. ``mib`` is of those processes of which the driver tells it; of ``untold`` more it does not."""

    holder: Holder
    mib: int = 0
    sm_percent: int = 0
    pids: list[int] = []
    untold: int = 0


class Foreign(msgspec.Struct):
    """What is used of a GPU by those who were given none of it: processes by what they are part of."""

    mib: int = 0
    pids: dict[Owner, list[int]] = {}


class Seen(NamedTuple):
    """All that was seen at one look: what each holder uses, and by GPU what others do."""

    uses: tuple[Use, ...]
    foreign: Mapping[str, Foreign]


def seen(
    processes: Iterable[GpuProcess],
    owners: Mapping[int, Owner],
    holder_of: Callable[[Owner, str], Holder | None],
) -> Seen:
    """Whose the processes are. Those without an owner have ended meanwhile, or work for all."""
    uses: dict[Holder, Use] = {}
    foreign: dict[str, Foreign] = {}
    for process in processes:
        owner = owners.get(process.pid)
        if owner is None:
            continue
        holder = holder_of(owner, process.gpu)
        if holder is None:
            others = foreign.setdefault(process.gpu, Foreign())
            others.mib += max(process.mib, 0)
            others.pids.setdefault(owner, []).append(process.pid)
            continue
        use = uses.setdefault(holder, Use(holder))
        use.mib += max(process.mib, 0)
        use.untold += process.mib < 0
        use.sm_percent += max(process.sm_percent, 0)
        use.pids.append(process.pid)
    return Seen(tuple(uses.values()), foreign)


What = Literal["memory", "compute"]


class Finding(NamedTuple):
    """News of a holder: it has gone above its share, or (``due``) has been above it for the whole grace period."""

    what: What
    use: Use
    due: bool


class _Above(msgspec.Struct):
    """How long a holder has been above its share, less how long it has been below it since; as of ``at_s``."""

    spent_s: float
    at_s: float
    above: bool


class Overuse:
    """Follows who is above their share, and for how long. Times are seconds of one monotonic clock.

    Who comes below gets back what they were above second by second, and does not begin anew at once: else a tenant that
    knows when it is looked at could be above nearly always.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._above: dict[tuple[Holder, What], _Above] = {}
        self._told: dict[tuple[Holder, What], float] = {}

    def judge(self, uses: Iterable[Use], now_s: float) -> list[Finding]:
        """What is new, in the order of ``uses``. What is due is told again once a grace period, if it goes on."""
        over: dict[tuple[Holder, What], Use] = {}
        for use in uses:
            if is_over_memory(use.mib, use.holder.mib):
                over[use.holder, "memory"] = use
            if is_over_compute(use.sm_percent, use.holder.core_percent):
                over[use.holder, "compute"] = use
        for old in [one for one, told_s in self._told.items() if now_s - told_s >= self._grace_s]:
            del self._told[old]
        self._count(over.keys(), now_s)
        found = []
        for key, use in over.items():
            one = self._above.setdefault(key, _Above(0.0, now_s, above=False))
            if one.above and one.spent_s >= self._grace_s:
                one.spent_s = 0.0
                found.append(Finding(key[1], use, due=True))
            # A moment of much compute is nothing to tell anyone; and who goes up and down is not told each time.
            elif not one.above and key[1] == "memory" and key not in self._told:
                self._told[key] = now_s
                found.append(Finding(key[1], use, due=False))
            one.above = True
        return found

    def _count(self, over: Container[tuple[Holder, What]], now_s: float) -> None:
        """The time since the last look, for those who were above it then or before."""
        for key, one in list(self._above.items()):
            passed_s = now_s - one.at_s
            one.spent_s = max(0.0, one.spent_s + (passed_s if one.above else -passed_s))
            one.at_s = now_s
            if key not in over:
                one.above = False
                if not one.spent_s:
                    del self._above[key]


class ForeignBook:
    """What others hold of each GPU, as it is told: rounded, up at once and down slowly."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}
        self._lower: dict[str, list[int]] = {}

    def take(self, held_mib: Mapping[str, int]) -> bool:
        """Note what a look at all GPUs found, in MiB by UUID; whether ``told`` reads otherwise now."""
        before = dict(self._told)
        for gpu in self._told.keys() | held_mib.keys():
            now_mib = _rounded(held_mib.get(gpu, 0))
            if now_mib >= self._told.get(gpu, 0):
                self._lower.pop(gpu, None)
            else:
                looks = self._lower.setdefault(gpu, [])
                looks.append(now_mib)
                if len(looks) < FOREIGN_LOOKS:
                    continue
                now_mib = max(looks)
                del self._lower[gpu]
            if now_mib:
                self._told[gpu] = now_mib
            else:
                self._told.pop(gpu, None)
        return self._told != before

    def told(self, gpu: str) -> int:
        """MiB of the GPU that are to be kept out of what is given away."""
        return self._told.get(gpu, 0)


def _rounded(mib: int) -> int:
    return 0 if mib < FOREIGN_LEAST_MIB else -(-mib // FOREIGN_STEP_MIB) * FOREIGN_STEP_MIB
