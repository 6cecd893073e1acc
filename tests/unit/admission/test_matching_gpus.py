"""Pods whose annotations allow no GPU of the cluster, at a webhook that rejects them."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from gpushare.admission.accept.translation import PRODUCTS
from gpushare.admission.review.matching_gpus import FRESH_S, MatchingGpus
from gpushare.api import names
from gpushare.api.node.device import Device, devices_annotation
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.kube.client.errors import ApiError, Unreachable
from tests.admission_accept import Case, pod, share
from tests.unit.admission.reviews import Templates, answered, review, reviewer
from tests.unit.kube.scripted import ScriptedClock

A10 = Device(0, "GPU-a10", 23028, model="NVIDIA A10", architecture="ampere")
V100 = Device(1, "GPU-v100", 16160, model="Tesla V100-SXM2-16GB", architecture="volta")
LABEL = names.LABEL_MODE


class Server:
    """Lists its nodes a page each; ``trouble`` is raised instead."""

    def __init__(self, *nodes: dict[str, Any], trouble: Exception | None = None) -> None:
        self.nodes = list(nodes)
        self.trouble = trouble
        self.lists = 0

    async def request(self, method: str, path: str, *, params: Mapping[str, str], timeout_s: float) -> bytes:
        assert (method, path) == ("GET", "/api/v1/nodes")
        if self.trouble is not None:
            raise self.trouble
        at = int(params.get("continue", 0))
        self.lists += at == 0
        more = {"continue": str(at + 1)} if at + 1 < len(self.nodes) else {}
        return json.dumps({"metadata": more, "items": self.nodes[at : at + 1]}).encode()


class Hanging:
    async def request(self, *args: Any, **kwargs: Any) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError


def node(name: str, *gpus: Device) -> dict[str, Any]:
    described = devices_annotation(NodeMode.CGPU, MemoryUnit.GIB, gpus)
    return {
        "metadata": {"name": name, "labels": {LABEL: "cgpu"}, "annotations": {names.ANN_DEVICES: described}}
    }


PLAIN = {"metadata": {"name": "cpu"}}
STARTING = {"metadata": {"name": "starting", "labels": {LABEL: "cgpu"}}}
MALFORMED = {"metadata": {"name": "odd", "labels": {LABEL: "cgpu"}, "annotations": {names.ANN_DEVICES: "{"}}}
#: Another vendor's agent: units and a number of GPUs, no models.
OTHER_AGENT = {
    "metadata": {"name": "other", "labels": {LABEL: "share"}},
    "status": {
        "capacity": {names.GPU_MEM: "30", names.GPU_COUNT: "2"},
        "allocatable": {names.GPU_MEM: "30", names.GPU_COUNT: "2"},
    },
}
CLUSTER = (PLAIN, node("n1", A10, V100), node("n2", V100))


def choosing(**annotations: str) -> dict[str, Any]:
    chosen = {f"gpushare.dev/{name.replace('_', '-')}": text for name, text in annotations.items()}
    return pod(Case("choosy", {"main": share(4)}, annotations=chosen))


async def response(sent: dict[str, Any], server: Any, **changes: Any) -> dict[str, Any]:
    return answered(
        await reviewer(gpus=MatchingGpus(server, within_s=0.5), **changes).accept(review("pods", sent))
    )


ACCEPTED = {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize(
    "annotations",
    [
        {"gpu_model": "L4,A10"},
        {"gpu_model": "V100", "gpu_memory_min": "15Gi", "gpu_architecture": "volta"},
        {"gpu_model_exclude": "A10"},
        {"gpu_uuid": "GPU-v100"},
        {"gpu_uuid_exclude": "GPU-v100"},
        {"gpu_placement": "spread"},
        {},
    ],
    ids=lambda annotations: ",".join(annotations) or "none",
)
async def test_a_pod_that_some_gpu_suits_is_accepted(annotations: dict[str, str]) -> None:
    assert await response(choosing(**annotations), Server(*CLUSTER)) == ACCEPTED


@pytest.mark.parametrize(
    "annotations",
    [
        {"gpu_model": "L4"},
        {"gpu_model": "A10", "gpu_architecture": "volta"},
        {"gpu_memory_max": "8Gi"},
        {"gpu_uuid": "GPU-gone"},
        {"gpu_model": "A10", "gpu_uuid": "GPU-v100"},
        {"gpu_uuid_exclude": "GPU-v100,GPU-a10"},
    ],
    ids=lambda annotations: ",".join(annotations),
)
async def test_a_pod_that_no_gpu_suits_is_rejected_with_what_there_is(annotations: dict[str, str]) -> None:
    sent = choosing(**annotations)
    status = (await response(sent, Server(*CLUSTER)))["status"]
    assert (status["code"], status["reason"]) == (422, "Invalid")
    written = "; ".join(f"{name}: {text}" for name, text in sent["metadata"]["annotations"].items())
    assert status["message"] == (
        f"no GPU of this cluster matches the annotations ({written}): "
        "there are 1 × NVIDIA A10 (ampere, 23028 MiB), 1 × Tesla V100-SXM2-16GB (volta, 16160 MiB)"
    )


async def test_a_template_that_no_gpu_suits_has_a_warning() -> None:
    template = {"spec": {"template": choosing(gpu_model="L4")}}
    sent = review("deployments", template, group="apps")
    answer = answered(await reviewer(gpus=MatchingGpus(Server(*CLUSTER))).accept(sent))
    assert answer["allowed"]
    [warning] = answer["warnings"]
    assert warning.startswith("no GPU of this cluster matches the annotations (gpushare.dev/gpu-model: L4)")


@pytest.mark.parametrize("unknown", [STARTING, MALFORMED], ids=["starting", "malformed"])
async def test_while_the_gpus_of_a_node_are_unknown_every_pod_is_accepted(unknown: dict[str, Any]) -> None:
    assert await response(choosing(gpu_model="L4"), Server(*CLUSTER, unknown)) == ACCEPTED


async def test_gpus_of_another_agent_are_known_by_their_memory_alone() -> None:
    assert await response(choosing(gpu_memory_min="15Gi"), Server(OTHER_AGENT)) == ACCEPTED
    status = (await response(choosing(gpu_model="A10"), Server(OTHER_AGENT)))["status"]
    assert "there are 2 × unknown model (15 GiB)" in status["message"]


async def test_a_cluster_without_gpus_suits_no_choice() -> None:
    status = (await response(choosing(gpu_model="A10"), Server(PLAIN)))["status"]
    assert status["message"].endswith("there are no GPUs")


@pytest.mark.parametrize(
    "server",
    [
        Server(trouble=Unreachable("https://api", "connection refused", sent=False)),
        Server(trouble=ApiError(403, "Forbidden", "forbidden", "/api/v1/nodes")),
        Server({"metadata": 1}),
        Hanging(),
    ],
    ids=["unreachable", "forbidden", "malformed", "slow"],
)
async def test_pods_are_accepted_while_nodes_cannot_be_listed(
    server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert await response(choosing(gpu_model="L4"), server) == ACCEPTED
    assert "so the choice of GPUs is not checked" in caplog.text


async def test_nodes_are_listed_once_for_many_pods_and_again_later() -> None:
    server, clock = Server(*CLUSTER), ScriptedClock()
    judge = reviewer(gpus=MatchingGpus(server, clock))
    body = review("pods", choosing(gpu_model="L4"))
    answers = await asyncio.gather(*(judge.accept(body) for _ in range(20)))
    assert not any(answered(one)["allowed"] for one in answers)
    assert server.lists == 1
    server.nodes.append(node("new", Device(0, "GPU-l4", 23034, model="NVIDIA L4")))
    clock.now_s += FRESH_S
    assert answered(await judge.accept(body)) == ACCEPTED
    assert server.lists == 2


async def test_pods_that_choose_nothing_list_no_nodes() -> None:
    server = Server(*CLUSTER)
    without_gpu = {**choosing(gpu_model="L4"), "spec": {"containers": [{"name": "main"}]}}
    opted_out = choosing(gpu_model="L4")
    opted_out["metadata"]["labels"] = {names.LABEL_ADMISSION: "disabled"}
    for sent in (choosing(), without_gpu, opted_out, choosing(gpu_model="")):
        assert (await response(sent, server))["allowed"]
    assert server.lists == 0


async def test_choices_in_the_words_of_another_scheduler_count() -> None:
    sent = pod(
        Case(
            "hami",
            {"main": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}},
            annotations={"nvidia.com/use-gputype": "L4"},
        )
    )
    answer = await response(sent, Server(*CLUSTER), accepted=tuple(PRODUCTS.values()))
    assert "gpushare.dev/gpu-model: L4" in answer["status"]["message"]


async def test_nothing_is_created_for_a_rejected_pod() -> None:
    templates = Templates()
    answer = await response(choosing(gpu_model="L4"), Server(*CLUSTER), claim_templates=templates)
    assert not answer["allowed"]
    assert not templates.made
