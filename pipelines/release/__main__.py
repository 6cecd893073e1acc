"""``python3 -m pipelines.release [VERSION]``: makes a release; without VERSION builds the one whose tag is checked out."""

import argparse
import difflib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pipelines.__main__ import LOGS, ROOT, run
from pipelines.release import Refused, changelog, files, places
from pipelines.step import ALL, Step

#: Where wheel and source archive are built, and the release is assembled.
_MAKING: Final = Path("build/release/making")
_WRITTEN: Final = Path("tests/fixtures/written")
_PYTHON: Final = 'PATH="$PWD/.venv/bin:$PATH" python'


def main(arguments: list[str] | None = None) -> int:
    """Make the release; the exit status is 1 when a step failed, 2 when the release was refused."""
    parser = argparse.ArgumentParser(prog="python3 -m pipelines.release", description=__doc__)
    parser.add_argument("version", nargs="?", default="", metavar="VERSION", help="x.y.z")
    parser.add_argument("--address", default="", help="https address of the folder with the release's files")
    parser.add_argument("--dry-run", action="store_true", help="only show what would change and be built")
    parser.add_argument("--tag", action="store_true", help="commit the release and tag it")
    options = parser.parse_args(arguments)
    try:
        return _release(ROOT, options.version, options.address, dry_run=options.dry_run, tag=options.tag)
    except Refused as error:
        print(f"release: {error}", file=sys.stderr)
        return 2


def prepared(root: Path, new: str) -> dict[str, str]:
    """The new text of each file that a release changes, by its path; raises ``Refused``."""
    old = places.current(root)
    places.check_next(old, new)
    _check_clean(root)
    if _git(root, "tag", "--list", f"v{new}"):
        raise Refused(f"VERSION {new}: there is a tag v{new} already; write a greater one")
    log = (root / changelog.NAME).read_text()
    return {
        changelog.NAME: changelog.released(log, new, datetime.now(UTC).date()),
        **places.changed(root, old, new),
    }


def steps(version: str, address: str, *, record: bool) -> list[Step]:
    """The steps that build a release's files. ``record``: also record the formats that the version writes in clusters."""
    krew = f'make krew VERSION=v{version} ADDRESS="{address}/kubectl-inspect-cgpu.tar.gz"'
    installed = ("install",)
    found = [
        Step("install", "make build/stamps/test fakegpu isolation lookahead proto", 900, cores=ALL),
        Step("images", "make images", 1800, needs=installed),
        Step(
            "packages",
            f"{_PYTHON} -m hatchling build --target wheel --target sdist --directory {_MAKING}",
            300,
            needs=installed,
        ),
        Step("plugin", krew if address else "make kubectl-plugin", 300),
    ]
    if record:
        found.append(Step("record", f"{_PYTHON} -m tests.fixtures.record", 900, cores=ALL, needs=installed))
    return found


def _release(root: Path, version: str, address: str, *, dry_run: bool, tag: bool) -> int:
    if version:
        texts = prepared(root, version)
    else:
        version, texts = _tagged(root), {}
    if dry_run:
        _show(root, texts)
        print(
            "\n".join(f"{one.name:<9} {one.command}" for one in steps(version, address, record=bool(texts)))
        )
        return 0
    before = {path: (root / path).read_text() for path in texts}
    _write(root, texts)
    os.chdir(root)
    shutil.rmtree(_MAKING, ignore_errors=True)
    if run("release", steps(version, address, record=bool(texts)), LOGS):
        _write(root, before)
        if texts:
            shutil.rmtree(root / _WRITTEN / version, ignore_errors=True)
        return 1
    notes = changelog.section((root / changelog.NAME).read_text(), version)
    made = files.gather(root, root / _MAKING, version, notes, krew=bool(address))
    print(f"\n{made.relative_to(root)}: {len(list(made.iterdir()))} files")
    if not address:
        print(
            "krew's files were left out: set ADDRESS=https://… to the folder from which users will download the files"
        )
    if texts and tag:
        _git(root, "add", "--", *texts, str(_WRITTEN / version))
        _git(root, "commit", "--quiet", "--message", f"Release {version}")
        _git(root, "tag", "--annotate", f"v{version}", "--message", f"gpushare {version}")
        print(f"committed and tagged v{version}; publish it with: git push --follow-tags")
    elif texts:
        print(f"review the changes (git status), then commit them and tag the commit v{version}")
    return 0


def _tagged(root: Path) -> str:
    """The version of the checkout, whose commit has to be that of the tag."""
    version = places.current(root)
    if f"v{version}" not in _git(root, "tag", "--points-at", "HEAD").split():
        raise Refused(
            f"this commit is not that of tag v{version}: check that out, or give VERSION=x.y.z for a new release"
        )
    _check_clean(root)
    return version


def _check_clean(root: Path) -> None:
    if changes := _git(root, "status", "--porcelain"):
        raise Refused(f"the checkout has changes: commit or stash them first\n{changes.rstrip()}")


def _show(root: Path, texts: Mapping[str, str]) -> None:
    for path, text in texts.items():
        old = (root / path).read_text().splitlines(keepends=True)
        sys.stdout.writelines(difflib.unified_diff(old, text.splitlines(keepends=True), path, path, n=0))


def _write(root: Path, texts: Mapping[str, str]) -> None:
    for path, text in texts.items():
        (root / path).write_text(text)


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, check=False, capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"git {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
