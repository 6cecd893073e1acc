"""Messages of the test cluster's command line for mistakes; no cluster runs for that."""

import shlex
import sys
from pathlib import Path

import pytest

from tests.e2e.cluster import NodeRecord, lifecycle, record
from tests.e2e.cluster import __main__ as command

PROGRAM = f"{shlex.quote(sys.executable)} -m tests.e2e.cluster"


@pytest.fixture(autouse=True)
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of clusters that are known by name; a test works in another folder than its Python's."""
    monkeypatch.chdir(tmp_path)
    for module in (record, command):
        monkeypatch.setattr(module, "STATES", tmp_path)
    return tmp_path


@pytest.fixture
def written(states: Path) -> Path:
    """The state of a cluster ``newop`` of one node, of which nothing runs."""
    (states / "newop").mkdir()
    record.write(states / "newop", record.Record("1.36", 0, Path("/none"), (NodeRecord("a", 0, None),)))
    return states / "newop"


def output(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert command.main(argv) == 1
    return capsys.readouterr().err


def test_the_command_to_end_an_existing_cluster_is_printed(written: Path) -> None:
    with pytest.raises(
        FileExistsError, match=f"a cluster is there; end it with: {PROGRAM} down --name newop$"
    ):
        lifecycle.up(written, Path("/none"), k8s="1.36", nodes=())


def test_a_cluster_in_another_folder_is_ended_by_its_folder(tmp_path: Path) -> None:
    state = tmp_path / "else where" / "x"
    assert record.to_type("down", state) == f"{PROGRAM} down --state '{state}'"


def test_the_python_of_the_checkout_is_printed_as_typed_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv/bin/python"))
    assert record.to_type("down") == ".venv/bin/python -m tests.e2e.cluster down --name NAME"


@pytest.mark.parametrize("verb", [("load", "x.tar"), ("exec", "a", "--", "ls")])
def test_without_a_cluster_the_command_that_starts_one_is_printed(
    capsys: pytest.CaptureFixture[str], verb: tuple[str, ...]
) -> None:
    name, *rest = verb
    assert output(capsys, name, "--name", "newop", *rest).endswith(
        f"no cluster here; begin one with: {PROGRAM} up --name newop\n"
    )


@pytest.mark.parametrize("arguments", [("load", "--node", "b", "x.tar"), ("exec", "b", "--", "ls", "-l")])
def test_an_unknown_node_is_reported_with_the_existing_ones(
    capsys: pytest.CaptureFixture[str], written: Path, arguments: tuple[str, ...]
) -> None:
    verb, *rest = arguments
    assert output(capsys, verb, "--name", "newop", *rest) == "cluster: b: no such node; there are a\n"


def test_a_missing_archive_is_reported_with_make_images(
    capsys: pytest.CaptureFixture[str], written: Path
) -> None:
    assert "x.tar: no such archive; `make images` writes" in output(
        capsys, "load", "--name", "newop", "x.tar"
    )
