"""GPUs that are shared through ResourceClaims, as pages show them."""

import json
from typing import Any

from gpushare.api.node.modes import NodeMode
from gpushare.dashboard.data.claims import decode_claim, decode_class
from gpushare.dashboard.data.details import found
from gpushare.dashboard.data.heatmap import State
from gpushare.dashboard.data.records import decode_seen
from gpushare.dashboard.server.app import Query
from tests.unit.dashboard.live_pages import MIB, Shown, described, exposed, gpu, holder, share
from tests.unit.dashboard.test_board import Page
from tests.unit.dashboard.test_live import fetch, refused


def claim(
    name: str, *shares: tuple[str, str, int], pods: tuple[str, ...] = (), device_class: str = "gpushare.dev"
) -> Any:
    """A claim for 3 GiB and 30% in namespace ``default``; allocated (device, memory, compute) on node ``a``."""
    results = [
        {
            "request": "gpu",
            "driver": "gpushare.dev",
            "pool": "a",
            "device": device,
            "consumedCapacity": {"memory": memory, "compute": str(compute), "shares": "1"},
        }
        for device, memory, compute in shares
    ]
    capacity = {"requests": {"memory": "3Gi", "compute": "30"}}
    exactly = {
        "deviceClassName": device_class,
        "allocationMode": "ExactCount",
        "count": 1,
        "capacity": capacity,
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        "status": {
            **({"allocation": {"devices": {"results": results}}} if results else {}),
            "reservedFor": [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods],
        },
    }


def pod(name: str, claim_name: str, node: str = "", condition_message: str = "") -> Any:
    return {
        "metadata": {
            "namespace": "default",
            "name": name,
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-01-02T03:04:05Z",
        },
        "spec": {
            "nodeName": node,
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
            "containers": [{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}],
        },
        "status": {
            "phase": "Running" if node else "Pending",
            "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": claim_name}],
            "conditions": [{"type": "PodScheduled", "status": "False", "message": condition_message}]
            if condition_message
            else [],
        },
    }


def put(shown: Shown, *objects: Any) -> None:
    for one in objects:
        raw = json.dumps(one).encode()
        if one.get("kind") == "ResourceClaim":
            shown.cluster.claims.upsert(decode_claim(raw)[1])
        else:
            seen = decode_seen(raw)
            assert seen is not None
            shown.cluster.pods.upsert(seen[1])


async def dra_cluster() -> Shown:
    shown = Shown()
    # The claim is seen before the node whose GPU it names.
    put(
        shown,
        claim("shared", ("gpu-a-0", "3Gi", 30), pods=("one", "two")),
        pod("one", "shared", "a"),
        pod("two", "shared", "a"),
    )
    shown.add(described("a", gpu("a", 0), gpu("a", 1), mode=NodeMode.DRA))
    await shown.live.tick()
    return shown


async def board(shown: Shown) -> Any:
    return Page((await shown.live.answer("snapshot", Query({})))[1]).seen()["a"]


async def test_allocations_of_claims_are_on_the_map_and_removed_with_them() -> None:
    shown = await dra_cluster()
    seen = await board(shown)
    assert seen["allocated_mib"] == [3072, 0]
    assert seen["allocated_core"] == [30, 0]
    assert seen["state"] == [State.IN_SERVICE] * 2
    put(shown, claim("other", ("gpu-a-1", "1Gi", 0)))
    await shown.live.tick()
    assert (await board(shown))["allocated_mib"] == [3072, 1024]
    gone = decode_claim(json.dumps(claim("shared")).encode())[1]
    put(shown, claim("shared"))
    shown.cluster.claims.remove("default/shared", gone)
    await shown.live.tick()
    assert (await board(shown))["allocated_mib"] == [0, 1024]


async def test_pods_with_claims_of_other_drivers_are_not_found() -> None:
    shown = await dra_cluster()
    put(shown, claim("rdma", device_class="other"), pod("netpod", "rdma"))
    assert [one.name for one in found(shown.cluster, "default/")] == ["default/one", "default/two"]


