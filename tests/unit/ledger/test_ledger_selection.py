"""Pods that select GPUs get no others, when placed, by evictions or by moves; reasons name what is excluded."""

import pytest
from msgspec import structs

from gpushare.api.node.device import Device, NodeDevices, Placement
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.gpu_selection import GpuSelection
from gpushare.api.request.request import Request
from gpushare.ledger import Ledger
from gpushare.ledger.preemption.vacating import WantedGpus
from gpushare.ledger.preemption.victims import Rank
from gpushare.planning.defragmentation import Move, Spot, outlook
from tests.unit.ledger.ledger_samples import asks, counts, holding, share

A10_ONLY = GpuSelection(models=("A10",))
NOT_T4 = GpuSelection(models_excluded=("T4",))


def mixed(name: str = "n1", *models: str, mode: NodeMode = NodeMode.SHARE) -> NodeDevices:
    """A node with a GPU of 8 GiB of each of ``models``."""
    devices = tuple(
        Device(index, f"{name}-{index}", 8192, model)
        for index, model in enumerate(models or ("Tesla T4", "NVIDIA A10", "NVIDIA A10"))
    )
    return NodeDevices(name, mode, MemoryUnit.GIB, devices)


def selecting(request: Request, selection: GpuSelection = A10_ONLY) -> Request:
    return structs.replace(request, selection=selection)


def reason(ledger: Ledger, request: Request) -> tuple[str, bool]:
    verdict = ledger.filter(request, ["n1"])
    assert not verdict.fits
    return {**verdict.refused, **verdict.hopeless}["n1"], "n1" in verdict.hopeless


@pytest.mark.parametrize("placement", Placement)
@pytest.mark.parametrize("request_", [asks(2), asks(2, gpus=2), asks(2, whole=True)])
def test_a_share_and_several_gpus_are_taken_from_the_selected_gpus(
    request_: Request, placement: Placement
) -> None:
    ledger = Ledger.of([structs.replace(mixed(), placement=placement)])
    allocation = ledger.reserve("u", "p", selecting(request_), "n1")
    assert {gpu.index for gpu in allocation.gpus} <= {1, 2}
    assert len(allocation.gpus) == request_.gpu_count


def test_whole_gpus_by_number_are_taken_from_the_selected_gpus() -> None:
    ledger = Ledger.of([mixed(mode=NodeMode.TOPOLOGY)])
    assert [gpu.index for gpu in ledger.reserve("u", "p", selecting(counts(2)), "n1").gpus] == [1, 2]
    assert reason(ledger, selecting(counts(1), NOT_T4)) == (
        "needs a GPU completely free, but no GPU is; 1 GPU is T4 (gpushare.dev/gpu-model-exclude)",
        False,
    )


@pytest.mark.parametrize(
    ("request_", "selection", "expected", "hopeless"),
    [
        (
            asks(1),
            GpuSelection(models=("L4", "H100")),
            "no GPU is L4 or H100 (gpushare.dev/gpu-model)",
            True,
        ),
        (
            asks(1),
            GpuSelection(models=("A10",), min_mib=16384),
            "1 GPU is not A10 (gpushare.dev/gpu-model), 2 GPUs have less than 16 GiB (gpushare.dev/gpu-memory-min)",
            True,
        ),
        (
            asks(1, gpus=3),
            A10_ONLY,
            "requests 3 GPUs, but its annotations allow only 2 of this node: 1 GPU is not A10 (gpushare.dev/gpu-model)",
            True,
        ),
        (
            asks(9),
            NOT_T4,
            "requests 9 GiB, but the largest GPU has 8 GiB; 1 GPU is T4 (gpushare.dev/gpu-model-exclude)",
            True,
        ),
        (
            asks(4),
            A10_ONLY,
            "no single GPU has 4 GiB free (largest free: 2 GiB on GPU 2); 1 GPU is not A10 (gpushare.dev/gpu-model)",
            False,
        ),
        (
            asks(1),
            GpuSelection(architectures_excluded=("turing",)),
            "every GPU is of unknown architecture (gpushare.dev/gpu-architecture-exclude)",
            True,
        ),
        (
            asks(1),
            GpuSelection(uuids_excluded=("n1-0", "n1-1", "n1-2")),
            "every GPU is excluded (gpushare.dev/gpu-uuid-exclude)",
            True,
        ),
    ],
)
def test_reasons_name_what_excludes_gpus(
    request_: Request, selection: GpuSelection, expected: str, hopeless: bool
) -> None:
    ledger = Ledger.of([mixed()])
    ledger.hold("x", "x", "n1", holding(share("n1-1", 7168, 7, 8), share("n1-2", 6144, 6, 8)))
    assert reason(ledger, selecting(request_, selection)) == (expected, hopeless)


