"""The runner starts steps when they may run, ends those that take too long, and continues after a failure."""

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.runner import Runner
from pipelines.step import ALL, Result, State, Step, UnknownStep
from tests import patience

#: For steps that end by themselves, on a busy machine as well.
LONG_S = 60.0


class Pipeline:
    """Runs steps in a folder of their own and records messages."""

    on_message: Callable[[str], None]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.messages: list[str] = []
        self.on_message: Callable[[str], None] = lambda _: None

    def report(self, line: str) -> None:
        self.messages.append(line)
        self.on_message(line)

    def runner(self, *steps: Step, **options: Any) -> Runner:
        return Runner(
            steps,
            self.folder / "logs",
            self.report,
            **{"cores": 2, "folder": self.folder, "grace_s": 5} | options,
        )

    def run(self, *steps: Step, **options: Any) -> dict[str, Result]:
        return {one.step.name: one for one in self.runner(*steps, **options).run()}

    def events(self) -> list[str]:
        """Messages about steps, as ``EVENT NAME``."""
        return [
            " ".join(line.partition("] ")[2].split()[:2]) for line in self.messages if line.startswith("[")
        ]


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return Pipeline(tmp_path)


def meeting(folder: Path) -> tuple[str, str]:
    """Two commands that end only when both run at the same time."""
    for name in ("there", "back"):
        os.mkfifo(folder / name)
    return "echo 1 > there; read -r < back", "read -r < there; echo 1 > back"


def test_steps_run_side_by_side_while_there_are_processors_for_them(pipeline: Pipeline) -> None:
    first, second = meeting(pipeline.folder)
    results = pipeline.run(Step("a", first, LONG_S), Step("b", second, LONG_S))
    assert [one.state for one in results.values()] == [State.PASSED] * 2


@pytest.mark.parametrize("cores", [1.5, 2, 3, ALL])
def test_a_step_waits_until_there_are_processors_for_it(pipeline: Pipeline, cores: float) -> None:
    pipeline.run(Step("a", "true", LONG_S), Step("b", "true", LONG_S, cores=cores))
    assert pipeline.events() == ["started a", "passed a", "started b", "passed b"]


def test_a_smaller_step_is_started_before_one_that_does_not_fit(pipeline: Pipeline) -> None:
    first, second = meeting(pipeline.folder)
    pipeline.run(
        Step("a", first, LONG_S), Step("large", "true", LONG_S, cores=2), Step("small", second, LONG_S)
    )
    assert pipeline.events()[:2] == ["started a", "started small"]
    assert pipeline.events()[-2:] == ["started large", "passed large"]


def test_what_needs_a_failed_step_is_not_run_and_the_rest_is(pipeline: Pipeline) -> None:
    results = pipeline.run(
        Step("bad", "exit 3", LONG_S),
        Step("after", "true", LONG_S, needs=("bad",)),
        Step("after-that", "true", LONG_S, needs=("after",)),
        Step("other", "true", LONG_S),
    )
    assert {name: (one.state, one.reason) for name, one in results.items()} == {
        "bad": (State.FAILED, "exit status 3"),
        "after": (State.NOT_RUN, "needs bad"),
        "after-that": (State.NOT_RUN, "needs after"),
        "other": (State.PASSED, ""),
    }


def test_a_step_starts_when_what_it_needs_has_passed(pipeline: Pipeline) -> None:
    results = pipeline.run(Step("a", "echo made > made", LONG_S), Step("b", "cat made", LONG_S, needs=("a",)))
    assert results["b"].state is State.PASSED
    assert (pipeline.folder / "logs" / "b.log").read_text() == "made\n"


def test_a_need_that_is_no_earlier_step_is_refused(pipeline: Pipeline) -> None:
    with pytest.raises(UnknownStep, match="a needs b, which is no earlier step"):
        pipeline.run(Step("a", "true", LONG_S, needs=("b",)), Step("b", "true", LONG_S))


@pytest.fixture
def released(pipeline: Pipeline) -> Iterator[Callable[[], bool]]:
    """Makes a fifo ``held``; returns whether it is closed at last by all processes that write to it."""
    path = pipeline.folder / "held"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    poll = select.poll()
    poll.register(reading, 0)
    yield lambda: bool(poll.poll(LONG_S * 1000))
    os.close(reading)


