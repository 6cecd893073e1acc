"""Several GPUs for one pod, and whole ones: which are allocated, how much of each, and reasons for refusals."""

import msgspec
import pytest

from gpushare.api.node.device import NodeDevices
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import Request
from gpushare.ledger import Ledger, Refused
from tests.unit.ledger.ledger_samples import A100, T4, V100, asks, node


def indices(ledger: Ledger, uid: str, request: Request, on: str = "n1") -> list[int]:
    """The indices of the pod's GPUs."""
    return [share.index for share in ledger.reserve(uid, f"default/{uid}", request, on).gpus]


def ledger_with(*nodes: NodeDevices) -> Ledger:
    ledger = Ledger()
    for one in nodes:
        ledger.set_node(one)
    return ledger


def test_gpus_of_different_sizes_give_the_same_number_of_units_each() -> None:
    ledger = ledger_with(node("n1", T4, A100))
    allocation = ledger.reserve("a", "default/a", asks(8, gpus=2), "n1")
    assert [(share.units, share.device_units, share.mib) for share in allocation.gpus] == [
        (8, 15, 8192),
        (8, 79, 8259),
    ]


def test_a_whole_gpu_is_the_smallest_that_fits_and_all_of_it() -> None:
    ledger = ledger_with(node("n1", A100, 16384, V100))
    allocation = ledger.reserve("a", "default/a", asks(14, whole=True), "n1")
    assert [(share.index, share.units, share.mib) for share in allocation.gpus] == [(2, 15, V100)]
    allocation = ledger.reserve("b", "default/b", asks(10, whole=True), "n1")
    assert [(share.index, share.units, share.mib) for share in allocation.gpus] == [(1, 16, 16384)]


def divided(whole: NodeDevices, *of: int) -> NodeDevices:
    """The node with MIG instances in place of these GPUs."""
    devices = [
        msgspec.structs.replace(device, uuid=f"MIG-{device.uuid}") if device.index in of else device
        for device in whole.devices
    ]
    return msgspec.structs.replace(whole, devices=tuple(devices))


def test_a_mig_instance_is_never_one_of_several() -> None:
    ledger = ledger_with(divided(node("n1", T4, T4, T4), 0))
    assert indices(ledger, "two", asks(4, gpus=2)) == [1, 2]
    assert indices(ledger, "one", asks(12)) == [0]
    ledger = ledger_with(divided(node("n1", T4, T4), 1))
    with pytest.raises(Refused, match="requests 2 GPUs, but the node has 1"):
        ledger.reserve("a", "default/a", asks(4, gpus=2), "n1")


def with_foreign_use(free: NodeDevices, index: int, foreign_mib: int) -> NodeDevices:
    devices = [
        msgspec.structs.replace(device, foreign_mib=foreign_mib) if device.index == index else device
        for device in free.devices
    ]
    return msgspec.structs.replace(free, devices=tuple(devices))


