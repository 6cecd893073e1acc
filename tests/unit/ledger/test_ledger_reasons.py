"""Every refusal states its reason in GiB and MiB, and whether eviction could help."""

import msgspec
import pytest

from gpushare.api.node.device import NodeDevices
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import MOST_UNITS, Request
from gpushare.ledger import Ledger, LedgerError, Refused
from gpushare.ledger.fit.reasons import Parts
from tests.unit.ledger.ledger_samples import T4, V100, asks, holding, node, share

Case = tuple[NodeDevices | None, list[Request], Request, str, bool]


def case(
    on_node: NodeDevices | None, request: Request, expected: str, *pods: Request, hopeless: bool = False
) -> Case:
    """With ``pods`` placed one after the other, the node refuses ``request`` with the reason ``expected``."""
    return on_node, list(pods), request, expected, hopeless


def divided(whole: NodeDevices) -> NodeDevices:
    """The node with its last GPU as the MIG instance that begins at memory slice 4 of GPU 0."""
    *others, last = whole.devices
    instance = msgspec.structs.replace(last, index=20, uuid="MIG-a")
    return msgspec.structs.replace(whole, devices=(*others, instance))


CASES: dict[str, Case] = {
    "a MIG instance is named by its label": case(
        divided(node("n1", T4, 40192)),
        asks(30),
        "no single GPU has 30 GiB free (largest free: 19 GiB on GPU 0/4)",
        asks(20),
    ),
    "a MIG instance with too little compute is named by its label": case(
        divided(node("n1", T4, 40192, mode=NodeMode.CORE_MEM)),
        asks(16, 60),
        "no single GPU has 16 GiB and 60% compute free (closest: GPU 0/4 with 19 GiB and 50%)",
        asks(20, 50),
    ),
    "an unknown node is reported as such": case(None, asks(1), "node is not known to the scheduler yet"),
    "free memory on two GPUs does not add up": case(
        node("n1", 8 * 1024, 8 * 1024),
        asks(8),
        "no single GPU has 8 GiB free (largest free: 4 GiB on GPU 1)",
        asks(5),
        asks(4),
    ),
    "of GPUs with equal free memory the first is named": case(
        node("n1", V100, V100),
        asks(8),
        "no single GPU has 8 GiB free (largest free: 7 GiB on GPU 0)",
        asks(8),
        asks(8),
    ),
    "a full node is reported as such": case(
        node("n1", T4), asks(1), "no single GPU has 1 GiB free (every GPU is full)", asks(15)
    ),
    "GPUs out of service are not called full": case(
        node("n1", T4, T4, T4, T4, sick={1: "GPU is lost", 2: "GPU is lost", 3: "XID 79"}),
        asks(1),
        "no single GPU has 1 GiB free (every GPU in service is full: 1 of 4); GPU 1 is unhealthy: GPU is lost; "
        "GPU 2 is unhealthy: GPU is lost; GPU 3 is unhealthy: XID 79",
        asks(15),
    ),
    "in units of 128 MiB the sizes are those of the units": case(
        node("n1", T4, unit=MemoryUnit.MIB_128),
        asks(17),
        "no single GPU has 2176 MiB free (largest free: 2 GiB on GPU 0)",
        asks(104),
    ),
    "a request larger than every GPU is hopeless": case(
        node("n1", V100, 8 * 1024), asks(20), "requests 20 GiB, but the largest GPU has 15 GiB", hopeless=True
    ),
    "a request beyond all reason is hopeless too": case(
        node("n1", T4),
        asks(MOST_UNITS),
        f"requests {MOST_UNITS} GiB, but the largest GPU has 15 GiB "
        "(aliyun.com/gpu-mem is a number of units of 1 GiB, without Mi or Gi)",
        hopeless=True,
    ),
    "a GPU smaller than a unit is less than a unit": case(
        node("n1", 1000), asks(1), "requests 1 GiB, but the largest GPU has less than 1 GiB", hopeless=True
    ),
    "lack of compute is named next to the memory": case(
        node("n1", T4, T4, mode=NodeMode.CORE_MEM),
        asks(4, 30),
        "no single GPU has 4 GiB and 30% compute free (closest: GPU 1 with 12 GiB and 20%)",
        asks(2, 90),
        asks(3, 80),
    ),
    "more compute than one GPU has is hopeless": case(
        node("n1", T4, mode=NodeMode.CORE_MEM),
        asks(4, 120),
        "requests 120% compute, but one GPU has 100%",
        hopeless=True,
    ),
    "lack of memory is named before compute": case(
        node("n1", T4, mode=NodeMode.CORE_MEM),
        asks(14, 100),
        "no single GPU has 14 GiB free (largest free: 13 GiB on GPU 0)",
        asks(2, 5),
    ),
    "the pod cap is named where memory would suffice": case(
        node("n1", T4, T4, max_pods=1),
        asks(3),
        "every GPU with enough free capacity already has 1 pod, the maximum",
        asks(14),
        asks(2),
    ),
    "the hard cap of an isolated node counts to 16": case(
        node("n1", 40 * 1024, max_pods=16),
        asks(1),
        "every GPU with enough free capacity already has 16 pods, the maximum",
        *[asks(1)] * 16,
    ),
    "pods with compute keep out one with memory alone": case(
        node("n1", T4, T4, mode=NodeMode.CORE_MEM),
        asks(1),
        "node has 1 pod with GPU memory and compute, so a memory-only pod cannot use it",
        asks(1, 5),
    ),
    "pods with memory alone keep out one with compute": case(
        node("n1", T4, T4, mode=NodeMode.CORE_MEM),
        asks(1, 5),
        "node has 2 pods with GPU memory only, so a pod that also requests compute cannot use it",
        asks(1),
        asks(1),
    ),
    "an unhealthy GPU is hopeless where no other is large enough": case(
        node("n1", T4, 2048, sick={0: "XID 79, fallen off the bus"}),
        asks(4),
        "no GPU with 4 GiB or more is in service (GPU 0 is unhealthy: XID 79, fallen off the bus)",
        hopeless=True,
    ),
    "an unhealthy GPU is mentioned where others are full": case(
        node("n1", T4, T4, T4, sick={0: "", 2: "XID 48"}),
        asks(4),
        "no single GPU has 4 GiB free (largest free: 3 GiB on GPU 1); GPU 0 is unhealthy; "
        "GPU 2 is unhealthy: XID 48",
        asks(12),
    ),
    "a switching node is reported as such": case(
        node("n1", T4, refusal="node is switching from share to cgpu"),
        asks(1),
        "node is switching from share to cgpu",
        hopeless=True,
    ),
    "a topology node shares nothing": case(
        node("n1", T4, mode=NodeMode.TOPOLOGY),
        asks(1),
        "node shares no GPU memory (it is in mode topology, label ack.node.gpu.schedule)",
        hopeless=True,
    ),
    "a node without GPUs has none": case(node("n1"), asks(1), "node has no GPU", hopeless=True),
    "a node without compute names the mode that has it": case(
        node("n1", T4, mode=NodeMode.CGPU),
        asks(1, 5),
        "node offers no compute (it is in mode cgpu; aliyun.com/gpu-core.percentage needs label "
        "ack.node.gpu.schedule=core_mem)",
        hopeless=True,
    ),
}


