"""The node's condition ``GPUShareReady``: what kubectl describe node shows about sharing, in one line. Pure."""

from typing import Final

import msgspec

from gpushare.api.node.device import NodeDevices
from gpushare.api.node.shared_event_texts import REASON_STOPPED, REASON_UNHEALTHY, REASON_UNKNOWN_MODE
from gpushare.nodeagent.driver.discovery import Inventory
from gpushare.nodeagent.node.node_events import REASON_NO_CDI, REASON_NO_CLAIMS, REASON_NO_ISOLATION

REASON_SHARING: Final = "Sharing"
REASON_PARTLY: Final = "SomeGPUsUnhealthy"
REASON_KEPT_BACK: Final = "DrainingPreviousMode"
REASON_NOT_HELD: Final = "NotIsolated"
#: The API server accepts this length.
_MOST_CHARACTERS: Final = 2048


class Condition(msgspec.Struct, frozen=True):
    """The contents of a condition; ``status`` is True, False or Unknown."""

    status: str = ""
    reason: str = ""
    message: str = ""


def condition_of(
    node: NodeDevices,
    inventory: Inventory,
    *,
    access: str,
    isolation: str,
    active: str,
    fallen: str,
    claims: str,
) -> Condition:
    """The condition of a node that shares GPUs, with its cordons. Arguments as for ``NodeEvents.troubles``; ``active``: the active isolation."""
    working = [device for device in node.devices if not device.is_faulty]
    in_service = sum(device.in_service for device in node.devices)
    summary = f"mode {node.mode.value}, unit {node.unit.setting}, {in_service} of {len(node.devices)} GPUs in service"
    if inventory.divisible:
        summary += f", MIG instances on demand on {len(inventory.divisible)}"
    if active:
        summary += f", isolation {active}"
    faults = [f"GPU {device.label}: {device.reason}" for device in node.devices if device.is_faulty]
    withheld = [f"GPU {device.label}: {device.reason}" for device in working if device.kept_back]
    cordons = [f"GPU {device.label}: cordoned" for device in working if device.cordoned]

    def condition(status: str, reason: str, *problems: str) -> Condition:
        # Problems come first, then the summary.
        return _condition(
            status, reason, "; ".join((*(problem.rstrip(".") for problem in problems), summary))
        )

    # If none of the earlier GPUs is found any more, these are out of service.
    if inventory.trouble is not None and not inventory.is_gpus_own:
        # Alone: other programs print it as the reason why the node takes nothing.
        return _condition("False", inventory.trouble.reason, inventory.trouble.note)
    if access:
        return condition("False", REASON_NO_CDI, access)
    if isolation:
        return condition("False", REASON_NO_ISOLATION, isolation)
    if claims:
        return condition("False", REASON_NO_CLAIMS, claims)
    if not working and not inventory.divisible:
        return condition("False", REASON_UNHEALTHY, *faults)
    if faults:
        return condition("True", REASON_PARTLY, *faults, *withheld, *cordons)
    if fallen:
        return condition("True", REASON_NOT_HELD, *withheld, *cordons)
    return condition("True", REASON_KEPT_BACK if withheld else REASON_SHARING, *withheld, *cordons)


def mislabelled(note: str) -> Condition | None:
    """The condition of a node with an unknown mode; ``note`` is that of the event. ``None`` if the mode is known (empty ``note``)."""
    return _condition("False", REASON_UNKNOWN_MODE, note) if note else None


def stopped(condition: Condition) -> Condition:
    """``condition`` after the agent has ended without a successor: a node that is not ready stays so."""
    if condition.status != "True":
        return condition
    # The next agent learns from the reason what was reported of isolation.
    reason = REASON_NOT_HELD if condition.reason == REASON_NOT_HELD else REASON_STOPPED
    return _condition("Unknown", reason, f"the node agent has stopped; last known state: {condition.message}")


def _condition(status: str, reason: str, message: str) -> Condition:
    return Condition(status, reason, message[:_MOST_CHARACTERS])
