"""The C tests that do not need speed, under valgrind's memcheck: ``make valgrind``. No other tests, and not part of ``make test``."""

import os
import re
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare_playground import gpus
from tests.building import ROOT
from tests.unit.fakegpu import building as fakegpu
from tests.unit.isolation import building as isolation
from tests.unit.isolation.building import MIB, Container, lay_out

pytestmark = [pytest.mark.timeout(600)]

PROGRAM_S = 300.0

#: Of one process: its number, and what is said.
SAID = re.compile(r"==(\d+)==(.*)")
SEEDS = ROOT / "tests" / "fuzz" / "corpus"


@pytest.fixture(scope="session")
def memcheck() -> list[str]:
    if not shutil.which("valgrind"):
        missing = "valgrind is not here; scripts/install-c-tools installs it"
        if fakegpu.IN_CI:
            pytest.fail(missing)
        pytest.skip(missing)
    fakegpu.build("programs")
    isolation.build("programs")
    return [
        "valgrind",
        "--quiet",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite",
        "--show-leak-kinds=definite",
        "--fair-sched=yes",
        f"--suppressions={Path(__file__).with_name('loader.supp')}",
        "--child-silent-after-fork=no",
    ]


@pytest.fixture
def node(tmp_path: Path) -> gpus.GpuNode:
    preset = gpus.preset("v100-16160", "n1")
    described = replace(preset, gpus=(replace(preset.gpus[0], context_mib=16),))
    gpus.write(tmp_path / "node.gpus", described)
    return described


@pytest.fixture
def here(tmp_path: Path, node: gpus.GpuNode) -> Container:
    container = lay_out(tmp_path / "c", tmp_path / "node.gpus")
    container.limit(f"{node.gpus[0].uuid} memory_bytes={1024 * MIB} core_percent=95 core_policy=idle")
    return container


def found(said: str, pid: int) -> list[str]:
    """What memcheck says. A child of fork has none of the other threads' stacks, so what those alone know of counts as lost there:
    that is not said of children."""
    lines = [match for match in map(SAID.fullmatch, said.splitlines()) if match]
    blocks: list[list[str]] = [[]]
    for line in lines:
        if line[2].strip():
            blocks[-1].append(line[0])
        elif blocks[-1]:
            blocks.append([])
    lost = [block for block in blocks if block and "lost in loss record" in block[0]]
    of_children = [block for block in lost if not block[0].startswith(f"=={pid}==")]
    return ["\n".join(block) for block in blocks if block and block not in of_children]


@contextmanager
def running(command: list[str | Path], **how: Any) -> Iterator["subprocess.Popen[str]"]:
    """One that does not end is ended, so that the test says where it stood."""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **how) as program:
        try:
            yield program
        finally:
            program.kill()


def clean(
    command: list[str | Path],
    environment: dict[str, str] | None = None,
    *,
    stdin: str = "",
    folder: Path | None = None,
) -> str:
    with running(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=folder,
        encoding="latin-1",
    ) as program:
        said, on_stderr = program.communicate(stdin, timeout=PROGRAM_S)
    assert found(on_stderr, program.pid) == []
    assert program.returncode == 0, on_stderr
    return said


def test_what_is_wrong_is_found(memcheck: list[str], tmp_path: Path) -> None:
    wrong = "#include <stdlib.h>\nint main(void) { volatile char *of = malloc(4); return of[4] && of[0]; }"
    subprocess.run(["gcc", "-x", "c", "-", "-o", tmp_path / "wrong"], input=wrong, text=True, check=True)
    with pytest.raises(AssertionError, match="Invalid read"):
        clean([*memcheck, tmp_path / "wrong"])


@pytest.mark.parametrize(
    ("program", "arguments", "says"),
    [
        ("limits_check", ["LIMITS"], "default/job/main"),
        ("limits_mutations", ["LIMITS", "2000", "7"], "of 2000 taken"),
        ("accounts_race", ["USAGE", "3", "12"], "0 left, the whole limit can be taken"),
        ("region_noise", ["USAGE", "1000", "3"], "of 1000 taken"),
    ],
)
def test_limits_and_accounts(
    memcheck: list[str], here: Container, program: str, arguments: list[str], says: str
) -> None:
    places = {"LIMITS": here.limits, "USAGE": here.usage}
    assert says in clean([*memcheck, isolation.BUILT / program, *(places.get(one, one) for one in arguments)])