async def test_a_pod_with_an_extended_resource_is_pending_and_then_holds_the_claim_made_for_it() -> None:
    shown = await dra_cluster()
    plain = pod("plain", "", condition_message="0/1 nodes are available")
    del plain["spec"]["resourceClaims"], plain["status"]["resourceClaimStatuses"]
    plain["spec"]["containers"] = [{"name": "main", "resources": {"limits": {"gpushare.dev/share": "2"}}}]
    put(shown, plain)
    (pending,) = shown.cluster.claims.waiting()
    assert (pending.pod, shown.cluster.claims.asks_of(pending)) == (
        "default/plain",
        "2 of gpushare.dev/share",
    )
    assert (await fetch(shown, "pod", key="default/plain"))["asks"] == "2 of gpushare.dev/share"
    plain["spec"]["nodeName"] = "a"
    plain["status"] = {
        "phase": "Running",
        "extendedResourceClaimStatus": {
            "resourceClaimName": "plain-extended-resources-x",
            "requestMappings": [
                {"containerName": "main", "resourceName": "gpushare.dev/share", "requestName": "r"}
            ],
        },
    }
    put(shown, claim("plain-extended-resources-x", ("gpu-a-1", "2Gi", 0), pods=("plain",)), plain)
    await shown.live.tick()
    assert not list(shown.cluster.claims.waiting())
    found = await fetch(shown, "pod", key="default/plain")
    assert [(one["index"], one["mib"]) for one in found["shares"]] == [(1, 2048)]


async def test_a_gpu_lists_its_claims_with_their_pods_and_the_usage_of_these() -> None:
    shown = await dra_cluster()
    shown.addresses["a"] = "agent"
    shown.http.responses["http://agent/metrics"] = exposed(one=(2000, 10), two=(1000, 20))
    node = await fetch(shown, "node", name="a")
    assert node["gives_core"]
    (held,) = node["gpus"][0]["pods"]
    assert (held["pod"], held["claim"], held["users"]) == (
        "",
        "default/shared",
        ["default/one", "default/two"],
    )
    assert (held["mib"], held["core_percent"]) == (3072, 30)
    assert [use["used_mib"] for use in held["containers"]] == [2000, 1000]
    assert node["gpus"][1]["pods"] == []


async def test_a_pods_page_shows_what_its_claim_holds() -> None:
    shown = await dra_cluster()
    found = await fetch(shown, "pod", key="default/one")
    assert (found["node"], found["asks"]) == ("a", "3Gi and 30% compute of a GPU through claim shared")
    assert [(one["index"], one["mib"], one["claim"]) for one in found["shares"]] == [
        (0, 3072, "default/shared")
    ]
    assert "default/one" in [one["name"] for one in await fetch(shown, "search", q="one")]
    # A pod that has only claims of other drivers is not shown.
    put(shown, claim("nic", device_class="nics"), pod("other", "nic", "a"))
    assert (await refused(shown, "pod", key="default/other"))[0] == 404


async def test_pods_whose_claim_is_not_allocated_are_pending_with_kube_schedulers_reason() -> None:
    shown = await dra_cluster()
    condition_message = "0/1 nodes are available: 1 cannot allocate all claims."
    put(
        shown,
        claim("large"),
        pod("late", "large", condition_message=condition_message),
        claim("nic", device_class="nics"),
        pod("x", "nic"),
    )
    shown.http.responses["http://scheduler/gpushare/decisions"] = json.dumps(
        {"waiting": [], "scheduler": {"name": "s"}}
    ).encode()
    await shown.live.tick()
    assert (await fetch(shown, "pod", key="default/late"))["reason"] == condition_message
    line = await fetch(shown, "waiting")
    assert [(one["key"], one["reason"], one["asks"]) for one in line["pods"]] == [
        ("default/late", condition_message, "3Gi and 30% compute of a GPU through claim large")
    ]
    assert line["count"] == 1
    raw = json.dumps(
        {
            "metadata": {"name": "nics"},
            "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpushare.dev'"}}]},
        }
    )
    found = decode_class(raw.encode())
    assert found is not None
    shown.cluster.claims.classes.upsert(found[1])
    assert [one["key"] for one in (await fetch(shown, "waiting"))["pods"]] == ["default/late", "default/x"]
    assert decode_class(raw.replace("gpushare.dev", "nic.dev").encode()) is None


async def test_pods_of_an_earlier_mode_and_claims_add_up() -> None:
    shown = await dra_cluster()
    shown.add(holder("old", "a", share("a", 0, 2)))
    await shown.live.tick()
    assert (await board(shown))["allocated_mib"] == [3072 + 2048, 0]
    node = await fetch(shown, "node", name="a")
    assert {one["pod"] or one["claim"] for one in node["gpus"][0]["pods"]} == {
        "default/old",
        "default/shared",
    }
    assert node["gpus"][0]["total_mib"] == MIB
