"""Reads PNGs of 8 bits a channel, red, green, blue and alpha, as resvg writes them."""

import struct
import zlib
from pathlib import Path

Pixel = tuple[int, int, int]


def pixels_of(path: Path) -> list[list[Pixel]]:
    """Rows of pixels from the top; whether its checksums hold is looked at, too."""
    raw = path.read_bytes()
    assert raw[:8] == b"\x89PNG\r\n\x1a\n"
    at, width, height, packed = 8, 0, 0, b""
    while at < len(raw):
        (length,) = struct.unpack_from(">I", raw, at)
        kind, data = raw[at + 4 : at + 8], raw[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", raw, at + 8 + length) == (zlib.crc32(kind + data),)
        if kind == b"IHDR":
            width, height, depth, colours, _, _, interlaced = struct.unpack(">IIBBBBB", data)
            assert (depth, colours, interlaced) == (8, 6, 0)
        elif kind == b"IDAT":
            packed += data
        at += 12 + length
    return _rows(zlib.decompress(packed), width, height)


def _rows(raw: bytes, width: int, height: int) -> list[list[Pixel]]:
    rows, length = [], 4 * width
    # With a black pixel before the first one, as filters have it.
    above = bytearray(4 + length)
    for number in range(height):
        start = number * (length + 1)
        row = bytearray(4) + raw[start + 1 : start + 1 + length]
        _unfilter(raw[start], row, above)
        rows.append([(row[at], row[at + 1], row[at + 2]) for at in range(4, len(row), 4)])
        above = row
    return rows


def _unfilter(way: int, row: bytearray, above: bytearray) -> None:
    """Add to each byte what is predicted from those before and above it."""
    for at in range(4, len(row)):
        left, up = row[at - 4], above[at]
        match way:
            case 0:
                return
            case 1:
                guess = left
            case 2:
                guess = up
            case 3:
                guess = (left + up) // 2
            case _:
                guess = _nearest(left, up, above[at - 4])
        row[at] = (row[at] + guess) & 255


def _nearest(left: int, up: int, corner: int) -> int:
    """Paeth's choice."""
    if left == corner:
        return up
    if up == corner:
        return left
    guess = left + up - corner
    return min((left, up, corner), key=lambda one: abs(guess - one))
