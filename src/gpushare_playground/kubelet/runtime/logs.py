"""Reads a container's log file as ``kubectl logs`` needs it."""

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The request's options; ``None`` means no limit. Times are UTC."""

    follow: bool = False
    tail_lines: int | None = None
    timestamps: bool = False
    since: datetime | None = None
    limit_bytes: int | None = None


def since_seconds(seconds: int, now: datetime | None = None) -> datetime:
    """The time ``seconds`` ago."""
    return (now or datetime.now(UTC)) - timedelta(seconds=seconds)


def parse_line(line: bytes, options: LogOptions) -> bytes | None:
    """What is shown of one line of the file, or ``None`` if it is too old or not a log line."""
    moment, _, rest = line.partition(b" ")
    _, _, rest = rest.partition(b" ")
    mark, blank, text = rest.partition(b" ")
    if not blank:
        return None
    if options.since is not None and _time(moment) < options.since:
        return None
    shown = text + (b"" if mark == b"P" else b"\n")
    return moment + b" " + shown if options.timestamps else shown


async def read_log(path: Path, options: LogOptions, running: Callable[[], bool]) -> AsyncIterator[bytes]:
    """The pieces of a log; with ``follow`` until the container ends or the client disconnects."""
    bytes_left = options.limit_bytes
    async for line in _lines(path, options, running):
        shown = parse_line(line, options)
        if shown is None:
            continue
        if bytes_left is not None:
            shown = shown[:bytes_left]
            bytes_left -= len(shown)
        yield shown
        if bytes_left == 0:
            return


async def _lines(path: Path, options: LogOptions, running: Callable[[], bool]) -> AsyncIterator[bytes]:
    tail: deque[bytes] | None = None if options.tail_lines is None else deque(maxlen=options.tail_lines)
    older = path.with_name(path.name + ".1")
    for file in (older, path) if older.exists() else (path,):
        with file.open("rb") as stream:
            offset = 0
            for line in stream:
                if not line.endswith(b"\n"):
                    break  # still being written
                offset += len(line)
                if tail is None:
                    yield line[:-1]
                else:
                    tail.append(line[:-1])
    for line in tail or ():
        yield line
    if options.follow:
        async for line in _follow(path, offset, running):
            yield line


async def _follow(path: Path, offset: int, running: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Lines after ``offset``; starts over if the file was rotated."""
    unfinished = b""
    while True:
        last_round = not running()
        try:
            with path.open("rb") as stream:
                if os.fstat(stream.fileno()).st_size < offset:
                    offset, unfinished = 0, b""
                stream.seek(offset)
                piece = stream.read()
                offset = stream.tell()
        except FileNotFoundError:
            return
        *whole, unfinished = (unfinished + piece).split(b"\n")
        for line in whole:
            yield line
        if last_round:
            return
        await asyncio.sleep(_POLL_S)


def _time(text: bytes) -> datetime:
    try:
        # Python reads microseconds; the file has nanoseconds.
        return datetime.strptime(text.decode()[:26], "%Y-%m-%dT%H:%M:%S.%f").replace(tzinfo=UTC)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
