"""``--why`` and ``--pending`` of pods with ResourceClaims: what a claim holds, or why it is not allocated and what is free."""

import json
from typing import Any

import msgspec

from gpushare.api import names
from gpushare.api.node.modes import NodeMode
from gpushare.inspect.views.explain import why
from gpushare.inspect.views.pending import waiting
from tests.unit.inspect.clusters import device, node
from tests.unit.inspect.schema import faults
from tests.unit.inspect.test_claims import claim as allocated
from tests.unit.inspect.test_views import DECISIONS, PLAIN, Answers, options

CLAIMS, SLICES = "/apis/resource.k8s.io/v1/resourceclaims", "/apis/resource.k8s.io/v1/resourceslices"
OF_TEAM = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims"
UNSCHEDULABLE = "0/1 nodes are available: 1 cannot allocate all claims. still not schedulable"


def pod(name: str, claim: str, at: str = "") -> dict[str, Any]:
    conditions = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": UNSCHEDULABLE}
    ]
    return {
        "metadata": {
            "namespace": "team",
            "name": name,
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-01-02T03:04:05Z",
        },
        "spec": {
            "nodeName": at,
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
            "containers": [{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}],
        },
        "status": {
            "phase": "Running" if at else "Pending",
            "conditions": [] if at else conditions,
            "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": claim}],
        },
    }


