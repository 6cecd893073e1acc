"""Events, log lines and metrics about the node: an event and a log line for each change, a metric for each present fault.

One fault causes one event: if the driver fails there are no additional events for its GPUs, and a GPU that is reported lost is not
reported again as missing. Faults that the node object showed at startup (``NodeAtStart``) were reported by the previous agent.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from gpushare.api import names
from gpushare.api.node.device import Device
from gpushare.api.node.shared_event_texts import REASON_UNHEALTHY, REASON_UNKNOWN_MODE, unknown_mode_note
from gpushare.api.objects import node_reference
from gpushare.kube.event_recorder import Occurrence, Recorder
from gpushare.nodeagent.driver.discovery import TROUBLES, Inventory
from gpushare.nodeagent.driver.health import XID_REASON
from gpushare.nodeagent.driver.nvml import IN_MIG_MODE, NOT_FOUND
from gpushare.nodeagent.observability.metrics import Metrics

logger = logging.getLogger(__name__)

REASON_LEFT_OUT: Final = "GPUExcluded"
REASON_RECOVERED: Final = "GPURecovered"
REASON_DRIVER_WORKS: Final = "DriverReady"
REASON_NO_CDI: Final = "CDIUnavailable"
REASON_CDI: Final = "CDIAvailable"
REASON_BAD_CDI_FILE: Final = "CDIFileUnusable"
REASON_NO_ISOLATION: Final = "IsolationUnavailable"
REASON_ISOLATION: Final = "IsolationAvailable"
REASON_NO_CLAIMS: Final = "ClaimsUnavailable"
REASON_CLAIMS: Final = "ClaimsAvailable"
REASON_OFFERED_TWICE: Final = "GPUsOfferedTwice"
REASON_OFFERED_ONCE: Final = "GPUsOfferedOnce"


#: The key (``once``) under which the end of each fault is reported.
_ONCE: Final[dict[str, str]] = {
    **dict.fromkeys(TROUBLES, "trouble"),
    REASON_NO_CDI: "access",
    REASON_NO_ISOLATION: "isolation",
    REASON_NO_CLAIMS: "claims",
}


class NodeEvents:
    """Events about ``node``. ``acts``: whether this agent records them, or a newer one does."""

    def __init__(self, node: str, events: Recorder, metrics: Metrics, *, acts: Callable[[], bool]) -> None:
        self._node = node
        self._events = events
        self._metrics = metrics
        self._acts = acts
        self._reported: dict[str, object] = {}
        self._cdi_faults: frozenset[str] = frozenset()
        self._initial: set[str] = set()
        self._out: dict[str, str] = {}
        self._to_confirm: set[str] = set()
        self._left_out: frozenset[str] | None = None
        self._mode_read = False

    def restore(self, reasons: Iterable[str], out: Mapping[str, str]) -> None:
        """Set the faults on the node object at startup: reasons, with their cause if they have one; GPUs (UUIDs) out of service, and why.

        They were, or were about to be, reported by the previous agent.
        """
        self._initial = set(reasons)
        # So that the end of faults that have ended meanwhile is reported.
        self._reported |= {
            once: reason for reason in self._initial if (once := _ONCE.get(reason)) is not None
        }
        self._out, self._to_confirm = dict(out), set(out)

    def report(
        self,
        reason: str,
        note: str,
        kind: str = "Warning",
        *,
        once: str = "",
        cause: str = "",
        occurrence: Occurrence = "began",
    ) -> None:
        """Record an event about the node; with ``once`` only if the note has changed. Events with the same ``cause`` are counted as one."""
        if once and not self.is_new(once, note):
            return
        logger.log(logging.WARNING if kind == "Warning" else logging.INFO, "%s: %s", reason, note)
        if not self._initial.isdisjoint((reason, f"{reason} {cause}")):
            occurrence = "lasting"
        elif occurrence == "began" and self._left_out is None:
            occurrence = "found"
        if not self._acts():
            return
        self._events.record(
            node_reference(self._node),
            kind="Warning" if kind == "Warning" else "Normal",
            reason=reason,
            action="Watching",
            note=note,
            cause=cause,
            occurrence=occurrence,
        )

    def is_new(self, once: str, value: object) -> bool:
        """Whether ``value`` differs from what was last reported under ``once``."""
        if self._reported.get(once) == value:
            return False
        self._reported[once] = value
        return True

    def forget(self, once: str) -> bool:
        """Forget what was reported under ``once``; returns whether there was anything."""
        return bool(self._reported.pop(once, None))

    def mode(self, problem: str) -> str:
        """Report what is wrong with the mode label (empty: nothing). Returns the note."""
        # The scheduler reports it too, perhaps long before an agent ran here.
        occurrence: Occurrence = "began" if self._mode_read else "lasting"
        self._mode_read = True
        if not problem:
            self.forget(REASON_UNKNOWN_MODE)
            return ""
        note = unknown_mode_note(problem)
        self.report(REASON_UNKNOWN_MODE, note, once=REASON_UNKNOWN_MODE, cause=problem, occurrence=occurrence)
        return note

    def way(self, way: str, why: str, runtime: str) -> None:
        """Report how containers get their GPU, and why: a log line and metrics."""
        if self.is_new("way", (way, why)):
            logger.info(
                "containers get their GPU by %s: %s", "CDI" if way == "cdi" else "NVIDIA's runtime", why
            )
        for name in ("nvidia", "cdi"):
            self._metrics.runtime.set(name, runtime, value=float(name == way))

    def gpus(self, inventory: Inventory, before: Inventory | None, xid_recovery_s: float) -> None:
        """Report how the GPUs have changed since ``before``."""
        known = {device.uuid for device in before.devices} if before is not None else set()
        for device in inventory.devices:
            if device.uuid not in known:
                logger.info(
                    "GPU %s: %s, %d MiB, %s", device.label, device.model, device.total_mib, device.uuid
                )
            if inventory.is_gpus_own:
                self.health(device, xid_recovery_s)

    def health(self, device: Device, xid_recovery_s: float) -> None:
        """Report the health of a GPU. Out of service until recovered is one fault, whatever else happens to the GPU meanwhile."""
        named = f"GPU {device.label} ({device.uuid})"
        reason, before = device.reason, self._out.get(device.uuid)
        if device.healthy:
            if device.uuid not in self._to_confirm and self._out.pop(device.uuid, None) is not None:
                self.report(REASON_RECOVERED, f"{named} is in service again", "Normal", cause=device.uuid)
            return
        # A GPU in MIG mode is reported as excluded. A lost GPU is no longer found by NVML a moment later.
        if device.uuid in self._to_confirm:
            self._to_confirm.discard(device.uuid)
        elif reason in (before, IN_MIG_MODE) or (reason == NOT_FOUND and before is not None):
            return
        self._out[device.uuid] = reason
        note = f"{named} is taken out of service: {reason}"
        if XID_REASON in reason:
            note += f"; back in service {xid_recovery_s:g} s after its last error, if it responds"
        occurrence: Occurrence = "began" if before is None else "lasting"
        self.report(REASON_UNHEALTHY, note, cause=device.uuid, occurrence=occurrence)

    def present(self, devices: Iterable[Device]) -> None:
        """Process the first description by this agent: GPUs that were out of service may be healthy, but withheld for another reason."""
        for device in devices if self._to_confirm else ():
            if device.uuid in self._to_confirm:
                self._to_confirm.discard(device.uuid)
                if device.healthy:
                    self.health(device, 0.0)
                else:
                    del self._out[device.uuid]

    def offered_by_others(self, others: str) -> None:
        """Report what another device plugin offers of the node's GPUs; empty: nothing."""
        self._metrics.degraded.set(REASON_OFFERED_TWICE, value=float(bool(others)))
        if others:
            self.report(
                REASON_OFFERED_TWICE,
                f"Another device plugin also offers this node's GPUs ({others}) and ignores existing shares; keep it off nodes "
                f"with the label {names.LABEL_MODE}, or remove the label",
                once="others",
                cause="others",
            )
        elif self.forget("others"):
            self.report(
                REASON_OFFERED_ONCE, "no other device plugin offers this node's GPUs any more", "Normal"
            )

    def troubles(
        self,
        inventory: Inventory,
        *,
        access: str,
        faults: Sequence[str],
        isolation: str,
        fallen: str,
        claims: str,
        mode: str,
    ) -> None:
        """Report what is wrong with the driver, access to GPUs, isolation and ResourceClaims; nothing if the node shares no GPU.

        ``isolation``: why no container is started; ``fallen``: why containers are started without isolation.
        """
        trouble = inventory.trouble
        reported = None if trouble is None or inventory.is_gpus_own else trouble
        for reason in TROUBLES:
            self._metrics.degraded.set(
                reason, value=float(reported is not None and reported.reason == reason)
            )
        if reported is not None:
            self.report(reported.reason, reported.note, once="trouble", cause=reported.reason)
        elif trouble is None and self.forget("trouble") and inventory.devices:
            self.report(REASON_DRIVER_WORKS, "the NVIDIA driver works; its GPUs are offered again", "Normal")
        self._metrics.degraded.set(REASON_NO_CDI, value=float(bool(access)))
        if access:
            self.report(
                REASON_NO_CDI, f"No pod gets a GPU of this node: {access}", once="access", cause="access"
            )
        elif self.forget("access"):
            self.report(REASON_CDI, "containers get their GPU by CDI", "Normal")
        self._metrics.degraded.set(REASON_NO_ISOLATION, value=float(bool(isolation or fallen)))
        if isolation:
            self.report(
                REASON_NO_ISOLATION,
                f"Isolation is required in mode {mode} but not available, so the node offers no GPU: {isolation}",
                once="isolation",
                cause="isolation",
            )
        elif fallen:
            self.report(
                REASON_NO_ISOLATION,
                f"Isolation is not available on this node (mode {mode}); limits are not enforced: {fallen}",
                once="isolation",
                cause="isolation",
            )
        elif self.forget("isolation"):
            self.report(REASON_ISOLATION, "limits are enforced again", "Normal")
        self._metrics.degraded.set(REASON_NO_CLAIMS, value=float(bool(claims)))
        if claims:
            self.report(
                REASON_NO_CLAIMS,
                f"No ResourceClaim gets a GPU of this node: {claims}",
                once="claims",
                cause="claims",
            )
        elif self.forget("claims"):
            self.report(REASON_CLAIMS, "ResourceClaims get GPUs of this node again", "Normal")
        first = self._left_out is None
        self._unusable_files(faults, "lasting" if first else "began")
        # If no GPU is left, the note of the fault has named each.
        new = () if reported is not None else inventory.left_out
        for note in new:
            if note not in (self._left_out or ()):
                self.report(REASON_LEFT_OUT, note, occurrence="lasting" if first else "began")
        self._left_out = frozenset(inventory.left_out)
        self._initial.clear()

    def _unusable_files(self, faults: Sequence[str], occurrence: Occurrence) -> None:
        for repaired in self._cdi_faults - {*faults}:
            self.forget(repaired)
        self._cdi_faults = frozenset(faults)
        for fault in faults:
            note = f"{fault}. The whole file is ignored"
            self.report(REASON_BAD_CDI_FILE, note, once=fault, occurrence=occurrence)
