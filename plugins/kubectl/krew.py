"""Packs the one-file plugin for krew and fills its manifest: ``python plugins/kubectl/krew.py PLUGIN FOLDER VERSION ADDRESS``.

Writes ``FOLDER/kubectl-inspect-cgpu.tar.gz`` and ``FOLDER/inspect-cgpu.yaml``; the same plugin gives the same bytes.
"""

import gzip
import hashlib
import io
import re
import sys
import tarfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
TEMPLATE: Final = Path(__file__).with_name("krew.yaml")
_VERSION: Final = re.compile(r"v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?")


def packed(plugin: bytes) -> bytes:
    """The archive that krew unpacks."""
    found = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=found, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, content, mode in (
            ("kubectl-inspect-cgpu", plugin, 0o755),
            ("LICENSE", (ROOT / "LICENSE").read_bytes(), 0o644),
        ):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), mode
            archive.addfile(info, io.BytesIO(content))
    return found.getvalue()


def filled(archive: bytes, version: str, address: str) -> str:
    """The manifest; raises ``ValueError`` for a version or an address that krew would not take."""
    if not _VERSION.fullmatch(version):
        raise ValueError(f"VERSION {version!r}: write v1.2.3")
    if not address.startswith("https://"):
        raise ValueError(f"ADDRESS {address!r}: write the https address at which the archive will be")
    _, _, manifest = TEMPLATE.read_text().partition("apiVersion:")
    digest = hashlib.sha256(archive).hexdigest()
    for word, value in (("VERSION", version), ("ADDRESS", address), ("SHA256", digest)):
        manifest = re.sub(rf"(?<=: ){word}$", value, manifest, flags=re.MULTILINE)
    return f"apiVersion:{manifest}"


def main(arguments: list[str]) -> int:
    """Write both files."""
    if len(arguments) != 4:
        print("usage: python plugins/kubectl/krew.py PLUGIN FOLDER VERSION ADDRESS", file=sys.stderr)
        return 2
    plugin, folder, version, address = arguments
    archive = packed(Path(plugin).read_bytes())
    try:
        manifest = filled(archive, version, address)
    except ValueError as error:
        print(f"krew: {error}", file=sys.stderr)
        return 2
    (Path(folder) / "kubectl-inspect-cgpu.tar.gz").write_bytes(archive)
    (Path(folder) / "inspect-cgpu.yaml").write_text(manifest)
    print(f"{folder}/kubectl-inspect-cgpu.tar.gz and {folder}/inspect-cgpu.yaml: for version {version}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
