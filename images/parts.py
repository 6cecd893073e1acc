"""Layers that are made once: each is kept under a key of all that went into it."""

import fcntl
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from images import oci

_MADE = "made.json"


def key_of(files: Iterable[Path], *texts: str) -> str:
    """A key that changes when the contents of a file or a text does."""
    digest = hashlib.sha256()
    for path in (*files, Path(oci.__file__)):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    for text in (*texts, str(oci.MOMENT)):
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()


class Part:
    """One layer in a folder of its own: ``root/`` unpacked, ``made.json`` with its key and notes."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder, self.root, self._key = folder, folder / "root", key
        self._made: dict[str, Any] = {}
        if (folder / _MADE).exists():
            self._made = json.loads((folder / _MADE).read_text())

    @property
    def stale(self) -> bool:
        """Whether it must be made (anew)."""
        return self._made.get("key") != self._key or not self.layer.blob.exists()

    @property
    def layer(self) -> oci.Layer:
        """The layer as last made."""
        told = self._made["layer"]
        return oci.Layer(**told | {"blob": self.folder / told["blob"]})

    @property
    def notes(self) -> list[dict[str, Any]]:
        """What :meth:`keep` was told."""
        found: list[dict[str, Any]] = self._made["notes"]
        return found

    def fresh_root(self) -> Path:
        """The empty folder that the layer's contents are to be put into."""
        (self.folder / _MADE).unlink(missing_ok=True)
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        return self.root

    def keep(self, entries: Iterable[oci.Entry], notes: Sequence[dict[str, Any]], made_by: str) -> None:
        """Write the layer; only then does the part count as made."""
        for old in self.folder.glob("[0-9a-f]*"):
            if old.is_file() and len(old.name) == 64:
                old.unlink()
        layer = oci.make_layer(entries, self.folder, made_by=made_by)
        told = asdict(layer) | {"blob": layer.blob.name}
        self._made = {"key": self._key, "layer": told, "notes": list(notes)}
        (self.folder / _MADE).write_text(json.dumps(self._made, indent=1))


@dataclass(frozen=True)
class Store:
    """Where parts and archives lie, and who is told of progress."""

    folder: Path
    say: Callable[[str], None] = print

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Waits until no other process builds here."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.say(f"waiting for another build in {self.folder}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def part(self, name: str, key: str) -> Part:
        """The part of that name."""
        return Part(self.folder / "parts" / name, key)

    def write(
        self, archive: Path, refs: Sequence[str], layers: Sequence[oci.Layer], config: oci.Config
    ) -> None:
        """Write an archive and, beside it, a JSON file with its names, digest and sizes in bytes.

        One that is there already and of the same contents is left alone.
        """
        notes = archive.with_suffix(".json")
        key = key_of((), *refs, *(one.digest for one in layers), json.dumps(asdict(config), sort_keys=True))
        if notes.exists() and archive.exists() and json.loads(notes.read_text())["key"] == key:
            self.say(
                f"{archive.name} is up to date ({archive.stat().st_size / 1e6:.1f} MB, {', '.join(refs)})"
            )
            return
        begun = time.monotonic()
        notes.unlink(missing_ok=True)
        digest = oci.write_archive(archive, refs, layers, config)
        told = {
            "key": key,
            "refs": list(refs),
            "digest": digest,
            "size": archive.stat().st_size,
            "layers": [{"made_by": one.made_by, "digest": one.digest, "size": one.size} for one in layers],
        }
        notes.write_text(json.dumps(told, indent=1) + "\n")
        self.say(
            f"{archive.name}: {archive.stat().st_size / 1e6:.1f} MB in {time.monotonic() - begun:.1f} s,"
            f" {', '.join(refs)}, {digest}"
        )
