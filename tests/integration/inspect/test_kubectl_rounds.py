"""Kubectls that were started together: deadlines, and no process left behind."""

import os
from pathlib import Path

import pytest

from gpushare.inspect.errors import KubectlFailed
from gpushare.inspect.sources.kubectl import ROUND_TIMEOUT_S, Round, _round_timeout_s
from tests.integration.inspect.conftest import ScriptedKubectl


def test_large_outputs_and_long_errors_do_not_block_each_other(kubectl: ScriptedKubectl) -> None:
    body = b"x" * (5 << 20)
    kubectl.answer("/a", body)
    Path(f"{kubectl.path}.noise").write_bytes(b"warning\n" * 100_000)
    kubectl.act("/b", f"cat '{kubectl.path}.noise' >&2; echo done; exit 0")
    assert Round(str(kubectl.path), (), ["/a", "/b"], 30.0).finish() == [body, b"done\n"]


def test_a_kubectl_that_does_not_exit_is_abandoned(kubectl: ScriptedKubectl, tmp_path: Path) -> None:
    quick, slow = tmp_path / "quick", tmp_path / "slow"
    for fifo in (quick, slow):
        os.mkfifo(fifo)
    kubectl.act("/quick", f"echo $$ > '{quick}'; echo '{{}}'; exit 0")
    kubectl.act(
        "/slow", f"echo 'open https://login.example to sign in' >&2; echo $$ > '{slow}'; exec sleep 600"
    )
    started = Round(str(kubectl.path), (), ["/quick", "/slow"], 0.2)
    child = int(slow.read_text())
    os.waitid(os.P_PID, int(quick.read_text()), os.WEXITED | os.WNOWAIT)
    with pytest.raises(KubectlFailed) as caught:
        started.finish()
    assert str(caught.value) == (
        "kubectl could not read /slow: no answer within 0 s; its message: open https://login.example to sign in"
    )
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_kubectl_that_closes_its_output_and_keeps_running_is_abandoned(kubectl: ScriptedKubectl) -> None:
    kubectl.act("/slow", "exec sleep 600 >&- 2>&-")
    with pytest.raises(KubectlFailed, match=r"/slow: no answer within 0 s; see whether .* works by hand"):
        Round(str(kubectl.path), (), ["/slow"], 0.2).finish()


@pytest.mark.parametrize(
    ("limit", "patience_s"),
    [
        ("0", None),
        ("0s", None),
        ("5", 35.0),
        ("5s", 35.0),
        ("1m30s", 120.0),
        ("500ms", 30.5),
        ("soon", ROUND_TIMEOUT_S),
        ("5 s", ROUND_TIMEOUT_S),
        ("", ROUND_TIMEOUT_S),
    ],
)
def test_the_deadline_follows_the_users_request_timeout(limit: str, patience_s: float | None) -> None:
    assert _round_timeout_s(limit) == patience_s
