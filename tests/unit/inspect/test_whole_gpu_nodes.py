"""Nodes that allocate whole GPUs are in no table of shares, and a warning says where they are shown."""

import json
from typing import cast

import msgspec
import pytest

from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import Node
from gpushare.inspect.arguments import parse
from gpushare.inspect.render import render
from gpushare.inspect.sources.kubectl import Kubectl, Round
from tests.unit.inspect.clusters import device, node

SHARES = node("a", "10.0.0.1", [device(0)])


def whole(name: str) -> Node:
    return node(name, "10.0.0.2", [device(0)], mode=NodeMode.TOPOLOGY, advertised=False)


class _Read:
    """A reading: nodes, or a single one, and no pods."""

    def __init__(self, *nodes: Node, alone: bool) -> None:
        listed = [msgspec.to_builtins(node) for node in nodes]
        self._answer = listed[0] if alone else {"items": listed}

    def finish(self) -> tuple[bytes, bytes]:
        return json.dumps(self._answer).encode(), b'{"items": []}'


def shown(*nodes: Node, words: tuple[str, ...] = ()) -> tuple[str, tuple[str, ...]]:
    options = parse(words)
    read = _Read(*nodes, alone=options.node is not None)
    found = render(Kubectl(program="none"), options, cast("Round", read))
    return found.text, found.remarks


@pytest.mark.parametrize("words", [(), ("-o", "wide"), ("-d",)])
def test_a_node_with_whole_gpus_is_a_warning_and_the_table_is_unchanged(
    words: tuple[str, ...],
) -> None:
    text, remarks = shown(SHARES, words=words)
    assert remarks == ()
    assert shown(SHARES, whole("t"), words=words) == (
        text,
        (
            "nodes that allocate whole GPUs (topology) are not in the table: t; `kubectl inspect cgpu --pods` shows their pods",
        ),
    )


def test_of_many_such_nodes_some_are_named() -> None:
    _, (one,) = shown(SHARES, *map(whole, ("t1", "t2", "t3", "t4", "t5")))
    assert ": t1, t2, t3, and 2 more; " in one
