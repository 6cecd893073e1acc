"""Whether a GPU may be given to containers. Pure: events, probes and times come from outside.

Two kinds of evidence: probes (a GPU that does not answer is lost) and XIDs (the driver's critical errors). A GPU
that failed a probe is well again after some good probes in a row. After an XID it must besides stay
quiet for a while, since a broken GPU may answer questions well.
"""

from dataclasses import dataclass
from typing import Final

#: XIDs that an application causes and that leave the GPU as it was: 13 graphics engine exception, 31 memory page
#: fault, 43 stopped processing, 45 preemptive clean-up, 68 video processor exception, 109 context switch
#: time-out. Source: NVIDIA's XID catalogue, and the list that NVIDIA's own device plugin passes over.
APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})

#: How a reason that tells of an XID names it.
XID_REASON: Final = "critical error XID"

GOOD_PROBES: Final = 2
XID_RECOVERY_S: Final = 300.0


@dataclass(slots=True)
class _State:
    fault: str = ""
    good_probes: int = 0
    xid: int = 0
    xid_at_s: float = 0.0


class HealthBook:
    """What is known of each GPU's health, by UUID. Times are seconds of one monotonic clock."""

    def __init__(self, *, good_probes: int = GOOD_PROBES, xid_recovery_s: float = XID_RECOVERY_S) -> None:
        self._good_probes = good_probes
        self._xid_recovery_s = xid_recovery_s
        self._states: dict[str, _State] = {}

    def take_xid(self, uuid: str, xid: int, now_s: float) -> bool:
        """Note an XID; whether it counts against the GPU."""
        if xid in APPLICATION_XIDS:
            return False
        state = self._states.setdefault(uuid, _State())
        state.xid, state.xid_at_s = xid, now_s
        return True

    def take_probe(self, uuid: str, fault: str, now_s: float) -> None:
        """Note a probe's answer, empty when the GPU answered well."""
        state = self._states.setdefault(uuid, _State())
        if fault:
            state.fault, state.good_probes = fault, 0
            return
        state.good_probes = min(state.good_probes + 1, self._good_probes)
        if state.good_probes >= self._good_probes:
            state.fault = ""
        if not state.fault and now_s - state.xid_at_s >= self._xid_recovery_s:
            state.xid = 0

    def reason(self, uuid: str) -> str:
        """Why the GPU must not be given to anyone, for people; empty when it may."""
        state = self._states.get(uuid)
        if state is None:
            return ""
        error = f"{XID_REASON} {state.xid}" if state.xid else ""
        return " and ".join(filter(None, (state.fault, error)))

    @property
    def failing(self) -> bool:
        """Whether any GPU failed its probes, so that opening NVML anew may help."""
        return any(state.fault for state in self._states.values())
