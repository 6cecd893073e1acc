"""Every GPU in the ledger, as Prometheus reads it, whatever came and went between two scrapes."""

import gzip
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import ContainerKind, ContainerRequest, Request
from gpushare.ledger import Ledger
from gpushare.ledger.errors import Refused
from gpushare.scheduler.observability.gpu_metrics import COLUMNS, GpuTable, snapshot, written
from gpushare.scheduler.observability.metrics import Metrics

ALLOCATED, COMPUTE = (one.name for one in COLUMNS)
Series = dict[tuple[str, str, str], float]


def node(name: str, gpus: int, first: int = 0) -> NodeDevices:
    devices = tuple(Device(first + one, f"GPU-{name}-{first + one}", 15360) for one in range(gpus))
    return NodeDevices(name, NodeMode.CORE_MEM, MemoryUnit.GIB, devices)


def request(units: int, core: int) -> Request:
    return Request(units, core, (ContainerRequest("c", ContainerKind.APP, 0, units, core),))


def parsed(text: bytes) -> Series:
    return {
        (sample.name, sample.labels["node"], sample.labels["gpu"]): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name in (ALLOCATED, COMPUTE)
    }


def by_the_ledger(ledger: Ledger, *nodes: str) -> Series:
    found: Series = {}
    for name in nodes:
        for gpu in ledger.usage(name).gpus:
            found[ALLOCATED, name, str(gpu.index)] = gpu.used_mib * 2.0**20
            found[COMPUTE, name, str(gpu.index)] = gpu.used_core / 100
    return found


def test_without_gpus_there_are_no_lines() -> None:
    ledger = Ledger()
    assert GpuTable().render(snapshot(ledger)) == b""
    ledger.set_node(node("bare", 0))
    assert GpuTable().render(snapshot(ledger)) == b""


def test_a_mig_instance_has_its_label() -> None:
    ledger = Ledger()
    whole = node("divided", 1)
    instance = Device(20, "MIG-a", 40192)
    ledger.set_node(replace(whole, devices=(*whole.devices, instance)))
    assert {gpu for _, _, gpu in parsed(GpuTable().render(snapshot(ledger)))} == {"0", "0/4"}


def test_the_lines_follow_nodes_that_come_change_and_go_and_what_pods_hold() -> None:
    ledger, table, chance = Ledger(), GpuTable(), random.Random(7)
    present: dict[str, NodeDevices] = {}
    for turn in range(60):
        name = f"n{chance.randrange(12)}" + "-with-a-long-name" * (turn // 20)
        match chance.randrange(4):
            case 0:
                present[name] = node(name, chance.randint(1, 8), first=chance.choice((0, 3)))
                ledger.set_node(present[name])
            case 1 if name in present:
                del present[name]
                ledger.remove_node(name)
            case _ if present:
                requested = request(chance.randint(1, 7), 5 * chance.randint(1, 10))
                try:
                    ledger.reserve(f"u{turn}", f"default/p{turn}", requested, chance.choice(sorted(present)))
                except Refused:
                    ledger.release(f"u{chance.randrange(turn)}")
        assert parsed(table.render(snapshot(ledger))) == by_the_ledger(ledger, *present)


@given(st.lists(st.integers(-5, 10**15 - 1), min_size=1, max_size=8), st.integers(0, 3))
def test_numbers_are_written_exactly(numbers: list[int], decimals: int) -> None:
    lines = written(np.array(numbers, dtype=np.int64), decimals)
    for number, line in zip(numbers, lines, strict=True):
        text = line.tobytes().decode()
        assert text[0] == " "
        whole, point, part = text.strip().partition(".")
        assert (len(part), bool(point)) == (decimals, bool(decimals))
        assert int(whole + part) == max(number, 0)
        assert not whole.startswith("0") or whole == "0"


@pytest.mark.parametrize("packed", [True, False])
async def test_a_scrape_has_the_process_metrics_and_every_gpu(packed: bool) -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", 2))
    ledger.reserve("u", "default/p", request(3, 30), "n1")
    metrics = Metrics(ledger)
    metrics.bind_attempts.labels("success").inc()
    metrics.watch_by("gpushare_scheduler_x", "By kind.", "kind", lambda: {"b": 2, "a": 1})
    for _ in range(2):
        text, is_packed = await metrics.answer(packed=packed)
        assert is_packed is packed
        text = gzip.decompress(text) if packed else text
        assert parsed(text) == by_the_ledger(ledger, "n1")
        assert b'gpushare_scheduler_bind_attempts_total{result="success"} 1.0' in text
        assert b'gpushare_scheduler_x{kind="a"} 1.0\ngpushare_scheduler_x{kind="b"} 2.0' in text


async def test_without_a_ledger_there_are_only_the_process_metrics() -> None:
    text, packed = await Metrics().answer(packed=False)
    assert (b"gpushare_scheduler_bind_attempts" in text, b"{node=" in text, packed) == (True, False, False)
