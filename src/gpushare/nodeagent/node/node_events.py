"""What people are told of the node: an event and a line in the log for each change, a metric for what is wrong.

One fault is one event: of a driver that fails its GPUs are not told as well, nor of a GPU that is lost that NVML does not find
it. What the node said as the agent started (``Before``) was told by the agent before.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from gpushare.api.node.device import Device
from gpushare.api.node.shared_event_texts import REASON_UNHEALTHY, REASON_UNKNOWN_MODE, unknown_mode_note
from gpushare.api.objects import node_reference
from gpushare.kube.event_recorder import Recorder, Telling
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


#: Under what it is told that it has ended.
_ONCE: Final[dict[str, str]] = {
    **dict.fromkeys(TROUBLES, "trouble"),
    REASON_NO_CDI: "access",
    REASON_NO_ISOLATION: "isolation",
    REASON_NO_CLAIMS: "claims",
}


class NodeEvents:
    """News of ``node``. ``acts``: no newer agent tells them instead."""

    def __init__(self, node: str, events: Recorder, metrics: Metrics, *, acts: Callable[[], bool]) -> None:
        self._node = node
        self._events = events
        self._metrics = metrics
        self._acts = acts
        self._told: dict[str, object] = {}
        self._stood: set[str] = set()
        self._out: dict[str, str] = {}
        self._to_confirm: set[str] = set()
        self._left_out: frozenset[str] | None = None
        self._mode_read = False

    def stood(self, reasons: Iterable[str], out: Mapping[str, str]) -> None:
        """The node says this as the agent starts: reasons, with their cause where they have one; GPUs (UUIDs) out of service, why.

        The agent before has told it, or was about to.
        """
        self._stood = set(reasons)
        # What has ended meanwhile is told to have ended.
        self._told |= {once: one for one in self._stood if (once := _ONCE.get(one)) is not None}
        self._out, self._to_confirm = dict(out), set(out)

    def tell(
        self,
        reason: str,
        note: str,
        kind: str = "Warning",
        *,
        once: str = "",
        cause: str = "",
        telling: Telling = "come",
    ) -> None:
        """An event about the node; with ``once`` not again until it reads otherwise. News of one ``cause`` are one event."""
        if once and not self.is_new(once, note):
            return
        logger.log(logging.WARNING if kind == "Warning" else logging.INFO, "%s: %s", reason, note)
        if not self._stood.isdisjoint((reason, f"{reason} {cause}")):
            telling = "standing"
        elif telling == "come" and self._left_out is None:
            telling = "found"
        if not self._acts():
            return
        self._events.record(
            node_reference(self._node),
            kind="Warning" if kind == "Warning" else "Normal",
            reason=reason,
            action="Watching",
            note=note,
            cause=cause,
            telling=telling,
        )

    def is_new(self, once: str, what: object) -> bool:
        """Whether ``what`` is not what was told last under ``once``."""
        if self._told.get(once) == what:
            return False
        self._told[once] = what
        return True

    def forget(self, once: str) -> bool:
        """Whether anything was told under ``once``; it is new again then."""
        return bool(self._told.pop(once, None))

    def mode(self, problem: str) -> str:
        """What is wrong with the label of the mode (empty: nothing); what is told of it."""
        # The scheduler sees it too, and perhaps long before there was an agent here.
        telling: Telling = "come" if self._mode_read else "standing"
        self._mode_read = True
        if not problem:
            self.forget(REASON_UNKNOWN_MODE)
            return ""
        note = unknown_mode_note(problem)
        self.tell(REASON_UNKNOWN_MODE, note, once=REASON_UNKNOWN_MODE, cause=problem, telling=telling)
        return note

    def way(self, way: str, why: str, runtime: str) -> None:
        """How containers get their GPU, and why: a line in the log, and metrics."""
        if self.is_new("way", (way, why)):
            logger.info(
                "containers get their GPU by %s: %s", "CDI" if way == "cdi" else "NVIDIA's runtime", why
            )
        for one in ("nvidia", "cdi"):
            self._metrics.runtime.set(one, runtime, value=float(one == way))

    def gpus(self, inventory: Inventory, before: Inventory | None, xid_recovery_s: float) -> None:
        """The GPUs are as they are now, and were so before."""
        known = {device.uuid for device in before.devices} if before is not None else set()
        for device in inventory.devices:
            if device.uuid not in known:
                logger.info(
                    "GPU %d: %s, %d MiB, %s", device.index, device.model, device.total_mib, device.uuid
                )
            if inventory.is_gpus_own:
                self.health(device, xid_recovery_s)

    def health(self, device: Device, xid_recovery_s: float) -> None:
        """A GPU is as it is now. Out of service until it comes back it is one fault, whatever else comes to it."""
        named = f"GPU {device.index} ({device.uuid})"
        reason, before = device.reason, self._out.get(device.uuid)
        if device.healthy:
            if device.uuid not in self._to_confirm and self._out.pop(device.uuid, None) is not None:
                self.tell(REASON_RECOVERED, f"{named} is in service again", "Normal", cause=device.uuid)
            return
        # Of a GPU in MIG mode it is told that it is left out. A lost one is not found any more a moment later.
        if device.uuid in self._to_confirm:
            self._to_confirm.discard(device.uuid)
        elif reason in (before, IN_MIG_MODE) or (reason == NOT_FOUND and before is not None):
            return
        self._out[device.uuid] = reason
        note = f"{named} is taken out of service: {reason}"
        if XID_REASON in reason:
            note += f"; trusted again {xid_recovery_s:g} s after its last error, if it answers"
        telling: Telling = "come" if before is None else "standing"
        self.tell(REASON_UNHEALTHY, note, cause=device.uuid, telling=telling)

    def present(self, devices: Iterable[Device]) -> None:
        """GPUs as they are described first: of those that were out before, some are well and kept back for another reason."""
        for device in devices if self._to_confirm else ():
            if device.uuid in self._to_confirm:
                self._to_confirm.discard(device.uuid)
                if device.healthy:
                    self.health(device, 0.0)
                else:
                    del self._out[device.uuid]

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
        """What is wrong with the driver, with the way to GPUs, with isolation, with ResourceClaims; none where the node shares nothing.

        ``isolation``: no container is started for it; ``fallen``: containers are started without.
        """
        trouble = inventory.trouble
        told = None if trouble is None or inventory.is_gpus_own else trouble
        for reason in TROUBLES:
            self._metrics.degraded.set(reason, value=float(told is not None and told.reason == reason))
        if told is not None:
            self.tell(told.reason, told.note, once="trouble", cause=told.reason)
        elif trouble is None and self.forget("trouble") and inventory.devices:
            self.tell(REASON_DRIVER_WORKS, "the NVIDIA driver works, its GPUs are shared", "Normal")
        self._metrics.degraded.set(REASON_NO_CDI, value=float(bool(access)))
        if access:
            self.tell(
                REASON_NO_CDI, f"No pod gets a GPU of this node: {access}", once="access", cause="access"
            )
        elif self.forget("access"):
            self.tell(REASON_CDI, "containers get their GPU by CDI", "Normal")
        self._metrics.degraded.set(REASON_NO_ISOLATION, value=float(bool(isolation or fallen)))
        if isolation:
            self.tell(
                REASON_NO_ISOLATION,
                f"Mode {mode} promises isolation and cannot keep it, so no pod gets a GPU of this node: {isolation}",
                once="isolation",
                cause="isolation",
            )
        elif fallen:
            self.tell(
                REASON_NO_ISOLATION,
                f"Mode {mode} asks for isolation, which this node cannot give, so containers are told their share and "
                f"not held to it: {fallen}",
                once="isolation",
                cause="isolation",
            )
        elif self.forget("isolation"):
            self.tell(REASON_ISOLATION, "containers are held to their share again", "Normal")
        self._metrics.degraded.set(REASON_NO_CLAIMS, value=float(bool(claims)))
        if claims:
            self.tell(
                REASON_NO_CLAIMS,
                f"No ResourceClaim gets a GPU of this node: {claims}",
                once="claims",
                cause="claims",
            )
        elif self.forget("claims"):
            self.tell(REASON_CLAIMS, "ResourceClaims get GPUs of this node again", "Normal")
        first = self._left_out is None
        for fault in faults:
            note = f"{fault}. The whole file is passed over"
            self.tell(REASON_BAD_CDI_FILE, note, once=fault, telling="standing" if first else "come")
        # Where no GPU is left that was said of each.
        new = () if told is not None else inventory.left_out
        for note in new:
            if note not in (self._left_out or ()):
                self.tell(REASON_LEFT_OUT, note, telling="standing" if first else "come")
        self._left_out = frozenset(inventory.left_out)
        self._stood.clear()
