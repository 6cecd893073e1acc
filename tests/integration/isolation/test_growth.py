"""Memory that the driver allocates by itself counts, too: the driver's count is reported and held
to the limit.

The GPU is the fake H200, whose driver allocates by itself as real ones did
(docs/measurements/2026-11-h200.md).
"""

import ast
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare_playground import gpus
from tests.integration.isolation.conftest import LimitedContainer
from tests.integration.isolation.containers import TENANT
from tests.integration.isolation.talking import talkers
from tests.unit.fakegpu import building as fakegpu
from tests.unit.isolation.building import MIB, Container, build

OUT_OF_MEMORY = 2
PATIENCE_S = 5.0
#: Allowed excess of the reported value over the driver's count.
MORE_MIB = 32

#: Starts a program as the first one of a pid namespace.
NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child"]

#: Executes each line of stdin and prints the resulting ``answer``.
OBEYS = """
import sys
for line in sys.stdin:
    answer = None
    exec(eval(line))
    print(repr(answer), flush=True)
"""

COUNTS = """
import pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
"""

PROGRAM = """
import threading
KERNEL = b".version 7.0\\n.target sm_50\\n.address_size 64\\n%s.visible .entry k() { ret; }\\n\\0"
def variables(mib):
    return KERNEL % (b".visible .global .align 4 .b8 table[%d];\\n" % (mib << 20))
def load(image=KERNEL % b""):
    module = c_void_p()
    must("cuModuleLoadData", byref(module), image)
    return module
def launch():
    kernel = c_void_p()
    must("cuModuleGetFunction", byref(kernel), load(), b"k")
    must("cuLaunchKernel", kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None)
    must("cuCtxSynchronize")
def streams(count):
    made = [c_void_p() for _ in range(count)]
    for stream in made:
        must("cuStreamCreate", byref(stream), 1)
    return made
"""

#: Growth observed on a GPU, caused as a program of the driver's interface causes it.
STEPS = {
    "a context": "first = context()",
    "its first kernel": "launch()",
    "kernels of four more modules": "for _ in range(4): launch()",
    "64 MiB of variables": "module = load(variables(64))",
    "those gone": 'must("cuModuleUnload", module)',
    "32 streams": "made = streams(32)",
    "those gone, too": 'for stream in made: must("cuStreamDestroy_v2", stream)',
    "64 MiB managed": 'managed = take("managed", 64 * MIB)[1]',
    "written on the GPU": 'must("cuMemsetD8_v2", managed, 1, c_size_t(1000)); must("cuCtxSynchronize")',
    "and freed": 'give("managed", managed)',
    "16 MiB and pieces": 'held = [take("plain", size)[1] for size in (16 * MIB, 300_000, 300_000, 700_000)]',
    "from a pool": 'take("async", 40 * MIB)',
    "a second context": "second = context()",
    "its first kernel, too": "launch()",
    "the second one gone": 'must("cuCtxDestroy_v2", second); must("cuCtxSetCurrent", first)',
    "a heap of 1 GiB": 'must("cuCtxSetLimit", 2, c_size_t(1 << 30)); launch()',
    "stacks of 16 KiB": 'must("cuCtxSetLimit", 0, c_size_t(16 << 10)); launch()',
    "a buffer of 16 MiB for printf": 'must("cuCtxSetLimit", 1, c_size_t(16 << 20)); launch()',
}


