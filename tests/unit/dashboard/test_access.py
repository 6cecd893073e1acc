"""Access: by token or cookie only."""

import os
from pathlib import Path

import pytest

from gpushare.dashboard.errors import InvalidSetting
from gpushare.dashboard.server.auth import COOKIE, LOGIN_LIFETIME_S, Guard, TokenFile

TOKEN = b"0123456789abcdef"


class Time:
    now_s = 1000.0


def guard(token: bytes = TOKEN) -> Guard:
    return Guard(lambda: token, lambda: Time.now_s)


def cookie_of(header: bytes) -> bytes:
    return header.partition(b";")[0]


def test_only_the_exact_token_grants_access() -> None:
    one = guard()
    assert one.admits([(b"authorization", b"Bearer " + TOKEN)])
    assert one.admits([(b"authorization", b"bearer  " + TOKEN)])
    for wrong in (b"Bearer " + TOKEN[:-1], b"Basic " + TOKEN, TOKEN, b"Bearer", b""):
        assert not one.admits([(b"authorization", wrong)])
    assert not one.admits([])


def test_a_cookie_grants_access_until_it_expires_or_the_token_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = guard()
    header = one.cookie(secure=False)
    assert b"HttpOnly; SameSite=Strict" in header
    assert b"Secure" not in header
    assert TOKEN not in header
    assert one.cookie(secure=True).endswith(b"; Secure")
    headers = [(b"cookie", b"other=1; " + cookie_of(header))]
    assert one.admits(headers)
    assert not guard(b"another-token-entirely").admits(headers)
    monkeypatch.setattr(Time, "now_s", 1000.0 + LOGIN_LIFETIME_S)
    assert not one.admits(headers)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "9999999999",
        "9999999999.",
        "9999999999.00",
        ".",
        "x.y",
        "99999999999999999999.ab",
        "²²²²²²²²²².ab",
        "\xff.\xff",
    ],
)
def test_a_forged_cookie_is_refused(value: str) -> None:
    assert not guard().admits([(b"cookie", f"{COOKIE}={value}".encode("latin-1", "replace"))])


def test_a_cookie_with_a_changed_expiry_is_refused() -> None:
    one = guard()
    expiry, _, signature = cookie_of(one.cookie(secure=False)).decode().partition("=")[2].partition(".")
    assert not one.admits([(b"cookie", f"{COOKIE}={int(expiry) + 1}.{signature}".encode())])
    assert COOKIE.encode() in one.no_cookie()


def test_a_token_is_read_again_when_its_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(TOKEN + b"\n")
    token = TokenFile(file)
    assert token.read() == TOKEN
    file.write_bytes(b"another-token-entirely")
    os.utime(file, ns=(1, 1))
    assert token.read() == b"another-token-entirely"


@pytest.mark.parametrize("text", ["", "short", "x" * 5000])
def test_an_invalid_token_is_refused_with_a_suggestion(text: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    with pytest.raises(InvalidSetting, match="openssl rand"):
        TokenFile(file)
    with pytest.raises(InvalidSetting, match="No such file"):
        TokenFile(tmp_path / "absent")
