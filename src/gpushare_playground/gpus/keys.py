"""The keys of the format: where each belongs, what it wants, and how its value is read."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from gpushare_playground.gpus.description import Process

GPUS_MAX, PROCESSES_MAX, XIDS_MAX, LINKS_MAX, CPUS_MAX, TEXT_MAX = 32, 64, 16, 18, 1024, 63
UINT32_MAX: Final = 2**32 - 1
PATHS: Final = ("pix", "pxb", "phb", "node", "sys")
CLOCKS: Final = ("graphics", "sm", "memory", "video")
DRIVER_FAULTS: Final = ("driver-not-loaded", "version-mismatch")
GPU_FAULTS: Final = ("lost", "reset-required", "unknown-error")
RECOVERIES: Final = (
    "gpu-reset",
    "node-reboot",
    "drain-p2p",
    "drain-and-reset",
    "recover-imex-domain",
    "bus-reset",
    "system-reboot",
)


class Part(Enum):
    """Parts of a file, in their order."""

    HEADER = auto()
    GPU = auto()
    PAIRS = auto()


class Malformed(Exception):
    """The value is not what the key wants."""


class Refused(Exception):
    """The value is well formed and cannot be, for the reason that is the argument."""


_TWICE = "given twice; keep one of the two"
_TOO_MANY = "too many of them; leave some out"


@dataclass(slots=True)
class Draft:
    """What has been read so far: fields of `GpuNode`, and of one `Gpu` each."""

    node: dict[str, str] = field(default_factory=dict)
    gpus: list[dict[str, object]] = field(default_factory=list)
    paths: dict[tuple[int, int], str] = field(default_factory=dict)
    nvlinks: dict[tuple[int, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Value:
    """What follows a key; its methods raise `Malformed`."""

    words: list[str]
    rest: str
    """The words with the blanks between them."""

    def number(self, at: int, least: int, most: int) -> int:
        """A word of at most ten decimal digits, within bounds."""
        word = self.words[at]
        if not re.fullmatch("[0-9]{1,10}", word) or not least <= int(word) <= most:
            raise Malformed
        return int(word)

    def choice(self, at: int, choices: Sequence[str]) -> str:
        """A word that is one of some."""
        if self.words[at] not in choices:
            raise Malformed
        return self.words[at]

    def count(self, least: int, most: int | None = None) -> int:
        """How many words there are, which must be within bounds."""
        if not least <= len(self.words) <= (most or least):
            raise Malformed
        return len(self.words)


Read = Callable[[Value, Draft], None]


def _text(name: str, most: int = TEXT_MAX, form: str = ".+") -> Read:
    def read(value: Value, draft: Draft) -> None:
        if len(value.rest) > most or not re.fullmatch(form, value.rest):
            raise Malformed
        draft.gpus[-1][name] = value.rest

    return read


def _numbers(name: str, *bounds: tuple[int, int], rising: bool = False) -> Read:
    def read(value: Value, draft: Draft) -> None:
        value.count(len(bounds))
        numbers = tuple(value.number(at, *bound) for at, bound in enumerate(bounds))
        if rising and numbers[0] > numbers[1]:
            raise Malformed
        draft.gpus[-1][name] = numbers if len(bounds) > 1 else numbers[0]

    return read


def _switch(name: str) -> Read:
    def read(value: Value, draft: Draft) -> None:
        value.count(1)
        draft.gpus[-1][name] = value.choice(0, ("off", "on"))

    return read


def _header(name: str, form: str) -> Read:
    def read(value: Value, draft: Draft) -> None:
        if not re.fullmatch(form, value.rest):
            raise Malformed
        draft.node[name] = value.rest

    return read


def _version(text: str, most_minor: int) -> tuple[int, int]:
    found = re.fullmatch("([0-9]{1,3})[.]([0-9]{1,3})", text)
    if not found or int(found[1]) > 99 or int(found[2]) > most_minor:
        raise Malformed
    return int(found[1]), int(found[2])


def _read_cuda(value: Value, draft: Draft) -> None:
    major, minor = _version(value.rest, 99)
    draft.node["cuda"] = f"{major}.{minor}"


def _read_compute(value: Value, draft: Draft) -> None:
    major, minor = _version(value.rest, 9)
    if not major:
        raise Malformed
    draft.gpus[-1]["compute"] = f"{major}.{minor}"


def _read_driver_fault(value: Value, draft: Draft) -> None:
    value.count(1)
    fault = value.choice(0, DRIVER_FAULTS)
    if "fault" in draft.node:
        raise Refused(_TWICE)
    draft.node["fault"] = fault


def _read_gpu(value: Value, draft: Draft) -> None:
    value.count(1)
    if value.number(0, 0, UINT32_MAX) != len(draft.gpus):
        raise Malformed
    if len(draft.gpus) >= GPUS_MAX:
        raise Refused(_TOO_MANY)
    draft.gpus.append({"processes": (), "xids": {}, "clocks_mhz": {}})


def _read_cpus(value: Value, draft: Draft) -> None:
    value.count(1)
    before = -1
    for part in value.words[0].split(","):
        first, dash, last = part.partition("-")
        ends = Value([first, last if dash else first], "")
        low = ends.number(0, before + 1, CPUS_MAX - 1)
        before = ends.number(1, low, CPUS_MAX - 1)
    draft.gpus[-1]["cpus"] = value.rest


def _read_clock(value: Value, draft: Draft) -> None:
    value.count(3)
    kind = value.choice(0, CLOCKS)
    now, most = value.number(1, 0, 100000), value.number(2, 1, 100000)
    if now > most:
        raise Malformed
    clocks = draft.gpus[-1]["clocks_mhz"]
    assert isinstance(clocks, dict)
    if kind in clocks:
        raise Refused(_TWICE)
    clocks[kind] = (now, most)


def _read_process(value: Value, draft: Draft) -> None:
    count = value.count(2, 4)
    process = Process(
        pid=value.number(0, 1, 4194304),
        used_mib=value.number(1, 0, 16777216),
        kind=value.choice(2, ("compute", "graphics")) if count >= 3 else "compute",
        name=value.words[3] if count == 4 else "",
    )
    if len(process.name) > TEXT_MAX:
        raise Malformed
    processes = draft.gpus[-1]["processes"]
    assert isinstance(processes, tuple)
    if any((other.pid, other.kind) == (process.pid, process.kind) for other in processes):
        raise Refused(_TWICE)
    if len(processes) == PROCESSES_MAX:
        raise Refused(_TOO_MANY)
    draft.gpus[-1]["processes"] = (*processes, process)


def _read_gpu_fault(value: Value, draft: Draft) -> None:
    gpu = draft.gpus[-1]
    value.count(1, 3)
    kind = value.choice(0, (*GPU_FAULTS, "xid", "ecc-corrected", "ecc-uncorrected", "recovery"))
    if kind in GPU_FAULTS:
        value.count(1)
        if "fault" in gpu:
            raise Refused(_TWICE)
        gpu["fault"] = kind
    elif kind == "xid":
        count = value.count(2, 3)
        xid = value.number(1, 1, 1000)
        times = value.number(2, 1, UINT32_MAX) if count == 3 else 1
        xids = gpu["xids"]
        assert isinstance(xids, dict)
        if xid in xids:
            raise Refused(_TWICE)
        if len(xids) == XIDS_MAX:
            raise Refused(_TOO_MANY)
        xids[xid] = times
    elif kind == "recovery":
        value.count(2)
        action = value.choice(1, RECOVERIES)
        if "recovery" in gpu:
            raise Refused(_TWICE)
        gpu["recovery"] = action
    else:
        value.count(2)
        errors = value.number(1, 1, UINT32_MAX)
        if (name := kind.replace("-", "_")) in gpu:
            raise Refused(_TWICE)
        gpu[name] = errors


def _pair(value: Value, draft: Draft) -> tuple[int, int]:
    a, b = value.number(0, 0, UINT32_MAX), value.number(1, 0, UINT32_MAX)
    if a == b:
        raise Malformed
    if max(a, b) >= len(draft.gpus):
        raise Refused(f"names a GPU that is not there; {len(draft.gpus)} are described above")
    return min(a, b), max(a, b)


def _read_path(value: Value, draft: Draft) -> None:
    value.count(3)
    path = value.choice(2, PATHS)
    if (pair := _pair(value, draft)) in draft.paths:
        raise Refused(_TWICE)
    draft.paths[pair] = path


def _read_nvlink(value: Value, draft: Draft) -> None:
    value.count(3)
    links = value.number(2, 1, LINKS_MAX)
    if (pair := _pair(value, draft)) in draft.nvlinks:
        raise Refused(_TWICE)
    draft.nvlinks[pair] = links


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the table below."""

    name: str
    part: Part
    required: bool
    repeats: bool
    """Its reader itself tells what is given twice."""
    wants: str
    example: str
    read: Read

    def fits(self, part: Part) -> bool:
        """Whether a line may begin with the key while ``part`` is under way."""
        if self.name == "gpu":
            return part is not Part.PAIRS
        if self.part is Part.PAIRS:
            return part is not Part.HEADER
        return self.part is part

    @property
    def place(self) -> str:
        """Where the key belongs, for people."""
        if self.name == "gpu":
            return "before the first 'path' or 'nvlink'"
        return _PLACES[self.part]


