"""``--all``: the nodes whose GPUs another device plugin serves, such as NVIDIA's. Their GPUs are in no sum of ours."""

from collections.abc import Sequence

import msgspec

from gpushare.api.node.other_plugins import offer_text, offered_by_others, strategy_of
from gpushare.api.objects import Node
from gpushare.inspect.tabwriter import Line, aligned, printable


class OtherNode(msgspec.Struct, frozen=True, rename="camel"):
    """A node that another plugin serves: ``offers`` by resource; ``sharing``: how, as far as labels say."""

    name: str
    address: str
    offers: "dict[str, int]"
    sharing: str


def other_nodes(nodes: Sequence[Node], shown: "set[str]") -> "list[OtherNode]":
    """Those of ``nodes`` that are not ``shown`` in the table of shares and whose GPUs another plugin offers."""
    return [
        OtherNode(node.metadata.name, _address(node), dict(offered), strategy_of(node))
        for node in nodes
        if node.metadata.name not in shown and (offered := offered_by_others(node))
    ]


def other_nodes_text(others: "list[OtherNode]") -> str:
    """A table, each line with a line end; empty without nodes."""
    if not others:
        return ""
    rows: list[Line] = [("NAME", "IPADDRESS", "MANAGED BY ANOTHER PLUGIN", "SHARING")]
    rows += [
        (
            printable(one.name),
            one.address,
            printable(offer_text(one.offers)),
            printable(one.sharing) or "whole GPUs",
        )
        for one in others
    ]
    return "\n".join(aligned(rows)) + "\n"


def _address(node: Node) -> str:
    addresses = node.status.addresses or ()
    return next((one.address for one in addresses if one.type == "InternalIP"), "")
