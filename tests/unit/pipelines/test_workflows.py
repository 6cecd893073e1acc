"""Files in ``.github``: workflows call only make and ``.ci/run``, and templates name what exists."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from documentation.__main__ import PROJECT
from documentation.understood import fault
from pipelines import __main__ as pipelines

GITHUB = PROJECT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").iterdir())
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").iterdir() if path.stem != "config")
TEMPLATES = [*FORMS, GITHUB / "pull_request_template.md"]
#: A version of an action of the host, or a commit of any other.
PINNED = re.compile(r"actions/[a-z-]+@v\d+|[\w.-]+/[\w.-]+@[0-9a-f]{40}")
KINDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}
OURS = re.compile(r"(?<![\w./])(?:docs|tests|charts|examples|pipelines)/[\w./-]*\w|\b[A-Z]{4,}\.md\b")

workflows = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
templates = pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)


def read(path: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(path.read_text())
    return found


def jobs(path: Path) -> list[dict[str, Any]]:
    return list(read(path)["jobs"].values())


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in jobs(path):
        yield from job["steps"]


def fault_of(command: str) -> str:
    """What is wrong with a step's command; empty for one that runs."""
    if command == ".ci/run":
        return ""
    return fault(command, PROJECT) if re.fullmatch(r"make [\w=. -]+", command) else "neither make nor .ci/run"


@workflows
def test_a_workflow_runs_only_targets_of_make_and_ci(path: Path) -> None:
    commands = [step["run"] for step in steps(path) if "run" in step]
    assert commands
    assert {command: fault_of(command) for command in commands} == dict.fromkeys(commands, "")


@pytest.mark.parametrize(
    "command", ["make tset", "make nightly STEPS=x", "pip install x", "make test; x", ".ci/ran"]
)
def test_a_command_that_is_no_target_is_reported(command: str) -> None:
    assert fault_of(command)


@workflows
def test_actions_are_pinned_and_no_file_names_an_address(path: Path) -> None:
    assert [
        step["uses"] for step in steps(path) if not PINNED.fullmatch(step.get("uses", "actions/x@v1"))
    ] == []
    assert "://" not in path.read_text()


@workflows
def test_a_workflow_has_a_time_limit_and_may_write_only_where_it_publishes(path: Path) -> None:
    assert read(path)["permissions"] == {"contents": "read"}
    for job in jobs(path):
        assert job["timeout-minutes"] <= 360
        writes = job.get("permissions", {}) != {}
        # A job that may write runs nothing of the checkout.
        assert not (writes and any("run" in step for step in job["steps"]))


def test_each_trigger_starts_its_commands() -> None:
    # YAML reads the key "on" as a truth value.
    started = {
        path.stem: (set(read(path)[True]), [step["run"] for step in steps(path) if "run" in step])
        for path in WORKFLOWS
    }
    assert started == {
        "ci": ({"pull_request", "push"}, [".ci/run"]),
        "nightly": ({"schedule", "workflow_dispatch"}, ["make nightly"]),
        "release": ({"push"}, ["make release"]),
    }


def test_artifacts_are_uploaded_from_where_pipelines_write_them() -> None:
    uploaded = {
        step["with"]["path"]
        for path in WORKFLOWS
        for step in steps(path)
        if "upload-artifact" in step.get("uses", "")
    }
    assert uploaded == {str(pipelines.LOGS), str(pipelines.SUMMARY), "build/release/*/*"}


@templates
def test_a_template_names_existing_documents_and_commands(path: Path) -> None:
    text = path.read_text()
    named = OURS.findall(text)
    assert named
    assert [one for one in named if not (PROJECT / one).exists()] == []
    commands = [one for one in re.findall(r"`([^`]+)`", text) if one != ".ci/run"]
    assert {one: fault(one, PROJECT) for one in commands} == dict.fromkeys(commands, "")


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_is_valid_for_the_host(path: Path) -> None:
    form = read(path)
    assert form.keys() == {"name", "description", "labels", "body"}
    fields = [one for one in form["body"] if one["type"] != "markdown"]
    assert {one["type"] for one in form["body"]} <= KINDS
    assert all(one["attributes"]["label"] for one in fields)
    assert len({one["id"] for one in fields}) == len(fields) > 0
    assert any(one.get("validations", {}).get("required") for one in fields)
    assert all(one["attributes"]["options"] for one in fields if one["type"] == "dropdown")