_PLACES: Final = {
    Part.HEADER: "in the header, before the first 'gpu'",
    Part.GPU: "under a 'gpu' line",
    Part.PAIRS: "after the last GPU",
}
_UUID: Final = "GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_PCI: Final = "([0-9A-Fa-f]{4}|[0-9A-Fa-f]{8}):[0-9A-Fa-f]{2}:[01][0-9A-Fa-f][.][0-7]"
_WORD: Final = "[^ \t]+"
_PERCENT: Final = (0, 100)

# The same table, word for word, is in fakegpu/description/keys.c.
_H, _G, _P = Part.HEADER, Part.GPU, Part.PAIRS
KEYS: Final = (
    Key("fakegpu", _H, True, False, "the version of the format", "fakegpu 1", _header("format", "1")),
    Key("driver", _H, True, False, "digits and dots", "driver 580.95.05", _header("driver", "[0-9.]{1,32}")),
    Key("cuda", _H, True, False, "MAJOR.MINOR", "cuda 13.0", _read_cuda),
    Key("fault", _H, False, True, "driver-not-loaded or version-mismatch", "fault driver-not-loaded", _read_driver_fault),
    Key("gpu", _G, False, True, "the next whole number, counted from 0", "gpu 0", _read_gpu),
    Key("model", _G, True, False, "a name of at most 63 characters", "model Tesla V100-SXM2-16GB", _text("model")),
    Key("uuid", _G, True, False, "GPU- and a UUID in lower case", "uuid GPU-5c1f3f6e-0d6b-4c2a-9a57-0b8f2f1d7e11", _text("uuid", form=_UUID)),
    Key("pci", _G, True, False, "DOMAIN:BUS:DEVICE.FUNCTION in hexadecimal", "pci 00000000:3B:00.0", _text("pci", form=_PCI)),
    Key("memory", _G, True, False, "whole MiB from 1 to 16777216", "memory 16160", _numbers("total_mib", (1, 16777216))),
    Key("compute", _G, True, False, "MAJOR.MINOR", "compute 7.0", _read_compute),
    Key("reserved", _G, False, False, "whole MiB from 0 to 16777216", "reserved 224", _numbers("reserved_mib", (0, 16777216))),
    Key("context", _G, False, False, "whole MiB from 0 to 65536", "context 256", _numbers("context_mib", (0, 65536))),
    Key("growth", _G, False, False, "MiB of a first launch, KiB of a stream and KiB of a further context", "growth 92 512 5734", _numbers("growth", (0, 65536), (0, 1048576), (0, 1048576))),
    Key("serial", _G, False, False, "a word of at most 29 characters", "serial 0324218012345", _text("serial", 29, _WORD)),
    Key("vbios", _G, False, False, "a word of at most 31 characters", "vbios 88.00.4F.00.09", _text("vbios", 31, _WORD)),
    Key("minor", _G, False, False, "a whole number from 0 to 255", "minor 0", _numbers("minor", (0, 255))),
    Key("numa", _G, False, False, "a whole number from 0 to 63", "numa 0", _numbers("numa", (0, 63))),
    Key("cpus", _G, False, False, "rising numbers and ranges below 1024", "cpus 0-15,32-47", _read_cpus),
    Key("pcie", _G, False, False, "a generation from 1 to 7 and a width from 1 to 32", "pcie 3 16", _numbers("pcie", (1, 7), (1, 32))),
    Key("temperature", _G, False, False, "whole degrees Celsius from 0 to 200", "temperature 34", _numbers("temperature_c", (0, 200))),
    Key("temperature-limits", _G, False, False, "degrees of slowdown and, not below, of shutdown", "temperature-limits 87 90", _numbers("temperature_limits_c", (1, 200), (1, 200), rising=True)),
    Key("power", _G, False, False, "whole watts now and at most", "power 42 300", _numbers("power_w", (0, 10000), (0, 10000))),
    Key("clock", _G, False, True, "graphics, sm, memory or video, and MHz now and at most", "clock sm 135 1530", _read_clock),
    Key("fan", _G, False, False, "percent from 0 to 100", "fan 30", _numbers("fan_percent", _PERCENT)),
    Key("utilization", _G, False, False, "percent of the GPU and of its memory", "utilization 30 12", _numbers("utilization_percent", _PERCENT, _PERCENT)),
    Key("persistence", _G, False, False, "on or off", "persistence on", _switch("persistence")),
    Key("ecc", _G, False, False, "on or off", "ecc on", _switch("ecc")),
    Key("nvswitch", _G, False, False, "a number of links from 1 to 18", "nvswitch 18", _numbers("nvswitch", (1, LINKS_MAX))),
    Key("process", _G, False, True, "a pid, MiB, and perhaps compute or graphics and a name", "process 4711 512 compute python3", _read_process),
    Key("fault", _G, False, True, "lost, reset-required, unknown-error, recovery ACTION, xid N [COUNT], ecc-corrected N or ecc-uncorrected N", "fault xid 79", _read_gpu_fault),
    Key("path", _P, False, True, "two GPUs, and pix, pxb, phb, node or sys", "path 0 1 node", _read_path),
    Key("nvlink", _P, False, True, "two GPUs and a number of links from 1 to 18", "nvlink 0 1 6", _read_nvlink),
)  # fmt: skip
