"""Writes OCI image archives: layers from entries, then a config, a manifest and an index around them.

Everything is deterministic: entries are sorted, times are :data:`MOMENT`, gzip headers carry neither name nor
time. The archive is an OCI image layout with Docker's ``manifest.json`` beside it, so that ``ctr images
import``, ``podman load``, ``buildah pull oci-archive:…`` and ``docker load`` all take it.
"""

import hashlib
import io
import json
import os
import platform
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: What all times within images say, in seconds since 1970; ``SOURCE_DATE_EPOCH`` sets another.
MOMENT = int(os.environ.get("SOURCE_DATE_EPOCH", "1580601600"))
#: How Go and OCI name the machine that images are made for.
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())

_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"


@dataclass(frozen=True, slots=True)
class Entry:
    """One file, folder or symbolic link of a layer; made by :func:`file`, :func:`folder` and :func:`link`."""

    path: str
    kind: bytes
    mode: int
    content: bytes | Path = b""
    target: str = ""
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True, slots=True)
class Layer:
    """A gzip-compressed layer on disk, ``size`` in bytes; ``diff_id`` is the digest of what is inside."""

    blob: Path
    digest: str
    diff_id: str
    size: int
    made_by: str


@dataclass(frozen=True, slots=True)
class Config:
    """How a container of the image starts."""

    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    workdir: str = "/"
    labels: Mapping[str, str] = field(default_factory=dict)


def file(path: str, content: bytes | Path, mode: int = 0o644) -> Entry:
    """A regular file at ``path``; a ``Path`` is read only when the layer is written."""
    return Entry(_clean(path), tarfile.REGTYPE, mode, content=content)


def folder(path: str, mode: int = 0o755, *, uid: int = 0, gid: int = 0) -> Entry:
    """A folder; missing parents of any entry are made by themselves, with mode 0755."""
    return Entry(_clean(path), tarfile.DIRTYPE, mode, uid=uid, gid=gid)


def link(path: str, target: str) -> Entry:
    """A symbolic link at ``path`` that says ``target``."""
    return Entry(_clean(path), tarfile.SYMTYPE, 0o777, target=target)


def tree(source: Path, into: str) -> Iterator[Entry]:
    """Everything below the folder ``source``, with the modes that it has there, at ``into`` in the image."""
    for path in sorted(source.rglob("*")):
        name = f"{into}/{path.relative_to(source)}"
        if path.is_symlink():
            yield link(name, os.readlink(path))
        elif path.is_dir():
            yield folder(name)
        else:
            yield file(name, path, 0o755 if path.stat().st_mode & 0o100 else 0o644)


def make_layer(entries: Iterable[Entry], blobs: Path, *, made_by: str) -> Layer:
    """Write ``entries`` as one layer into the folder ``blobs``, named by its digest; of equal paths the last counts."""
    blobs.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=blobs, prefix=".", delete=False) as out:
        squeezed = _Squeezed(out)
        with tarfile.open(fileobj=squeezed, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for entry in _in_order(entries):
                _add(archive, entry)
        squeezed.finish()
    blob = blobs / squeezed.outer.hexdigest()
    Path(out.name).rename(blob)
    return Layer(
        blob=blob,
        digest=f"sha256:{squeezed.outer.hexdigest()}",
        diff_id=f"sha256:{squeezed.inner.hexdigest()}",
        size=blob.stat().st_size,
        made_by=made_by,
    )


def write_archive(path: Path, refs: str | Sequence[str], layers: Sequence[Layer], config: Config) -> str:
    """Write the image archive ``path`` under the full names ``refs`` (``docker.io/a/b:1``); return its digest.

    The archive appears whole or not at all. Raises ``ValueError`` for a name without host or tag.
    """
    names = [refs] if isinstance(refs, str) else list(refs)
    for name in names:
        host, slash, rest = name.partition("/")
        if not slash or not (set(host) & {".", ":"} or host == "localhost") or ":" not in rest:
            raise ValueError(f"image name {name!r}: give it in full, HOST/NAME:TAG, such as docker.io/a/b:1")
    small: dict[str, bytes] = {}
    inner = _put(small, _described(layers, config), _CONFIG)
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": inner,
        "layers": [{"mediaType": _LAYER, "digest": one.digest, "size": one.size} for one in layers],
    }
    outer = _put(small, manifest, _MANIFEST)
    index = {
        "schemaVersion": 2,
        "mediaType": _INDEX,
        "manifests": [outer | {"platform": _platform(), "annotations": _names(name)} for name in names],
    }
    docker = [
        {"Config": _at(inner["digest"]), "RepoTags": names, "Layers": [_at(one.digest) for one in layers]}
    ]
    contents: dict[str, bytes | Path] = {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": _json(index),
        "manifest.json": _json(docker),
    }
    contents |= {_at(digest): data for digest, data in small.items()}
    contents |= {_at(one.digest): one.blob for one in layers}
    with _whole(path) as out, tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for entry in _in_order(file(name, content) for name, content in contents.items()):
            _add(archive, entry)
    return str(outer["digest"])