def test_a_step_that_takes_too_long_is_killed_with_all_that_it_started(
    pipeline: Pipeline, released: Callable[[], bool]
) -> None:
    # Neither ends on SIGTERM; a child that was not killed would keep the fifo open.
    child = "exec 3> held; trap '' TERM; (while :; do read -r -t 1 < /dev/zero || :; done) & wait"
    results = pipeline.run(Step("a", child, 1), grace_s=0.2)
    assert (results["a"].state, results["a"].reason) == (State.FAILED, "killed: it took longer than 1 s")
    assert released()


def test_a_time_limit_does_not_count_time_without_free_processors(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "starved_s", time.monotonic)
    monkeypatch.setattr(patience, "_MOST_TIMES", 1e6)
    os.mkfifo(pipeline.folder / "go")
    go_on = iter([lambda: (pipeline.folder / "go").write_text("go\n")])
    pipeline.on_message = lambda line: next(go_on, int)() if "running  a for" in line else None
    # At the first heartbeat the limit has passed on the clock.
    assert pipeline.run(Step("a", "read -r < go", 0.2), heartbeat_s=0.3)["a"].state is State.PASSED


def test_processes_that_a_step_leaves_behind_are_killed(
    pipeline: Pipeline, released: Callable[[], bool]
) -> None:
    results = pipeline.run(Step("a", "exec 3> held; sleep 1000 &", LONG_S))
    assert results["a"].state is State.PASSED
    assert released()


def test_stopping_ends_running_steps_and_starts_no_more(pipeline: Pipeline) -> None:
    runner = pipeline.runner(
        Step("a", "sleep 1000", LONG_S),
        Step("b", "true", LONG_S, needs=("a",)),
        Step("c", "true", 1, cores=2),
    )
    pipeline.on_message = lambda line: runner.stop() if "started  a" in line else None
    assert [(one.state, one.reason) for one in runner.run()] == [
        (State.FAILED, "interrupted"),
        (State.NOT_RUN, "interrupted"),
        (State.NOT_RUN, "interrupted"),
    ]


def test_a_step_that_is_ended_by_a_signal_names_it(pipeline: Pipeline) -> None:
    results = pipeline.run(Step("a", "kill -KILL $$", LONG_S))
    assert results["a"].reason == f"ended by {signal.SIGKILL.name}"


def test_a_pipe_fails_with_any_of_its_parts(pipeline: Pipeline) -> None:
    assert pipeline.run(Step("a", "false | true", LONG_S))["a"].state is State.FAILED


def test_pytests_closing_line_is_reported(pipeline: Pipeline) -> None:
    pipeline.run(Step("a", "echo '=== 12 passed, 1 skipped in 3.20s ==='; echo more", LONG_S))
    assert "12 passed, 1 skipped in 3.20s" in pipeline.messages


def test_a_step_may_report_that_it_skipped_itself(pipeline: Pipeline) -> None:
    results = pipeline.run(
        Step("a", "echo 'skipped: there is no peer'", LONG_S), Step("b", "true", LONG_S, needs=("a",))
    )
    assert (results["a"].state, results["a"].reason) == (State.SKIPPED, "there is no peer")
    assert results["b"].state is State.PASSED


def test_running_steps_are_named_while_they_run(pipeline: Pipeline) -> None:
    os.mkfifo(pipeline.folder / "go")
    reported = threading.Event()

    def on_message(line: str) -> None:
        if "running  a for" in line and not reported.is_set():
            reported.set()
            (pipeline.folder / "go").write_text("go\n")

    pipeline.on_message = on_message
    results = pipeline.run(Step("a", "read -r < go", LONG_S), heartbeat_s=0.05)
    assert results["a"].state is State.PASSED
    assert reported.is_set()


def test_processor_time_is_that_of_the_steps_processes(pipeline: Pipeline) -> None:
    busy = "python3 -c 'import time\nwhile time.process_time() < 0.3: pass'"
    assert 0.3 <= pipeline.run(Step("a", busy, LONG_S))["a"].processor_s < 5


def test_flags_of_the_make_that_started_a_pipeline_are_not_inherited(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAKEFLAGS", "--jobserver-auth=3,4 -- ARGS=bench")
    monkeypatch.setenv("ARGS", "bench")
    assert pipeline.run(Step("a", '[ -z "${MAKEFLAGS:-}${ARGS:-}" ]', LONG_S))["a"].state is State.PASSED
