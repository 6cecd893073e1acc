"""Reading a description, by the rules and with the messages of ``fakegpu/description/reading.c``."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gpushare_playground.gpus.description import DescriptionError, Gpu, GpuNode
from gpushare_playground.gpus.keys import KEYS, LINKS_MAX, Draft, Key, Malformed, Part, Refused, Value

FILE_MAX_BYTES: Final = 1 << 20
LINE_MAX_BYTES: Final = 511
_KEY_SHOWN, _VALUE_SHOWN = 40, 60
_DISTANCE_MAX: Final = 24


def word_distance(left: str, right: str) -> int:
    """How many letters must change to turn one word into the other; 24 for any that is longer than that."""
    if max(len(left), len(right)) > _DISTANCE_MAX:
        return _DISTANCE_MAX
    row = list(range(len(right) + 1))
    for i, letter in enumerate(left, 1):
        corner, row[0] = row[0], i
        for j, other in enumerate(right, 1):
            corner, row[j] = row[j], min(corner + (letter != other), row[j] + 1, row[j - 1] + 1)
    return row[-1]


class _Reader:
    """One pass over a file; every problem ends it."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.line = 0
        self.part = Part.HEADER
        self.draft = Draft()
        self.gpu_lines: list[int] = []
        self.header_seen: set[str] = set()
        self.gpu_seen: set[str] = set()

    def error(self, problem: str, line: int | None = None) -> DescriptionError:
        return DescriptionError(self.file, self.line if line is None else line, problem)

    # --- which key a line begins with

    def _unknown(self, word: str) -> DescriptionError:
        shown = word[:_KEY_SHOWN]
        nearest = min(KEYS, key=lambda key: word_distance(word, key.name))
        if word_distance(word, nearest.name) < 3:
            return self.error(f"{shown}: unknown key; did you mean '{nearest.name}'?")
        known = ", ".join(key.name for key in KEYS if key.fits(self.part))
        return self.error(f"{shown}: unknown key; the keys here are {known}")

    def _find_key(self, word: str) -> Key:
        named = [key for key in KEYS if key.name == word]
        for key in named:
            if key.fits(self.part):
                return key
        if named:
            raise self.error(f"{word}: belongs {named[0].place}")
        raise self._unknown(word)

    # --- what a finished part must hold

    def _finish_header(self) -> None:
        for key in KEYS:
            if key.part is Part.HEADER and key.required and key.name not in self.header_seen:
                raise self.error(f"{key.name}: missing; add a line such as '{key.example}'", 1)

    def _finish_gpu(self) -> None:
        index = len(self.draft.gpus) - 1
        line = self.gpu_lines[index]
        for key in KEYS:
            if key.part is Part.GPU and key.required and key.name not in self.gpu_seen:
                raise self.error(
                    f"gpu {index}: '{key.name}' is missing; add a line such as '{key.example}'", line
                )
        for other in range(index):
            for name in ("uuid", "pci", "minor"):
                if _identity(self.draft, index, name) == _identity(self.draft, other, name):
                    raise self.error(
                        f"gpu {index}: its '{name}' is that of gpu {other} too; give every GPU its own", line
                    )
        gpu: Any = self.draft.gpus[index]
        used_mib = gpu.get("reserved_mib", 0) + sum(process.used_mib for process in gpu["processes"])
        if used_mib > gpu["total_mib"]:
            raise self.error(
                f"gpu {index}: reserved and processes take {used_mib} MiB of {gpu['total_mib']} MiB; lower them",
                line,
            )

    def _finish_pairs(self) -> None:
        for index, gpu in enumerate(self.draft.gpus):
            links: Any = gpu.get("nvswitch", 0)
            links += sum(count for pair, count in self.draft.nvlinks.items() if index in pair)
            if links > LINKS_MAX:
                raise self.error(
                    f"gpu {index}: has {links} NVLinks; leave at most {LINKS_MAX}", self.gpu_lines[index]
                )

    def _finish_part(self) -> None:
        if self.part is Part.HEADER:
            self._finish_header()
        elif self.part is Part.GPU:
            self._finish_gpu()

    # --- lines

    def take(self, text: str) -> None:
        words = re.split("[ \t]+", text)
        key_word = words.pop(0)
        if "fakegpu" not in self.header_seen and key_word != "fakegpu":
            raise self.error(f"{key_word[:_KEY_SHOWN]}: the file must begin with '{KEYS[0].example}'")
        key = self._find_key(key_word)
        if key.name == "gpu" or key.part is Part.PAIRS:
            self._finish_part()
            self.part = key.part
        seen = self.header_seen if self.part is Part.HEADER else self.gpu_seen
        if not key.repeats and key.name in seen:
            raise self.error(f"{key.name}: given twice; keep one of the two")
        value = Value(words, text[len(key_word) :].lstrip(" \t"))
        try:
            key.read(value, self.draft)
        except Malformed:
            found = value.rest[:_VALUE_SHOWN]
            raise self.error(
                f"{key.name}: wants {key.wants}, as in '{key.example}'; found '{found}'"
            ) from None
        except Refused as refused:
            raise self.error(f"{key.name}: {refused}") from None
        seen.add(key.name)
        if key.name == "gpu":
            self.gpu_lines.append(self.line)
            self.gpu_seen.clear()

    def finish(self) -> GpuNode:
        self._finish_part()
        self._finish_pairs()
        # The keys' readers have put in each field what it holds.
        fields: list[dict[str, Any]] = list(self.draft.gpus)
        return GpuNode(
            driver=self.draft.node["driver"],
            cuda=self.draft.node["cuda"],
            gpus=tuple(Gpu(**gpu) for gpu in fields),
            paths=self.draft.paths,
            nvlinks=self.draft.nvlinks,
            fault=self.draft.node.get("fault", ""),
        )


def _identity(draft: Draft, index: int, name: str) -> object:
    gpu = draft.gpus[index]
    if name == "minor":
        return gpu.get("minor", index)
    if name == "pci":
        return [int(part, 16) for part in re.split("[:.]", str(gpu["pci"]))]
    return gpu[name]


def _lines(reader: _Reader, text: bytes) -> Iterator[str]:
    """Lines that hold something, without comments; counts all of them."""
    lines = text.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for line in lines:
        reader.line += 1
        if len(line) > LINE_MAX_BYTES:
            raise reader.error(f"line: longer than {LINE_MAX_BYTES} bytes; shorten it")
        said = line.partition(b"#")[0]
        for byte in said:
            if (byte < 0x20 and byte != 0x09) or byte > 0x7E:
                raise reader.error(f"byte 0x{byte:02x}: only printable ASCII is allowed outside comments")
        if word := said.decode("ascii").strip(" \t"):
            yield word


def parse(text: bytes, file: str) -> GpuNode:
    """The node that ``text`` describes; ``file`` is what a `DescriptionError` calls it."""
    reader = _Reader(file)
    if len(text) > FILE_MAX_BYTES:
        raise reader.error(f"file: larger than {FILE_MAX_BYTES} bytes; it is no description", 1)
    for line in _lines(reader, text):
        reader.take(line)
    return reader.finish()


def read(path: Path) -> GpuNode:
    """Read a file; raise `DescriptionError`, also when it cannot be opened."""
    try:
        with path.open("rb") as file:
            text = file.read(FILE_MAX_BYTES + 1)
    except OSError as error:
        raise DescriptionError(str(path), 1, f"cannot be read: {error.strerror}") from None
    return parse(text, str(path))