@contextmanager
def _whole(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the name ``path`` when it has been written to its end, and vanishes otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as out:
        try:
            yield out
        except BaseException:
            os.unlink(out.name)
            raise
    os.chmod(out.name, 0o644)
    os.replace(out.name, path)


class _Squeezed(io.RawIOBase):
    """A sink that compresses what is written to it and digests both sides."""

    def __init__(self, out: IO[bytes]) -> None:
        self.inner, self.outer = hashlib.sha256(), hashlib.sha256()
        self._out = out
        # 31: a gzip stream; zlib writes its header without name and time.
        self._zlib = zlib.compressobj(6, zlib.DEFLATED, 31)

    def write(self, data: "Buffer") -> int:
        self.inner.update(data)
        self._emit(self._zlib.compress(data))
        return memoryview(data).nbytes

    def finish(self) -> None:
        self._emit(self._zlib.flush())

    def _emit(self, data: bytes) -> None:
        self.outer.update(data)
        self._out.write(data)


def _clean(path: str) -> str:
    name = path.strip("/")
    if not name or any(part in {"", ".", ".."} for part in name.split("/")):
        raise ValueError(f"{path!r} is no path of an image; write it absolute, such as /usr/bin/x")
    return name


def _in_order(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Sorted, parents first; a parent that nobody named is made."""
    named = {entry.path: entry for entry in entries}
    for path in list(named):
        while path := path.rpartition("/")[0]:
            if path in named:
                break
            named[path] = folder(path)
    for _, entry in sorted(named.items(), key=lambda item: item[0].split("/")):
        yield entry


def _add(archive: tarfile.TarFile, entry: Entry) -> None:
    info = tarfile.TarInfo(entry.path)
    info.type, info.mode, info.linkname = entry.kind, entry.mode, entry.target
    info.mtime, info.uid, info.gid = MOMENT, entry.uid, entry.gid
    if entry.kind != tarfile.REGTYPE:
        archive.addfile(info)
    elif isinstance(entry.content, bytes):
        info.size = len(entry.content)
        archive.addfile(info, io.BytesIO(entry.content))
    else:
        info.size = entry.content.stat().st_size
        with entry.content.open("rb") as content:
            archive.addfile(info, content)


def _described(layers: Sequence[Layer], config: Config) -> dict[str, Any]:
    moment = datetime.fromtimestamp(MOMENT, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    start: dict[str, Any] = {
        "User": config.user,
        "Env": [f"{name}={value}" for name, value in sorted(config.env.items())],
        "Entrypoint": list(config.entrypoint),
        "Cmd": list(config.command),
        "WorkingDir": config.workdir,
        "Labels": dict(sorted(config.labels.items())),
    }
    return {
        "created": moment,
        **_platform(),
        "config": {key: value for key, value in start.items() if value},
        "rootfs": {"type": "layers", "diff_ids": [one.diff_id for one in layers]},
        "history": [{"created": moment, "created_by": one.made_by} for one in layers],
    }


def _platform() -> dict[str, str]:
    return {"architecture": ARCHITECTURE, "os": "linux"}


def _names(name: str) -> dict[str, str]:
    """What containerd reads a name from, and the tag that other tools pick an image of an archive by."""
    return {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _put(blobs: dict[str, bytes], value: object, media: str) -> dict[str, Any]:
    data = _json(value)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    blobs[digest] = data
    return {"mediaType": media, "digest": digest, "size": len(data)}


def _at(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"
