"""Image archives as a runtime sees them: the config, the layers unpacked over each other, a process in them."""

import json
import shlex
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpushare.__main__
from tests.patience import SLOWNESS

#: How the product's image is started; the playground is for a person's own machine and needs more packages.
ROLES = sorted(gpushare.__main__.ROLES.keys() - {"playground"})


@dataclass(frozen=True, slots=True)
class Unpacked:
    """An image below ``root``; ``config`` is the ``config`` of its OCI configuration."""

    root: Path
    config: Mapping[str, Any]
    members: tuple[tarfile.TarInfo, ...]

    @property
    def environment(self) -> dict[str, str]:
        return dict(one.split("=", 1) for one in self.config.get("Env", ()))

    def run(
        self,
        *command: str,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        binds: Mapping[Path, str] | None = None,
        workdir: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``command`` as ``user`` (default: the image's) on a read-only root file system."""
        who = user if user is not None else self.config.get("User") or "0:0"
        environment = self.environment | dict(env or {})
        root = shlex.quote(str(self.root))
        # Private mounts that end with the process.
        lines = [f"mount --bind {root} {root}"]
        lines += [
            f"mount --bind {shlex.quote(str(path))} {root}/{inside.strip('/')}"
            for path, inside in (binds or {}).items()
        ]
        lines += [f"mount -t proc proc {root}/proc", f"mount -o remount,bind,ro {root}"]
        # The program is looked up on the image's own PATH, in its working directory.
        found = "import os, sys; os.chdir(sys.argv[1]); os.execvp(sys.argv[2], sys.argv[2:])"
        place = workdir or self.config.get("WorkingDir") or "/"
        starter = ["/usr/bin/python3", "-I", "-c", found, place, *command]
        lines.append(f"exec {shlex.join(['chroot', f'--userspec={who}', str(self.root), *starter])}")
        return subprocess.run(
            ["/usr/bin/unshare", "--mount", "--pid", "--fork", "/bin/sh", "-ec", "\n".join(lines)],
            env=environment | {"PATH": environment.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"},
            capture_output=True,
            text=True,
            timeout=120 * SLOWNESS,
            check=False,
        )


def unpack(archive: Path, root: Path) -> Unpacked:
    """Unpack the one image of an OCI archive; digests are checked by the tests of the writer."""
    with tarfile.open(archive) as opened:

        def member(name: str) -> Any:
            return opened.extractfile(name)

        def blob(digest: str) -> Any:
            return member(f"blobs/{digest.replace(':', '/')}")

        index = json.load(member("index.json"))
        manifest = json.load(blob(index["manifests"][0]["digest"]))
        config = json.load(blob(manifest["config"]["digest"]))["config"]
        members: list[tarfile.TarInfo] = []
        for layer in manifest["layers"]:
            with tarfile.open(fileobj=blob(layer["digest"]), mode="r:gz") as contents:
                members += contents.getmembers()
                contents.extractall(root, filter="fully_trusted")
    return Unpacked(root, config, tuple(members))


def arguments(image: Unpacked, more: Sequence[str] = ()) -> list[str]:
    """The arguments of a container of the image with ``args: more``."""
    return [*image.config.get("Entrypoint", ()), *(more or image.config.get("Cmd", ()))]
