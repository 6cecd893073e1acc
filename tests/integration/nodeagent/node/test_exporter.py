"""The agent's two pages of metrics about GPUs, containers and processes: in our names, and in DCGM's and ACK's."""

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from gpushare.api import names
from gpushare.nodeagent.driver.telemetry import GpuReading
from gpushare.nodeagent.isolation.options import AskedIsolation
from gpushare.nodeagent.isolation.storage.directories import USAGE_BYTES, Directories
from gpushare.nodeagent.isolation.storage.files import Claimed, fingerprint
from gpushare.nodeagent.isolation.watchdog.violations import GpuProcess
from gpushare.nodeagent.observability import dcgm_exporter, gpu_metrics
from tests.integration.nodeagent import cluster_objects as objects
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.isolation.test_watchdog import (
    contained,
    process,
    report_container,
    uses,
    watch,
)
from tests.integration.nodeagent.pods.test_whole_gpus_follow import wants
from tests.integration.nodeagent.scripted_nvml import gpu

FAMILIES = {**gpu_metrics.FAMILIES, **dcgm_exporter.FAMILIES}
MIB = 1 << 20
NODE = objects.NODE
G0 = gpu(0).uuid


def scraped(world: World) -> dict[str, dict[tuple[str, ...], float]]:
    """Family → the values of its labels in order → value."""
    ours, theirs = (
        world.agent.metrics_pages.pages[path]().decode() for path in ("/metrics", "/metrics/dcgm")
    )
    found = read(ours)
    assert not any(name.startswith("DCGM") for name in found)
    assert all(line.startswith(("DCGM_", "# ")) for line in theirs.splitlines())
    return found | read(theirs)


def read(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            # The parser adds the suffix of counters to DCGM's, which have none.
            name = sample.name if sample.name in FAMILIES else sample.name.removesuffix("_total")
            if name in FAMILIES:
                labels = FAMILIES[name][2]
                assert sample.labels.keys() == set(labels)
                found.setdefault(name, {})[tuple(sample.labels[one] for one in labels)] = sample.value
    return found


async def until(world: World, condition: Any, what: str) -> dict[str, dict[tuple[str, ...], float]]:
    def looked() -> bool:
        try:
            return bool(condition(scraped(world)))
        except KeyError:
            return False

    await world.changes.until(looked, what)
    return scraped(world)


#: Of a node without a node pool and instance.
NOWHERE = (NODE, "", "")
DRIVER = "580.95.05"


async def test_each_gpus_metrics_have_our_names_and_dcgms(world: World) -> None:
    world.nvml.reading_of = {
        G0: GpuReading(G0, 30, 12, 4096, 11264, 61, 71500, DRIVER, 1590, 5000, 7, 9, 2, millijoules=123_500),
        gpu(1).uuid: GpuReading(gpu(1).uuid),
    }
    await world.start()
    labels = ("0", G0, gpu(0).pci_bus_id, "nvidia0", "Tesla T4", NODE, DRIVER, *NOWHERE)
    series = await until(world, lambda families: families["DCGM_FI_DEV_GPU_UTIL"], "readings")
    for name, value in (
        ("DCGM_FI_DEV_GPU_UTIL", 30.0),
        ("DCGM_FI_DEV_MEM_COPY_UTIL", 12.0),
        ("DCGM_FI_DEV_FB_USED", 4096.0),
        ("DCGM_FI_DEV_FB_FREE", 11264.0),
        ("DCGM_FI_DEV_GPU_TEMP", 61.0),
        ("DCGM_FI_DEV_POWER_USAGE", 71.5),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 123_500.0),
        ("DCGM_FI_DEV_SM_CLOCK", 1590.0),
        ("DCGM_FI_DEV_MEM_CLOCK", 5000.0),
        ("DCGM_FI_DEV_ENC_UTIL", 7.0),
        ("DCGM_FI_DEV_DEC_UTIL", 9.0),
        ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 2.0),
    ):
        assert series[name] == {labels: value}, name
    for name, value in (
        ("utilization_ratio", 0.3),
        ("memory_bus_utilization_ratio", 0.12),
        ("memory_used_bytes", 4096.0 * MIB),
        ("memory_free_bytes", 11264.0 * MIB),
        ("temperature_celsius", 61.0),
        ("power_watts", 71.5),
        ("energy_joules_total", 123.5),
        ("sm_clock_hertz", 1.59e9),
        ("memory_clock_hertz", 5e9),
        ("encoder_utilization_ratio", 0.07),
        ("decoder_utilization_ratio", 0.09),
        ("pcie_replays_total", 2.0),
    ):
        assert series[f"gpushare_gpu_{name}"] == {(NODE, "0", G0): value}, name
    assert series["gpushare_gpu_info"][NODE, "0", G0, gpu(0).pci_bus_id, "nvidia0", "Tesla T4", DRIVER] == 1.0
    assert set(series["gpushare_gpu_last_xid"].values()) == {0.0}
    assert set(series["DCGM_FI_DEV_XID_ERRORS"].values()) == {0.0}
    assert series["DCGM_CUSTOM_DEV_FB_TOTAL"][DRIVER, *NOWHERE, G0, "nvidia0", "0", "Tesla T4"] == 15360.0
    assert series["DCGM_CUSTOM_ALLOCATE_MODE"] == {(NODE,): 0.0}
    assert series["gpushare_gpu_memory_capacity_bytes"][NODE, "0", G0] == 15360.0 * MIB


