"""Data that earlier versions wrote to clusters and nodes stays readable: after an upgrade, running pods keep their shares.

``tests/fixtures/record.py`` recorded it for each version; the recordings are never changed.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpushare.api import names
from gpushare.api.crd.elastic_quota_tree import decode_quota_tree
from gpushare.api.crd.resource_policy import decode_policy, policy_pod_of
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import decode_node, decode_pod
from gpushare.api.quantity import MemoryUnit
from gpushare.inspect.views.allocation_model import usage_of
from gpushare.kube.client.client import _LEASE
from gpushare.kube.clock import SYSTEM_CLOCK
from gpushare.ledger import Ledger
from gpushare.nodeagent.deviceplugin.device_ids import DeviceIds
from gpushare.nodeagent.isolation.storage.files import CLAIM, LIMITS, fingerprint, read_claim
from gpushare.scheduler.cache.cache import ClusterCache, NodeReader
from gpushare.scheduler.cache.pod_records import decode_record
from gpushare.scheduler.plugins.elastic_quota.quotas import Quotas
from gpushare.scheduler.plugins.resource_policy.plugin import Policies
from tests.unit.scheduler.world import Recorded

WRITTEN = Path(__file__).parents[1] / "fixtures" / "written"
CLUSTERS = sorted(path.parent for path in WRITTEN.glob("*/*/nodes.json"))


def id_of(cluster: Path) -> str:
    return "/".join(cluster.parts[-2:])


def read(cluster: Path, name: str) -> Any:
    return json.loads((cluster / f"{name}.json").read_text())


def raw(items: list[dict[str, Any]]) -> list[bytes]:
    return [msgspec.json.encode(item) for item in items]


def rebuilt(cluster: Path, *, pods_first: bool = False) -> tuple[ClusterCache, Recorded]:
    """The ledger of a scheduler that starts in the cluster; its two watches deliver in either order."""
    events = Recorded()
    view = ClusterCache(Ledger(), events, lambda uid: None)
    reader = NodeReader(unit=MemoryUnit.GIB, isolated_cap=16)
    nodes = [reader.read(decode_node(item)) for item in raw(read(cluster, "nodes"))]
    records = [decode_record(item) for item in raw(read(cluster, "pods"))]
    assert None not in records, "each of them concerns GPUs"
    steps = [lambda one=one: view.upsert_node(one) for one in nodes]
    more = [lambda one=one: view.upsert_pod(one[1]) for one in records if one is not None]
    for step in (*more, *steps) if pods_first else (*steps, *more):
        step()
    return view, events


def test_recordings_of_the_first_version_exist() -> None:
    assert {id_of(cluster) for cluster in CLUSTERS} >= {"0.1.0/gib", "0.1.0/mib128", "0.1.0/moves"}


@pytest.mark.parametrize("pods_first", [False, True])
@pytest.mark.parametrize("cluster", CLUSTERS, ids=id_of)
def test_the_ledger_is_rebuilt_as_it_was(cluster: Path, pods_first: bool) -> None:
    view, events = rebuilt(cluster, pods_first=pods_first)
    assert (view.malformed, events.notes) == ({}, [])
    expected = read(cluster, "expected")
    by_gpu: dict[tuple[str, str], tuple[int, int]] = {}
    for pod in read(cluster, "pods"):
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        held = view.ledger.held(uid)
        shares = expected[name]["gpus"]
        if not shares:
            assert held is None
            assert (uid in view.waiting) is (not expected[name]["node"])
            continue
        assert held is not None
        assert (held.node, held.confirmed) == (expected[name]["node"], True)
        assert [
            (one.index, one.uuid, one.mib, one.units, one.device_units, one.core_percent)
            for one in held.allocation.gpus
        ] == [
            (one["index"], one["uuid"], one["mib"], one["units"], one["of"], one.get("core", 0))
            for one in shares
        ]
        for one in shares:
            mib, core = by_gpu.get((held.node, one["uuid"]), (0, 0))
            by_gpu[held.node, one["uuid"]] = (mib + one["mib"], core + one.get("core", 0))
    used = {
        (node["metadata"]["name"], gpu.uuid): (gpu.used_mib, gpu.used_core)
        for node in read(cluster, "nodes")
        for gpu in view.ledger.usage(node["metadata"]["name"]).gpus
        if gpu.pods
    }
    assert used == by_gpu


def test_modes_caps_placement_and_cordons_of_nodes_are_read() -> None:
    view, _ = rebuilt(WRITTEN / "0.1.0" / "gib")
    nodes = {name: view.ledger.node(name) for name in ("single", "many", "core", "isles")}
    assert {name: node and (node.mode.value, node.max_pods) for name, node in nodes.items()} == {
        "single": ("share", 4),
        "many": ("cgpu", 16),
        "core": ("core_mem", 16),
        "isles": ("topology", None),
    }
    many, isles = nodes["many"], nodes["isles"]
    assert many is not None
    assert many.placement.value == "spread"
    assert [gpu.in_service for gpu in many.devices] == [True, True, True, False]
    assert isles is not None
    assert isles.near
    (pending,) = view.waiting.values()
    assert pending.request is not None
    assert (pending.pod, pending.request.memory_units) == ("default/waits", 15)
    assert view.ledger.filter(pending.request, list(nodes)).fits == []


def test_pods_of_an_mps_node_a_pending_gang_and_moved_pods_are_read() -> None:
    cluster = WRITTEN / "0.1.0" / "moves"
    view, _ = rebuilt(cluster)
    served = view.ledger.node("served")
    assert served is not None
    assert served.mode is NodeMode.MPS
    uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in read(cluster, "pods")}
    held = {name: record for name, uid in uids.items() if (record := view.ledger.held(uid)) is not None}
    by_mps = [held[name] for name in ("by-mps-0", "by-mps-1")]
    assert [(one.node, one.allocation.units) for one in by_mps] == [("served", 3), ("served", 5)]
    # One of four was moved off its node, for the pod that now has its memory.
    moved = {name: record.node for name, record in held.items() if name.startswith("moves-")}
    assert sorted(moved.values()) == ["four", "four", "four", "single"]
    assert (held["wide"].node, held["wide"].allocation.units) == ("four", 14)
    # Each container of this pod has a GPU of its own.
    assert held["pair"].allocation.containers_by_gpu() == (("main",), ("second",))
    # Two of the three pods of the gang are pending: neither may be placed alone.
    waiting = {record.pod.removeprefix("default/"): record for record in view.waiting.values()}
    assert waiting.keys() == {"gang-0", "gang-1"}
    for record in waiting.values():
        assert record.gang is not None
        assert (record.gang.key, record.gang.least) == ("default/gang", 3)


@pytest.mark.parametrize("cluster", CLUSTERS, ids=id_of)
def test_allocations_of_kubelets_are_on_the_recorded_gpus(cluster: Path) -> None:
    view, _ = rebuilt(cluster)
    expected = {f"default/{name}": one for name, one in read(cluster, "expected").items()}
    checked = 0
    for node, resources in read(cluster, "kubelets").items():
        devices = view.ledger.node(node)
        assert devices is not None
        ids = DeviceIds(devices.devices)
        for by_pod in resources.values():
            for pod, containers in by_pod.items():
                on = {ids.gpu_of(one) for its in containers.values() for one in its}
                assert on == {one["uuid"] for one in expected[pod]["gpus"]}, pod
                checked += 1
    assert checked >= sum(bool(one["gpus"]) for one in expected.values())


@pytest.mark.parametrize("cluster", CLUSTERS, ids=id_of)
def test_container_files_of_agents_match_the_kubelets_allocations(cluster: Path) -> None:
    expected, kubelets = read(cluster, "expected"), read(cluster, "kubelets")
    for node, container_files in read(cluster, "containers").items():
        for files in container_files:
            claim = read_claim(files[CLAIM].encode())
            assert claim is not None
            if claim.pod not in kubelets[node][names.GPU_MEM]:
                continue  # its pod is gone, and the files are retained for a while
            ids = kubelets[node][names.GPU_MEM][claim.pod][claim.container]
            assert claim.ids == fingerprint(ids)
            (share,) = [
                one
                for one in expected[claim.pod.removeprefix("default/")]["gpus"]
                if one["uuid"] == claim.gpu
            ]
            assert (claim.mib_by_gpu[claim.gpu], claim.core_percent) == (share["mib"], share.get("core", 0))
            assert files[LIMITS].startswith("gpushare-limits 1."), "of a major version that libraries read"


def test_agents_have_files_of_containers_on_isolated_nodes() -> None:
    cluster = WRITTEN / "0.1.0" / "gib"
    claims = {
        node: {claim.pod for files in container_files if (claim := read_claim(files[CLAIM].encode()))}
        for node, container_files in read(cluster, "containers").items()
    }
    assert claims["many"] >= {"default/two-gpus", "default/whole", "default/gang-0", "default/gang-1"}
    assert claims["core"] == {"default/compute", "default/by-policy"}


@pytest.mark.parametrize("cluster", CLUSTERS, ids=id_of)
def test_the_kubectl_plugin_shows_the_allocations_without_a_warning(cluster: Path) -> None:
    nodes = [decode_node(item) for item in raw(read(cluster, "nodes"))]
    pods = [decode_pod(item) for item in raw(read(cluster, "pods"))]
    usage = usage_of(nodes, pods)
    assert usage.warnings == ()
    shown = {pod.name: sum(share.units for share in pod.shares) for node in usage.nodes for pod in node.pods}
    held = {name: sum(one["units"] for one in its["gpus"]) for name, its in read(cluster, "expected").items()}
    # Nodes that allocate whole GPUs have no memory to show.
    assert shown == {name: units for name, units in held.items() if units and name != "by-number"}


def test_policies_quotas_and_the_lease_are_read_as_they_were() -> None:
    cluster = WRITTEN / "0.1.0" / "gib"
    policies = Policies(SYSTEM_CLOCK)
    for node in read(cluster, "nodes"):
        policies.census.set_node(node["metadata"]["name"], node["metadata"]["labels"])
    (policy,) = [decode_policy(item) for item in raw(read(cluster, "resourcepolicies"))]
    policies.upsert_policy(policy)
    for item in raw(read(cluster, "pods")):
        policies.upsert_pod(policy_pod_of(decode_pod(item)))
    (book,) = policies.census.books()
    assert book.pods_in() == [1, 0]
    assert not policies.census.costly, "its deletion cost is right already"

    (written,) = read(cluster, "elasticquotatrees")
    tree = decode_quota_tree(msgspec.json.encode(written))
    assert (tree.problem, tree.tree is not None) == ("", True)
    # If the tree has become inconsistent, a leader reads the last valid one from its status.
    written["spec"]["root"]["max"] = {names.GPU_MEM: 1}
    wrong = decode_quota_tree(msgspec.json.encode(written))
    assert (bool(wrong.problem), wrong.tree, wrong.earlier) == (True, None, tree.tree)
    view, _ = rebuilt(cluster)
    quotas = Quotas(view, Recorded())
    quotas.upsert(tree)
    units = sum(
        one["units"]
        for name, its in read(cluster, "expected").items()
        for one in its["gpus"]
        if name != "by-number"
    )
    assert {one.name: one.used[names.GPU_MEM] // 1000 for one in quotas.books.usage()} == {
        "root": units,
        "team": units,
    }

    lease = _LEASE.decode(msgspec.json.encode(read(cluster, "lease")))
    assert lease.spec.holder_identity
