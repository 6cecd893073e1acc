"""Health of GPUs. Pure: events, probes and times come from outside.

There are two kinds of evidence: probes (a GPU that does not respond is lost) and XIDs (the driver's critical errors). A GPU that
failed a probe is healthy again after some successful probes in a row. After an XID it must also have no further one for a
while, since a broken GPU may respond to probes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

#: XIDs that an application causes and that leave the GPU as it was: 13 graphics engine exception, 31 memory page
#: fault, 43 stopped processing, 45 preemptive clean-up, 68 video processor exception, 109 context switch
#: time-out. Source: NVIDIA's XID catalogue, and the list of XIDs that NVIDIA's own device plugin ignores.
APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})

#: How reasons name XIDs.
XID_REASON: Final = "critical error XID"

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
        if xid in APPLICATION_XIDS:
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

    def reason(self, uuid: str) -> str:
        """Why the GPU must not be allocated, for people; empty if it may."""
        state = self._states.get(uuid)
        if state is None:
            return ""
        error = f"{XID_REASON} {state.xid.xid}" if state.xid is not None else ""
        return " and ".join(filter(None, (state.fault, error)))

    @property
    def failing(self) -> bool:
        """Whether any GPU failed its probes, so that reopening NVML may help."""
        return any(state.fault for state in self._states.values())
