"""``make gpu-check`` end to end on the fake driver: it finds that limits hold, and it finds that they do not."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.building import ROOT
from tests.docs.assigned import commands_typed_by
from tests.unit.fakegpu import building as fakegpu
from tests.unit.isolation import building as isolation

pytestmark = pytest.mark.timeout(900)

#: What the page has a reader type; here the fake driver is in the driver's place, and the run is bounded
#: by ``SECTION``.
WHOLE, SOME, LENT, TRIAL = (
    command.text for command in commands_typed_by(__file__, "docs/developer/gpu-check.md")
)
WARNING = "**The fake driver. No figure here was measured on a real GPU.**"


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """Under the tests' own locks; what the check builds exists then."""
    fakegpu.build("library")
    isolation.build("libraries")
    isolation.build("all")
    isolation.build("linked")


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.gpu_check", *map(str, words)]


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": "src"} | more


def check(*words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words),
        cwd=ROOT,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def typed(text: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A command as the page shows it."""
    return subprocess.run(
        ["bash", "-c", text],
        cwd=ROOT,
        env=os.environ | {"PYTHON": sys.executable} | more,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def written(done: subprocess.CompletedProcess[str]) -> str:
    """The report that the output names; it is removed if it lies among those of the checkout."""
    line = re.search(r"^Report: (\S+)$", done.stdout, re.MULTILINE)
    assert line, done.stdout + done.stderr
    path = ROOT / line[1]
    text = path.read_text()
    if path.parent == ROOT / "build" / "gpu-check":
        path.unlink()
    return text


def only_report(folder: Path) -> str:
    (path,) = folder.iterdir()
    assert path.name.endswith("-fake-driver.md")
    return path.read_text()


def test_limits_that_hold_are_reported_as_holding(tmp_path: Path) -> None:
    done = typed(SOME, DRIVER="fakegpu", HOME=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    text = only_report(tmp_path / "gpu-check")
    assert text.splitlines()[2] == WARNING
    for part in ("The machine", "What the driver takes, and what is charged", "Memory"):
        assert f"## {part}\n" in text
    assert "| GPU |  | Tesla V100" in text
    assert "FAILED" not in text
    assert " 0 failed" in text
    assert "Completed after" in text
    assert "| the last MiB |" in text
    # The report contains what the screen showed.
    assert "0 failed" in done.stdout


def test_every_driver_function_is_checked_and_the_report_is_at_the_requested_path(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    done = typed(LENT, DRIVER="fakegpu", SECTION="symbols", OUT=str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    text = only_report(out)
    assert "## Functions of the driver\n" in text
    assert "libcuda.so.1 exports" in text
    assert " 0 failed" in text


def test_by_default_the_report_of_a_fake_driver_is_written_to_the_build_folder() -> None:
    done = typed(WHOLE, DRIVER="fakegpu", SECTION="clients")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^Report: \S*build/gpu-check/\S+-fake-driver(-\d+)?\.md$", done.stdout, re.MULTILINE)
    text = written(done)
    assert text.splitlines()[2] == WARNING
    assert " 0 failed" in text


def test_limits_that_do_not_hold_are_reported(tmp_path: Path) -> None:
    links = tmp_path / "none"
    links.mkdir()
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (links / name).symlink_to(fakegpu.BUILT / name)
    out = tmp_path / "out"
    done = check(
        "--driver",
        "fakegpu",
        "--out",
        out,
        "--section",
        "facts,memory",
        "--libraries",
        links,
        "--seconds",
        "200",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    text = only_report(out)
    failed = text.partition("Failed:\n")[2].partition("\n## ")[0]
    for kind in ("plain", "pitch", "managed", "async", "from_pool", "physical", "array", "mipmap"):
        assert f"* Memory: {kind}: " in failed
    for name in ("memory nodes of a graph", "the last MiB", "the total, MiB"):
        assert f"* Memory: {name}: " in failed


def test_every_other_section_completes() -> None:
    """Shares and costs are timed: a quick run does not show whether they hold."""
    done = typed(TRIAL, SECTION="shares,captures,races,costs,compute,pytorch")
    assert done.returncode == 0, done.stdout + done.stderr
    text = written(done)
    assert "Completed after" in text
    assert "Traceback" not in done.stderr
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| ")}
    assert " % " in rows["30%: kernels of 1 ms"]
    assert " % " in rows["30%: kernels of 1 ms; 70%: kernels of 0.05 ms"]
    assert " % " in rows["30%: graphs of 20 kernels of 0.05 ms"]
    assert " ns; " in rows["cuLaunchKernel"]
    for name in (
        "3 times a process is killed at work, with allocated memory",
        "8 threads allocate, free, fork",
        "calls that invalidate a global capture, by the calling thread's mode",
        "global captures with 1 busy thread, 2 s",
        "global captures with 8 busy threads, 2 s",
    ):
        assert rows[name].endswith("| held |"), rows[name]
    assert "PyTorch" in rows


def test_another_library_is_measured_for_comparison(tmp_path: Path) -> None:
    """One that limits nothing, in HAMi-core's place."""
    compiler = [os.environ.get("CC", "gcc"), "-shared", "-fPIC", "-x", "c", "/dev/null"]
    subprocess.run([*compiler, "-o", tmp_path / "libvgpu.so"], check=True, timeout=60)
    out = tmp_path / "out"
    done = check(
        "--driver", "fakegpu", "--out", out, "--section", "shares,costs", "--quick", "--hami", tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {
        line.split("|")[1].strip(): line for line in only_report(out).splitlines() if line.startswith("| ")
    }
    assert " % " in rows["HAMi-core, 30%: kernels of 1 ms; 70%: kernels of 0.05 ms"]
    assert "ns by HAMi-core" in rows["cuLaunchKernel"]


def test_a_fake_driver_is_not_recorded_among_the_measurements() -> None:
    done = check("--driver", "fakegpu", "--out", "docs/measurements")
    assert done.returncode == 2
    assert "it is for measurements of real GPUs" in done.stderr


def test_a_fake_driver_in_place_of_the_driver_is_refused(tmp_path: Path) -> None:
    done = check("--out", tmp_path, LD_LIBRARY_PATH=str(fakegpu.BUILT))
    assert done.returncode == 2, done.stdout
    assert "this is the fake driver" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_section_is_reported() -> None:
    done = check("--driver", "fakegpu", "--section", "memroy")
    assert done.returncode == 2
    assert "no section memroy" in done.stderr


@contextmanager
def at_work(out: Path, row: str) -> Iterator[subprocess.Popen[str]]:
    """A check that has written the row."""
    with subprocess.Popen(
        command("--driver", "fakegpu", "--out", out, "--section", "memory"),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        text=True,
    ) as running:
        try:
            until = time.monotonic() + 120
            while not any(row in path.read_text() for path in out.glob("*.md")):
                assert running.poll() is None
                assert time.monotonic() < until
                os.sched_yield()
            yield running
        finally:
            running.kill()


def test_a_killed_run_leaves_a_complete_report_of_its_results_so_far(tmp_path: Path) -> None:
    with at_work(tmp_path, "| plain: ") as running:
        running.kill()
        running.wait(timeout=60)
    (path,) = tmp_path.glob("*-fake-driver.md")
    text = path.read_text()
    assert text.splitlines()[2] == WARNING
    assert "Not finished" in text
    assert text.endswith("|\n")


def test_a_run_stops_on_sigterm_and_reports_it(tmp_path: Path) -> None:
    with at_work(tmp_path, "| plain: ") as running:
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=60) == 128 + signal.SIGTERM
    (path,) = tmp_path.iterdir()
    assert "Stopped early (SystemExit)" in path.read_text()


def test_it_runs_with_the_standard_library_alone(tmp_path: Path) -> None:
    """Without the virtual environment's packages and without a network."""
    done = subprocess.run(
        [
            sys.executable,
            "-S",
            "-E",
            "-c",
            PLAIN,
            "--driver",
            "fakegpu",
            "--out",
            str(tmp_path),
            "--section",
            "symbols",
        ],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed" in only_report(tmp_path)


PLAIN = """
import runpy, sys
sys.path[:0] = [".", "src"]
sys.exit(runpy.run_module("benchmarks.gpu_check", run_name="__main__"))
"""


#: The parts that the check uses before its first scenario; whatever a scenario uses ends the process.
CRASHING_TORCH = """
import os, resource, signal, sys, types
__version__ = "0.0"
class Tensor: pass
class version: cuda = "13.0"
utils = types.ModuleType("torch.utils")
utils.data = types.ModuleType("torch.utils.data")
utils.data.Dataset = object
sys.modules |= {"torch.utils": utils, "torch.utils.data": utils.data}
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), signal.SIGSEGV)
"""


def test_a_crashing_pytorch_is_reported_in_each_scenario_and_stops_none(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(CRASHING_TORCH)
    path = f"src:{tmp_path}"
    done = check("--driver", "fakegpu", "--out", tmp_path / "out", "--section", "pytorch", PYTHONPATH=path)
    assert done.returncode == 1, done.stdout + done.stderr
    text = only_report(tmp_path / "out")
    assert "| PyTorch, its CUDA |  | 0.0 13.0 |  |" in text
    rows = [line for line in text.splitlines() if line.startswith("|") and line.endswith("| **FAILED** |")]
    assert len(rows) == 7
    assert all("ended by SIGSEGV" in row for row in rows)
