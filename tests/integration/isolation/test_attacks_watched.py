"""Attacks that bypass the libraries: the node agent's watchdog detects them by the driver's own
count and kills them.

The test controls time: when the watchdog runs, and when its clock advances.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.nodeagent.allocate.node_allocations import NodeAllocations
from gpushare.nodeagent.driver.nvml import DriverNvml
from gpushare.nodeagent.isolation.options import Watch
from gpushare.nodeagent.isolation.watchdog.watchdog import REASON_KILLED, REASON_MEMORY, Watchdog
from gpushare.nodeagent.observability.metrics import Metrics
from gpushare_playground import gpus
from tests.integration.isolation.containers import driver_used_mib
from tests.integration.isolation.placed import (
    AS_TENANT,
    SLICE_MIB,
    Way,
    allocated_container,
    compiled,
    needs_root,
    running,
)
from tests.integration.isolation.test_ways_to_the_driver import NAMED, PLACED, REACH
from tests.unit.fakegpu import building as fakegpu
from tests.unit.isolation.building import MIB, Container
from tests.unit.nodeagent.allocate.allocated_pods import APP, allocated, request
from tests.unit.nodeagent.isolation.observed import Clock, Events

pytestmark = needs_root

PYTHON: Final = sys.executable
GRACE_S: Final = 30.0
#: Of the region's first GPU: the sum of all processes (isolation/files/region.h).
TOTAL_AT: Final = 4096 * 17

TAKES = (
    AS_TENANT
    + "context()\nassert take('plain', 4000 * MIB)[0] == 0\nprint('held', flush=True)\nsys.stdin.read()\n"
)
#: An allocator that a tenant preloads before everything else.
OWN_LIBRARY = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
int cuMemAlloc_v2(unsigned long long *address, size_t bytes)
{
    void *driver = dlopen("/run/gpushare/driver/libcuda.so", RTLD_NOW);
    int (*real)(unsigned long long *, size_t) = (int (*)(unsigned long long *, size_t))dlsym(driver, "cuMemAlloc_v2");
    return real(address, bytes);
}
"""
#: The program that it is loaded into finds the name in the whole program, as one that is linked to the
#: driver does.
LINKED = TAKES.replace("context()", "sys.modules['tenant'].cuda = ctypes.CDLL(None)\ncontext()")
SCRIBBLES = (
    AS_TENANT
    + f"""
import mmap, struct
usage = open("/run/gpushare/usage", "r+b")
region = mmap.mmap(usage.fileno(), 0)
context()
for _ in range(3):
    assert take("plain", 1400 * MIB)[0] == 0
    region[{TOTAL_AT}:{TOTAL_AT} + 8] = bytes(8)
print("held", flush=True)
sys.stdin.read()
"""
)
FORGED = f"sed 's/memory_bytes=[0-9]*/memory_bytes={16000 * MIB}/'"
#: The folder is moved away with everything mounted in it, and another one put in its place.
MOVES_THE_FOLDER = f"""
mv /run/gpushare /run/real && mkdir /run/gpushare && cd /run/gpushare || exit 1
{FORGED} /run/real/limits >limits; truncate -s $(stat -c %s /run/real/usage) usage
ln -s /run/real/driver driver; [ ! -e /run/real/lib ] || ln -s /run/real/lib lib
exec "$0" -c "$1"
"""
#: In a user namespace a tenant may mount, also over its own mounts.
MOUNTS_OVER = f"""
{FORGED} /run/gpushare/limits >/run/forged && truncate -s $(stat -c %s /run/gpushare/usage) /run/forged-usage
exec unshare -Urm bash -c 'mount --bind /run/forged /run/gpushare/limits &&
    mount --bind /run/forged-usage /run/gpushare/usage && exec "$0" -c "$1"' "$0" "$1"
"""
OWN_SEARCH_PATH = """
mkdir /run/mine && ln -s /run/gpushare/driver/libcuda.so /run/mine/libcuda.so.1
LD_LIBRARY_PATH=/run/mine exec "$0" -c "$1"
"""


