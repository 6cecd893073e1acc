"""Peak memory of a container's processes, from the kernel."""

from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
#: Written to ``clear_refs``: reset the peak.
_FORGET_PEAK: Final = "5"


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def forget_peak(pid: int) -> None:
    """Reset the peaks."""
    for one in family(pid):
        try:
            (_PROC / str(one) / "clear_refs").write_text(_FORGET_PEAK)
        except OSError:
            continue


def peak_mib(pid: int) -> float:
    """The sum of the peaks of a process and its descendants: an upper bound of their memory at any moment. Raises ``OSError`` if it is gone."""
    return sum(_status_kib(one, "VmHWM") for one in family(pid)) / 1024


def _status_kib(pid: int, key: str) -> int:
    text = (_PROC / str(pid) / "status").read_text()
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(key)), 0)