async def test_a_removed_driver_leaves_no_stale_metrics(world: World) -> None:
    watch(world)
    world.nvml.reading_of = {G0: GpuReading(G0, 30, 12, 4096, 11264, 61, 71500, DRIVER)}
    await world.start(mode="core_mem")
    admitted = await world.run_pod("a", 3, on=0, core=30)
    await world.until_assigned("a")
    report_container(world, "a")
    process(world, 41, contained(admitted))
    uses(world, (41, 1000, 10))
    driver_families = (
        "gpushare_gpu_utilization_ratio",
        "gpushare_gpu_memory_used_bytes",
        "gpushare_container_memory_used_bytes",
        "gpushare_process_memory_used_bytes",
        "gpushare_gpu_unmanaged_processes",
        "DCGM_FI_DEV_FB_USED",
        "DCGM_CUSTOM_PROCESS_MEM_USED",
    )
    await until(world, lambda families: families.keys() >= set(driver_families), "all metrics")
    world.nvml.driver, world.nvml.exchanged = False, True
    await until(
        world, lambda families: families["gpushare_gpu_healthy"][NODE, "0", G0] == 0.0, "out of service"
    )
    series = scraped(world)
    assert not series.keys() & set(driver_families)
    assert series["gpushare_gpu_memory_allocated_bytes"][NODE, "0", G0] > 0
    world.nvml.driver = True
    await until(world, lambda families: families.keys() >= set(driver_families), "all metrics again")


async def test_without_the_watchdog_no_process_is_reported_as_unmanaged(world: World) -> None:
    watch(world, policy="off")
    await world.start()
    series = await until(world, lambda families: families["gpushare_gpu_healthy"], "GPUs")
    assert "gpushare_gpu_unmanaged_processes" not in series


async def test_xids_are_counted_and_the_last_one_is_reported(world: World) -> None:
    await world.start()
    for xid in (31, 79, 31):
        world.nvml.send_xid(G0, xid)
    series = await until(
        world, lambda families: sum(families["gpushare_gpu_xid_errors_total"].values()) == 3, "three XIDs"
    )
    assert series["gpushare_gpu_xid_errors_total"] == {(NODE, "0", G0, "31"): 2.0, (NODE, "0", G0, "79"): 1.0}
    assert {labels[1]: value for labels, value in series["DCGM_FI_DEV_XID_ERRORS"].items()}[G0] == 31.0
    assert series["gpushare_gpu_last_xid"][NODE, "0", G0] == 31.0
    await until(world, lambda families: families["gpushare_gpu_healthy"][NODE, "0", G0] == 1.0, "well again")