def test_new_kinds_of_gpus_and_changed_gpus_are_noticed() -> None:
    ledger = Ledger.of([mixed("n1", "Tesla T4")])
    assert not ledger.fitting(selecting(asks(1)), ["n1"])
    ledger.set_node(mixed("n2", "NVIDIA A10"))
    assert ledger.fitting(selecting(asks(1)), ["n1", "n2"]) == ["n2"]
    ledger.set_node(mixed("n1", "NVIDIA A10"))
    ledger.set_node(mixed("n2", "Tesla T4"))
    assert ledger.fitting(selecting(asks(1)), ["n1", "n2"]) == ["n1"]


def test_scores_count_only_the_gpus_that_the_pod_may_have() -> None:
    ledger = Ledger.of([mixed("n1", "Tesla T4", "NVIDIA A10"), mixed("n2", "Tesla T4", "NVIDIA A10")])
    # The fullest GPU is a T4 of n1, the fullest A10 is on n2.
    ledger.hold("x", "x", "n1", holding(share("n1-0", 6144, 6, 8)))
    ledger.hold("y", "y", "n2", holding(share("n2-1", 4096, 4, 8, index=1)))
    assert ledger.best(asks(2), ["n1", "n2"]) == "n1"
    assert ledger.best(selecting(asks(2)), ["n1", "n2"]) == "n2"


def test_evictions_free_only_selected_gpus() -> None:
    ledger = Ledger.of([mixed("n1", "Tesla T4", "NVIDIA A10")])
    ledger.hold("cheap", "cheap", "n1", holding(share("n1-0", 8192, 8, 8)), priority=-5)
    ledger.hold("dear", "dear", "n1", holding(share("n1-1", 8192, 8, 8, index=1)))
    plan = ledger.evictions.plan(
        selecting(asks(4)), ["n1"], lambda uid: Rank(-5 if uid == "cheap" else 0), priority=10
    )
    assert plan is not None
    assert (plan.victims, plan.rows) == (("dear",), (1,))
    none = selecting(asks(4), GpuSelection(models=("L4",)))
    assert ledger.evictions.plan(none, ["n1"], lambda uid: Rank(0), priority=10) is None


def test_pods_move_neither_to_gpus_they_exclude_nor_for_gpus_that_the_pending_pod_excludes() -> None:
    ledger = Ledger.of([mixed("n1", "NVIDIA A10", "NVIDIA A10"), mixed("n2", "Tesla T4")])
    for index in (0, 1):
        ledger.hold(f"p{index}", "p", "n1", holding(share(f"n1-{index}", 4096, 4, 8, index=index)))

    def moves(request: Request, selection: GpuSelection | None) -> tuple[Move, ...]:
        hosts = [
            ledger.evictions.host(name, lambda uid: True, lambda uid: WantedGpus(selection=selection))
            for name in ("n1", "n2")
        ]
        return outlook([host for host in hosts if host is not None], request).moves

    (move,) = moves(selecting(asks(8)), None)
    assert (move.source, move.target) == (Spot("n1", 0), Spot("n1", 1))
    ledger.hold("p1", "p", "n1", holding(share("n1-1", 6144, 6, 8, index=1)))
    (move,) = moves(selecting(asks(6)), None)
    assert move.target == Spot("n2", 0)
    assert not moves(selecting(asks(6)), NOT_T4)
    assert not moves(selecting(asks(8), GpuSelection(models=("L4",))), None)
