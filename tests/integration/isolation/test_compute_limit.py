"""The compute limit on the fake driver: what happens, not how fast. Shares are measured by ``make
bench-isolation``.
"""

import os
import resource
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from gpushare_playground import gpus
from tests.building import SANITIZERS
from tests.integration.isolation.conftest import LimitedContainer
from tests.integration.isolation.containers import run_tenant, running_tenant
from tests.integration.isolation.test_sanitized import run
from tests.patience import Deadline
from tests.unit.isolation.building import Container, build

PAGE: Final = 4096
#: Where a turn page holds the state of each process.
SLOTS: Final = 128
#: Kernels of the fake driver: the first parameter is their duration.
LOAD = '''
PTX = b"""
.version 6.4
.target sm_50
.address_size 64
// fakegpu: duration param 0 ns
.visible .entry spin(.param .u64 length) { ret; }
"""
context()
module, spin = c_void_p(), c_void_p()
must("cuModuleLoadData", byref(module), PTX)
must("cuModuleGetFunction", byref(spin), module, b"spin")

def launch(nanoseconds, stream=None, name="cuLaunchKernel"):
    length = c_uint64(nanoseconds)
    parameters = (c_void_p * 1)(ctypes.addressof(length))
    extra = [] if "Cooperative" in name else [None]
    must(name, spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, *extra)
'''


@pytest.fixture
def containers(tmp_path: Path) -> Path:
    """Where the arbiter looks for containers."""
    folder = tmp_path / "containers"
    folder.mkdir()
    return folder


