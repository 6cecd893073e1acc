"""The command line of a role that serves: which addresses it accepts, and how it ends."""

from pathlib import Path

import pytest

from gpushare.httpserver.command import InvalidAddress, address, run
from gpushare.httpserver.server import bind, write_ports
from gpushare.kube.client.errors import KubeconfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:65535", ("::1", 65535)), (":80", ("", 80))],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert address("--listen", text, "127.0.0.1:1") == expected


@pytest.mark.parametrize("text", ["nowhere", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:¹"])
def test_an_invalid_address_is_reported_with_a_valid_example(text: str) -> None:
    with pytest.raises(InvalidAddress) as caught:
        address("--listen", text, "127.0.0.1:1")
    assert str(caught.value) == f"--listen {text}: write HOST:PORT, such as 127.0.0.1:1"


@pytest.mark.parametrize(
    ("error", "code", "expected"),
    [
        (None, 0, ""),
        (KeyboardInterrupt(), 0, ""),
        (
            KubeconfigError("f", "users[a]", "no token", "give one"),
            2,
            "role: kubeconfig f: users[a]: no token; give one\n",
        ),
        (OSError(98, "cannot listen"), 1, "role: cannot listen\n"),
        (ConnectionError("gone"), 1, "role: gone\n"),
    ],
)
def test_a_run_ends_with_an_exit_code_and_a_message(
    error: BaseException | None, code: int, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def serving() -> None:
        if error is not None:
            raise error

    assert run("role", serving()) == code
    assert capsys.readouterr().err == expected


def test_ports_are_written_to_the_port_file(tmp_path: Path) -> None:
    path = tmp_path / "ports"
    with bind("127.0.0.1", 0) as first, bind("127.0.0.1", 0) as second:
        write_ports("--port-file", path, first)
        assert path.read_text() == f"{first.getsockname()[1]}\n"
        write_ports("--port-file", path, first, second)
        assert path.read_text() == f"{first.getsockname()[1]} {second.getsockname()[1]}\n"
        assert list(tmp_path.iterdir()) == [path]
        with pytest.raises(OSError, match=r"cannot write --port-file .*/missing/ports: No such file"):
            write_ports("--port-file", tmp_path / "missing" / "ports", first)


def test_a_taken_address_is_named() -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"cannot listen on 127\.0\.0\.1:{port}: Address already in use"):
            bind("127.0.0.1", port)
