"""The command line: one line and exit code 2 for invalid input."""

import gc
import os
from pathlib import Path

import pytest

from gpushare.nodeagent.__main__ import main
from gpushare.nodeagent.memory_trim import prepare, settle

TOO_LONG = "/" + "x" * 90


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([], "--node: give the name of this node, or set $NODE_NAME"),
        (["--node", "A_b"], "--node A_b: not a name that a node can have"),
        (["--node", "n1", "--unit", "2GiB"], "--unit 2GiB: give a memory unit: 1GiB or 128MiB"),
        (["--node", "n1", "--kubelet-dir", TOO_LONG], "use a shorter path"),
        (["--node", "n1", "--metrics-listen", "9452"], "--metrics-listen 9452: give HOST:PORT"),
        (["--node", "n1", "--metrics-listen", "h:99999"], "give HOST:PORT"),
        (["--node", "n1", "--health-period", "0"], "--health-period 0: give seconds"),
        (["--node", "n1", "--xid-recovery", "nan"], "--xid-recovery nan: give seconds"),
        (
            ["--node", "n1", "--log-level", "loud"],
            "--log-level loud: give one of debug, info, warning, error",
        ),
        (
            ["--node", "n1", "--driver-root", "/does/not/exist"],
            "--driver-root /does/not/exist: no such directory",
        ),
        (
            ["--node", "n1", "--container-runtime", "docker"],
            "--container-runtime docker: give one of auto, nvidia, cdi",
        ),
        (["--node", "n1", "--cdi-dirs", "/etc/cdi,run"], "--cdi-dirs /etc/cdi,run: give absolute paths"),
        (
            ["--node", "n1", "--host-root", "/does/not/exist"],
            "--host-root /does/not/exist: no such directory",
        ),
        (["--node", "n1", "--isolation", "cgpu"], "--isolation cgpu: give one of none, auto"),
        (["--node", "n1", "--isolation-dir", "/x"], "--isolation-dir /x: give an absolute path of two parts"),
        (["--node", "n1", "--isolation-dir", "a/b"], "--isolation-dir a/b: give an absolute path"),
        (["--node", "n1", "--isolated-pods", "0"], "--isolated-pods 0: give a number from 1 to 128"),
        (
            ["--node", "n1", "--isolation", "driver", "--watchdog", "off"],
            "--isolation driver: it needs the watchdog; set --watchdog to report or kill",
        ),
        (["--node", "n1", "--watchdog", "end"], "--watchdog end: give one of off, report, kill"),
        (
            ["--node", "n1", "--watchdog-grace=-1"],
            "--watchdog-grace -1: give seconds (5, 500ms, 5m) from 0 to 86400",
        ),
        (["--node", "n1", "--reclaim", "never"], "--reclaim never: give one of wait, kill"),
        (["--node", "n1", "--watchdog-period", "0"], "--watchdog-period 0: give seconds"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["--node", "n1", "--kubeconfig", "/does/not/exist"], "kubeconfig /does/not/exist: does not exist"),
    ],
)
def test_bad_input_is_reported_in_one_line(
    options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options) == 2
    stderr = capsys.readouterr().err
    assert stderr.startswith("gpushare node-agent: ")
    assert complaint in stderr
    assert stderr.count("\n") == 1


def test_help_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["--help"])
    assert exited.value.code == 0
    assert "--metrics-listen HOST:PORT" in capsys.readouterr().out


def test_a_small_footprint_changes_no_setting_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_VERBOSITY", "debug")
    prepare()
    settle()
    gc.unfreeze()
    assert os.environ["GRPC_VERBOSITY"] == "debug"
