"""Programs that the node agent starts: watched, restarted, and stopped with it."""

import asyncio
import errno
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.node.modes import NodeMode
from gpushare.kube.backoff import Backoff
from gpushare.kube.clock import SYSTEM_CLOCK
from gpushare.nodeagent.allocate.container_response import Grant, Mount
from gpushare.nodeagent.errors import AllocationRefused
from gpushare.nodeagent.isolation.backends import daemons, mps, subprocesses
from gpushare.nodeagent.isolation.backends.subprocesses import Child

DEADLINE_S = 60.0
#: Longer than a program that fails takes to start and end on a busy machine.
FAILS_S = 10.0
OWN_MOUNTS = subprocess.run(["unshare", "-m", "true"], check=False, stderr=subprocess.DEVNULL).returncode == 0


class Watched:
    """Runs something in a task and waits for states of it."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def notify(self) -> None:
        self._changed.set()

    async def until(self, state: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not state():
                self._changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), 0.02)


def child(watched: Watched, *argv: str) -> Child:
    return Child(
        argv,
        env={"PATH": os.environ["PATH"], "WORD": "said"},
        clock=SYSTEM_CLOCK,
        on_change=watched.notify,
        backoff=Backoff(0.01, 0.05),
        steady_s=0.2,
    )


def noting(path: object) -> str:
    """What a shell runs to write its PID, all at once, and stay."""
    return f"echo $$ >{path}.new; mv {path}.new {path}; exec sleep 1000"


async def finished(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_a_running_program_is_healthy_and_ends_with_the_agent(tmp_path: Path) -> None:
    watched, noted = Watched(), tmp_path / "pid"
    one = child(watched, "sh", "-c", noting(noted))
    assert "has not been started" in one.fault
    task = asyncio.create_task(one.run())
    await watched.until(lambda: not one.fault and noted.exists())
    pid = int(noted.read_text())
    os.kill(pid, 0)
    await finished(task)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_failing_program_reports_why_and_is_restarted() -> None:
    watched = Watched()
    one = child(watched, "sh", "-c", "echo first >&2; echo $WORD >&2; exit 3")
    task = asyncio.create_task(one.run())
    # On a busy machine a program that takes long to exit counts as healthy meanwhile.
    why = "sh ended with exit code 3 (said); it is started again"
    await watched.until(lambda: one.starts >= 3 and one.fault == why)
    await finished(task)


async def test_a_program_that_ends_before_its_children_is_restarted(tmp_path: Path) -> None:
    """An MPS server goes on when its daemon is killed; it has the daemon's stderr."""
    watched, noted = Watched(), tmp_path / "pids"
    one = child(watched, "sh", "-c", f"sleep 1000 & echo $! >>{noted}; echo $WORD >&2; exit 3")
    task = asyncio.create_task(one.run())
    why = "sh ended with exit code 3 (said); it is started again"
    await watched.until(lambda: one.starts >= 2 and one.fault == why)
    await finished(task)
    for pid in map(int, noted.read_text().split()):
        assert not is_gone(pid)
        os.kill(pid, signal.SIGKILL)


async def test_a_killed_program_is_restarted(tmp_path: Path) -> None:
    watched, noted = Watched(), tmp_path / "pid"
    one = child(watched, "sh", "-c", noting(noted))
    task = asyncio.create_task(one.run())
    await watched.until(lambda: not one.fault and noted.exists())
    os.kill(int(noted.read_text()), signal.SIGKILL)
    await watched.until(lambda: "was ended by signal 9" in one.fault)
    await watched.until(lambda: not one.fault)
    assert one.starts == 2
    await finished(task)


async def test_a_missing_program_is_named() -> None:
    watched = Watched()
    one = child(watched, "no-such-program")
    task = asyncio.create_task(one.run())
    await watched.until(lambda: "no-such-program: No such file or directory" in one.fault)
    await finished(task)


