"""``gpushare config`` and the help of ``gpushare``."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare.__main__ import ROLES as COMMANDS
from gpushare.__main__ import main
from gpushare.options.roles import ROLES


def test_check_reports_every_mistake_or_that_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("scheduler: {unit: 128MiB}\nnode-agent: {health-period: 5s}\n")
    assert main(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: valid\n"
    file.write_text("scheduler: {unit: 3}\nnode-agent: {health-period: 5 GiB}\n")
    assert main(["config", "check", str(file)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert [f"{file}: scheduler.unit" in errors[0], f"{file}: node-agent.health-period" in errors[1]] == [
        True,
        True,
    ]
    file.write_text("[")
    assert main(["config", "check", str(file)]) == 2
    assert main(["config", "check", str(file), "--more"]) == 2


def test_show_lists_values_and_where_they_come_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUSHARE_LOG_LEVEL", "debug")
    monkeypatch.setenv("GPUSHARE_LOG_LEVLE", "debug")
    assert main(["config", "show", "scheduler", "--unit", "128MiB"]) == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    assert rows["unit"] == ["unit", "128MiB", "--unit"]
    assert rows["log-level"] == ["log-level", "debug", "GPUSHARE_LOG_LEVEL"]
    assert rows["node-policy"] == ["node-policy", "binpack", "default"]
    assert rows["unknown"] == [
        "unknown",
        "variables:",
        "GPUSHARE_LOG_LEVLE",
        "(did",
        "you",
        "mean",
        "GPUSHARE_LOG_LEVEL?)",
    ]
    assert main(["config", "show", "scheduler", "--unit", "3"]) == 2


def test_show_separates_variables_of_other_roles_from_unknown_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUSHARE_XID_RECOVERY", "9")
    monkeypatch.setenv("GPUSHARE_QQQ", "9")
    monkeypatch.setenv("GPUSHARE_UNITT", "128MiB")
    monkeypatch.setenv("GPUSHARE_PAGE_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("GPUSHARE_PAGE_PORT_443_TCP_ADDR", "10.0.0.1")
    assert main(["config", "show", "scheduler"]) == 0
    *_, others, unknown = capsys.readouterr().out.splitlines()
    assert (
        others
        == "not read by this role: GPUSHARE_PAGE_PORT_443_TCP_ADDR, GPUSHARE_PAGE_SERVICE_HOST, GPUSHARE_XID_RECOVERY"
    )
    assert unknown == "unknown variables: GPUSHARE_QQQ, GPUSHARE_UNITT (did you mean GPUSHARE_UNIT?)"


def test_a_role_that_is_not_installed_is_rejected_by_name_and_unchecked_in_the_schema(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in images, which have no playground."""
    monkeypatch.setitem(sys.modules, "gpushare_playground.options", None)
    assert main(["config", "show", "playground"]) == 2
    assert "playground is not installed: it is part of a checkout" in capsys.readouterr().err
    assert main(["config", "schema"]) == 0
    assert "additionalProperties" not in json.loads(capsys.readouterr().out)["properties"]["playground"]


def test_check_names_unknown_variables_even_if_the_file_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "o.json"
    file.write_text("{}")
    assert main(["config", "check", str(file)]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("GPUSHARE_UNITT", "128MiB")
    assert main(["config", "check", str(file)]) == 0
    assert capsys.readouterr().err == (
        "gpushare config: unknown variables: GPUSHARE_UNITT (did you mean GPUSHARE_UNIT?)\n"
    )


def test_the_schema_is_of_one_role_or_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    every = json.loads(capsys.readouterr().out)["properties"]
    assert all(every[name]["additionalProperties"] is False for name in ROLES)
    assert main(["config", "schema", "uninstall"]) == 0
    assert "additionalProperties" not in json.loads(capsys.readouterr().out)["properties"]["scheduler"]


def test_the_help_names_every_role_under_its_purpose(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    output = capsys.readouterr().out
    assert all(f"\n  {name} " in output for name in COMMANDS)
    assert all(word in output for word in ("processes", "tools", "examples:", "docs/guide/"))


def test_neither_yaml_nor_argparse_is_imported_where_a_command_line_is_plain() -> None:
    program = (
        "import sys; from gpushare.options.reading import read; from gpushare.scheduler.options import ROLE;"
        "read(ROLE, [], {}); assert not {'yaml', 'argparse'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env={**os.environ})
