"""Makers of policies, pods and nodes for these tests."""

import json
from typing import Any

from gpushare.api.crd.resource_policy import PolicyPod, ResourcePolicy, decode_policy
from gpushare.scheduler.plugins.resource_policy.model.policy_index import Census
from gpushare.scheduler.plugins.resource_policy.model.unit_usage import PolicyBook


def written(
    *units: dict[str, Any], name: str = "p", made: str = "2026-01-01T00:00:00Z", **spec: Any
) -> bytes:
    """A policy's JSON; by default its units select the nodes of ``pool`` a, b, c …"""
    named = [
        {"resource": "ecs", "nodeSelector": {"pool": "abcdefgh"[number]}, **unit}
        for number, unit in enumerate(units)
    ]
    meta = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{name}",
        "generation": 1,
        "creationTimestamp": made,
    }
    return json.dumps({"metadata": meta, "spec": {"selector": {"app": "x"}, "units": named, **spec}}).encode()


def policy(*units: dict[str, Any], **more: Any) -> ResourcePolicy:
    """The policy of that JSON."""
    return decode_policy(written(*units, **more))


def pod(name: str, node: str = "", **more: Any) -> PolicyPod:
    """A pod of the app that the policies select."""
    labels = {"app": "x", **more.pop("labels", {})}
    annotations = more.pop("annotations", {})
    return PolicyPod(f"uid-{name}", "default", name, node, "ack-co-scheduler", labels, annotations, **more)


def census(*policies: ResourcePolicy, nodes: str = "a1 a2 b1 b2 c1") -> Census:
    """Policies over nodes whose first letter is their pool."""
    made = Census()
    for node in nodes.split():
        made.set_node(node, {"pool": node[0]})
    for one in policies:
        made.set_policy(one)
    return made


def book_of(made: Census) -> PolicyBook:
    """The book that decides for such pods."""
    book = made.book_for("default", {"app": "x"})
    assert book is not None
    return book