class Obeying:
    """A program that executes lines from the test."""

    def __init__(self, environment: dict[str, str], begin: str, *within: str) -> None:
        self._process = subprocess.Popen(
            [
                *within,
                sys.executable,
                "-c",
                f"import sys; sys.path.insert(0, {str(TENANT.parent)!r})\n{begin}\n{OBEYS}",
            ],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, lines: str, answer: str = "None") -> Any:
        """The value of ``answer`` after the lines were executed."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin
        assert stdout
        stdin.write(repr(f"{lines}\nanswer = {answer}") + "\n")
        stdin.flush()
        line = stdout.readline()
        assert line, "the program has ended"
        return ast.literal_eval(line)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=10)


class Programs:
    """All programs that a test starts; killed with it."""

    def __init__(self, node: Path) -> None:
        self._node = node
        self._all: list[Obeying] = []

    def _start(self, environment: dict[str, str], begin: str, *within: str) -> Obeying:
        self._all.append(Obeying(environment, begin, *within))
        return self._all[-1]

    def tenant(self, here: Container, *within: str) -> Obeying:
        """A CUDA program in the container, started by the command ``within``."""
        return self._start(here.environment(), f"from tenant import *\n{PROGRAM}", *within)

    def onlooker(self, here: Container | None = None) -> Callable[[], float]:
        """MiB in use by NVML's memory information in the container; without one: what the driver
        itself counts for processes.
        """
        environment = here.environment() if here else fakegpu.environment(self._node)
        program = self._start(environment, COUNTS)
        count = (
            "pynvml.nvmlDeviceGetMemoryInfo(gpu).used"
            if here
            else "sum(one.usedGpuMemory for one in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu))"
        )
        return lambda: program.ask("", count) / MIB

    def end(self) -> None:
        for one in self._all:
            one.end()


@pytest.fixture
def node(tmp_path: Path) -> gpus.GpuNode:
    described = gpus.preset("h200-141gb", "n1")
    gpus.write(tmp_path / "node.gpus", described)
    return described


@pytest.fixture
def programs(node: gpus.GpuNode, tmp_path: Path) -> Iterator[Programs]:
    assert node.gpus[0].growth
    started = Programs(tmp_path / "node.gpus")
    yield started
    started.end()


def used(tenant: Obeying) -> Callable[[], float]:
    """MiB in use as the tenant sees it."""
    return lambda: float(tenant.ask("", "used()"))


def settled(reported: Callable[[], float], least_mib: float, most_mib: float) -> float:
    """The reported value once it is within bounds, or after a while: the driver is queried once a
    millisecond at most.
    """
    end_s = time.monotonic() + PATIENCE_S
    while not least_mib <= (now := reported()) <= most_mib and time.monotonic() < end_s:
        pass
    return now


def test_after_each_step_the_reported_usage_equals_the_drivers_count(
    container: LimitedContainer, programs: Programs
) -> None:
    here = container(16384)
    tenant, driver, outside = programs.tenant(here), programs.onlooker(), programs.onlooker(here)
    for name, step in STEPS.items():
        tenant.ask(step)
        counted_mib = driver()
        for reported in (used(tenant), outside):
            reported_mib = settled(reported, counted_mib, counted_mib + MORE_MIB)
            assert counted_mib <= reported_mib <= counted_mib + MORE_MIB, name
    assert counted_mib > 4500


def test_variables_that_do_not_fit_leave_the_container_at_its_limit(
    container: LimitedContainer, programs: Programs
) -> None:
    tenant = programs.tenant(container(1024))
    tenant.ask("context(); launch()")
    assert tenant.ask("module = load(variables(512))", "info()") == (0, 1024)
    for kind in ("plain", "async", "physical"):
        assert tenant.ask("", f"take({kind!r}, 2 * MIB)[0]") == 2
    assert tenant.ask("", 'call("cuCtxCreate_v2", byref(c_void_p()), 0, 0)') == 2
    # Freed memory is available again immediately.
    assert tenant.ask('must("cuModuleUnload", module)', 'take("plain", 400 * MIB)[0]') == 0
    assert tenant.ask("", 'take("plain", 20 * MIB)[0]') == 2


def test_growth_is_seen_in_a_containers_own_pid_namespace(
    container: LimitedContainer, programs: Programs
) -> None:
    if subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no other pid namespace can be made here")
    tenant, driver = programs.tenant(container(1024), *NAMESPACE), programs.onlooker()
    tenant.ask("context(); launch(); streams(32)")
    counted_mib = driver()
    assert counted_mib == 518 + 92 + 16
    assert settled(used(tenant), counted_mib, counted_mib) == counted_mib


def test_growth_of_another_process_counts_though_it_allocates_nothing(
    container: LimitedContainer, programs: Programs
) -> None:
    here = container(2048)
    grows, takes, driver = programs.tenant(here), programs.tenant(here), programs.onlooker()
    grows.ask("context()")
    takes.ask("context()")
    assert takes.ask("", 'take("plain", 800 * MIB)[0]') == 0
    grows.ask("launch(); module = load(variables(64))")
    counted_mib = driver()
    assert settled(used(takes), counted_mib, 2048) >= counted_mib
    assert takes.ask("", 'take("plain", 128 * MIB)[0]') == 2
    grows.end()
    assert takes.ask("", 'take("plain", 512 * MIB)[0]') == 0


@pytest.mark.parametrize("last", ["maker", "importer"])
def test_shared_memory_is_not_counted_in_addition_to_growth(
    last: str, container: LimitedContainer, programs: Programs
) -> None:
    here, driver = container(2400), programs.onlooker()
    with talkers(here, here) as (maker, importer):
        for one in (maker, importer):
            one("[must('cuStreamCreate', byref(c_void_p()), 1) for _ in range(32)]")
        handle = maker.good("make(1000)")
        file = maker(f"export({handle})")
        held = importer.good(f"take_in({maker.lend(file, importer)})")
        maker(f"os.close({file})")
        counted_mib = 2 * (518 + 16) + 1000
        for one, held_mib, result in ((maker, 0, 0), (importer, 300, OUT_OF_MEMORY)):
            assert driver() == counted_mib + held_mib
            assert settled(one.used, driver(), driver()) == driver()
            assert one("take('plain', 300 * MIB)[0]") == result
        if last == "maker":
            importer(f"let_go({held})")
        else:
            maker(f"let_go({handle})")
        assert settled(maker.used, driver(), driver()) == driver() == counted_mib + 300


def test_nothing_that_fits_is_refused_while_others_allocate_and_free(
    container: LimitedContainer, programs: Programs
) -> None:
    # Two processes with 518 + 92 MiB each; of the remaining 300 MiB each of two threads of both takes 70.
    here = container(1520)
    both_mib = 2 * (518 + 92)
    both = [programs.tenant(here) for _ in range(2)]
    for one in both:
        one.ask("made = context(); launch()")
    lines = """
failed = []
def takes():
    must("cuCtxSetCurrent", made)
    for i in range(4000):
        result, held = take("plain", 70 * MIB)
        if result == 0:
            give("plain", held)
        else:
            failed.append((i, result))
        used()
threads = [threading.Thread(target=takes) for _ in range(2)]
for thread in threads: thread.start()
"""
    for one in both:
        one.ask(lines)
    for one in both:
        assert one.ask("for thread in threads: thread.join()", "failed") == []
    for one in both:
        assert settled(used(one), both_mib, both_mib) == both_mib


def test_threads_whose_allocations_just_fit_are_never_refused(
    container: LimitedContainer, node: gpus.GpuNode
) -> None:
    # A context, 32 streams, what two threads take at a time, and a page.
    here = container(518 + 16 + 2 * 70 + 2)
    assert node.gpus[0].growth
    result = subprocess.run(
        [build("linked") / "growth_race", "2", "4000", "70"],
        env=here.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, "0 refused, 0 failures\n")
