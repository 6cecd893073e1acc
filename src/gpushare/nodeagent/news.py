"""What people are told of the node: an event and a line in the log for each change, a metric for what is wrong."""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from gpushare.kube.events import Recorder
from gpushare.model.device import Device
from gpushare.model.objects import node_reference
from gpushare.nodeagent.discovery import TROUBLES, Inventory
from gpushare.nodeagent.health import XID_REASON
from gpushare.nodeagent.metrics import Metrics
from gpushare.nodeagent.nvml import NOT_FOUND

logger = logging.getLogger(__name__)

REASON_LEFT_OUT: Final = "GPULeftOut"
REASON_UNHEALTHY: Final = "GPUUnhealthy"
REASON_RECOVERED: Final = "GPURecovered"
REASON_DRIVER_WORKS: Final = "DriverWorks"
REASON_NO_CDI: Final = "CDIUnavailable"
REASON_CDI: Final = "CDIAvailable"
REASON_BAD_CDI_FILE: Final = "CDIFileUnusable"
REASON_NO_ISOLATION: Final = "IsolationUnavailable"
REASON_ISOLATION: Final = "IsolationAvailable"


class NodeNews:
    """News of ``node``. ``acts``: no newer agent tells them instead."""

    def __init__(self, node: str, events: Recorder, metrics: Metrics, *, acts: Callable[[], bool]) -> None:
        self._node = node
        self._events = events
        self._metrics = metrics
        self._acts = acts
        self._told: dict[str, object] = {}

    def tell(self, reason: str, note: str, kind: str = "Warning", *, once: str = "", cause: str = "") -> None:
        """An event about the node; with ``once`` not again until it reads otherwise. News of one ``cause`` are one event."""
        if once and not self.is_new(once, note):
            return
        logger.log(logging.WARNING if kind == "Warning" else logging.INFO, "%s: %s", reason, note)
        if not self._acts():
            return
        self._events.record(
            node_reference(self._node),
            kind="Warning" if kind == "Warning" else "Normal",
            reason=reason,
            action="Watching",
            note=note,
            cause=cause,
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

    def health(self, device: Device, before: Device | None, xid_quiet_s: float) -> None:
        """A GPU is as it is now, and was so before."""
        named = f"GPU {device.index} ({device.uuid})"
        if before is None:
            logger.info("GPU %d: %s, %d MiB, %s", device.index, device.model, device.total_mib, device.uuid)
        # A lost GPU is not found any more a moment later: one fault, told once.
        known = before is not None and not before.healthy and device.reason in (before.reason, NOT_FOUND)
        if not device.healthy and not known:
            note = f"{named} is taken out of service: {device.reason}"
            if XID_REASON in device.reason:
                note += f"; trusted again {xid_quiet_s:g} s after its last error, if it answers"
            self.tell(REASON_UNHEALTHY, note)
        elif device.healthy and before is not None and not before.healthy:
            self.tell(REASON_RECOVERED, f"{named} is in service again", "Normal")

    def troubles(
        self,
        inventory: Inventory,
        *,
        access: str,
        faults: Sequence[str],
        isolation: str,
        fallen: str,
        mode: str,
    ) -> None:
        """What is wrong with the driver, with the way to GPUs, with isolation; none where the node shares nothing.

        ``isolation``: no container is started for it; ``fallen``: containers are started without.
        """
        trouble = inventory.trouble
        for reason in TROUBLES:
            self._metrics.trouble.set(reason, value=float(trouble is not None and trouble.reason == reason))
        if trouble is not None:
            self.tell(trouble.reason, trouble.note, once="trouble")
        elif self.forget("trouble") and inventory.devices:
            self.tell(REASON_DRIVER_WORKS, "the NVIDIA driver works, its GPUs are shared", "Normal")
        self._metrics.trouble.set(REASON_NO_CDI, value=float(bool(access)))
        if access:
            self.tell(REASON_NO_CDI, f"No pod gets a GPU of this node: {access}", once="access")
        elif self.forget("access"):
            self.tell(REASON_CDI, "containers get their GPU by CDI", "Normal")
        self._metrics.trouble.set(REASON_NO_ISOLATION, value=float(bool(isolation or fallen)))
        if isolation:
            self.tell(
                REASON_NO_ISOLATION,
                f"Mode {mode} promises isolation and cannot keep it, so no pod gets a GPU of this node: {isolation}",
                once="isolation",
            )
        elif fallen:
            self.tell(
                REASON_NO_ISOLATION,
                f"Mode {mode} asks for isolation, which this node cannot give, so containers are told their share and "
                f"not held to it: {fallen}",
                once="isolation",
            )
        elif self.forget("isolation"):
            self.tell(REASON_ISOLATION, "containers are held to their share again", "Normal")
        for fault in faults:
            self.tell(REASON_BAD_CDI_FILE, f"{fault}. The whole file is passed over", once=fault)
        for note in inventory.left_out:
            self.tell(REASON_LEFT_OUT, note, once=note)