@dataclass(frozen=True)
class Attack:
    """A tenant's attack: a program in Python, a piece of shell that runs it, or reach.c (by ``how``)."""

    way: str
    python: str = TAKES
    shell: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    how: str = ""

    def command(self, folder: Path) -> list[str | Path]:
        if self.how:
            return [compiled(folder / "programs", REACH), self.how, NAMED, "4000", "hold"]
        if self.shell:
            return ["bash", "-c", self.shell, PYTHON, self.python]
        return [PYTHON, "-c", self.python]


DRIVERS_OWN: Final = {"TENANT_CUDA": "/run/gpushare/driver/libcuda.so"}
ATTACKS: Final = {
    "the driver's library where ours needs it (in place)": Attack("in place", environment=DRIVERS_OWN),
    "the driver's library where ours needs it (preloaded)": Attack("preloaded", environment=DRIVERS_OWN),
    "the driver's library by its full path": Attack("preloaded", environment={"TENANT_CUDA": PLACED}),
    "the driver's library by a search path of one's own": Attack("in place", shell=OWN_SEARCH_PATH),
    "a library of one's own, preloaded": Attack("in place", python=LINKED, environment={"own": "library"}),
    "a library of one's own, preloaded beside ours": Attack(
        "preloaded", python=LINKED, environment={"own": "library"}
    ),
    "a namespace of the loader": Attack("preloaded", how="apart"),
    "sums in the usage file": Attack("in place", python=SCRIBBLES),
    "another folder in the place of ours (in place)": Attack("in place", shell=MOVES_THE_FOLDER),
    "another folder in the place of ours (preloaded)": Attack("preloaded", shell=MOVES_THE_FOLDER),
    "mounts in a user namespace": Attack("in place", shell=MOUNTS_OVER),
}


class Node:
    """A node with one GPU, whose watchdog reads the fake driver and a ``/proc`` of the test's."""

    def __init__(self, folder: Path, gpu: gpus.GpuNode) -> None:
        self.folder = folder
        device = Device(0, gpu.gpus[0].uuid, 16160)
        self.book = NodeAllocations(NodeDevices("n1", NodeMode.CGPU, MemoryUnit.GIB, (device,)))
        self.clock, self.events = Clock(), Events()
        self.nvml = DriverNvml(folder)
        self.watchdog = Watchdog(
            Watch("kill", GRACE_S, folder / "proc"),
            self.book,
            report_on_node=lambda *_, **__: None,
            events=self.events,
            metrics=Metrics(),
            clock=self.clock,
            on_change=lambda: None,
        )

    def runs(self, pod: str, pid: int) -> None:
        """A pod with 2 of the GPU's 15 units, and its process, attributed by its cgroup."""
        made = allocated(self.book.node, pod, 0, request((APP, 2)))
        self.book.put(made)
        process = self.folder / "proc" / str(pid)
        process.mkdir(parents=True)
        (process / "cgroup").write_text(f"0::/kubepods/burstable/pod{made.uid}/{pid:064x}\n")
        (process / "comm").write_text("python3\n")

    async def look(self) -> None:
        used_mib = {reading.gpu: reading.used_mib for reading in self.nvml.readings()}
        await asyncio.to_thread(self.watchdog.look, self.nvml, used_mib)
        await asyncio.sleep(0)


@pytest.fixture
def gpu(tmp_path: Path) -> gpus.GpuNode:
    described = gpus.preset("v100-16160", "n1")
    gpus.write(tmp_path / "node.gpus", described)
    return described


