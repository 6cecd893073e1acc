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
    rows, above = [], bytearray(4 * width)
    for number in range(height):
        start = number * (4 * width + 1)
        row = bytearray(raw[start + 1 : start + 1 + 4 * width])
        way = raw[start]
        for at in range(len(row)):
            left, up = (row[at - 4] if at > 3 else 0), above[at]
            corner = above[at - 4] if at > 3 else 0
            row[at] = (row[at] + _predicted(way, left, up, corner)) & 255
        rows.append([(row[at], row[at + 1], row[at + 2]) for at in range(0, len(row), 4)])
        above = row
    return rows


def _predicted(way: int, left: int, up: int, corner: int) -> int:
    match way:
        case 0:
            return 0
        case 1:
            return left
        case 2:
            return up
        case 3:
            return (left + up) // 2
    guess = left + up - corner
    return min((left, up, corner), key=lambda one: abs(guess - one))
