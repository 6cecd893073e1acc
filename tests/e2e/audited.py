"""Audit log entries of a control plane without nodes about the creation of pods."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.e2e.cluster.waiting import wait_for

_OURS: Final = "gpushare-audit/"


@dataclass(frozen=True)
class Audited:
    """A request to create a pod: the status of the response, and the annotations of the policy ``gpushare-audit``."""

    status: int
    annotations: dict[str, str]


def audited(state: Path, where: dict[str, str]) -> Audited:
    """The only request to create a pod in the log of the control plane's folder ``state`` whose annotations
    include ``where``.
    """

    def found() -> list[Audited]:
        return [one for one in map(_audited, _creations(state)) if where.items() <= one.annotations.items()]

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
    ours = {key.removeprefix(_OURS): text for key, text in annotations.items() if key.startswith(_OURS)}
    return Audited(event["responseStatus"]["code"], ours)
