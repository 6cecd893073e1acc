"""The node's condition ``GPUShareReady``: what kubectl describe node says of sharing, in one line. Pure."""

from typing import Final

import msgspec

from gpushare.model.device import NodeDevices
from gpushare.nodeagent.discovery import Inventory
from gpushare.nodeagent.news import REASON_NO_CDI, REASON_NO_ISOLATION, REASON_UNHEALTHY

REASON_SHARING: Final = "Sharing"
REASON_PARTLY: Final = "SomeGPUsOutOfService"
REASON_NOT_HELD: Final = "NotIsolated"
#: As long as the API server takes any text of a condition, and longer than anyone reads.
_MOST_CHARACTERS: Final = 2048


class Condition(msgspec.Struct, frozen=True):
    """What a condition says; ``status`` is True or False."""

    status: str = ""
    reason: str = ""
    message: str = ""


def condition_of(
    node: NodeDevices, inventory: Inventory, *, access: str, isolation: str, active: str, fallen: str
) -> Condition:
    """Of a node that is to share; the arguments are those of ``NodeNews.troubles``, ``active`` says what holds containers."""
    well = [device for device in node.devices if device.healthy]
    mode = f"mode {node.mode.value}, unit {node.unit.setting}, {len(well)} of {len(node.devices)} GPUs in service"
    faults = "".join(f"; GPU {one.index}: {one.reason}" for one in node.devices if not one.healthy)
    if inventory.trouble is not None:
        return _condition("False", inventory.trouble.reason, f"{mode}: {inventory.trouble.note}")
    if access:
        return _condition("False", REASON_NO_CDI, f"{mode}: {access}")
    if isolation:
        return _condition("False", REASON_NO_ISOLATION, f"{mode}: {isolation}")
    whole = f"{mode}, isolation {active}{faults}"
    if not well:
        return _condition("False", REASON_UNHEALTHY, whole)
    if faults:
        return _condition("True", REASON_PARTLY, whole)
    return _condition("True", REASON_NOT_HELD if fallen else REASON_SHARING, whole)


def _condition(status: str, reason: str, message: str) -> Condition:
    return Condition(status, reason, message[:_MOST_CHARACTERS])