@pytest.fixture
def node(tmp_path: Path, gpu: gpus.GpuNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    fakegpu.build("library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fakegpu.BUILT))
    monkeypatch.setenv("FAKEGPU_NODE", str(tmp_path / "node.gpus"))
    monkeypatch.delenv("FAKEGPU_VISIBLE_DEVICES", raising=False)
    made = Node(tmp_path, gpu)
    made.nvml.open()
    made.nvml.enumerate()
    yield made
    made.nvml.close()


def prepared(attack: Attack, folder: Path) -> dict[str, str]:
    """The attack's environment."""
    if "own" not in attack.environment:
        return attack.environment
    library = compiled(folder / "programs", OWN_LIBRARY, "-shared", "-fPIC")
    # Linked by hand: the driver functions that the program needs are resolved before it starts.
    also = f"{library}:{NAMED}" if attack.way == "in place" else str(library)
    return {"LD_PRELOAD": also}


HELD = ("held\n", "0 16160\n", "0 15936\n")


@pytest.mark.parametrize("name", ATTACKS)
async def test_a_process_past_the_limit_is_killed_and_a_neighbour_is_not(
    name: str, node: Node, gpu: gpus.GpuNode, tmp_path: Path
) -> None:
    attack = ATTACKS[name]
    here, neighbour_container = allocated_container(tmp_path, gpu), allocated_container(tmp_path, gpu)
    tenant = Way(attack.way, as_tenant=True)
    with ExitStack() as both:
        environment = prepared(attack, tmp_path)
        attacker, output = both.enter_context(
            running(here, tenant, tmp_path, *attack.command(tmp_path), **environment)
        )
        line = output.readline()
        if "user namespace" in name and line == "":
            pytest.skip("this machine's kernel lets no tenant have user namespaces")
        assert line in HELD
        holds = (
            AS_TENANT
            + "context()\nassert take('plain', 1500 * MIB)[0] == 0\nprint('held', flush=True)\nfor line in sys.stdin: print(used(), flush=True)\n"
        )
        neighbour, answers = both.enter_context(
            running(neighbour_container, Way("in place", as_tenant=True), tmp_path, PYTHON, "-c", holds)
        )
        assert answers.readline() == "held\n"
        assert driver_used_mib(tmp_path / "node.gpus") > 4000 + 1500
        node.runs("attacker", attacker.pid)
        node.runs("neighbour", neighbour.pid)
        node.watchdog.attend()
        node.watchdog.start()

        await node.look()
        ((pod, reason, note),) = node.events.recorded
        assert (pod, reason) == ("attacker", REASON_MEMORY)
        assert f"its share is {SLICE_MIB} MiB" in note
        assert attacker.poll() is None
        node.clock.now_s += GRACE_S
        await node.look()
        assert attacker.wait(60) == -9
        pod, reason, note = node.events.recorded[-1]
        assert (pod, reason) == ("attacker", REASON_KILLED)
        assert note.endswith(f"killed by the node agent: {attacker.pid}")

        assert neighbour.stdin
        neighbour.stdin.write("\n")
        neighbour.stdin.flush()
        assert int(answers.readline()) > 1500
        assert neighbour.poll() is None
        assert {pod for pod, _, _ in node.events.recorded} == {"attacker"}
        assert driver_used_mib(tmp_path / "node.gpus") < SLICE_MIB
        # Nothing of it is left for the next one in its place, either.
        node.clock.now_s += GRACE_S
        before = list(node.events.recorded)
        await node.look()
        assert node.events.recorded == before


def test_memory_allocated_past_the_library_is_in_the_drivers_count(gpu: gpus.GpuNode, tmp_path: Path) -> None:
    """All of it: no allocation of a process is invisible to the driver's accounting."""
    here: Container = allocated_container(tmp_path, gpu)
    attack = ATTACKS["the driver's library where ours needs it (in place)"]
    tenant = Way(attack.way, as_tenant=True)
    with running(here, tenant, tmp_path, *attack.command(tmp_path), **attack.environment) as (_, output):
        assert output.readline() == "held\n"
        assert driver_used_mib(tmp_path / "node.gpus") == 4000 + 256  # and its context