async def test_it_ends_when_the_agent_is_killed(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    script = (
        "import asyncio, os\n"
        "from gpushare.kube.clock import SYSTEM_CLOCK\n"
        "from gpushare.nodeagent.isolation.backends.subprocesses import Child\n"
        f"argv = ('sh', '-c', '{noting(noted)}')\n"
        "asyncio.run(Child(argv, env=os.environ, clock=SYSTEM_CLOCK, on_change=lambda: None).run())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, env={**os.environ, "PYTHONPATH": "src"}
    )
    watched = Watched()
    await watched.until(noted.exists)
    pid = int(noted.read_text())
    parent.kill()
    await parent.wait()

    def is_gone() -> bool:
        with suppress(OSError):
            return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
        return True

    await watched.until(is_gone)


GRANT = Grant("default/a", "ua", "c", (GpuShare("GPU-a", 0, 2154, 2, 15, 30),), 2, NodeMode.MPS)


def servers(
    tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch, steady_s: float = 0.1
) -> mps.Mps:
    monkeypatch.setattr(mps, "_FOLDERS", (str(tmp_path / "bin").lstrip("/"),))
    cgroups = tmp_path / "cgroups"
    for hierarchy in ("cpuset", "memory"):
        (cgroups / hierarchy).mkdir(parents=True, exist_ok=True)
        (cgroups / hierarchy / "cgroup.procs").touch()
    (cgroups / "cpuset" / "cpuset.cpus").write_text("0-1")
    shared = tmp_path / "shm"
    shared.mkdir(exist_ok=True)
    return mps.Mps(
        Path("/"),
        tmp_path / "mps",
        clock=SYSTEM_CLOCK,
        on_change=watched.notify,
        steady_s=steady_s,
        cgroups=cgroups,
        shared=shared,
    )


@pytest.fixture(params=["outlives", "within"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether daemons outlive the agent; where the agent is process 1 they cannot."""
    monkeypatch.setattr(mps, "outlives_us", lambda: request.param == "outlives")
    return str(request.param)


def control(tmp_path: Path, script: str) -> None:
    (tmp_path / "bin").mkdir(exist_ok=True)
    new = tmp_path / "bin" / "new"
    new.write_text(f"#!/bin/sh\n{script}\n")
    new.chmod(0o755)
    new.rename(tmp_path / "bin" / mps.CONTROL)


async def test_mps_has_a_daemon_for_each_gpu_that_is_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    watched = Watched()
    control(
        tmp_path,
        'cd "$CUDA_MPS_PIPE_DIRECTORY"; echo "$$ $1 $CUDA_VISIBLE_DEVICES $CUDA_MPS_LOG_DIRECTORY" >new; '
        "mv new started; exec sleep 1000",
    )
    backend = servers(tmp_path, watched, monkeypatch)
    backend.want(["GPU-a", "GPU-b"])
    task = asyncio.create_task(backend.run(0.02))
    files = {gpu: tmp_path / "mps" / gpu / "pipe" / "started" for gpu in ("GPU-a", "GPU-b")}
    await watched.until(
        lambda: not backend.trouble and not backend.lacking() and all(map(Path.exists, files.values()))
    )
    started = {gpu: path.read_text().split() for gpu, path in files.items()}
    assert started["GPU-a"][1:] == ["-f", "GPU-a", str(tmp_path / "mps" / "GPU-a" / "log")]
    injection = await backend.inject(GRANT, in_place=False)
    assert injection.envs == {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/gpushare/mps",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2154M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
    }
    assert injection.mounts[0] == Mount(
        str(tmp_path / "mps" / "GPU-a" / "pipe"), "/run/gpushare/mps", read_only=False
    )
    second = GpuShare("GPU-b", 1, 2154, 2, 15)
    with pytest.raises(AllocationRefused, match="under MPS a container can use only one GPU"):
        await backend.inject(replace(GRANT, shares=(*GRANT.shares, second)), in_place=False)
    os.kill(int(started["GPU-a"][0]), signal.SIGKILL)
    await watched.until(lambda: "GPU-a" in backend.lacking())
    assert "GPU-b" not in backend.lacking()
    with pytest.raises(AllocationRefused, match=r"GPU 0 cannot be shared by MPS: .* ended"):
        await backend.inject(GRANT, in_place=False)
    await watched.until(
        lambda: not backend.lacking() and files["GPU-a"].read_text().split()[0] != started["GPU-a"][0]
    )
    backend.want([])
    last = int(files["GPU-a"].read_text().split()[0])
    await watched.until(lambda: is_gone(last))
    await finished(task)
    # The other one, too.
    await watched.until(lambda: is_gone(int(started["GPU-b"][0])))


async def test_mps_daemons_are_restarted_when_the_node_has_processes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    watched = Watched()
    for module in (subprocesses, daemons):
        monkeypatch.setattr(module, "Backoff", lambda *_: Backoff(0.01, 0.02))
    control(tmp_path, noting(tmp_path / "pid"))
    backend = servers(tmp_path, watched, monkeypatch)
    backend.want(["GPU-a"])
    task = asyncio.create_task(backend.run(0.02))
    await watched.until(lambda: not backend.trouble and not backend.lacking() and (tmp_path / "pid").exists())
    started = asyncio.create_subprocess_exec
    tries: list[tuple[str, ...]] = []

    async def none_left(*argv: str, **how: Any) -> asyncio.subprocess.Process:
        tries.append(argv)
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", none_left)
    first = int((tmp_path / "pid").read_text())
    os.kill(first, signal.SIGKILL)
    why = "cannot be started (Resource temporarily unavailable)"
    await watched.until(lambda: len(tries) > 1 and why in backend.lacking().get("GPU-a", ""))
    monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
    await watched.until(lambda: not backend.lacking() and int((tmp_path / "pid").read_text()) != first)
    backend.want([])
    await watched.until(lambda: not backend._children and is_gone(int((tmp_path / "pid").read_text())))
    await finished(task)


def is_gone(pid: int) -> bool:
    with suppress(OSError):
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    return True


async def test_mps_daemons_outlive_the_agent_and_are_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched()
    control(tmp_path, noting('"$CUDA_MPS_PIPE_DIRECTORY/pid"'))
    noted = tmp_path / "mps" / "GPU-a" / "pipe" / "pid"
    before = servers(tmp_path, watched, monkeypatch)
    before.want(["GPU-a"])
    task = asyncio.create_task(before.run(0.02))
    await watched.until(lambda: noted.exists() and not before.lacking())
    pid = int(noted.read_text())
    assert os.getsid(pid) == os.getpgid(pid) != os.getsid(0)
    for hierarchy in ("cpuset", "memory"):
        assert (tmp_path / "cgroups" / hierarchy / "gpushare-mps" / "cgroup.procs").read_text() == "0"
    assert (tmp_path / "cgroups" / "cpuset" / "gpushare-mps" / "cpuset.cpus").read_text() == "0-1"
    await finished(task)
    assert not is_gone(pid)

    after = servers(tmp_path, watched, monkeypatch)
    # While another agent acts, and before the wanted state is known, nothing is stopped.
    after.want([], acts=False)
    task = asyncio.create_task(after.run(0.02))
    after.want(["GPU-a"])
    await watched.until(lambda: not after.lacking())
    assert not after.unable
    assert int(noted.read_text()) == pid
    after.want([], acts=False)
    await asyncio.sleep(0)
    assert not is_gone(pid)
    after.clear()
    assert noted.exists()
    after.want([])
    await watched.until(lambda: is_gone(pid))
    await finished(task)
    after.clear()
    assert not (tmp_path / "mps").exists()


async def test_an_mps_daemon_shares_memory_only_with_the_containers_of_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not OWN_MOUNTS:
        pytest.skip("mounts of one's own need CAP_SYS_ADMIN")
    watched = Watched()
    seen = tmp_path / "shm"
    control(tmp_path, f"touch {seen}/of-$CUDA_VISIBLE_DEVICES; exec sleep 1000")
    backend = servers(tmp_path, watched, monkeypatch)
    (seen / daemons.NAME).mkdir()
    (seen / daemons.NAME / "GPU-b").symlink_to(tmp_path)
    backend.want(["GPU-a", "GPU-b"])
    task = asyncio.create_task(backend.run(0.02))
    own = seen / daemons.NAME / "GPU-a"
    await watched.until(lambda: not backend.trouble and not backend.lacking())
    await watched.until(lambda: (own / "of-GPU-a").exists() and (seen / "of-GPU-b").exists())
    # If its place is occupied already, it has the node's, as all have where a separate one is unavailable.
    assert not (seen / "of-GPU-a").exists()
    assert not (tmp_path / "of-GPU-b").exists()
    assert stat.S_IMODE(own.stat().st_mode) == 0o1777
    assert stat.S_IMODE(own.parent.stat().st_mode) == 0o711
    for gpu, place in (("GPU-a", own), ("GPU-b", seen)):
        grant = replace(GRANT, shares=(GpuShare(gpu, 0, 2154, 2, 15),))
        pipe, memory = (await backend.inject(grant, in_place=False)).mounts
        assert memory == Mount(str(place), "/dev/shm", read_only=False)
        assert stat.S_IMODE(os.stat(pipe.host_path).st_mode) == 0o1777
    # A daemon that an agent of an earlier version started has the node's, too.
    note = tmp_path / "mps" / "GPU-a" / daemons.NOTE
    note.write_text(json.dumps({k: v for k, v in json.loads(note.read_text()).items() if k != "shared"}))
    (_, memory) = (await backend.inject(GRANT, in_place=False)).mounts
    assert memory.host_path == str(seen)
    backend.want([])
    await watched.until(lambda: not any(map(daemons.is_running, (tmp_path / "mps").glob("GPU-*"))))
    await finished(task)


def test_a_note_that_is_about_another_process_by_now_is_not_trusted(tmp_path: Path) -> None:
    stat = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    true = {"pid": os.getpid(), "started": int(stat[19]), "boot": boot}
    for note in ({**true, "started": 1}, {**true, "boot": "another"}, {"pid": os.getpid()}, ["x"]):
        (tmp_path / daemons.NOTE).write_text(json.dumps(note))
        assert not daemons.is_running(tmp_path)
    (tmp_path / daemons.NOTE).write_text(json.dumps(true))
    assert daemons.is_running(tmp_path)


async def test_mps_without_its_program_reports_so_until_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched()
    backend = servers(tmp_path, watched, monkeypatch)
    backend.want(["GPU-a"])
    task = asyncio.create_task(backend.run(0.02))
    await watched.until(lambda: "nvidia-cuda-mps-control is not on the node" in backend.trouble)
    assert set(backend.lacking()) == {"GPU-a"}
    control(tmp_path, "exec sleep 1000")
    await watched.until(lambda: not backend.trouble and not backend.lacking())
    backend.want([])
    await watched.until(lambda: not daemons.is_running(tmp_path / "mps" / "GPU-a"))
    await finished(task)


async def test_a_node_where_no_daemon_ever_ran_does_not_support_mps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    watched = Watched()
    for module in (subprocesses, daemons):
        monkeypatch.setattr(module, "Backoff", lambda *_: Backoff(0.01, 0.02))
    backend = servers(tmp_path, watched, monkeypatch, steady_s=FAILS_S)
    assert not backend.unable
    backend.want(["GPU-a"])
    task = asyncio.create_task(backend.run(0.02))
    await watched.until(lambda: "nvidia-cuda-mps-control is not on the node" in backend.unable)
    control(tmp_path, "echo no such device >&2; exit 1")
    await watched.until(lambda: "(no such device)" in backend.unable)
    (child, _) = backend._children["GPU-a"]
    noted = tmp_path / "pid"
    control(tmp_path, noting(noted))
    await watched.until(noted.exists)
    # How long this one has to run was determined when it started; the next one need not run for so long.
    child._steady_s = 0.1
    first = noted.read_text()
    os.kill(int(first), signal.SIGKILL)
    await watched.until(lambda: not backend.lacking() and noted.read_text() != first)
    assert not backend.unable
    # One that has run before will run again: no reason for a fallback.
    control(tmp_path, "exit 1")
    child._steady_s = FAILS_S
    starts = child.starts
    os.kill(int(noted.read_text()), signal.SIGKILL)
    await watched.until(lambda: child.starts >= starts + mps.FAILED_STARTS)
    assert backend.lacking()
    assert not backend.unable
    backend.want([])
    await watched.until(lambda: not backend._children)
    await finished(task)
