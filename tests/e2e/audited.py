"""What the API server of a control plane without nodes has written into its audit log of pods that were to be made."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.e2e.cluster.waiting import wait_for

_OURS: Final = "gpushare-audit/"


@dataclass(frozen=True)
class Audited:
    """A pod that was asked for: the status of the answer, and what the policy ``gpushare-audit`` says of it."""

    status: int
    said: dict[str, str]


def audited(state: Path, where: dict[str, str]) -> Audited:
    """The one request to create a pod of which the log in the control plane's folder ``state`` says ``where`` among others."""

    def found() -> list[Audited]:
        return [one for one in map(_audited, _creations(state)) if where.items() <= one.said.items()]

    (one,) = wait_for(f"the audit log has {where}", found)
    return one


def _creations(state: Path) -> list[dict[str, Any]]:
    # What follows the last end of a line may be half written.
    lines = (state / "log" / "audit.log").read_text().split("\n")[:-1]
    return [
        event
        for event in map(json.loads, lines)
        if event["verb"] == "create"
        and event.get("objectRef", {}).get("resource") == "pods"
        and "subresource" not in event["objectRef"]
    ]


def _audited(event: dict[str, Any]) -> Audited:
    annotations = event.get("annotations", {})
    said = {key.removeprefix(_OURS): text for key, text in annotations.items() if key.startswith(_OURS)}
    return Audited(event["responseStatus"]["code"], said)
