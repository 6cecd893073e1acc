"""Generate the kubelet's gRPC stubs from our own ``.proto`` files, next to them.

Usage: ``python scripts/generate_stubs.py``. Writes only what changed, so that a second run costs nothing.
"""

import sys
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

PACKAGE = Path(__file__).parent.parent / "src" / "gpushare" / "kubeletapi"


def stale(proto: Path) -> bool:
    """Whether a generated module of ``proto`` is missing or older than it."""
    made = [proto.with_name(proto.stem + end) for end in ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")]
    return any(not path.exists() or path.stat().st_mtime < proto.stat().st_mtime for path in made)


def generate() -> None:
    """Generate every stale module; raise ``RuntimeError`` with the file's name when protoc refuses it."""
    include = str(resources.files("grpc_tools") / "_proto")
    for proto in sorted(PACKAGE.glob("*.proto")):
        if not stale(proto):
            continue
        # The virtual path makes the modules import each other by their full package name.
        arguments = [
            "protoc",
            f"-Igpushare/kubeletapi={PACKAGE}",
            f"-I{include}",
            f"--python_out={PACKAGE.parents[1]}",
            f"--pyi_out={PACKAGE.parents[1]}",
            f"--grpc_python_out={PACKAGE.parents[1]}",
            f"gpushare/kubeletapi/{proto.name}",
        ]
        if protoc.main(arguments) != 0:
            raise RuntimeError(f"protoc refused {proto.name}; its message is above")


if __name__ == "__main__":
    sys.exit(generate())
