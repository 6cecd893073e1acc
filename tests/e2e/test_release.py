"""A whole release in a clone of what is committed, typed as on its page, and what users do with its files."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from tests.docs.assigned import commands_typed_by
from tests.e2e.charts.rendering import INSTALLER, SCHEDULER
from tests.e2e.cluster import build
from tests.e2e.plane import CHECKOUT

# It makes a virtual environment, builds all images and records three playgrounds: minutes, and many times
# that next to other work.
pytestmark = [pytest.mark.timeout(3600), pytest.mark.nightly]

#: Commands that the page has a reader type, in its order; the address comes from the environment, as in
#: the workflow.
DRY, RELEASE, PUSH, AGAIN, *CHECKS = [
    one.text for one in commands_typed_by(__file__, "docs/developer/release.md")
]
VERSION = "1.2.3"
ADDRESS = {"ADDRESS": f"https://example.com/v{VERSION}"}


def typed(folder: Path, environment: Mapping[str, str], *lines: str) -> str:
    """The lines in one shell, as a person types them; it stops at the first that fails."""
    # A make started in the background of make would inherit its flags.
    shell = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    ran = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", "\n".join(lines)],
        cwd=folder,
        env={**shell, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    return ran.stdout


# Nothing on a pull guards the whole; tests/unit/pipelines/test_release.py guards what it writes and refuses.
def test_a_release_is_made_pushed_rebuilt_from_its_tag_and_installed(tmp_path: Path) -> None:
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    identity = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.com"}
    identity |= {name.replace("AUTHOR", "COMMITTER"): value for name, value in identity.items()}
    helm = {"PATH": f"{build(names=('helm',))}:{os.environ['PATH']}"}
    typed(
        tmp_path, {}, f"git clone --quiet --bare {CHECKOUT} {origin}", f"git clone --quiet {origin} {clone}"
    )

    output = typed(clone, identity, DRY)
    assert f'+__version__ = "{VERSION}"' in output
    assert typed(clone, identity, "git status --porcelain") == ""
    typed(clone, identity | ADDRESS, RELEASE, PUSH)
    assert typed(clone, identity, "git status --porcelain") == ""
    assert typed(origin, {}, f"git tag --list v{VERSION}") == f"v{VERSION}\n"

    release = clone / "build" / "release" / VERSION
    first = (release / "SHA256SUMS").read_text()
    typed(clone, ADDRESS, AGAIN)
    assert (release / "SHA256SUMS").read_text() == first
    assert typed(clone, helm, *CHECKS).endswith(f"gpushare {VERSION}\n")

    for chart in (INSTALLER, SCHEDULER):
        template = f"helm template {chart} --namespace kube-system --kube-version 1.36.3"
        packed = typed(release, helm, f"{template} {chart}-{VERSION}.tgz")
        assert packed == typed(clone / "charts", helm, f"{template} {chart}")
        assert f"docker.io/gpushare/gpushare:{VERSION}" in packed
    assert yaml.safe_load((release / "inspect-cgpu.yaml").read_text())["spec"]["version"] == f"v{VERSION}"
    assert validate_full_spdx_document(parse_file(str(release / "gpushare.spdx.json"))) == []
    assert (release / "NOTES.md").read_text().startswith("### ")