def test_the_schedule(memcheck: list[str]) -> None:
    tenants = "tenant 30 0 1000000 0 50000 0 9000000000 0 0 0\ntenant 50 1 200000 10000 0 0 9000000000 500000000 3 0\n"
    stdin = f"run 2 20000 4 30000\n{tenants}go\n"
    assert clean([*memcheck, isolation.BUILT / "schedule_simulation"], stdin=stdin).strip()
    asked = "begin 1000\nadmit 0 30 0 0 0\nadmit 1 70 1 5 2\nstep 2000 0 0 0 1 1 1 9 0 1 1\ndismiss 0\nstep 90000000 1 99 0 2 1\n"
    assert clean([*memcheck, isolation.BUILT / "schedule_check"], stdin=asked).count("\n") == 2


@pytest.mark.parametrize(
    ("program", "arguments", "says"),
    [("threads_race", ["4", "40"], "0 failures"), ("launches_race", ["2", "15"], "0 failures")],
)
def test_threads_under_our_library(
    memcheck: list[str], here: Container, program: str, arguments: list[str], says: str
) -> None:
    assert says in clean([*memcheck, isolation.BUILT / program, *arguments], here.environment())


def test_processes_that_are_killed(memcheck: list[str], here: Container, node: gpus.GpuNode) -> None:
    real = fakegpu.BUILT / "libnvidia-ml.so.1"
    arguments = [real, node.gpus[0].uuid, "1024", "2", "60", "4"]
    assert "at most" in clean(
        [*memcheck, isolation.BUILT / "allocations_race", *arguments], here.environment()
    )


def test_the_arbiter_with_containers_that_come_and_are_cut_off(
    memcheck: list[str], here: Container, tmp_path: Path
) -> None:
    containers = tmp_path / "containers"
    folder = containers / "a"
    folder.mkdir(parents=True)
    os.link(here.usage, folder / "usage")
    os.link(here.limits, folder / "limits")
    with running([*memcheck, isolation.BUILT / "arbiter", "--containers", containers]) as arbiter:
        assert arbiter.stderr
        said = iter(arbiter.stderr.readline, "")
        assert any("at work" in line for line in said)
        os.truncate(here.usage, 4096)
        # Where it was admitted before: the arbiter does not look again at one that wants nothing.
        os.utime(folder / "limits")
        assert any("cut off" in line for line in said)
        arbiter.send_signal(signal.SIGTERM)
        left = list(said)
        assert arbiter.wait(PROGRAM_S) == 0, left
        assert found("".join(left), arbiter.pid) == []


def test_descriptions(memcheck: list[str]) -> None:
    seeds = [path.read_bytes() for path in sorted((SEEDS / "description").iterdir())]
    stdin = b"".join(struct.pack("=I", len(text)) + text for text in seeds)
    clean([*memcheck, fakegpu.BUILT / "description_check"], stdin=stdin.decode("latin-1"))


def test_the_shared_state_of_a_gpu(memcheck: list[str], tmp_path: Path) -> None:
    clean([*memcheck, fakegpu.BUILT / "state_slots", tmp_path / "slots"])
    assert "granted" in clean([*memcheck, fakegpu.BUILT / "state_race", tmp_path / "race", "3", "200", "10"])
    clean([*memcheck, fakegpu.BUILT / "cgroup_limits", tmp_path, "10"])


def test_the_management_library_while_its_file_is_replaced(memcheck: list[str], tmp_path: Path) -> None:
    described = gpus.preset("core-mem-4", "n1")
    lost = replace(
        described, gpus=(replace(described.gpus[0], fault="lost", xids={79: 1}), *described.gpus[1:])
    )
    (tmp_path / "good").write_text(gpus.render(described))
    (tmp_path / "lost").write_text(gpus.render(lost))
    environment = {**os.environ, "FAKEGPU_NODE": str(tmp_path / "live")}
    # What is broken is reported on stderr, each time.
    hammer = [*memcheck, fakegpu.BUILT / "hammer", "good", "lost", "good", "6"]
    assert clean(hammer, environment, folder=tmp_path).endswith(" calls\n")


def test_memory_of_every_kind(memcheck: list[str], node: gpus.GpuNode, tmp_path: Path) -> None:
    environment = {**os.environ, "FAKEGPU_NODE": str(tmp_path / "node.gpus")}
    assert clean([*memcheck, fakegpu.BUILT / "memory_hammer", "4"], environment).endswith(" calls\n")