async def test_containers_allocations_and_usage_by_the_driver_are_metrics(world: World) -> None:
    watch(world)
    await world.start(mode="core_mem")
    admitted = await world.run_pod("a", 3, on=0, core=30)
    await world.until_assigned("a")
    report_container(world, "a")
    process(world, 41, contained(admitted), name='tra"in\\er')
    process(world, 42, contained(admitted))
    process(world, 77, name="Xorg")
    uses(world, (41, 1000, 10), (42, 200, 15), (77, 640, -1))
    series = await until(
        world,
        lambda families: (
            "c" in {labels[2] for labels in families["gpushare_container_memory_used_bytes"]}
            and families["gpushare_gpu_memory_unmanaged_bytes"][NODE, "0", G0]
        ),
        "use of the container",
    )
    ours = ("default", "a", "c", NODE, "0", G0)
    ack = ("share", "c", "default", "a", *NOWHERE, G0, "nvidia0", "0", "Tesla T4")
    assert series["gpushare_container_memory_allocated_bytes"] == {ours: 3072.0 * MIB}
    assert series["gpushare_container_compute_allocated_ratio"] == {ours: 0.3}
    assert series["gpushare_container_memory_used_bytes"] == {ours: 1200.0 * MIB}
    assert series["gpushare_container_compute_used_ratio"] == {ours: 0.25}
    assert series["gpushare_gpu_memory_allocated_bytes"][NODE, "0", G0] == 3072.0 * MIB
    assert series["gpushare_gpu_compute_allocated_ratio"][NODE, "0", G0] == 0.3
    assert series["gpushare_gpu_pods"] == {(NODE, "0", G0): 1.0, (NODE, "1", gpu(1).uuid): 0.0}
    assert series["gpushare_gpu_memory_unmanaged_bytes"][NODE, "0", G0] == 640.0 * MIB
    assert series["gpushare_gpu_unmanaged_processes"][NODE, "0", G0] == 1.0
    assert series["DCGM_CUSTOM_ALLOCATE_MODE"] == {(NODE,): 2.0}
    assert series["DCGM_CUSTOM_DEV_FB_ALLOCATED"]["", *NOWHERE, G0, "nvidia0", "0", "Tesla T4"] == 0.2
    assert series["DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED"] == {ack: 3072.0}
    assert series["DCGM_CUSTOM_CONTAINER_CP_ALLOCATED"] == {ack: 0.3}
    assert series["DCGM_CUSTOM_PROCESS_MEM_USED"] == {
        (*ack, "41", 'tra"in\\er', "C"): 1000.0,
        (*ack, "42", "python3", "C"): 200.0,
    }
    assert series["DCGM_CUSTOM_PROCESS_SM_UTIL"][(*ack, "42", "python3", "C")] == 15.0
    assert series["gpushare_process_memory_used_bytes"] == {
        (*ours, "41", 'tra"in\\er', "C"): 1000.0 * MIB,
        (*ours, "42", "python3", "C"): 200.0 * MIB,
        ("", "", "", *ours[3:], "77", "Xorg", "C"): 640.0 * MIB,
    }
    assert series["gpushare_process_compute_used_ratio"] == {
        (*ours, "41", 'tra"in\\er', "C"): 0.1,
        (*ours, "42", "python3", "C"): 0.15,
    }
    foreign = ("none", "", "", "", *ack[4:], "77", "Xorg", "C")
    assert series["DCGM_CUSTOM_ILLEGAL_PROCESS_MEM_USED"] == {foreign: 640.0}
    assert "DCGM_CUSTOM_ILLEGAL_PROCESS_SM_UTIL" not in series, "the driver does not tell it"


async def test_usage_of_the_other_engines_is_reported_by_process(world: World) -> None:
    watch(world)
    await world.start(mode="cgpu")
    process(world, 77)
    world.nvml.running = [GpuProcess(G0, 77, 640, 0, "C+G", 4, 30, 0)]
    series = await until(
        world, lambda families: families["gpushare_process_engine_used_ratio"], "the process"
    )
    its = ("", "", "", NODE, "0", G0, "77", "python3", "C+G")
    assert series["gpushare_process_engine_used_ratio"] == {
        (*its, "memory_bus"): 0.04,
        (*its, "encoder"): 0.3,
        (*its, "decoder"): 0.0,
    }
    assert series["gpushare_process_compute_used_ratio"] == {its: 0.0}, (
        "idle is reported as 0, and is not unknown"
    )
    labels = ("none", "", "", "", *NOWHERE, G0, "nvidia0", "0", "Tesla T4", "77", "python3", "C+G")
    for name, value in (("MEM_COPY", 4.0), ("ENCODE", 30.0), ("DECODE", 0.0)):
        assert series[f"DCGM_CUSTOM_ILLEGAL_PROCESS_{name}_UTIL"] == {labels: value}
        assert f"DCGM_CUSTOM_PROCESS_{name}_UTIL" not in series


