"""A release: one version everywhere, a dated changelog, and refusals with suggestions; in a checkout of a few files."""

import io
import json
import re
import subprocess
import tarfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import pytest

from documentation.__main__ import PROJECT
from documentation.understood import fault
from pipelines.release import Refused, __main__, changelog, files, places
from pipelines.step import Step

OLD = places.current(PROJECT)
NEW = "7.8.9"
LOG = "# Changelog\n\n## Unreleased\n\n### Added\n- A thing.\n\n## 0.0.1\n\nFirst.\n"


def git(root: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    ran = subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True, text=True)
    return ran.stdout


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed checkout with every file that names the version, whose steps do nothing."""
    root = tmp_path / "checkout"
    for name in {place.path for place in places.PLACES}:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text((PROJECT / name).read_text())
    (root / "CHANGELOG.md").write_text(LOG)
    (root / ".gitignore").write_text("/build/\n")
    git(root, "init", "--quiet", "--initial-branch", "main")
    git(root, "config", "user.name", "a")
    git(root, "config", "user.email", "a@example.com")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "All")
    monkeypatch.setattr(__main__, "ROOT", root)
    monkeypatch.setattr("pipelines.__main__.signal.signal", lambda *_: None)
    monkeypatch.chdir(root)
    return root


def with_steps(monkeypatch: pytest.MonkeyPatch, *commands: str) -> list[str]:
    """Replaces the steps of a release by these; returns the addresses that they are called with."""
    addresses: list[str] = []

    def replacements(version: str, address: str, *, record: bool) -> Sequence[Step]:
        addresses.append(address)
        return [Step(f"step-{number}", command, 60) for number, command in enumerate(commands)]

    monkeypatch.setattr(__main__, "steps", replacements)
    return addresses


MAKES = (
    "mkdir -p build/images build/release/making && echo image >build/images/gpushare.tar"
    " && echo {} >build/images/gpushare.spdx.json && echo plugin >build/kubectl-inspect-cgpu"
    f" && echo wheel >build/release/making/gpushare-{NEW}.whl"
)
RECORDS = f"mkdir -p tests/fixtures/written/{NEW} && echo {{}} >tests/fixtures/written/{NEW}/nodes.json"


def test_a_release_sets_the_version_dates_the_changelog_and_has_checksums(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_steps(monkeypatch, MAKES, RECORDS)
    assert __main__.main([NEW]) == 0
    assert places.current(checkout) == NEW
    for place in places.PLACES:
        text = (checkout / place.path).read_text()
        # Changes since a release are optional.
        assert place.becomes or place.text.format(NEW) in text
        assert place.text.format(OLD) not in text
    log = (checkout / "CHANGELOG.md").read_text()
    assert re.search(
        rf"^## Unreleased\n\n## {NEW} - \d{{4}}-\d\d-\d\d\n\n### Added\n- A thing\.$", log, re.MULTILINE
    )
    made = checkout / "build" / "release" / NEW
    assert (made / "NOTES.md").read_text() == "### Added\n- A thing.\n"
    assert {path.name for path in made.iterdir()} == {
        "gpushare.tar",
        "gpushare.spdx.json",
        "kubectl-inspect-cgpu",
        f"gpushare-{NEW}.whl",
        f"ack-ai-installer-{NEW}.tgz",
        f"ack-co-scheduler-{NEW}.tgz",
        "NOTES.md",
        "SHA256SUMS",
    }
    checked = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=made, capture_output=True
    )
    assert checked.returncode == 0
    assert checked.stdout.count(b": OK") == 7
    assert "commit them and tag the commit v7.8.9" in capsys.readouterr().out
    assert git(checkout, "tag") == ""


def test_changes_since_the_last_release_belong_to_this_one(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = checkout / "docs" / "operation" / "operate.md"
    page.write_text(f"| after {OLD} | `a` | `b` |\n")
    git(checkout, "commit", "--quiet", "--all", "--message", "Renamed")
    with_steps(monkeypatch, MAKES)
    assert __main__.main([NEW]) == 0
    assert page.read_text() == f"| {NEW} | `a` | `b` |\n"


def test_with_a_tag_the_changes_are_committed_and_tagged(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = with_steps(monkeypatch, MAKES, RECORDS)
    assert __main__.main([NEW, "--tag"]) == 0
    assert git(checkout, "status", "--porcelain") == ""
    assert git(checkout, "tag", "--points-at", "HEAD") == f"v{NEW}\n"
    assert git(checkout, "log", "-1", "--format=%s") == f"Release {NEW}\n"
    assert f"tests/fixtures/written/{NEW}/nodes.json" in git(checkout, "show", "--stat=200", "HEAD")
    # The publisher can build it again from the tag.
    assert __main__.main([]) == 0
    assert (checkout / "build" / "release" / NEW / "NOTES.md").read_text() == "### Added\n- A thing.\n"
    assert addresses == ["", ""]


def test_a_dry_run_shows_the_changes_and_leaves_the_checkout_as_it_is(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert __main__.main([NEW, "--dry-run", "--tag"]) == 0
    output = capsys.readouterr().out
    assert f'+__version__ = "{NEW}"' in output
    assert f"+## {NEW} - " in output
    assert "images    make images" in output
    assert git(checkout, "status", "--porcelain", "--ignored") == ""
    assert git(checkout, "tag") == ""


def test_after_a_step_that_fails_the_checkout_is_as_before(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_steps(monkeypatch, RECORDS, "echo no; exit 1")
    assert __main__.main([NEW, "--tag"]) == 1
    assert "release: 1 of 2 steps failed" in capsys.readouterr().out
    assert git(checkout, "status", "--porcelain") == ""
    assert git(checkout, "tag") == ""


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (OLD, f"VERSION {OLD}: not greater than {OLD}, the present one; write "),
        ("0.0.9", "VERSION 0.0.9: not greater than "),
        ("v7.8.9", "VERSION v7.8.9: write three numbers, such as "),
        ("7.8", "VERSION 7.8: write three numbers, such as "),
        ("7.08.9", "VERSION 7.08.9: write three numbers, such as "),
        ("", f"this commit is not that of tag v{OLD}: check that out, or give VERSION=x.y.z"),
    ],
)
def test_a_version_that_cannot_be_the_next_is_refused(
    checkout: Path, capsys: pytest.CaptureFixture[str], version: str, message: str
) -> None:
    assert __main__.main([version]) == 2
    assert f"release: {message}" in capsys.readouterr().err
    assert git(checkout, "status", "--porcelain") == ""


def test_a_checkout_with_changes_is_refused_and_the_changes_named(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "new.txt").write_text("x")
    assert __main__.main([NEW, "--dry-run"]) == 2
    stderr = capsys.readouterr().err
    assert stderr == "release: the checkout has changes: commit or stash them first\n?? new.txt\n"


def test_a_version_that_is_tagged_already_is_refused(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(checkout, "tag", f"v{NEW}")
    assert __main__.main([NEW]) == 2
    assert f"there is a tag v{NEW} already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (
            "# Changelog\n\n## Unreleased\n\n## 0.0.1\n\n- A thing.\n",
            "no entry under Unreleased: write what changed",
        ),
        (
            "# Changelog\n\n## Unreleased\n\n### Added\n\n## 0.0.1\n",
            "no entry under Unreleased: write what changed",
        ),
        ("# Changelog\n\n## 0.0.1\n\n- A thing.\n", "no heading '## Unreleased': write it"),
    ],
)
def test_a_changelog_without_a_new_entry_is_refused(log: str, message: str) -> None:
    with pytest.raises(Refused, match=re.escape(message)):
        changelog.released(log, NEW, date(2030, 1, 2))


def test_a_place_that_names_another_version_is_refused_before_anything_is_written(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chart = checkout / "charts" / "ack-co-scheduler" / "Chart.yaml"
    chart.write_text(chart.read_text().replace(f'appVersion: "{OLD}"', 'appVersion: "0.0.0"'))
    git(checkout, "commit", "--quiet", "--all", "--message", "Wrong")
    assert __main__.main([NEW]) == 2
    stderr = capsys.readouterr().err
    assert f"charts/ack-co-scheduler/Chart.yaml does not have 'appVersion: \"{OLD}\"'" in stderr
    assert git(checkout, "status", "--porcelain") == ""


def test_the_notes_of_a_version_end_at_the_next_heading() -> None:
    text = changelog.released(LOG, NEW, date(2030, 1, 2))
    assert changelog.section(text, NEW) == "### Added\n- A thing.\n"
    assert changelog.section(text, "0.0.1") == "First.\n"
    assert changelog.section(text, "0.0") == ""
    assert "## Unreleased\n\n## 7.8.9 - 2030-01-02\n" in text


def test_a_release_changes_every_mention_of_the_version_that_users_get() -> None:
    folders = (
        "src",
        "charts",
        "images",
        "plugins",
        "docs",
        "README.md",
        "pyproject.toml",
        "tests/e2e/charts",
    )
    named = re.compile(
        rf"(?<=[:=\"@-]){re.escape(OLD)}(?![\d.]*\d)|[vV]ersion \"?{re.escape(OLD)}(?![\d.]*\d)"
    )
    after = places.changed(PROJECT, OLD, NEW)
    listed = subprocess.run(
        ["git", "ls-files", "-z", *folders],
        cwd=PROJECT,
        check=True,
        capture_output=True,
        text=True,
    )
    forgotten = {}
    for name in filter(None, listed.stdout.split("\0")):
        if name.endswith(".png") or not (PROJECT / name).is_file():
            continue
        text = after.get(name) or (PROJECT / name).read_text()
        if found := [line for line in text.splitlines() if named.search(line)]:
            forgotten[name] = found
    assert not forgotten, "name each in pipelines/release/places.py, or write it without the version"


def test_a_packed_chart_has_every_file_below_its_name_and_is_reproducible() -> None:
    folder = PROJECT / "charts" / "ack-co-scheduler"
    packed = files.chart(folder)
    assert packed == files.chart(folder)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        names = archive.getnames()
        assert names[0] == "ack-co-scheduler/Chart.yaml"
        schema = archive.extractfile("ack-co-scheduler/values.schema.json")
        assert schema is not None
        assert json.load(schema)
    assert sorted(names) == sorted(
        path.relative_to(folder.parent).as_posix() for path in folder.rglob("*") if path.is_file()
    )


@pytest.mark.parametrize("address", ["", "https://example.com/v7.8.9"])
def test_the_steps_of_a_release_are_existing_commands(address: str) -> None:
    steps = __main__.steps(NEW, address, record=True)
    assert [fault(steps[at].command, PROJECT) for at in (1, 3)] == ["", ""]
    assert (f'ADDRESS="{address}/kubectl-inspect-cgpu.tar.gz"' in steps[3].command) is bool(address)
    names = [step.name for step in steps]
    assert all(set(step.needs) <= set(names[:at]) for at, step in enumerate(steps))
    assert "record" not in [step.name for step in __main__.steps(NEW, address, record=False)]