REFUSED: dict[str, tuple[NodeDevices, tuple[Request, ...], Request, str, bool]] = {
    "one GPU has too little": (
        node("n1", T4, T4),
        (asks(12), asks(4)),
        asks(4, gpus=2),
        "needs 2 GPUs with 4 GiB free each, but only GPU 1 has",
        False,
    ),
    "no GPU has enough": (
        node("n1", T4, T4),
        (asks(12), asks(12)),
        asks(4, gpus=2),
        "needs 2 GPUs with 4 GiB free each, but no GPU has",
        False,
    ),
    "two GPUs have enough where three are requested": (
        node("n1", T4, T4, T4, unit=MemoryUnit.MIB_128),
        (asks(118),),
        asks(3, gpus=3),
        "needs 3 GPUs with 384 MiB free each, but only GPUs 1 and 2 have",
        False,
    ),
    "the node has fewer GPUs": (
        node("n1", T4),
        (),
        asks(4, gpus=2),
        "requests 2 GPUs, but the node has 1",
        True,
    ),
    "too few of its GPUs are as large": (
        node("n1", T4, A100, T4),
        (),
        asks(20, gpus=2),
        "requests 2 GPUs with 20 GiB, but only GPU 1 is as large",
        True,
    ),
    "too few are healthy": (
        node("n1", T4, T4, sick={1: "XID 79"}),
        (),
        asks(4, gpus=2),
        "requests 2 GPUs with 4 GiB, but too few of them are in service (GPU 1 is unhealthy: XID 79)",
        True,
    ),
    "an unhealthy GPU is named next to what is short": (
        node("n1", T4, T4, T4, sick={2: "XID 79"}),
        (asks(12),),
        asks(4, gpus=2),
        "needs 2 GPUs with 4 GiB free each, but only GPU 1 has; GPU 2 is unhealthy: XID 79",
        False,
    ),
    "the others are at the cap of pods": (
        node("n1", T4, T4, max_pods=1),
        (asks(1),),
        asks(4, gpus=2),
        "needs 2 GPUs with 4 GiB free each and fewer than 1 pod, but only GPU 1 has",
        False,
    ),
    "one GPU has the memory and not the compute": (
        node("n1", T4, T4, mode=NodeMode.CORE_MEM),
        (asks(1, 40),),
        asks(4, 70, gpus=2),
        "needs 2 GPUs with 4 GiB and 70% compute free each, but only GPU 1 has",
        False,
    ),
    "the node's GPUs have a server each": (
        node("n1", T4, T4, mode=NodeMode.MPS),
        (),
        asks(4, gpus=2),
        "node offers only one GPU per pod: in mode mps each GPU has its own MPS server, and a program can use only one",
        True,
    ),
    "the node holds pods with compute": (
        node("n1", T4, T4, mode=NodeMode.CORE_MEM),
        (asks(1, 30),),
        asks(4, gpus=2),
        "node has 1 pod with GPU memory and compute, so a memory-only pod cannot use it",
        False,
    ),
    "every GPU is in use": (
        node("n1", T4, T4),
        (asks(1), asks(15)),
        asks(4, whole=True),
        "needs a GPU with 4 GiB or more completely free, but no GPU is",
        False,
    ),
    "only one of two is not in use": (
        node("n1", T4, T4),
        (asks(1),),
        asks(4, gpus=2, whole=True),
        "needs 2 GPUs with 4 GiB or more completely free, but only GPU 1 is",
        False,
    ),
    "others use the GPU": (
        with_foreign_use(node("n1", T4), 0, 64),
        (),
        asks(4, whole=True),
        "needs a GPU with 4 GiB or more completely free, but no GPU is; 64 MiB of GPU 0 are used without an allocation",
        False,
    ),
    "no GPU is as large as the whole one": (
        node("n1", T4),
        (),
        asks(16, whole=True),
        "requests 16 GiB, but the largest GPU has 15 GiB",
        True,
    ),
    "the large ones are sick": (
        node("n1", T4, sick={0: ""}),
        (),
        asks(4, whole=True),
        "no GPU with 4 GiB or more is in service (GPU 0 is unhealthy)",
        True,
    ),
}


@pytest.mark.parametrize(
    ("on_node", "pods", "request_", "expected", "hopeless"), REFUSED.values(), ids=REFUSED.keys()
)
def test_a_refusal_names_the_gpus_that_would_suit(
    on_node: NodeDevices, pods: tuple[Request, ...], request_: Request, expected: str, hopeless: bool
) -> None:
    ledger = ledger_with(on_node)
    for number, one in enumerate(pods):
        ledger.reserve(f"p{number}", f"default/p{number}", one, on_node.name)
    with pytest.raises(Refused) as refused:
        ledger.reserve("new", "default/new", request_, on_node.name)
    assert (refused.value.reason, refused.value.hopeless) == (expected, hopeless)


def test_a_mode_in_which_pods_get_one_gpu_still_gives_a_whole_one() -> None:
    ledger = ledger_with(node("n1", T4, mode=NodeMode.MPS))
    assert indices(ledger, "a", asks(4, whole=True)) == [0]
