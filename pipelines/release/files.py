"""What is in a release: charts as archives, and everything that the steps made, with checksums."""

import gzip
import hashlib
import io
import shutil
import tarfile
from pathlib import Path
from typing import Final

SUMS: Final = "SHA256SUMS"
NOTES: Final = "NOTES.md"
#: In addition to the charts, below the root of the checkout.
_MADE: Final = (
    "build/images/*.tar",
    "build/images/*.spdx.json",
    "build/kubectl-inspect-cgpu",
)
_KREW: Final = ("build/kubectl-inspect-cgpu.tar.gz", "build/inspect-cgpu.yaml")
_CHUNK: Final = 1 << 20


def chart(folder: Path) -> bytes:
    """A chart as ``helm package`` packs it; the same files give the same bytes, which helm's own do not."""
    # helm looks for this one first.
    first = folder / "Chart.yaml"
    paths = [first, *sorted(one for one in folder.rglob("*") if one.is_file() and one != first)]
    found = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=found, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for path in paths:
            content = path.read_bytes()
            info = tarfile.TarInfo(path.relative_to(folder.parent).as_posix())
            info.size, info.mode = len(content), 0o644
            archive.addfile(info, io.BytesIO(content))
    return found.getvalue()


def gather(root: Path, packages: Path, version: str, notes: str, *, krew: bool) -> Path:
    """Assemble the release in ``build/release/VERSION``, replacing an earlier one; returns the folder.

    ``packages`` has the wheel and the source archive, and goes. ``krew``: its archive and manifest were made, too.
    """
    for pattern in (*_MADE, *(_KREW if krew else ())):
        paths = sorted(root.glob(pattern))
        if not paths:
            raise FileNotFoundError(f"{pattern}: not made")
        for path in paths:
            shutil.copy2(path, packages)
    for folder in sorted(one.parent for one in root.glob("charts/*/Chart.yaml")):
        (packages / f"{folder.name}-{version}.tgz").write_bytes(chart(folder))
    (packages / NOTES).write_text(notes)
    (packages / SUMS).write_text(sums(packages))
    release = root / "build" / "release" / version
    shutil.rmtree(release, ignore_errors=True)
    return packages.rename(release)


def sums(folder: Path) -> str:
    """What ``sha256sum --check`` reads, of every file in a folder."""
    return "".join(
        f"{_digest(path)}  {path.name}\n" for path in sorted(folder.iterdir()) if path.name != SUMS
    )


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
