"""Health of GPUs. Pure: events, probes and times come from outside.

There are two kinds of evidence: probes (a GPU that does not respond is lost) and XIDs (the driver's critical errors). A GPU that
failed a probe is healthy again after some successful probes in a row. After an XID it must also have no further one for a
while, since a broken GPU may respond to probes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

# What NVIDIA's catalogue of XIDs (R610, for data center GPUs since Ampere) asks for at once. XIDs that it does not have are critical.
_RESTART_APPLICATION: Final = frozenset(
    {8, 11, 13, 25, 31, 32, *range(39, 42), 60, *range(68, 73), 75, 76, 77, 80, *range(82, 87), 88, 89, 94}
    | {*range(96, 106), *range(126, 136), 139}
)
_NOTHING: Final = frozenset(
    {14, 37, 38, 43, 44, 63, 66, 67, 92, 93, *range(106, 109), 121, 137, 141, 157, 160, 161}
)
_RESET_GPU: Final = frozenset({46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158})
#: XIDs after which the GPU stays in service. 45 is the clean-up after another one, 154 announces the recovery that probes read.
PASSED_OVER: Final = _RESTART_APPLICATION | _NOTHING | {45, 154}

#: How reasons name XIDs.
XID_REASON: Final = "critical error XID"
_ADVICE: Final = ", for which NVIDIA advises a reset"

GOOD_PROBES: Final = 2
XID_RECOVERY_S: Final = 300.0


class CriticalXid(msgspec.Struct, frozen=True):
    """An XID that makes its GPU unhealthy, and when it occurred."""

    xid: int
    at_s: float


@dataclass(slots=True)
class _State:
    fault: str = ""
    good_probes: int = 0
    xid: CriticalXid | None = None


class HealthBook:
    """The health of each GPU by UUID. Times are seconds of one monotonic clock.

    ``xids`` are those that a previous agent recorded and that may still count.
    """

    def __init__(
        self,
        *,
        good_probes: int = GOOD_PROBES,
        xid_recovery_s: float = XID_RECOVERY_S,
        xids: Mapping[str, CriticalXid] | None = None,
    ) -> None:
        self._good_probes = good_probes
        self._xid_recovery_s = xid_recovery_s
        self._states = {uuid: _State(xid=xid) for uuid, xid in (xids or {}).items()}

    @property
    def xids(self) -> Mapping[str, CriticalXid]:
        """The last critical XID of each GPU that is unhealthy because of one."""
        return {uuid: state.xid for uuid, state in self._states.items() if state.xid is not None}

    def take_xid(self, uuid: str, xid: int, now_s: float) -> bool:
        """Record an XID; returns whether it is critical."""
        if xid in PASSED_OVER:
            return False
        state = self._states.setdefault(uuid, _State())
        state.xid = CriticalXid(xid, now_s)
        return True

    def take_probe(self, uuid: str, fault: str, now_s: float) -> None:
        """Record a probe's result, empty if the GPU responded."""
        state = self._states.setdefault(uuid, _State())
        if fault:
            state.fault, state.good_probes = fault, 0
            return
        state.good_probes = min(state.good_probes + 1, self._good_probes)
        if state.good_probes >= self._good_probes:
            state.fault = ""
        if not state.fault and state.xid is not None and now_s - state.xid.at_s >= self._xid_recovery_s:
            state.xid = None

    def forget(self, uuids: Iterable[str]) -> None:
        """These GPUs do not exist any more."""
        for uuid in uuids:
            self._states.pop(uuid, None)

    def reason(self, uuid: str) -> str:
        """Why the GPU must not be allocated, for people; empty if it may."""
        state = self._states.get(uuid)
        if state is None:
            return ""
        error = ""
        if state.xid is not None:
            advice = _ADVICE if state.xid.xid in _RESET_GPU else ""
            error = f"{XID_REASON} {state.xid.xid}{advice}"
        return " and ".join(filter(None, (state.fault, error)))

    @property
    def failing(self) -> bool:
        """Whether any GPU failed its probes, so that reopening NVML may help."""
        return any(state.fault for state in self._states.values())
