"""Pods that request GPUs by names that no node of the cluster offers: another plugin's, or a misspelt one of ours."""

from typing import Any

import pytest

from gpushare.inspect.views.explain import why
from gpushare.inspect.views.pending import waiting
from tests.unit.inspect.test_views import DECISIONS, PLAIN, Answers, options

LINE = {"name": "a", "started": 1.0, "firstAsked": 1.0, "lastAsked": 9.0}


def pod_requesting(name: str, resource: str, node: str = "") -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {resource: "1"}}}
    return {
        "metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}"},
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": "Pending"},
    }


def remarks(
    pods: list[dict[str, Any]], *words: str, offered: Any = "0", nodes: Any = None
) -> tuple[str, ...]:
    """Of ``--pending``, or of the view given by ``words``."""
    known: dict[str, Any] = {
        f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}": pod for pod in pods
    }
    known |= {
        f"{DECISIONS}/default/": "Error from server (NotFound): nothing there",
        DECISIONS: {"scheduler": LINE, "waiting": [], "besides": []},
        "/api/v1/pods?fieldSelector=status.phase%3DPending": {"items": pods},
        "/api/v1/nodes": nodes
        or {"items": [{"status": {"capacity": {"nvidia.com/gpu": offered, "cpu": "8"}}}]},
    }
    render = why if words[:1] == ("--why",) else waiting
    return render(Answers(**known), options(*(words or ("--pending",))), PLAIN).remarks


WRITE = (
    "which no node offers to pods; write aliyun.com/gpu-mem for a share, or aliyun.com/gpu for a whole one"
)


@pytest.mark.parametrize("words", [(), ("--why", "cuda")])
def test_a_correction_is_suggested_if_no_node_offers_the_resource(words: tuple[str, ...]) -> None:
    pods = [pod_requesting("cuda", "nvidia.com/gpu")]
    warning = f"warning: pod default/cuda: container main asks for nvidia.com/gpu, {WRITE}"
    assert warning in remarks(pods, *words)
    assert warning not in remarks(pods, *words, offered="2")
    assert warning not in remarks(pods, *words, nodes="Error from server (Forbidden): no")


def test_offered_names_are_known_and_unrelated_ones_are_ignored() -> None:
    assert (
        remarks([pod_requesting("other", "example.com/fpga"), pod_requesting("ours", "aliyun.com/gpu-mem")])
        == ()
    )
    (one,) = remarks([pod_requesting("hami", "nvidia.com/gpumem")])
    assert one.endswith("write aliyun.com/gpu-mem in units, or gpushare.dev/gpu-memory such as 6Gi")
    assert remarks([pod_requesting("runs", "nvidia.com/gpu", node="n1")], "--why", "runs")[:-1] == ()


@pytest.mark.parametrize("resource", ["aliyun.com/gpu-memory", "aliyun.com/gpumem", "aliyun.com/gpu-men"])
def test_pending_pods_with_a_misspelt_resource_are_named_with_the_intended_one(resource: str) -> None:
    (one,) = remarks([pod_requesting("slip", resource)])
    warning = f"warning: pod default/slip: container main asks for {resource}, which no node offers to pods; write aliyun.com/gpu-mem"
    assert one.startswith(warning)
    offers = {"items": [{"status": {"capacity": {resource: "3"}}}]}
    assert remarks([pod_requesting("slip", resource)], nodes=offers) == ()
    why_remarks = remarks([pod_requesting("slip", resource)], "--why", "slip")
    assert [resource in one for one in why_remarks].count(True) == 1


def test_of_many_pods_some_are_named_and_those_of_other_namespaces_are_not() -> None:
    pods = [pod_requesting(f"p{number}", "nvidia.com/gpu") for number in range(5)]
    found = remarks(pods)
    assert [one.partition(":")[0] for one in found] == ["warning"] * 4
    assert found[-1] == "warning: and 2 more containers"
    assert remarks(pods, "--pending", "-n", "other") == ()
