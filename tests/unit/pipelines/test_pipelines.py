"""The pipelines' steps fit together, and their make targets exist."""

import re
import shlex
from collections.abc import Sequence

import pytest

from documentation.__main__ import PROJECT
from documentation.understood.make import read
from pipelines import __main__ as pipelines
from pipelines.report import MOST_LINES
from pipelines.step import Step

ALL = pytest.mark.parametrize("steps", pipelines.PIPELINES.values(), ids=pipelines.PIPELINES)


@ALL
def test_names_differ_and_needs_come_first(steps: Sequence[Step]) -> None:
    names = [step.name for step in steps]
    assert len(set(names)) == len(names)
    for number, step in enumerate(steps):
        assert set(step.needs) <= set(names[:number]), step.name


@ALL
def test_targets_of_make_are_in_the_makefile(steps: Sequence[Step]) -> None:
    existing = read((PROJECT / "Makefile").read_text()).targets
    for step in steps:
        for words in re.findall(r"\bmake ([^&;]*)", step.command):
            targets = [word for word in shlex.split(words) if not set("=/") & set(word) and word[0] != "-"]
            assert set(targets) <= existing.keys(), step.name


@ALL
def test_reruns_are_of_the_steps_own_target(steps: Sequence[Step]) -> None:
    for step in steps:
        assert step.command.startswith(" ".join(step.rerun.split()[:2])), step.name


def test_ci_starts_the_pipeline() -> None:
    assert "exec python3 -m pipelines ci" in (PROJECT / ".ci" / "run").read_text()


def test_a_run_reports_its_steps_and_returns_their_status(
    tmp_path: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines.signal, "signal", lambda *_: None)
    monkeypatch.chdir(str(tmp_path))
    good, bad = Step("good", "true", 60), Step("bad", "echo no; exit 1", 60)
    assert pipelines.run("ci", [good], pipelines.LOGS) == 0
    assert capsys.readouterr().out.splitlines()[-2].split() == ["good", "0", "0", "passed"]
    assert pipelines.run("ci", [bad, good], pipelines.LOGS) == 1
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("ci: 1 of 2 steps failed")
    assert len(lines) - at <= MOST_LINES
    assert lines[at + 1 :] == [
        "bad: exit status 1, after 0 s; log: build/logs/bad.log",
        "  no",
        "  rerun: echo no; exit 1",
    ]


def test_an_unknown_step_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        pipelines.main(["ci", "tset"])
    assert caught.value.code == 2
    assert "no step tset; there are install, " in capsys.readouterr().err
