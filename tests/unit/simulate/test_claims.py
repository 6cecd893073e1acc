"""ResourceClaims in a simulation: their allocations count, and pods are placed where their claims can be allocated."""

from typing import Any

import pytest

from gpushare.api import names
from gpushare.api.json_objects import Json
from gpushare.simulate.engine.engine import Settings
from gpushare.simulate.engine.min_nodes import enough
from gpushare.simulate.errors import SimulateError
from gpushare.simulate.input.manifests import joined, manifests_of
from gpushare.simulate.input.node_shapes import shape_of
from gpushare.simulate.snapshot import ClusterState, counting_of, read_snapshot, snapshot_of
from tests.unit.simulate.objects import node, placed, pod, ran, template, whys, workload

T4 = 15360
DRA = node("d", T4, T4, mode="dra")


def request(memory: str = "", compute: str = "", **more: Any) -> Json:
    amounts = {key: value for key, value in (("memory", memory), ("compute", compute)) if value}
    return {"deviceClassName": names.DRA_DRIVER, "capacity": {"requests": amounts}, **more}


def devices(*requests: Json, **more: Any) -> Json:
    return {
        "devices": {"requests": [{"name": f"r{i}", "exactly": one} for i, one in enumerate(requests)], **more}
    }


def test_shares_by_extended_resource_are_named_as_not_considered() -> None:
    sharing = pod("w")
    sharing["spec"]["containers"][0]["resources"]["limits"] = {names.GPU_SHARE: "1"}
    result = ran(ClusterState((DRA,)), sharing)
    assert placed(result) == {"w": "d"}
    assert result.ignored == (names.GPU_SHARE,)
    assert ran(ClusterState((DRA,)), pod("plain")).ignored == ()


def template_for_claims(name: str, *requests: Json, **more: Any) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": devices(*requests, **more)},
    }


def claim(name: str, *allocated: tuple[int, str, str], on: str = "d", **spec: Any) -> Json:
    """A claim, allocated on these GPUs of a node (index, memory, compute)."""
    results = [
        {
            "request": "r0",
            "driver": names.DRA_DRIVER,
            "pool": on,
            "device": f"gpu-{on}-{gpu}",
            "consumedCapacity": {"memory": memory, "compute": compute},
        }
        for gpu, memory, compute in allocated
    ]
    status = {"status": {"allocation": {"devices": {"results": results}}}} if allocated else {}
    return {
        "kind": "ResourceClaim",
        "metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}"},
        "spec": spec or devices(request("1Gi")),
        **status,
    }


def claiming(name: str, **entry: str) -> Json:
    return pod(name, resourceClaims=[{"name": "share", **entry}])


def used_mib(result: Any, on: str = "d") -> list[int]:
    (usage,) = [one for one in result.nodes if one.node == on]
    return [gpu.used_mib for gpu in usage.gpus]


def test_allocations_of_claims_count_in_a_saved_state_too() -> None:
    state = ClusterState(
        (node("a", T4), DRA), claims=(claim("one", (0, "3Gi", "30")), claim("two", (1, "5Gi", "0")))
    )
    for each in (state, read_snapshot(snapshot_of(state), "saved")):
        result = ran(each, pod("p", 1))
        assert (placed(result), used_mib(result), result.ignored) == ({"p": "a"}, [3072, 5120], ())
        assert result.curve[0].allocated_mib == 8192


def test_a_saved_state_has_no_parameters_of_claims() -> None:
    odd = claim("one", (0, "3Gi", "30"))
    odd["spec"]["devices"]["config"] = [{"opaque": {"driver": "other", "parameters": {"token": "secret"}}}]
    assert b"secret" not in snapshot_of(ClusterState((DRA,), claims=(odd,)))


def test_each_pod_of_a_template_gets_the_first_gpu_with_enough_memory() -> None:
    result = ran(
        ClusterState((node("a", T4), DRA)),
        template_for_claims("share", request("6Gi", "40")),
        workload(
            "Deployment",
            "web",
            5,
            template(resourceClaims=[{"name": "s", "resourceClaimTemplateName": "share"}]),
        ),
    )
    assert sorted(placed(result).values()) == ["", "d", "d", "d", "d"]
    assert used_mib(result) == [12288, 12288]
    first = result.fates[0]
    assert (first.asks, [(share.index, share.mib, share.core_percent) for share in first.gpus]) == (
        "6Gi and 40% compute of a GPU by claim",
        [(0, 6144, 40)],
    )
    assert list(whys(result).values()) == ["0/2 nodes are available: 2 cannot allocate all claims."]


@pytest.mark.parametrize(
    ("requests", "constraints", "expected_mib"),
    [
        pytest.param([request("4Gi"), request("4Gi")], [], [8192, 0], id="two requests on one GPU"),
        pytest.param([request("4Gi", count=2)], [], [8192, 0], id="two devices of a request on one GPU"),
        pytest.param(
            [request("4Gi", count=2)],
            [{"distinctAttribute": "gpushare.dev/uuid"}],
            [4096, 4096],
            id="two GPUs",
        ),
        pytest.param([request()], [], [T4, 0], id="all memory of a GPU"),
        pytest.param([request("1Gi", adminAccess=True)], [], [0, 0], id="monitoring"),
        pytest.param([request("9Gi"), request("9Gi")], [], [9216, 9216], id="not enough on the first"),
    ],
)
def test_a_claim_gets_what_it_requests(
    requests: list[Json], constraints: list[Json], expected_mib: list[int]
) -> None:
    result = ran(
        ClusterState((DRA,)),
        template_for_claims("t", *requests, constraints=constraints),
        claiming("p", resourceClaimTemplateName="t"),
    )
    assert (placed(result), used_mib(result)) == ({"p": "d"}, expected_mib)