def requesting(name: str, memory: str, compute: str = "0", count: int = 1) -> dict[str, Any]:
    """A claim that is not allocated."""
    exactly = {
        "deviceClassName": names.DRA_DRIVER,
        "allocationMode": "ExactCount",
        "count": count,
        "capacity": {"requests": {"memory": memory, "compute": compute}},
    }
    return {
        "metadata": {"namespace": "team", "name": name, "uid": f"uid-{name}"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def offered(*taints: list[dict[str, str]]) -> dict[str, Any]:
    """The slice of node ``n``: a GPU of 15 GiB for each of ``taints``."""
    capacity = {"memory": "15Gi", "compute": "100", "shares": "2"}
    devices = [
        {
            "name": f"gpu-{number:08d}",
            "allowMultipleAllocations": True,
            "capacity": {name: {"value": value, "requestPolicy": {}} for name, value in capacity.items()},
            **({"taints": tainted} if tainted else {}),
        }
        for number, tainted in enumerate(taints)
    ]
    spec = {
        "driver": names.DRA_DRIVER,
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1},
        "devices": devices,
    }
    return {"items": [{"metadata": {"name": "n-gpushare.dev"}, "spec": spec}]}


def kubectl(its: dict[str, Any], claim: dict[str, Any], others: Any = (), slices: Any = None) -> Answers:
    return Answers(
        **{
            f"/api/v1/namespaces/team/pods/{its['metadata']['name']}": its,
            f"{OF_TEAM}/{claim['metadata']['name']}": claim,
            SLICES: offered([], []) if slices is None else slices,
            CLAIMS: others if isinstance(others, str) else {"items": [claim, *others]},
            "/api/v1/nodes/n": msgspec.to_builtins(
                node("n", "10.0.0.1", [device(0), device(1)], mode=NodeMode.DRA, advertised=False)
            ),
            "/api/v1/pods": {"items": [its]},
        }
    )


def lines(answers: Answers) -> list[str]:
    return why(answers, options("--why", "late", "-n", "team"), PLAIN).text.splitlines()


def test_a_claim_too_deep_to_decode_is_left_out() -> None:
    answers = kubectl(pod("late", "c"), requesting("c", "3Gi"))
    answers.known[CLAIMS] = b'{"items": [{"metadata": ' + b"[" * 50_000
    answers.known[f"{OF_TEAM}/c"] = b'{"spec": {"devices": ' + b"[" * 50_000
    assert lines(answers)


def test_a_claim_that_is_not_allocated_comes_with_the_reason_and_what_is_free() -> None:
    others = [
        allocated("one", (0, "3Gi", 30)),
        allocated("two", (0, "1Gi", 0)),
        allocated("m", (1, "0", 0), adminAccess=True),
    ]
    answers = kubectl(pod("late", "large"), requesting("large", "14Gi", "80"), others)
    shown = why(answers, options("--why", "late", "-n", "team"), PLAIN)
    assert shown.remarks == (), "that the scheduler's extender does not answer is of no interest"
    text = shown.text.splitlines()
    assert f"kube-scheduler says:  {UNSCHEDULABLE}" in text
    assert "ResourceClaim large requests 14Gi and 80% compute of a GPU, and is not allocated." in text
    table = text[text.index("Free for claims, of 2 GPUs:") + 1 :]
    assert [line.split() for line in table[1:3]] == [
        ["n", "gpu-00000001", "15360/15360", "100/100", "2"],
        ["n", "gpu-00000000", "11264/15360", "70/100", "0"],
    ]
    document = json.loads(why(answers, options("--why", "late", "-n", "team", "-o", "json"), PLAIN).text)
    assert not faults(document)
    assert document["freeForClaims"][1] == {
        "node": "n",
        "device": "gpu-00000000",
        "freeMiB": 11264,
        "totalMiB": 15360,
        "freeCorePercent": 70,
        "totalCorePercent": 100,
        "moreClaims": 0,
        "taint": "",
    }
    assert table[3].startswith("  large: GPU gpu-00000001 of node n fits: something else blocks it")


def plain(name: str, claim: str = "", at: str = "") -> dict[str, Any]:
    """A pod that requests a share by extended resource, with the ``claim`` that was created for it."""
    found = pod(name, "", at)
    del found["spec"]["resourceClaims"], found["status"]["resourceClaimStatuses"]
    found["spec"]["containers"] = [{"name": "main", "resources": {"limits": {names.GPU_SHARE: "1"}}}]
    if claim:
        mapping = {
            "containerName": "main",
            "resourceName": names.GPU_SHARE,
            "requestName": "container-0-request-0",
        }
        found["status"]["extendedResourceClaimStatus"] = {
            "resourceClaimName": claim,
            "requestMappings": [mapping],
        }
    return found


def test_a_share_by_extended_resource_is_explained_before_and_after_its_claim_exists() -> None:
    full = allocated("o", (0, "8Gi", 0))
    text = lines(kubectl(plain("late"), full, slices=offered([])))
    assert f"It requests 1 of {names.GPU_SHARE}; its ResourceClaim is made with its node." in text
    assert any("gpu-00000000" in line and "7168/15360" in line for line in text)
    claim = allocated("late-extended-resources-x", (1, "3Gi", 30), pods=("late",))
    text = lines(kubectl(plain("late", "late-extended-resources-x", at="n"), claim))
    assert any("late-extended-resources-x requests" in line and "holds on node n" in line for line in text)
    assert not any("no record of a GPU" in line for line in text)


def test_amounts_that_do_not_fit_are_named() -> None:
    cordoned = [{"key": "gpushare.dev/cordoned", "effect": "NoSchedule"}]
    for claim, others, slices, expected in (
        (requesting("c", "100Gi"), [], offered([]), "c: no GPU offers 102400 MiB, the most is 15360 MiB."),
        (requesting("c", "3Gi"), [], offered(cordoned), "c: no GPU without a taint has 3072 MiB free."),
        (
            requesting("c", "3Gi", "50"),
            [allocated("o", (0, "1Gi", 60))],
            offered([]),
            "c: no GPU with 3072 MiB free has 50% compute free.",
        ),
        (
            requesting("c", "1Gi"),
            [allocated("o", (0, "1Gi", 0)), allocated("p", (0, "1Gi", 0))],
            offered([]),
            "c: the GPUs with enough capacity have the maximum number of claims.",
        ),
        (requesting("c", "1Gi", count=2), [], offered([]), "c: it needs 2 GPUs, and 1 has enough capacity."),
    ):
        assert f"  {expected}" in lines(kubectl(pod("late", "c"), claim, others, slices))
    text = lines(kubectl(pod("late", "c"), requesting("c", "1Gi"), slices={"items": []}))
    assert text[-1].startswith("No node offers GPUs to claims")
    shown = why(
        kubectl(pod("late", "c"), requesting("c", "1Gi"), "Error from server (Forbidden): no"),
        options("--why", "late", "-n", "team"),
        PLAIN,
    )
    assert shown.remarks[0].startswith("warning: free capacity for claims is unknown: kubectl could not read")


def test_a_claim_that_is_allocated_comes_with_what_it_holds() -> None:
    claim = allocated("share", (1, "3Gi", 30), (0, "1Gi", 0), pods=("late", "other"))
    answers = kubectl(pod("late", "share", at="n"), claim)
    text = lines(answers)
    assert text[0] == "team/late is on node n"
    at = text.index("ResourceClaim share requests GPUs, and holds on node n, for late, other:")
    assert [line.split() for line in text[at + 1 : at + 3]] == [
        ["GPU", "0", "1024", "MiB", "GPU-00000000", "compute", "not", "limited"],
        ["GPU", "1", "3072", "MiB", "GPU-00000001", "30%", "compute"],
    ]
    assert not any("no record of a GPU" in line for line in text)
    document = json.loads(why(answers, options("--why", "late", "-n", "team", "-o", "json"), PLAIN).text)
    assert not faults(document)
    (found,) = document["claims"]
    assert (found["name"], found["allocated"], found["pods"]) == ("share", True, ["late", "other"])
    assert found["shares"][1] == {
        "node": "n",
        "gpu": 1,
        "uuid": "GPU-00000001",
        "MiB": 3072,
        "corePercent": 30,
    }


def test_claims_of_other_drivers_are_ignored() -> None:
    claim = requesting("nic", "1Gi")
    claim["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "nics"
    document = json.loads(
        why(
            kubectl(pod("late", "nic"), claim), options("--why", "late", "-n", "team", "-o", "json"), PLAIN
        ).text
    )
    assert "claims" not in document


def test_pods_with_claims_are_among_the_pending() -> None:
    shown = waiting(kubectl(pod("late", "c"), requesting("c", "3Gi", "30")), options("--pending"), PLAIN)
    (row,) = (line for line in shown.text.splitlines() if line.startswith("team"))
    assert "3Gi and 30% compute of a GPU through claim c" in row
    assert row.endswith(f"claim     {UNSCHEDULABLE}")
    answers = kubectl(pod("late", "c"), requesting("c", "3Gi"))
    answers.known = {
        DECISIONS: {"scheduler": {"name": "s", "firstAsked": 1.0}, "waiting": []},
        **answers.known,
    }
    assert "through claim c" in waiting(answers, options("--pending"), PLAIN).text
    assert not faults(json.loads(waiting(answers, options("--pending", "-o", "json"), PLAIN).text))
