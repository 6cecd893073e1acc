"""Programs started by ``make gpu-check``: the report states how each ended."""

import os
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu_check.running import Clock, Ended, Outcome, conversation, run

PYTHON = [sys.executable, "-c"]


def python(lines: str, timeout_s: float = 60) -> Outcome:
    return run([*PYTHON, lines], environment=os.environ, timeout_s=timeout_s)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_program_that_succeeds() -> None:
    outcome = run([*PYTHON, "print(input())"], environment=os.environ, timeout_s=60, stdin="said")
    assert (outcome.good, outcome.out, outcome.words()) == (True, "said\n", "ended with 0")


@pytest.mark.parametrize("signal", ["SIGSEGV", "SIGABRT", "SIGKILL"])
def test_a_crash_is_reported_by_the_signals_name(signal: str) -> None:
    outcome = python(
        f"import os, resource, signal\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nos.kill(os.getpid(), signal.{signal})"
    )
    assert not outcome.good
    assert outcome.words() == f"ended by {signal}"


def test_a_failure_is_reported_with_the_last_output() -> None:
    outcome = python("import sys\nsys.exit('begin ' + 'x' * 1000 + ' the reason')")
    assert outcome.trouble().startswith("ended with 1: …")
    assert outcome.trouble().endswith(" the reason")
    assert len(outcome.trouble()) < 400


def test_a_program_that_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    lines = (
        "import signal, subprocess\n"
        f"child = subprocess.Popen(['sleep', '1000'])\nopen({str(child)!r}, 'w').write(str(child.pid))\n"
        "signal.pause()"
    )
    outcome = python(lines, timeout_s=2)
    assert outcome.status is None
    assert outcome.words().startswith("did not end within ")
    if not child.exists():
        pytest.skip("this machine was too busy for it to begin")
    until = time.monotonic() + 60
    while is_running(int(child.read_text())):
        assert time.monotonic() < until
        os.sched_yield()


def test_an_interactive_program_answers_line_by_line(tmp_path: Path) -> None:
    lines = "import sys\nfor line in sys.stdin: print(line.strip() * 2, flush=True)"
    with conversation(
        [*PYTHON, lines], environment=os.environ, timeout_s=60, complaints=tmp_path / "err"
    ) as program:
        assert [program.ask("ab"), program.ask("c")] == ["abab", "cc"]
    assert program.process.returncode is not None


def test_a_program_that_exits_instead_of_answering_is_reported_with_its_output(tmp_path: Path) -> None:
    lines = "import sys\nsys.exit('no such device')"
    with (
        conversation(
            [*PYTHON, lines], environment=os.environ, timeout_s=60, complaints=tmp_path / "err"
        ) as program,
        pytest.raises(Ended, match="ended with 1: no such device"),
    ):
        program.answer()


def test_a_program_that_never_answers_is_killed(tmp_path: Path) -> None:
    lines = "import sys\nsys.stdin.read()"
    with (
        conversation(
            [*PYTHON, lines], environment=os.environ, timeout_s=1, complaints=tmp_path / "err"
        ) as program,
        pytest.raises(Ended, match="did not end within 1 s"),
    ):
        program.answer()


def test_no_program_may_take_longer_than_the_whole_run() -> None:
    assert Clock(1000).at_most_s(60) == 60
    assert Clock(10).at_most_s(60) <= 10
    assert Clock(-5).at_most_s(60) == 1.0


def test_the_last_line_of_a_failing_python_program_is_reported() -> None:
    assert python("assert 1 == 2, 'cuInit: 100'").trouble() == "ended with 1: AssertionError: cuInit: 100"