async def test_pods_that_count_gpus_have_all_of_them(world: World) -> None:
    await world.start(mode="topology")
    await world.kubelet.admit(world.bind("w", wants(1), on=1))
    uuid = gpu(1).uuid
    series = await until(
        world, lambda families: families["gpushare_container_memory_allocated_bytes"], "the pod"
    )
    assert series["gpushare_container_memory_allocated_bytes"] == {
        ("default", "w", "c", NODE, "1", uuid): 15360.0 * MIB
    }
    ack = ("exclusive", "c", "default", "w", *NOWHERE, uuid, "nvidia1", "1", "Tesla T4")
    assert series["DCGM_CUSTOM_CONTAINER_CP_ALLOCATED"] == {ack: 1.0}
    assert series["DCGM_CUSTOM_ALLOCATE_MODE"] == {(NODE,): 1.0}
    assert series["gpushare_gpu_memory_allocated_bytes"][NODE, "1", uuid] == 15360.0 * MIB
    assert series["gpushare_gpu_compute_allocated_ratio"][NODE, "1", uuid] == 1.0
    assert series["gpushare_gpu_pods"][NODE, "1", uuid] == 1.0
    assert series["gpushare_gpu_exclusive_pods"] == {(NODE, "0", G0): 0.0, (NODE, "1", uuid): 1.0}


async def test_pool_and_instance_type_come_from_the_nodes_labels(world: World) -> None:
    await world.start()
    node = objects.node("share")
    node["metadata"]["labels"] |= {
        "karpenter.sh/nodepool": "by-karpenter",
        "alibabacloud.com/nodepool-id": "np1",
        "node.kubernetes.io/instance-type": "ecs.gn7i-c8g1.2xlarge",
    }
    world.api.put("nodes", NODE, node)
    total = "DCGM_CUSTOM_DEV_FB_TOTAL"
    series = await until(
        world, lambda families: "np1" in {labels[2] for labels in families[total]}, "the labels"
    )
    assert {labels[1:4] for labels in series[total]} == {(NODE, "np1", "ecs")}
    assert {labels[-3:] for labels in series["DCGM_FI_DEV_XID_ERRORS"]} == {(NODE, "np1", "ecs")}


async def test_usage_of_pods_with_whole_gpus(world: World) -> None:
    """By container as soon as the kubelet reports which is which, before that by pod; on a GPU of others it
    is unmanaged.
    """
    watch(world)
    await world.start(mode="topology")
    admitted = await world.kubelet.admit(world.bind("w", wants(1), on=1))
    process(world, 41, contained(admitted))
    process(world, 77, name="Xorg")
    mine, others = gpu(1).uuid, G0
    world.nvml.running = [
        GpuProcess(mine, 41, 9000, 70, "C"),
        GpuProcess(others, 41, 300, 1, "C"),
        GpuProcess(mine, 77, 20, -1, "G"),
    ]
    used = "gpushare_container_memory_used_bytes"
    pod = ("default", "w", "", NODE, "1", mine)
    series = await until(world, lambda families: pod in families[used], "its pod")
    assert series[used] == {pod: 9000.0 * MIB}
    report_container(world, "w")
    its = ("default", "w", "c", NODE, "1", mine)
    series = await until(world, lambda families: its in families[used], "its container")
    assert series[used] == {its: 9000.0 * MIB}
    assert series["gpushare_container_compute_used_ratio"] == {its: 0.7}
    assert series["gpushare_gpu_unmanaged_processes"] == {(NODE, "0", others): 1.0, (NODE, "1", mine): 1.0}
    ack = ("exclusive", "c", "default", "w", *NOWHERE, mine, "nvidia1", "1", "Tesla T4")
    assert series["DCGM_CUSTOM_PROCESS_MEM_USED"] == {(*ack, "41", "python3", "C"): 9000.0}
    assert len(series["DCGM_CUSTOM_ILLEGAL_PROCESS_MEM_USED"]) == 2


