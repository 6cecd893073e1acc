"""Isolation that a node's mode requires but that it cannot provide is reported next to the tables."""

import json
from typing import cast

import msgspec

from gpushare.api import names
from gpushare.inspect.arguments import parse
from gpushare.inspect.render import render
from gpushare.inspect.sources.kubectl import Kubectl, Round
from tests.unit.inspect.clusters import device, node

WHY = "mode cgpu asks for isolation, and this node cannot: no NVIDIA driver"
REPORTED = {
    "a": f"none: {WHY}",
    "b": "none: mode cgpu requires isolation, but --isolation none disables it",
    "c": "preload: mode cgpu",
}


class _Read:
    """A reading: nodes whose agents report ``REPORTED``, and no pods."""

    def finish(self) -> tuple[bytes, bytes]:
        nodes = [msgspec.to_builtins(node(name, "10.0.0.1", [device(0)])) for name in REPORTED]
        for one in nodes:
            one["metadata"]["annotations"][names.ANN_ISOLATION] = REPORTED[one["metadata"]["name"]]
        return json.dumps({"items": nodes}).encode(), b'{"items": []}'


def test_missing_isolation_is_a_warning_unless_it_is_disabled() -> None:
    shown = render(Kubectl(program="none"), parse([]), cast("Round", _Read()))
    assert shown.remarks == (
        f"warning: containers on node a see their share, but nothing enforces it: {WHY}",
    )