@pytest.mark.parametrize("sentence", CASES)
def test_refusal(sentence: str) -> None:
    on_node, pods, request, expected, hopeless = CASES[sentence]
    ledger = Ledger()
    if on_node is not None:
        ledger.set_node(on_node)
    for number, pod in enumerate(pods):
        ledger.reserve(f"uid{number}", f"default/p{number}", pod, "n1")
    verdict = ledger.filter(request, ["n1"])
    assert verdict.fits == []
    assert (verdict.hopeless if hopeless else verdict.refused) == {"n1": expected}
    assert (verdict.refused if hopeless else verdict.hopeless) == {}


@pytest.mark.parametrize("sentence", CASES)
def test_reserve_refuses_with_the_same_reason(sentence: str) -> None:
    on_node, pods, request, expected, hopeless = CASES[sentence]
    ledger = Ledger()
    if on_node is not None:
        ledger.set_node(on_node)
    for number, pod in enumerate(pods):
        ledger.reserve(f"uid{number}", f"default/p{number}", pod, "n1")
    with pytest.raises(Refused) as refused:
        ledger.reserve("uid", "default/p", request, "n1")
    assert (refused.value.node, refused.value.reason, refused.value.hopeless) == ("n1", expected, hopeless)
    assert str(refused.value) == f"node n1: {expected}"
    assert isinstance(refused.value, LedgerError)
    assert ledger.held("uid") is None


def test_a_thousand_nodes_refuse_each_with_its_own_numbers() -> None:
    ledger = Ledger()
    names = [f"n{number}" for number in range(1000)]
    for number, name in enumerate(names):
        ledger.set_node(node(name, 1000 * 128, unit=MemoryUnit.MIB_128))
        ledger.reserve(name, name, asks(number + 1), name)
    refused = ledger.filter(asks(1000), names).refused
    assert list(refused) == names
    assert refused["n0"] == "no single GPU has 125 GiB free (largest free: 127872 MiB on GPU 0)"
    assert refused["n991"] == "no single GPU has 125 GiB free (largest free: 1 GiB on GPU 0)"
    assert refused["n999"] == "no single GPU has 125 GiB free (every GPU is full)"


def test_overcommitted_compute_is_reported_as_zero() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", T4, mode=NodeMode.CORE_MEM))
    for uid in ("a", "b"):
        ledger.hold(uid, f"default/{uid}", "n1", holding(share("n1-gpu0", 1024, core=60)))
    assert ledger.filter(asks(1, 5), ["n1"]).refused == {
        "n1": "no single GPU has 1 GiB and 5% compute free (closest: GPU 0 with 13 GiB and 0%)"
    }


def test_cached_parts_of_sentences_are_bounded() -> None:
    parts = Parts(str)
    for key in range(50_000):
        assert parts[key] == str(key)
    assert len(parts) <= 20_000
    assert parts[1] == "1"