async def test_a_container_without_a_process_uses_nothing_unless_that_is_unknown(world: World) -> None:
    watch(world)
    await world.start(mode="core_mem")
    await world.run_pod("idle", 3, on=0, core=30)
    await world.until_assigned("idle")
    admitted = await world.run_pod("a", 3, on=0, core=30)
    await world.until_assigned("a")
    report_container(world, "idle")
    report_container(world, "a")
    process(world, 41, contained(admitted))
    used, busy = "gpushare_container_memory_used_bytes", "gpushare_container_compute_used_ratio"
    idle, its = (("default", pod, "c", NODE, "0", G0) for pod in ("idle", "a"))
    series = await until(world, lambda families: idle in families[used], "the idle one")
    assert (series[used][idle], series[busy][idle]) == (0.0, 0.0)
    uses(world, (41, 1000, 10))
    series = await until(world, lambda families: families[used][its], "the other's process")
    assert series[used] == {idle: 0.0, its: 1000.0 * MIB}
    uses(world, (41, -1, 10))
    series = await until(
        world, lambda families: its not in families[used], "memory that the driver does not report them"
    )
    assert (series[used], series[busy][its]) == ({idle: 0.0}, 0.1)


async def test_usage_of_an_unresponsive_gpu_is_not_reported_as_zero(world: World) -> None:
    watch(world)
    await world.start(mode="share")
    for name, index in (("on-lost", 0), ("on-well", 1)):
        await world.run_pod(name, 3, on=index)
        await world.until_assigned(name)
        report_container(world, name)
    used, busy = "gpushare_container_memory_used_bytes", "gpushare_container_compute_used_ratio"
    strangers = "gpushare_gpu_unmanaged_processes"
    lost, well = (
        ("default", name, "c", NODE, str(index), gpu(index).uuid)
        for name, index in (("on-lost", 0), ("on-well", 1))
    )
    await until(world, lambda families: families[used].keys() == {lost, well}, "both")
    world.nvml.faults = {G0: "GPU is lost"}
    series = await until(world, lambda families: lost not in families[used], "the lost one is not known")
    assert (series[used], series[busy]) == ({well: 0.0}, {well: 0.0})
    assert series[strangers] == {(NODE, "1", gpu(1).uuid): 0.0}
    assert series["gpushare_container_memory_allocated_bytes"].keys() == {lost, well}


async def test_on_a_node_that_shares_no_gpu_no_process_is_unmanaged(world: World) -> None:
    watch(world)
    await world.start(mode="share")
    process(world, 77)
    uses(world, (77, 640, 5))
    await until(world, lambda families: families["gpushare_process_memory_used_bytes"], "the process")
    world.api.put("nodes", NODE, objects.node("default"))
    await until(
        world,
        lambda families: "gpushare_process_memory_used_bytes" not in families,
        "another plugin's business",
    )


async def test_counters_of_the_library_in_a_container(world: World) -> None:
    isolation = replace(world.settings.isolation, asked=AskedIsolation.AUTO)
    world.use(isolation=isolation)
    await world.start(mode="core_mem")
    admitted = await world.run_pod("a", 3, on=0, core=30)
    await world.until_assigned("a")
    uid, ids = admitted.pod["metadata"]["uid"], fingerprint(admitted.devices["c"][names.GPU_MEM])
    directories = Directories(world.settings.isolation.folder)
    for pod, of in (("a", uid), ("b", "of one that is gone")):
        claimed = Claimed(
            f"default/{pod}", of, "c", G0, 3072, ids, core_percent=30, more={"GPU-of-another-node": 1}
        )
        usage(directories.make(claimed, "hard") / "usage")
    series = await until(
        world,
        lambda families: families["gpushare_container_memory_charged_bytes"],
        "the directory is adopted",
    )
    ours = ("default", "a", "c", NODE, "0", G0)
    assert series["gpushare_container_memory_charged_bytes"] == {ours: 1000.0 * 256}
    assert series["gpushare_container_memory_allocation_failures_total"] == {ours: 7.0}
    assert series["gpushare_container_gpu_seconds_total"] == {ours: 1.5}
    assert series["gpushare_container_compute_throttled_seconds_total"] == {ours: 2.25}


def usage(path: Path) -> None:
    """As the library of the container would have written it."""
    text = bytearray(USAGE_BYTES)
    struct.pack_into("<QI", text, 0, 0x3167656572617567, 1)
    struct.pack_into("<QQQ", text, 4096 + 72, 1_500_000_000, 0, 2_250_000_000)
    struct.pack_into("<QQQ", text, 4096 * 17, 1000 << 28 | 5 << 18 | 9, 0, 7)
    path.write_bytes(text)
