"""The node's condition ``GPUShareReady``: what kubectl describe node says of sharing, in one line. Pure."""

from typing import Final

import msgspec

from gpushare.model.device import NodeDevices
from gpushare.model.faults import REASON_STOPPED, REASON_UNHEALTHY, REASON_UNKNOWN_MODE
from gpushare.nodeagent.discovery import Inventory
from gpushare.nodeagent.news import REASON_NO_CDI, REASON_NO_ISOLATION

REASON_SHARING: Final = "Sharing"
REASON_PARTLY: Final = "SomeGPUsOutOfService"
REASON_NOT_HELD: Final = "NotIsolated"
#: As long as the API server takes any text of a condition, and longer than anyone reads.
_MOST_CHARACTERS: Final = 2048


class Condition(msgspec.Struct, frozen=True):
    """What a condition says; ``status`` is True, False or Unknown."""

    status: str = ""
    reason: str = ""
    message: str = ""


def condition_of(
    node: NodeDevices, inventory: Inventory, *, access: str, isolation: str, active: str, fallen: str
) -> Condition:
    """Of a node that is to share, with its cordons; the arguments are those of ``NodeNews.troubles``, ``active`` says what holds containers."""
    well = [device for device in node.devices if device.healthy]
    taking = sum(device.in_service for device in node.devices)
    mode = (
        f"mode {node.mode.value}, unit {node.unit.setting}, {taking} of {len(node.devices)} GPUs in service"
    )
    held = f"{mode}, isolation {active}" if active else mode
    faults = "".join(f"; GPU {one.index}: {one.reason}" for one in node.devices if not one.healthy)
    cordons = "".join(f"; GPU {one.index}: cordoned" for one in well if one.cordoned)
    # Where no GPU is found any more of those that were there, it is they that are out of service.
    if inventory.trouble is not None and not inventory.is_gpus_own:
        return _condition("False", inventory.trouble.reason, f"{held}: {inventory.trouble.note}")
    if access:
        return _condition("False", REASON_NO_CDI, f"{held}: {access}")
    if isolation:
        return _condition("False", REASON_NO_ISOLATION, f"{held}: {isolation}")
    whole = f"{held}{faults}{cordons}"
    if not well:
        # What is wrong comes first, before what would hold if it were not.
        causes = faults.removeprefix("; ")
        return _condition("False", REASON_UNHEALTHY, f"{causes}; {mode}, isolation {active}")
    if faults:
        return _condition("True", REASON_PARTLY, whole)
    return _condition("True", REASON_NOT_HELD if fallen else REASON_SHARING, whole)


def mislabelled(note: str) -> Condition | None:
    """Of a node whose mode is unknown; ``note`` is the event's, empty where it is known: then nothing is said."""
    return _condition("False", REASON_UNKNOWN_MODE, note) if note else None


def stopped(condition: Condition) -> Condition:
    """What is left of ``condition`` when the agent ends and no other follows: a node that is not ready stays so."""
    if condition.status != "True":
        return condition
    # What is told of isolation stays known to the agent that comes.
    reason = REASON_NOT_HELD if condition.reason == REASON_NOT_HELD else REASON_STOPPED
    return _condition("Unknown", reason, f"the node agent has ended; before that: {condition.message}")


def _condition(status: str, reason: str, message: str) -> Condition:
    return Condition(status, reason, message[:_MOST_CHARACTERS])
