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
#: Accepted by the API server, and longer than anyone reads.
_MOST_CHARACTERS: Final = 2048


class Condition(msgspec.Struct, frozen=True):
    """What a condition says; ``status`` is True, False or Unknown."""

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
    """Of a node that is to share, with its cordons; the arguments are those of ``NodeEvents.troubles``, ``active`` says what holds containers."""
    well = [device for device in node.devices if not device.is_faulty]
    taking = sum(device.in_service for device in node.devices)
    held = (
        f"mode {node.mode.value}, unit {node.unit.setting}, {taking} of {len(node.devices)} GPUs in service"
    )
    if active:
        held += f", isolation {active}"
    faults = [f"GPU {one.index}: {one.reason}" for one in node.devices if one.is_faulty]
    kept = [f"GPU {one.index}: {one.reason}" for one in well if one.kept_back]
    cordons = [f"GPU {one.index}: cordoned" for one in well if one.cordoned]

    def says(status: str, reason: str, *wrong: str) -> Condition:
        # What is wrong comes first, before what holds besides.
        return _condition(status, reason, "; ".join((*(one.rstrip(".") for one in wrong), held)))

    # Where no GPU is found any more of those that were there, it is they that are out of service.
    if inventory.trouble is not None and not inventory.is_gpus_own:
        return says("False", inventory.trouble.reason, inventory.trouble.note)
    if access:
        return says("False", REASON_NO_CDI, access)
    if isolation:
        return says("False", REASON_NO_ISOLATION, isolation)
    if claims:
        return says("False", REASON_NO_CLAIMS, claims)
    if not well:
        return says("False", REASON_UNHEALTHY, *faults)
    if faults:
        return says("True", REASON_PARTLY, *faults, *kept, *cordons)
    if fallen:
        return says("True", REASON_NOT_HELD, *kept, *cordons)
    return says("True", REASON_KEPT_BACK if kept else REASON_SHARING, *kept, *cordons)


def mislabelled(note: str) -> Condition | None:
    """Of a node whose mode is unknown; ``note`` is the event's, empty where it is known: then nothing is said."""
    return _condition("False", REASON_UNKNOWN_MODE, note) if note else None


def stopped(condition: Condition) -> Condition:
    """What is left of ``condition`` when the agent ends and no other follows: a node that is not ready stays so."""
    if condition.status != "True":
        return condition
    # The next agent still learns from it what was reported of isolation.
    reason = REASON_NOT_HELD if condition.reason == REASON_NOT_HELD else REASON_STOPPED
    return _condition("Unknown", reason, f"the node agent has ended; before that: {condition.message}")


def _condition(status: str, reason: str, message: str) -> Condition:
    return Condition(status, reason, message[:_MOST_CHARACTERS])
