"""The directories of CDI specs: all are read, ours is in the last one."""

import json
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.nodeagent.runtime.cdi.read_spec import BadDescription, CdiDescription, cdi_description

logger = logging.getLogger(__name__)

#: The names of all our files start so, those of claims, too.
_OURS: Final = "gpushare.dev-"
OUR_FILE: Final = f"{_OURS}gpu.json"
#: The same GPUs with our libraries in place of the driver's (``isolation.in_place``).
ISOLATED_FILE: Final = f"{_OURS}isolated.json"
#: NVIDIA's spec for 16 GPUs has 100 kB.
_MOST_BYTES: Final = 4 << 20


#: A file is unchanged if these are equal: inode number, size in bytes, time of its last change in ns.
Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Found:
    """The readable specs, best first, and what is wrong with the others."""

    descriptions: tuple[CdiDescription, ...] = ()
    faults: tuple[str, ...] = ()


class CdiFolders:
    """``folders`` in ascending order of precedence, as in container runtimes. Every method may block."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(folders)
        self._stamps: dict[Path, Stamp] = {}
        self._parsed: dict[Path, tuple[Stamp, CdiDescription | BadDescription]] = {}
        self._found = Found()

    @property
    def ours(self) -> Path:
        """The path of our spec."""
        return self._folders[-1] / OUR_FILE

    @property
    def isolated(self) -> Path:
        """The path of our spec with the isolation libraries."""
        return self._folders[-1] / ISOLATED_FILE

    @property
    def found(self) -> Found:
        """The result of the last ``read``."""
        return self._found

    def changed(self) -> bool:
        """Whether ``read`` would find files that it has not read; a handful of system calls."""
        return self._look() != self._stamps

    def read(self) -> Found:
        """All specs except ours. Unchanged files are not read again."""
        before, self._parsed = self._parsed, {}
        self._stamps = self._look()
        descriptions, faults = [], []
        for path, stamp in self._stamps.items():
            known = before.get(path)
            what = known[1] if known is not None and known[0] == stamp else _read(path, stamp[1])
            self._parsed[path] = (stamp, what)
            if isinstance(what, BadDescription):
                faults.append(str(what))
            else:
                descriptions.append(what)
        self._found = Found(tuple(descriptions), tuple(faults))
        return self._found

    def _look(self) -> dict[Path, Stamp]:
        stamps = {}
        for folder in reversed(self._folders):
            for name in _names(folder):
                path = folder / name
                with suppress(OSError):
                    status = path.stat()
                    stamps[path] = (status.st_ino, status.st_size, status.st_mtime_ns)
        return stamps

    def write(self, content: bytes, *, isolated: bool = False) -> bool:
        """Write one of our specs atomically; whether its content has changed. Raises ``OSError``."""
        path = self.isolated if isolated else self.ours
        if self.has(content, isolated=isolated):
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        # Runtimes read only .json and .yaml, so none sees it half written.
        new = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with new.open("wb") as file:
                os.fchmod(file.fileno(), 0o644)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        return True

    def has(self, content: bytes, *, isolated: bool = False) -> bool:
        """Whether the content of one of our specs is ``content``."""
        path = self.isolated if isolated else self.ours
        try:
            return path.stat().st_size == len(content) and path.read_bytes() == content
        except OSError:
            return False

    def remove(self) -> bool:
        """Remove our specs; whether there was one. Raises ``OSError``."""
        there = self.ours.exists() or self.isolated.exists()
        self.isolated.unlink(missing_ok=True)
        self.ours.unlink(missing_ok=True)
        return there


def _names(folder: Path) -> list[str]:
    """The specs of others. Not a path for each file: a node has one of ours for each claim."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(name for name in names if name.endswith((".json", ".yaml")) and not name.startswith(_OURS))


def _read(path: Path, size: int) -> CdiDescription | BadDescription:
    try:
        if size > _MOST_BYTES:
            raise BadDescription(str(path), f"it has {size} bytes, more than {_MOST_BYTES}")
        return cdi_description(str(path), _parsed(path))
    except BadDescription as error:
        return error
    except OSError as error:
        return BadDescription(str(path), f"it cannot be read: {error.strerror or error}")


def _parsed(path: Path) -> object:
    text = path.read_bytes()
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if path.suffix == ".json" and not text.lstrip().startswith((b"#", b"-")):
            raise BadDescription(str(path), f"it is not JSON: {error}") from None
    # Imported only if needed: the YAML module takes 2 MB.
    import yaml

    try:
        # The loader in C, if available: the other takes a second for a spec of 16 GPUs.
        if hasattr(yaml, "CSafeLoader"):
            return yaml.load(text, Loader=yaml.CSafeLoader)
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadDescription(str(path), f"it is not YAML: {' '.join(str(error).split())}") from None
