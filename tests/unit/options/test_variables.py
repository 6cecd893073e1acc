"""A misspelt variable is reported when a process starts; one that may belong to other software is not."""

import importlib
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpushare.__main__ import ROLES
from gpushare.inspect.arguments import INTERVAL_S, parse
from gpushare.options.roles import role_of
from gpushare.options.variables import unread, warn_of_typos
from gpushare.process import log_setup

LINKS = dict.fromkeys(
    (
        "GPUSHARE_UNITS_SERVICE_HOST",
        "GPUSHARE_UNITS_SERVICE_PORT",
        "GPUSHARE_UNITS_SERVICE_PORT_HTTPS",
        "GPUSHARE_UNITS_PORT",
        "GPUSHARE_UNITS_PORT_443_TCP",
        "GPUSHARE_UNITS_PORT_443_TCP_PROTO",
    ),
    "x",
)


def warnings(caplog: pytest.LogCaptureFixture, **environ: str) -> list[str]:
    caplog.clear()
    warn_of_typos(role_of("scheduler"), environ)
    return [f"{one.levelname}: {one.getMessage()}" for one in caplog.records]


def test_a_variable_that_resembles_that_of_an_option_causes_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert warnings(caplog, GPUSHARE_UNITT="1GiB", PATH="/") == [
        "WARNING: variable GPUSHARE_UNITT is unknown: did you mean GPUSHARE_UNIT?"
    ]
    assert warnings(caplog, GPUSHARE_LOGLEVEL="x") == [
        "WARNING: variable GPUSHARE_LOGLEVEL is unknown: did you mean GPUSHARE_LOG_LEVEL?"
    ]


def test_variables_that_any_role_reads_or_that_resemble_none_cause_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert warnings(caplog, GPUSHARE_UNIT="1GiB", GPUSHARE_CONFIG="x", UNITT="x") == []
    assert warnings(caplog, GPUSHARE_TEAM="x", GPUSHARE_TEST_DRIVER="x", GPUSHARE_WRITE_GOLDEN="1") == []
    # The scheduler has GPUSHARE_DEFRAGMENTATION_MIN_PENDING, and the agent a policy of its own.
    assert warnings(caplog, GPUSHARE_CORE_POLICY="x", GPUSHARE_ISOLATED_PODS="x") == []


def test_variables_that_kubernetes_sets_for_a_service_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings(caplog, **LINKS) == []
    assert unread(LINKS) == {}
    alone = {"GPUSHARE_UNITS_PORT": "x"}
    assert unread(alone) == {"GPUSHARE_UNITS_PORT": ""}, "without a Service it is unknown"


def test_the_variables_of_each_role_are_known() -> None:
    known = dict.fromkeys(
        ("GPUSHARE_XID_RECOVERY", "GPUSHARE_WALK", "GPUSHARE_CONFIG", "GPUSHARE_SECRET"), "x"
    )
    assert unread(known) == {}
    assert unread({**known, "GPUSHARE_SECRETE": "x"}) == {"GPUSHARE_SECRETE": "GPUSHARE_SECRET"}


def started(monkeypatch: pytest.MonkeyPatch, process: str) -> ModuleType:
    """The start of a process, with nothing after it."""

    def nothing(*arguments: Any, **more: Any) -> Any:
        return SimpleNamespace(namespace="default", node="n1", driver_root=None)

    main = importlib.import_module(f"gpushare.{process}.__main__")
    monkeypatch.setattr(log_setup, "configure", nothing)
    for name in (
        "configure",
        "load_access",
        "_settings",
        "_pace",
        "prepare",
        "serve",
        "_until_signalled",
        "Agents",
    ):
        if hasattr(main, name):
            monkeypatch.setattr(main, name, nothing)
    if hasattr(main, "run"):
        monkeypatch.setattr(main, "run", lambda *arguments: 0)
    if process == "nodeagent":
        stub = SimpleNamespace(process=SimpleNamespace(run=lambda *arguments: 0, DriverNvml=nothing))
        monkeypatch.setattr(main, "importlib", SimpleNamespace(import_module=lambda name: stub.process))
    if process == "uninstall":
        monkeypatch.setattr(main, "asyncio", SimpleNamespace(run=lambda arguments: 0))
    return main


@pytest.mark.parametrize("process", ["scheduler", "nodeagent", "admission", "dashboard", "uninstall"])
def test_every_process_warns_when_it_starts(
    process: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GPUSHARE_LOG_LEVLE", "debug")
    assert started(monkeypatch, process).main([]) == 0
    assert "variable GPUSHARE_LOG_LEVLE is unknown: did you mean GPUSHARE_LOG_LEVEL?" in caplog.messages


MISTAKE = "variable GPUSHARE_{} is unknown: did you mean GPUSHARE_{}?\n"


@pytest.mark.parametrize(
    ("process", "argv", "mistake", "suggestion"),
    [
        ("simulate", ["--snapshot", "/nowhere"], "SNAPSHOTT", "SNAPSHOT"),
        ("doctor", ["--kubeconfig", "/nowhere"], "TIMEOUTT", "TIMEOUT"),
        ("playground", ["--driver", "/nowhere", "--no-walk"], "UNITT", "UNIT"),
    ],
)
def test_a_command_warns_on_stderr(
    process: str,
    argv: list[str],
    mistake: str,
    suggestion: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(f"GPUSHARE_{mistake}", "1")
    main = importlib.import_module(ROLES[process][0]).main
    assert main(argv) != 0, "there is nothing to work on"
    assert f"gpushare {process}: {MISTAKE.format(mistake, suggestion)}" in capsys.readouterr().err


@pytest.mark.parametrize("mistake", ["INSPECT_INTERVALL", "INPSECT_INTERVAL"])
def test_the_plugin_warns_on_stderr_and_continues(mistake: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = parse([], {f"GPUSHARE_{mistake}": "3", "GPUSHARE_ISOLATION": "none", "GPUSHARE_UNIT": "1GiB"})
    assert options.interval_s == INTERVAL_S
    assert capsys.readouterr().err == f"warning: {MISTAKE.format(mistake, 'INSPECT_INTERVAL')}"
