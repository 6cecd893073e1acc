"""Completion in the real shells: the result of pressing Tab."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpushare.inspect import arguments
from gpushare.inspect.completion import FLAGS, SHELLS
from tests.docs.assigned import commands_typed_by
from tests.integration.inspect.conftest import BIN, DEADLINE_S, ScriptedKubectl

ROOT = Path(__file__).parents[3]
SYSTEM = ROOT / "build" / "system"
LIBRARIES = SYSTEM / "usr/lib/x86_64-linux-gnu"


def installed(name: str) -> str:
    """The machine's shell of that name, or the one that was unpacked into the checkout; empty without either."""
    unpacked = (str(one) for one in (SYSTEM / "bin" / name, SYSTEM / "usr/bin" / name) if one.exists())
    return shutil.which(name) or next(unpacked, "")


def shell(name: str) -> str:
    """The machine's, or the one that was unpacked into the checkout."""
    found = installed(name)
    assert found, f"no {name}; run scripts/install-system-packages"
    return found


@pytest.fixture
def environment(kubectl: ScriptedKubectl) -> dict[str, str]:
    kubectl.act("-o", 'test "$2" = pods && echo pod/train-0 && echo pod/train-1; exit 0')
    libraries = f"{LIBRARIES}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    return {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "KUBECTL": str(kubectl.path),
        "HOME": str(kubectl.path.parent),
        "TERM": "xterm",
        **({"LD_LIBRARY_PATH": libraries} if LIBRARIES.exists() else {}),
    }


def ran(command: list[str], script: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, input=script, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    return done.stdout


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("--w",), "--watch --why= --window="),
        (("--output", "=", "js"), "json"),
        (("--output", "="), "wide json yaml"),
        (("-o", ""), "wide json yaml"),
        (("completion", "z"), "zsh"),
        (("--why", "tr"), "train-0 train-1"),
        (("--why", "=", "tr"), "train-0 train-1"),
        (("--why", "-d", "tr"), "train-0 train-1"),
        (("--why", "train-0", "-d", "tr"), ""),
        (("-n", "x", "--why", "train-1"), "train-1"),
        (("--interval", ""), ""),
        (("--scheduler", ""), "kube-system/ack-co-scheduler"),
        (("completion", "bash", ""), ""),
    ],
)
def test_bash_completes(words: tuple[str, ...], found: str, environment: dict[str, str]) -> None:
    typed = " ".join(f"'{word}'" for word in ("kubectl-inspect-cgpu", *words))
    script = f"""
        eval "$(kubectl-inspect-cgpu completion bash)"
        COMP_WORDS=({typed}); COMP_CWORD={len(words)}
        _kubectl_inspect_cgpu 2>/dev/null
        echo "${{COMPREPLY[*]}}"
    """
    assert ran(["bash", "--norc"], script, environment) == f"{found}\n"


def test_fish_completes(environment: dict[str, str]) -> None:
    script = """
        kubectl-inspect-cgpu completion fish | source
        complete -C 'kubectl-inspect-cgpu --w'
        complete -C 'kubectl-inspect-cgpu --output=y'
        complete -C 'kubectl-inspect-cgpu --why train-'
    """
    assert ran([shell("fish"), "--no-config"], script, environment).splitlines() == [
        "--watch\tkeep running, and refresh on every change",
        "--why=\tthe scheduler's decision about a pod",
        "--window=\tlength of the usage history",
        "--output=yaml",
        "train-0\tpod",
        "train-1\tpod",
    ]


def test_the_pages_command_for_fish_enables_completion(environment: dict[str, str]) -> None:
    if not installed("fish"):
        pytest.skip("fish is not installed; scripts/install-system-packages brings it on Debian")
    [command] = commands_typed_by(__file__, "docs/guide/inspect.md")
    script = f"{command.text}\ncomplete -C 'kubectl-inspect-cgpu --wi'\n"
    assert ran([shell("fish"), "--no-config"], script, environment) == (
        "--window=\tlength of the usage history\n"
    )


def test_zsh_completes(environment: dict[str, str]) -> None:
    zsh = shell("zsh")
    # The unpacked one looks for its modules and functions where they would be installed.
    own = ""
    if zsh.startswith(str(SYSTEM)):
        (modules,) = (LIBRARIES / "zsh").iterdir()
        own = f"module_path=({modules}); fpath=({SYSTEM}/usr/share/zsh/functions/**/*(/)); "
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(zsh, ["zsh", "-f", "-i"], environment)
    try:
        _type(
            terminal,
            f"{own}autoload -Uz compinit; compinit -u -D; source <(kubectl-inspect-cgpu completion zsh); print rea''dy\n",
            "ready",
        )
        # The completed line is shown as a whole when it is printed.
        _type(
            terminal,
            "kubectl-inspect-cgpu --outp\tjs\t\x01print -- \r",
            "\nkubectl-inspect-cgpu --output=json",
        )
        _type(terminal, "kubectl-inspect-cgpu --w\t\t", "keep running, and refresh on every change")
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)


def _type(terminal: int, text: str, until: str) -> None:
    """Type, and wait for what the shell shows then; it redraws a line in pieces."""
    os.write(terminal, text.encode())
    shown = b""
    deadline_s = time.monotonic() + DEADLINE_S
    while until not in shown.decode(errors="replace").replace("\r", ""):
        assert time.monotonic() < deadline_s, (until, shown)
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 1 << 16)


def test_kubectl_gets_completions_in_its_own_format(environment: dict[str, str]) -> None:
    script = "from gpushare.inspect.__main__ import complete; import sys; sys.exit(complete(['--out']))"
    assert ran([sys.executable, "-c", script], "", environment) == "--output=\twide, json or yaml\n:4\n"
    completion = ran(["kubectl-inspect-cgpu", "completion", "kubectl"], "", environment)
    assert (
        ran(["sh", "-c", completion, "it", "--out"], "", environment) == "--output=\twide, json or yaml\n:4\n"
    )


def test_an_unsupported_shell_is_reported(environment: dict[str, str]) -> None:
    done = subprocess.run(
        ["kubectl-inspect-cgpu", "completion", "tcsh"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 2
    assert ", ".join(SHELLS) in done.stderr


def test_every_flag_of_our_own_is_offered() -> None:
    assert FLAGS.keys() >= arguments.OWN
