"""The release before the checkout: its charts, its image and its plugin, built from its commit below ``build/``."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.e2e.cluster import Cluster
from tests.e2e.product.product import CHECKOUT

#: 0.1.0 was never tagged: the last commit without entries under Unreleased.
_FIRST: Final = "9cf0fc1cae44bb4fd155e5d5837c129c644456f2"
_REPOSITORY: Final = "docker.io/gpushare/gpushare"
#: The tag of its image on the nodes: a checkout that is not released yet has the same version.
_TAG: Final = "previous"
_BUILD_S: Final = 1500.0


@dataclass(frozen=True, slots=True)
class Previous:
    """Its files; ``root`` has the sources of that release."""

    root: Path
    version: str

    @property
    def charts(self) -> Path:
        """The folder of its charts, which use the image that ``load`` imports."""
        return self.root / "charts"

    @property
    def python_path(self) -> str:
        """The path by which Python runs its commands instead of the checkout's."""
        return str(self.root / "src")

    def load(self, cluster: Cluster) -> None:
        """Import its image on every node. The checkout's may have the same name and is to be imported later."""
        cluster.load_image(self.root / "build" / "images" / "gpushare.tar")
        for node in cluster.nodes:
            names = (f"{_REPOSITORY}:{self.version}", f"{_REPOSITORY}:{_TAG}")
            node.ctr("images", "tag", "--force", *names)


def build_previous() -> Previous:
    """Build the newest release that is an ancestor of the checkout's commit; existing builds are reused.

    Raises ``RuntimeError`` with what failed.
    """
    tag = _git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^", check=False).strip()
    commit = _git("rev-parse", "--verify", "--quiet", f"{tag or _FIRST}^{{commit}}", check=False).strip()
    if not commit:
        raise RuntimeError(f"no commit {_FIRST} in this clone: fetch the history (git fetch --unshallow)")
    root = CHECKOUT / "build" / "previous" / commit
    if not root.exists():
        _unpack(commit, root)
    _run(sys.executable, "-m", "images", "product", cwd=root, environment={"PYTHONPATH": str(root / "src")})
    found = re.search(
        r'^__version__ = "(.*)"$', (root / "src/gpushare/__init__.py").read_text(), re.MULTILINE
    )
    assert found, "the release has no version"
    return Previous(root, found[1])


def _unpack(commit: str, root: Path) -> None:
    """The commit's files; its charts name the image by its own tag. Complete or not there."""
    new = root.with_suffix(".new")
    _run("rm", "-rf", str(new), cwd=CHECKOUT)
    new.mkdir(parents=True)
    _run("sh", "-c", f"git archive {commit} | tar -x -C '{new}'", cwd=CHECKOUT)
    for chart in new.glob("charts/*/Chart.yaml"):
        text = chart.read_text()
        chart.write_text(re.sub(r"^appVersion: .*$", f"appVersion: {_TAG}", text, flags=re.MULTILINE))
    new.rename(root)


def _git(*arguments: str, check: bool = True) -> str:
    return _run("git", *arguments, cwd=CHECKOUT, check=check)


def _run(*argv: str, cwd: Path, environment: dict[str, str] | None = None, check: bool = True) -> str:
    done = subprocess.run(
        argv,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=_BUILD_S,
        check=False,
    )
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout
