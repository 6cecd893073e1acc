"""Reading logs of containers."""

from datetime import UTC, datetime

import pytest

from gpushare_playground.kubelet.runtime.logs import LogOptions, read_log
from gpushare_playground.kubelet.server import log_options

LINES = [
    b"2026-01-01T00:00:01.000000001Z stdout F one",
    b"2026-01-01T00:00:02.000000001Z stdout P tw",
    b"2026-01-01T00:00:02.000000002Z stdout F o",
    b"2026-01-01T00:00:03.000000001Z stderr F three four",
]


async def shown(path, running=lambda: False, **options):
    return b"".join([piece async for piece in read_log(path, LogOptions(**options), running)])


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"\n".join(LINES) + b"\n")
    return path


async def test_lines_come_without_their_marks_and_parts_are_joined(log):
    assert await shown(log) == b"one\ntwo\nthree four\n"


async def test_only_the_last_lines(log):
    assert await shown(log, tail_lines=1) == b"three four\n"
    assert await shown(log, tail_lines=0) == b""


async def test_times_can_be_shown_and_filtered_by(log):
    assert await shown(log, timestamps=True, tail_lines=1) == LINES[3].replace(b" stderr F", b"") + b"\n"
    assert await shown(log, since=datetime(2026, 1, 1, 0, 0, 3, tzinfo=UTC)) == b"three four\n"


async def test_no_more_bytes_than_requested(log):
    assert await shown(log, limit_bytes=5) == b"one\nt"


async def test_the_older_part_comes_first(log):
    log.with_name("log.1").write_bytes(b"2026-01-01T00:00:00.000000001Z stdout F zero\n")
    assert (await shown(log)).startswith(b"zero\none\n")


async def test_an_incomplete_line_is_not_shown_yet(log):
    with log.open("ab") as stream:
        stream.write(b"2026-01-01T00:00:04.000000001Z stdout F fi")
    assert await shown(log, tail_lines=1) == b"three four\n"


async def test_following_ends_with_the_container_and_misses_nothing(log):
    rounds = []

    def running():
        rounds.append(None)
        if len(rounds) == 1:
            with log.open("ab") as stream:
                stream.write(b"2026-01-01T00:00:05.000000001Z stdout F last\n")
        return len(rounds) < 2

    assert await shown(log, running, follow=True, tail_lines=1) == b"three four\nlast\n"


def test_options_are_read_and_wrong_ones_reported_by_name():
    assert log_options({"follow": "true", "tailLines": "5"}) == LogOptions(follow=True, tail_lines=5)
    with pytest.raises(ValueError, match="tailLines='-1'"):
        log_options({"tailLines": "-1"})