@contextmanager
def arbiter(containers: Path, flavour: str = "") -> Iterator[subprocess.Popen[str]]:
    """An arbiter that runs when the block begins."""
    program = build("sanitize") / flavour / "arbiter" if flavour else build("all") / "arbiter"
    with subprocess.Popen(
        [program, "--containers", containers], stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr
        try:
            assert "at work" in running.stderr.readline()
            yield running
        finally:
            running.kill()


def place(containers: Path, container: Container) -> None:
    """As the node agent lays containers out."""
    folder = containers / container.run.name
    folder.mkdir()
    os.link(container.usage, folder / "usage")
    os.link(container.limits, folder / "limits")


def page(container: Container) -> dict[str, int]:
    """The turn page of the container's first GPU."""
    text = container.usage.read_bytes()[PAGE : 2 * PAGE]
    version, grants, heartbeat, until, allowed, _, ahead = struct.unpack_from("=IIQQQQQ", text)
    library, requests, used = struct.unpack_from("=IIQ", text, 64)
    return {
        "version": version,
        "grants": grants,
        "heartbeat": heartbeat,
        "until": until,
        "allowed": allowed,
        "ahead": ahead,
        "library": library,
        "requests": requests,
        "used": used,
        "busy_until": struct.unpack_from("=Q", text, SLOTS + 16)[0],
    }


def wait_until(true: Callable[[], bool]) -> None:
    """Wait for a state; at most a minute, on a busy machine."""
    deadline = Deadline(60.0)
    while not true():
        assert not deadline.passed()
        os.sched_yield()


def test_a_container_without_a_percentage_is_left_alone(container: LimitedContainer) -> None:
    here = container()
    run_tenant(here, LOAD + 'for _ in range(100): launch(10_000)\nmust("cuCtxSynchronize")')
    assert page(here)["library"] == 0


def test_work_is_charged_its_duration(container: LimitedContainer, containers: Path) -> None:
    here = container(more=" core_percent=50")
    place(containers, here)
    with arbiter(containers):
        run_tenant(here, LOAD + 'for _ in range(40): launch(2_000_000)\nmust("cuCtxSynchronize")\nlaunch(1)')
    figures = page(here)
    assert figures["grants"] > 0
    # No upper bound: on a busy machine marks lie further apart than the work between them.
    assert figures["used"] > 40e6


#: Work is put into the primary context, and between two pieces there is some ``pause``.
PRIMARY = (
    LOAD
    + """
first, made = c_void_p(), c_void_p()
must("cuCtxGetCurrent", byref(first))
must("cuDevicePrimaryCtxRetain", byref(made), 0)

def enter():
    must("cuCtxSetCurrent", made)
    must("cuModuleLoadData", byref(module), PTX)
    must("cuModuleGetFunction", byref(spin), module, b"spin")
enter()

def retain():
    must("cuDevicePrimaryCtxRetain", byref(c_void_p()), 0)
    must("cuDevicePrimaryCtxRelease_v2", 0)

def attach():
    must("cuCtxAttach", byref(c_void_p()), 0)
    must("cuCtxDetach", made)

def green():
    resource, description, green = ctypes.create_string_buffer(144), c_void_p(), c_void_p()
    must("cuDeviceGetDevResource", 0, resource, 1)
    must("cuDevResourceGenerateDesc", byref(description), resource, 1)
    must("cuGreenCtxCreate", byref(green), description, 0, 1)
    must("cuGreenCtxDestroy", green)

def refused():
    assert call("cuCtxDestroy_v2", made) == 201

def end():
    must("cuDevicePrimaryCtxRelease_v2", 0)
    must("cuDevicePrimaryCtxRetain", byref(made), 0)
    enter()
"""
)


@pytest.mark.parametrize("pause", ["retain", "attach", "green", "refused", "end"])
def test_work_is_charged_whatever_becomes_of_its_context_meanwhile(
    container: LimitedContainer, containers: Path, pause: str
) -> None:
    here = container(more=" core_percent=50")
    place(containers, here)
    with arbiter(containers):
        run_tenant(here, PRIMARY + f"for _ in range(40):\n    launch(2_000_000)\n    {pause}()")
    assert page(here)["used"] > 60e6


def test_work_of_green_contexts_is_charged_after_they_ended(
    container: LimitedContainer, containers: Path
) -> None:
    here = container(more=" core_percent=50")
    place(containers, here)
    lines = """
for _ in range(40):
    resource, description, green = ctypes.create_string_buffer(144), c_void_p(), c_void_p()
    must("cuDeviceGetDevResource", 0, resource, 1)
    must("cuDevResourceGenerateDesc", byref(description), resource, 1)
    must("cuGreenCtxCreate", byref(green), description, 0, 1)
    must("cuCtxFromGreenCtx", byref(made), green)
    must("cuCtxSetCurrent", made)
    launch(2_000_000)
    must("cuGreenCtxDestroy", green)
"""
    with arbiter(containers):
        run_tenant(here, PRIMARY + lines)
    assert page(here)["used"] > 60e6


@pytest.mark.parametrize("percent", [5, 100])
def test_without_an_arbiter_work_continues(container: LimitedContainer, percent: int) -> None:
    here = container(more=f" core_percent={percent}")
    run_tenant(here, LOAD + 'for _ in range(50): launch(200_000)\nmust("cuCtxSynchronize")')
    assert page(here)["used"] > 0


def test_the_first_process_looks_for_an_arbiter_before_it_runs_alone(container: LimitedContainer) -> None:
    here = container(more=" core_percent=50")
    run_tenant(here, LOAD + 'launch(1000)\nmust("cuCtxSynchronize")')
    assert page(here)["requests"] > 0


def test_the_longer_unknown_work_runs_the_longer_its_estimate(
    container: LimitedContainer, containers: Path
) -> None:
    here = container(more=" core_percent=50")
    place(containers, here)
    with (
        arbiter(containers),
        running_tenant(here, LOAD + 'launch(20_000_000_000)\nmust("cuCtxSynchronize")'),
    ):
        # Work that is known to be short, or was estimated so, is done within half a millisecond after the check.
        wait_until(lambda: page(here)["busy_until"] > time.monotonic_ns() + 50_000_000)


def test_every_way_to_launch(container: LimitedContainer, containers: Path) -> None:
    here = container(more=" core_percent=80")
    place(containers, here)
    lines = (
        LOAD
        + """
stream, graph, whole = c_void_p(), c_void_p(), c_void_p()
must("cuStreamCreate", byref(stream), 1)
launch(1000, stream)
launch(1000, None)
launch(1000, c_void_p(1))
launch(1000, c_void_p(2))
launch(1000, None, "cuLaunchKernel_ptsz")
launch(1000, stream, "cuLaunchCooperativeKernel")
must("cuStreamBeginCapture_v2", stream, 0)
for _ in range(200):
    launch(1000, stream)
must("cuStreamEndCapture", stream, byref(graph))
must("cuGraphInstantiateWithFlags", byref(whole), graph, c_uint64(0))
for _ in range(20):
    must("cuGraphLaunch", whole, stream)
at = c_uint64()
must("cuMemAlloc_v2", byref(at), c_size_t(1 << 20))
room = ctypes.create_string_buffer(1 << 20)
must("cuMemsetD8_v2", at, 7, c_size_t(1 << 20))
must("cuMemcpyDtoH_v2", room, at, c_size_t(1 << 20))
must("cuMemsetD32Async", at, 9, c_size_t(1 << 18), stream)
must("cuMemcpyHtoDAsync_v2", at, room, c_size_t(1 << 20), stream)
must("cuMemcpyDtoDAsync_v2_ptsz", at, at, c_size_t(1 << 19), None)
must("cuCtxSynchronize")
print(room.raw[1], room.raw[-1])
"""
    )
    with arbiter(containers):
        assert run_tenant(here, lines).stdout == "7 7\n"


def test_a_capture_of_another_thread_is_not_disturbed(container: LimitedContainer) -> None:
    here = container(more=" core_percent=90")
    lines = (
        LOAD
        + """
stream, other, graph = c_void_p(), c_void_p(), c_void_p()
must("cuStreamCreate", byref(stream), 1)
must("cuStreamCreate", byref(other), 1)
launch(3_000_000, other)
must("cuStreamBeginCapture_v2", stream, 0)
for _ in range(30):
    launch(3_000_000, other)
    launch(1000, stream)
must("cuStreamEndCapture", stream, byref(graph))
count = c_size_t()
must("cuGraphGetNodes", graph, None, byref(count))
print(count.value)
"""
    )
    assert run_tenant(here, lines).stdout == "30\n"


def test_contexts_may_end_with_work_under_way(container: LimitedContainer) -> None:
    here = container(more=" core_percent=90")
    lines = (
        LOAD
        + """
for _ in range(20):
    made = context()
    module, spin = c_void_p(), c_void_p()
    must("cuModuleLoadData", byref(module), PTX)
    must("cuModuleGetFunction", byref(spin), module, b"spin")
    for _ in range(5):
        launch(300_000)
    must("cuCtxDestroy_v2", made)
for _ in range(20):
    made = c_void_p()
    must("cuDevicePrimaryCtxRetain", byref(made), 0)
    must("cuCtxSetCurrent", made)
    must("cuModuleLoadData", byref(module), PTX)
    must("cuModuleGetFunction", byref(spin), module, b"spin")
    launch(300_000)
    must("cuDevicePrimaryCtxReset_v2", 0)
"""
    )
    run_tenant(here, lines)


#: Processes that have their own context and leave by exit, with some 30 ms of queued work: how many exited how.
EXITS = f"""
from collections import Counter
def leave():
    exec({LOAD!r}, globals())
    for _ in range(100):
        launch(300_000)
    ctypes.CDLL(None).exit(7)
ends = Counter()
for _ in range(100):
    child = os.fork()
    if not child:
        leave()
    ends[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])] += 1
print(dict(ends))
"""


@pytest.mark.parametrize("more", ["", " core_percent=90"])
def test_a_process_with_running_kernels_exits_as_without_limits(
    container: LimitedContainer, containers: Path, more: str
) -> None:
    here = container(more=more)
    place(containers, here)
    with arbiter(containers):
        result = run_tenant(here, EXITS)
    assert (result.stdout, result.stderr) == ("{7: 100}\n", "")


#: Exits with queued work. The first exit handler is registered before the driver's, so it runs last; it
#: waits until no thread of ours is left.
LAST_HANDLER = """
import time
def name(thread):
    try:
        return open(f"/proc/self/task/{thread}/comm").read().strip()
    except OSError:
        return ""
def helps():
    return "gpushare" in map(name, os.listdir("/proc/self/task"))
def last(_):
    until = time.monotonic() + 20
    while helps() and time.monotonic() < until:
        os.sched_yield()
    print(helps(), flush=True)
libc, handler = ctypes.CDLL(None), ctypes.CFUNCTYPE(None, c_void_p)(last)
libc.__cxa_atexit(handler, None, None)
"""


def test_the_helper_thread_ends_before_the_driver_does(container: LimitedContainer) -> None:
    lines = (
        LAST_HANDLER
        + LOAD
        + "for _ in range(2): launch(20_000_000_000)\nwhile not helps(): os.sched_yield()\nlibc.exit(0)\n"
    )
    assert run_tenant(container(more=" core_percent=100"), lines).stdout == "False\n"


def test_a_forked_child_ends_and_its_parent_goes_on(container: LimitedContainer) -> None:
    here = container(more=" core_percent=90")
    lines = (
        LOAD
        + """
for _ in range(10):
    launch(500_000)
    child = os.fork()
    if not child:
        os._exit(call("cuCtxSynchronize") == 0)
    assert os.waitpid(child, 0)[1] == 0
must("cuCtxSynchronize")
"""
    )
    run_tenant(here, lines)


@pytest.mark.parametrize(
    ("setting", "pause_ms", "visits"),
    [("", 5, True), (" core_class=latency", 0, True), (" core_class=batch", 5, False)],
)
def test_a_containers_class_decides_whether_it_visits(
    container: LimitedContainer, containers: Path, setting: str, pause_ms: int, visits: bool
) -> None:
    """Next to one that visited in the last two seconds a loop keeps little ahead."""
    here, loop = (
        container(more=f" core_percent=30{setting}"),
        container(more=" core_percent=70 core_class=batch"),
    )
    place(containers, here)
    place(containers, loop)
    lines = LOAD + (
        "while True:\n    launch(500_000)\n"
        f"    if {pause_ms}: must('cuCtxSynchronize'); pause.wait({pause_ms} / 1000)\n"
    )
    with (
        arbiter(containers),
        running_tenant(loop, LOAD + "\nwhile True: launch(500_000)\n"),
        running_tenant(here, "import threading\npause = threading.Event()\n" + lines),
    ):
        wait_until(lambda: page(here)["used"] > 5e6)
        wait_until(lambda: page(loop)["ahead"] > 0 or (not visits and page(here)["used"] > 50e6))
        # It is 0 again two seconds after the last visit.
        assert visits or not page(loop)["ahead"]


def test_containers_keep_running_when_the_arbiter_dies(container: LimitedContainer, containers: Path) -> None:
    here = container(more=" core_percent=60")
    place(containers, here)
    forever = LOAD + "\nwhile True: launch(500_000)\n"
    with running_tenant(here, forever):
        with arbiter(containers):
            wait_until(lambda: page(here)["grants"] > 10)
        alone = page(here)
        wait_until(lambda: page(here)["used"] > alone["used"] + 100_000_000)
        with arbiter(containers):
            wait_until(lambda: page(here)["grants"] > alone["grants"] + 10)


def test_an_arbiter_that_ends_in_order_says_so(container: LimitedContainer, containers: Path) -> None:
    here = container(more=" core_percent=60")
    place(containers, here)
    with arbiter(containers) as running:
        wait_until(lambda: page(here)["heartbeat"] > 0)
        running.terminate()
        assert running.wait(20) == 0
    assert page(here)["heartbeat"] == 0


@pytest.mark.parametrize(
    "flavour",
    ["", *SANITIZERS],
)
def test_damage_to_a_turn_page_affects_only_its_own_container(
    container: LimitedContainer, containers: Path, flavour: str
) -> None:
    bad, good = container(more=" core_percent=40"), container(more=" core_percent=50")
    place(containers, bad)
    place(containers, good)
    size = bad.usage.stat().st_size
    with (
        arbiter(containers, flavour) as running,
        running_tenant(good, LOAD + "\nwhile True: launch(500_000)\n"),
    ):
        for attack in range(12):
            with bad.usage.open("r+b") as usage:
                if attack % 4 == 3:
                    usage.truncate(attack * 500)
                    usage.truncate(size)
                usage.seek(PAGE)
                usage.write(os.urandom(PAGE) if attack % 2 else b"\xff" * PAGE)
                if attack % 4 == 2:
                    usage.truncate(PAGE)
            grants = page(good)["grants"]
            wait_until(lambda seen=grants: page(good)["grants"] > seen + 2)
        assert running.poll() is None


def test_containers_that_come_and_go(
    container: LimitedContainer, containers: Path, node: gpus.GpuNode
) -> None:
    here = container(more=" core_percent=40")
    with arbiter(containers) as running:
        for number in range(5):
            folder = containers / f"c{number}"
            folder.mkdir()
            os.link(here.usage, folder / "usage")
            os.link(here.limits, folder / "limits")
            heartbeat = page(here)["heartbeat"]
            wait_until(lambda seen=heartbeat: page(here)["heartbeat"] > seen)
            for name in ("limits", "usage"):
                (folder / name).unlink()
            folder.rmdir()
        assert running.poll() is None


def test_a_container_that_was_refused_gets_its_place_once_another_has_left(
    container: LimitedContainer, containers: Path
) -> None:
    """As many containers as there are places, all with the same files, and one more."""
    places = 256
    crowd, here = container(more=" core_percent=1"), container(more=" core_percent=1")
    for number in range(places):
        folder = containers / f"c-{number}"
        folder.mkdir()
        os.link(crowd.usage, folder / "usage")
        os.link(crowd.limits, folder / "limits")
    with arbiter(containers) as running:
        tasks = Path(f"/proc/{running.pid}/task")
        wait_until(lambda: len(list(tasks.iterdir())) > places)
        place(containers, here)
        assert running.stderr
        assert f"{here.run.name}/usage: no place is left" in running.stderr.readline()
        assert page(here)["heartbeat"] == 0
        for name in ("limits", "usage"):
            (containers / "c-0" / name).unlink()
        wait_until(lambda: page(here)["heartbeat"] > 0)


def test_a_container_is_admitted_once_the_arbiter_has_what_that_takes(
    container: LimitedContainer, containers: Path
) -> None:
    here = container(more=" core_percent=40")
    with arbiter(containers) as running:
        assert running.stderr
        used = len(list(Path(f"/proc/{running.pid}/fd").iterdir()))
        most = resource.prlimit(running.pid, resource.RLIMIT_NOFILE)
        # The two folders can be opened, and no file in them.
        resource.prlimit(running.pid, resource.RLIMIT_NOFILE, (used + 2, most[1]))
        place(containers, here)
        assert "Too many open files" in running.stderr.readline()
        resource.prlimit(running.pid, resource.RLIMIT_NOFILE, most)
        wait_until(lambda: page(here)["heartbeat"] > 0)


@pytest.mark.timeout(600)
@pytest.mark.sanitized
@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_threads_that_launch_capture_destroy_contexts_and_fork(
    container: LimitedContainer, sanitizer: str
) -> None:
    assert run(container(more=" core_percent=95"), sanitizer, "launches_race", "4", "150") == "0 failures\n"