def test_compute_the_limit_of_claims_and_cordoned_gpus_limit_what_is_allocated() -> None:
    shape = template_for_claims("t", request("1Gi", "60"))
    pods = workload(
        "Deployment", "w", 3, template(resourceClaims=[{"name": "s", "resourceClaimTemplateName": "t"}])
    )
    assert len(ran(ClusterState((DRA,)), shape, pods).waiting) == 1
    small = template_for_claims("t", request("1Mi"))
    assert len(ran(ClusterState((DRA,)), small, pods, settings=Settings(isolated_cap=1)).waiting) == 1
    cordoned = {
        **DRA,
        "metadata": {
            **DRA["metadata"],
            "annotations": DRA["metadata"]["annotations"] | {names.ANN_CORDONED: "0"},
        },
    }
    assert used_mib(ran(ClusterState((cordoned,)), small, claiming("p", resourceClaimTemplateName="t"))) == [
        0,
        1,
    ]


def test_pods_that_share_a_claim_go_to_its_node() -> None:
    state = ClusterState(
        (DRA, node("e", T4, mode="dra")), claims=(claim("there", (0, "2Gi", "0"), on="e"), claim("new"))
    )
    result = ran(
        state,
        claiming("a", resourceClaimName="there"),
        claiming("b", resourceClaimName="new"),
        claiming("c", resourceClaimName="new"),
    )
    nodes = placed(result)
    assert nodes["a"] == "e"
    assert nodes["b"] == nodes["c"] != ""
    assert sum(used_mib(result)) + sum(used_mib(result, "e")) == 3072


def bound(name: str, cpu: str = "1") -> Json:
    """A pod on the node, with the claim ``NAME-x`` created from the template ``t``."""
    made = claiming(name, resourceClaimTemplateName="t")
    made["metadata"] = {"name": name, "namespace": "default", "uid": name}
    made["spec"] |= {"nodeName": "d", "priority": 0}
    made["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu}
    statuses = [{"name": "share", "resourceClaimName": f"{name}-x"}]
    return {**made, "status": {"phase": "Running", "resourceClaimStatuses": statuses}}


def test_an_evicted_pods_claim_is_free_again() -> None:
    urgent = pod("high", priority=10)
    urgent["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "10"}
    state = ClusterState((DRA,), pods=(bound("low", cpu="10"),), claims=(claim("low-x", (0, "2Gi", "0")),))
    assert used_mib(ran(state)) == [2048, 0]
    result = ran(state, urgent)
    assert [eviction.victim for eviction in result.evictions] == ["default/low"]
    assert used_mib(result) == [0, 0]


def test_a_claim_that_was_not_read_is_not_taken_for_one_that_the_template_creates() -> None:
    result = ran(ClusterState((DRA,), pods=(bound("a"),)), template_for_claims("t", request("2Gi")))
    assert (used_mib(result), result.ignored) == ([0, 0], ("ResourceClaims of 1 pod, which were not read",))


def test_features_of_claims_that_are_not_simulated_are_named() -> None:
    result = ran(
        ClusterState((DRA,)),
        template_for_claims(
            "t",
            request("1Gi", selectors=[{"cel": {"expression": "true"}}], allocationMode="All"),
            {"deviceClassName": "nic.example.com"},
            constraints=[{"matchAttribute": "gpushare.dev/numaNode"}],
        ),
        claiming("p", resourceClaimTemplateName="t"),
        claiming("q", resourceClaimName="unknown"),
    )
    assert placed(result) == {"p": "d", "q": "d"}
    assert result.ignored == (
        "ResourceClaims of 1 pod, which were not read",
        "ResourceClaims on devices of other DeviceClasses",
        "allocationMode All of ResourceClaims",
        "matchAttribute of ResourceClaims",
        "selectors of ResourceClaims",
    )


def test_more_nodes_in_mode_dra_help_pods_with_claims() -> None:
    state = ClusterState((DRA,))
    documents = [
        ("test", template_for_claims("t", request("10Gi"))),
        (
            "test",
            workload(
                "Deployment",
                "w",
                5,
                template(resourceClaims=[{"name": "s", "resourceClaimTemplateName": "t"}]),
            ),
        ),
    ]
    manifests = manifests_of(documents, state, counting_of(state))
    for text in ("d", "gpus=2,memory=15360,mode=dra"):
        found = enough(joined(state, manifests.state), manifests.pods, Settings(), shape_of(text, state))
        assert (found.count, found.still_waiting) == (2, ())


def test_a_claim_that_cannot_be_read_is_rejected() -> None:
    with pytest.raises(SimulateError, match="ResourceClaim default/c"):
        ran(ClusterState((DRA,)), {**claim("c"), "spec": {"devices": {"requests": "x"}}})
