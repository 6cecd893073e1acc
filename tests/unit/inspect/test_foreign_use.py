"""Memory used without an allocation: every view whose figures it changes reports it."""

import json
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.node.device import Device
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import ContainerKind, ContainerRequest, Request
from gpushare.inspect.arguments import parse
from gpushare.inspect.render import render
from gpushare.inspect.sources.kubectl import Kubectl, Round
from gpushare.ledger import Ledger
from tests.unit.inspect.clusters import T4_MIB, V100_MIB, device, node, placed, seen
from tests.unit.inspect.schema import faults

BY = "process 4711 (in no pod)"


def used(foreign_mib: int = 9024, by: str = BY, gpu: Device | None = None) -> Device:
    return msgspec.structs.replace(gpu or device(0), foreign_mib=foreign_mib, foreign_by=by)


class _Read:
    """A node with one GPU, and no pods."""

    def __init__(self, gpu: Device) -> None:
        self._nodes = [msgspec.to_builtins(node("n", "10.0.0.1", [gpu]))]

    def finish(self) -> tuple[bytes, bytes]:
        return json.dumps({"items": self._nodes}).encode(), b'{"items": []}'


def shown(gpu: Device, *arguments: str) -> tuple[str, tuple[str, ...]]:
    view = render(Kubectl(program="none"), parse(list(arguments)), cast("Round", _Read(gpu)))
    return view.text, view.remarks


@pytest.mark.parametrize("arguments", [[], ["-d"], ["-o", "wide"], ["-d", "-o", "wide"], ["--fragmentation"]])
def test_tables_come_with_a_warning_that_names_it(arguments: list[str]) -> None:
    text, remarks = shown(used(), *arguments)
    assert remarks == (
        f"warning: node n: 9024 MiB of GPU 0 are used without an allocation by {BY}: 6 of its 15 units can be allocated",
    )
    if arguments == ["--fragmentation"]:
        assert "6 GiB are free on 1 GPU; the most on one GPU is 6 GiB." in text


@pytest.mark.parametrize("arguments", [[], ["-d"]])
def test_the_documented_tables_are_the_same_with_it_and_without(arguments: list[str]) -> None:
    assert shown(used(), *arguments)[0] == shown(device(0), *arguments)[0]
    assert shown(device(0), *arguments)[1] == ()


def test_the_document_contains_the_amount_and_the_user() -> None:
    document = json.loads(shown(used(), "-o", "json")[0])
    assert faults(document) == []
    (gpu,) = document["nodes"][0]["gpus"]
    assert (gpu["foreignMiB"], gpu["foreignBy"]) == (9024, BY)
    (gpu,) = json.loads(shown(device(0), "-o", "json")[0])["nodes"][0]["gpus"]
    assert not {"foreignMiB", "foreignBy"} & gpu.keys()


def test_an_earlier_node_agent_does_not_name_the_user() -> None:
    assert shown(used(by=""))[1] == (
        "warning: node n: 9024 MiB of GPU 0 are used without an allocation: 6 of its 15 units can be allocated",
    )


@given(
    st.sampled_from((T4_MIB, V100_MIB, 143155)),
    st.sampled_from(tuple(MemoryUnit)),
    st.integers(0, 150_000),
    st.lists(st.integers(1, 40), max_size=3),
)
def test_the_allocatable_amount_is_what_the_scheduler_would_allocate(
    total_mib: int, unit: MemoryUnit, foreign_mib: int, shares: list[int]
) -> None:
    gpu = used(min(foreign_mib, total_mib), gpu=device(0, total_mib))
    total_units = unit.count_in(total_mib)
    pods, left = [], total_units
    for number, units in enumerate(shares):
        if units <= left:
            pods.append(placed(f"p{number}", "n", gpu, units, unit=unit))
            left -= units
    (usage,) = seen([node("n", "10.0.0.1", [gpu], unit=unit)], pods).nodes
    ledger = Ledger()
    taken = msgspec.structs.replace(gpu, foreign_mib=min(usage.gpus[0].used_mib + gpu.foreign_mib, total_mib))
    ledger.set_node(msgspec.structs.replace(usage.devices, devices=(taken,), max_pods=None))

    def fits(units: int) -> bool:
        request = Request(units, 0, (ContainerRequest("main", ContainerKind.APP, 0, units, 0),))
        return bool(ledger.filter(request, ("n",)).fits)

    free_units = usage.gpus[0].free_units
    assert free_units == 0 or fits(free_units)
    assert not fits(free_units + 1)
