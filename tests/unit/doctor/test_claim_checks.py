"""Nodes in mode ``dra``: what ResourceClaims require of versions, features, the DeviceClass and slices."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from gpushare.api.allocation.resource_slice import ResourceSlice
from gpushare.api.node.modes import NodeMode
from gpushare.doctor.cluster.facts import ClusterFacts
from gpushare.doctor.cluster.reader import Reader
from gpushare.doctor.cluster.registry import CHECKS
from gpushare.doctor.findings import Finding, Unread, examine
from tests.unit.doctor.healthy_cluster import node_of, sound
from tests.unit.doctor.test_reading_of_the_webhook import Server

ON = {"DRAConsumableCapacity": True, "DRADeviceTaints": True}


def sliced(*, node: str = "n1", shared: bool = True, generation: int = 1, of: int = 1) -> ResourceSlice:
    spec = {
        "driver": "gpushare.dev",
        "nodeName": node,
        "pool": {"name": node, "generation": generation, "resourceSliceCount": of},
        "devices": [{"name": "gpu-1", "allowMultipleAllocations": shared, "capacity": {}}],
    }
    return msgspec.convert({"metadata": {"name": f"{node}-gpushare.dev"}, "spec": spec}, ResourceSlice)


def claiming(**changes: Any) -> ClusterFacts:
    node = node_of(mode=NodeMode.DRA, allocatable={"cpu": "8"}, kubelet=changes.pop("kubelet", "v1.36.1"))
    facts = {
        "nodes": [node],
        "pods": [],
        "slices": [sliced()],
        "device_classes": ["gpushare.dev"],
        "features": ON,
    }
    return sound(**{**facts, **changes})


def found(facts: ClusterFacts) -> list[Finding]:
    return [one for one in examine(facts, CHECKS) if one.check == "claims"]


def test_a_cluster_without_such_nodes_and_a_healthy_one_pass() -> None:
    assert [one.message for one in found(sound())] == ["no node is in mode dra"]
    assert [one.state for one in examine(claiming(), CHECKS) if one.state != "ok"] == []


@pytest.mark.parametrize(
    ("changes", "state", "says"),
    [
        ({"version": {"gitVersion": "v1.35.3"}, "slices": Unread("gone", absent=True)}, "fault", "it is 1.35, and mode dra needs 1.36: older versions allocate a device to one claim only. Nodes with that label: n1"),
        ({"version": {"gitVersion": "v1.34.1"}}, "fault", "it is 1.34, and mode dra needs 1.36"),
        ({"kubelet": "v1.35.0"}, "fault", "it is 1.35"),
        ({"features": {**ON, "DRAConsumableCapacity": False}}, "fault", "its feature DRAConsumableCapacity is off"),
        ({"features": {**ON, "DRADeviceTaints": False}}, "warning", "its feature DRADeviceTaints is off"),
        ({"features": Unread("no")}, "unknown", "its features cannot be read: no"),
        ({"device_classes": ["nics"]}, "fault", "it does not exist: claims that name it are not allocated"),
        ({"slices": []}, "fault", "it has no ResourceSlice of ours"),
        ({"slices": [sliced(node="n2")]}, "fault", "it has no ResourceSlice of ours"),
        ({"slices": [sliced(shared=False)]}, "fault", "GPUs of its ResourceSlice do not allow several claims"),
        ({"slices": [sliced(shared=False, of=2), sliced(of=2)]}, "fault", "GPUs of its ResourceSlice do not allow several claims"),
        ({"slices": [sliced(generation=2, of=2), sliced()]}, "fault", "1 of its 2 ResourceSlices are there: kube-scheduler allocates none of its GPUs"),
        ({"slices": Unread("404", absent=True)}, "fault", "it does not serve resource.k8s.io/v1"),
        ({"slices": Unread("403", refused=True)}, "unknown", "not everything could be checked: 403"),
    ],
)  # fmt: skip
def test_each_fault_is_named_with_what_to_do(changes: dict[str, Any], state: str, says: str) -> None:
    (finding,) = found(claiming(**changes))
    assert (finding.state, finding.message.startswith(says)) == (state, True), finding
    assert finding.suggestion or state == "unknown"


def test_a_node_not_described_by_its_agent_is_named_in_mode_dra_too() -> None:
    node = node_of(labels={"ack.node.gpu.schedule": "dra"}, annotations={}, allocatable={})
    findings = examine(claiming(nodes=[node], slices=[]), CHECKS)
    assert any("no agent has reported its GPUs" in one.message for one in findings)


class Api(Server):
    """Has metrics, and records the requests."""

    metrics = b'# HELP x\nkubernetes_feature_enabled{name="DRAConsumableCapacity",stage="BETA"} 0\n'

    async def request(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, **others: Any
    ) -> bytes:
        answer = await super().request(method, path, params=params, **others)
        return self.metrics if path == "/metrics" else answer


async def test_they_are_read_only_if_a_node_is_in_the_mode() -> None:
    node = {"metadata": {"name": "n1", "labels": {"ack.node.gpu.schedule": "dra"}}}
    slices = json.loads(msgspec.json.encode(sliced()))
    slices["spec"] = {
        "driver": "gpushare.dev",
        "nodeName": "n1",
        "devices": [{"name": "g", "allowMultipleAllocations": True}],
    }
    lists = {
        "/api/v1/nodes": [node],
        "/apis/resource.k8s.io/v1/resourceslices?spec.driver=gpushare.dev": [slices],
        "/apis/resource.k8s.io/v1/deviceclasses": [{"metadata": {"name": "gpushare.dev"}}],
    }
    facts = await Reader(Api(lists), 1.0).read()  # type: ignore[arg-type]
    assert not isinstance(facts.slices, Unread)
    assert [one.node for one in facts.slices] == ["n1"]
    assert facts.device_classes == ["gpushare.dev"]
    assert facts.features == {"DRAConsumableCapacity": False}
    refused = Api(lists, "/metrics")
    facts = await Reader(refused, 1.0).read()  # type: ignore[arg-type]
    assert isinstance(facts.features, Unread)
    assert not facts.features.refused, "no reason to ask for the right"
    other = Api({})
    await Reader(other, 1.0).read()  # type: ignore[arg-type]
    assert not [one for one in other.requests if "resource.k8s.io" in one or one == "/metrics"]
