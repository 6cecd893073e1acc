"""The node object at startup of the agent, so that faults that the previous agent reported are not reported again. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from gpushare.api.errors import MalformedDevices
from gpushare.api.node.device import Device, description_of
from gpushare.api.node.topology import UNKNOWN, matrix
from gpushare.nodeagent.driver.discovery import TROUBLES, Inventory
from gpushare.nodeagent.isolation.watchdog.watchdog import REASON_FOREIGN, foreign_cause
from gpushare.nodeagent.node.condition import REASON_NOT_HELD, Condition
from gpushare.nodeagent.node.node_events import REASON_NO_ISOLATION
from gpushare.nodeagent.node.node_handler import ReportingNode

_NOTHING: Final = Condition()


@dataclass(frozen=True, slots=True)
class NodeAtStart:
    """The condition ``GPUShareReady`` and the GPUs (by UUID) of the node object."""

    condition: Condition = _NOTHING
    devices: Mapping[str, Device] = field(default_factory=dict)

    @classmethod
    def of(cls, node: ReportingNode) -> "NodeAtStart":
        """From the ``node`` of the watch; a description that cannot be parsed counts as none."""
        try:
            description = description_of(node)
        except MalformedDevices:
            description = None
        devices = () if description is None else description.devices
        return cls(node.ready or _NOTHING, {device.uuid: device for device in devices})

    @property
    def reasons(self) -> list[str]:
        """The event reasons, with their cause if they have one, of the faults that the node object shows."""
        reason = self.condition.reason
        foreign = [device.uuid for device in self.devices.values() if device.foreign_mib]
        return [
            REASON_NO_ISOLATION if reason == REASON_NOT_HELD else reason,
            *(f"{REASON_FOREIGN} {foreign_cause(uuid)}" for uuid in foreign),
        ]

    @property
    def out(self) -> Mapping[str, str]:
        """GPUs (UUIDs) that were out of service, and why; none if the driver was at fault instead."""
        if self.condition.reason in TROUBLES and self.condition.reason != "NoGPU":
            return {}
        return {uuid: device.reason for uuid, device in self.devices.items() if device.is_faulty}

    @property
    def contexts_mib(self) -> Mapping[str, int]:
        """MiB that a CUDA context takes on a GPU, by UUID, as far as the previous agent knew it."""
        return {uuid: device.context_mib for uuid, device in self.devices.items() if device.context_mib}

    def complete(self, inventory: Inventory) -> Inventory:
        """``inventory`` with the GPUs that the node object describes and that NVML now counts but cannot read.

        So a lost GPU stays described, and its pods counted, when the agent restarts.
        """
        dead = {gpu.index: gpu for gpu in inventory.unreadable}
        present = {device.uuid for device in inventory.devices} | {
            device.index for device in inventory.devices
        }
        lost = {
            device.uuid: msgspec.structs.replace(
                device,
                healthy=False,
                reason=dead[device.index].why,
                foreign_mib=0,
                foreign_by="",
                cordoned=False,
                kept_back=False,
            )
            for device in self.devices.values()
            if device.index in dead and device.uuid not in present and device.index not in present
        }
        if not lost:
            return inventory
        known = {str(dead[device.index]) for device in lost.values()}
        rows = {device.uuid: row for row, device in enumerate(inventory.devices)}
        devices = tuple(sorted((*inventory.devices, *lost.values()), key=lambda device: device.index))

        def near(one: int, other: int) -> int:
            a, b = rows.get(devices[one].uuid), rows.get(devices[other].uuid)
            return inventory.near[a][b] if inventory.near and a is not None and b is not None else UNKNOWN

        return replace(
            inventory,
            devices=devices,
            left_out=tuple(text for text in inventory.left_out if text not in known),
            near=matrix(len(devices), near),
        )
