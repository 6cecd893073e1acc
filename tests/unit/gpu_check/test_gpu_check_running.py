"""Programs that ``make gpu-check`` starts: however they end, the report says how."""

import os
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu_check.running import Clock, Ended, Outcome, asked, run

PYTHON = [sys.executable, "-c"]


def python(lines: str, timeout_s: float = 60) -> Outcome:
    return run([*PYTHON, lines], environment=os.environ, timeout_s=timeout_s)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_one_that_ends_in_order() -> None:
    ended = run([*PYTHON, "print(input())"], environment=os.environ, timeout_s=60, stdin="said")
    assert (ended.good, ended.out, ended.words()) == (True, "said\n", "ended with 0")


@pytest.mark.parametrize("signal", ["SIGSEGV", "SIGABRT", "SIGKILL"])
def test_a_crash_is_reported_by_the_signals_name(signal: str) -> None:
    ended = python(
        f"import os, resource, signal\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nos.kill(os.getpid(), signal.{signal})"
    )
    assert not ended.good
    assert ended.words() == f"ended by {signal}"


def test_a_failure_is_reported_with_the_last_output() -> None:
    ended = python("import sys\nsys.exit('begin ' + 'x' * 1000 + ' the reason')")
    assert ended.trouble().startswith("ended with 1: …")
    assert ended.trouble().endswith(" the reason")
    assert len(ended.trouble()) < 400


def test_one_that_does_not_end_is_ended_with_what_it_began(tmp_path: Path) -> None:
    child = tmp_path / "child"
    lines = (
        "import signal, subprocess\n"
        f"child = subprocess.Popen(['sleep', '1000'])\nopen({str(child)!r}, 'w').write(str(child.pid))\n"
        "signal.pause()"
    )
    ended = python(lines, timeout_s=2)
    assert ended.status is None
    assert ended.words().startswith("did not end within ")
    if not child.exists():
        pytest.skip("this machine was too busy for it to begin")
    until = time.monotonic() + 60
    while lives(int(child.read_text())):
        assert time.monotonic() < until
        os.sched_yield()


def test_one_that_is_asked_answers_line_by_line(tmp_path: Path) -> None:
    lines = "import sys\nfor line in sys.stdin: print(line.strip() * 2, flush=True)"
    with asked(
        [*PYTHON, lines], environment=os.environ, timeout_s=60, complaints=tmp_path / "err"
    ) as program:
        assert [program.ask("ab"), program.ask("c")] == ["abab", "cc"]
    assert program.process.returncode is not None


def test_one_that_ends_instead_of_answering_says_why(tmp_path: Path) -> None:
    lines = "import sys\nsys.exit('no such device')"
    with (
        asked([*PYTHON, lines], environment=os.environ, timeout_s=60, complaints=tmp_path / "err") as program,
        pytest.raises(Ended, match="ended with 1: no such device"),
    ):
        program.answer()


def test_one_that_never_answers_is_ended(tmp_path: Path) -> None:
    lines = "import sys\nsys.stdin.read()"
    with (
        asked([*PYTHON, lines], environment=os.environ, timeout_s=1, complaints=tmp_path / "err") as program,
        pytest.raises(Ended, match="did not end within 1 s"),
    ):
        program.answer()


def test_no_program_may_take_longer_than_the_whole_run() -> None:
    assert Clock(1000).at_most_s(60) == 60
    assert Clock(10).at_most_s(60) <= 10
    assert Clock(-5).at_most_s(60) == 1.0


def test_of_a_failing_python_program_the_last_line_is_reported() -> None:
    assert python("assert 1 == 2, 'cuInit: 100'").trouble() == "ended with 1: AssertionError: cuInit: 100"
