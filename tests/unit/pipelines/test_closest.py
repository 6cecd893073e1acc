"""Which tests are closest to a change, and what changed."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.closest import changed_files, closest_tests

FILES = {
    "src/gpushare/ledger/room.py": "",
    "src/gpushare/ledger/__init__.py": "",
    "src/gpushare/dashboard/page.js": "",
    "src/gpushare/kube/reading.py": "",
    "isolation/files/turn.c": "",
    "tests/unit/kube/test_reading.py": "",
    "tests/unit/ledger/test_room.py": "",
    "tests/unit/ledger/test_other.py": "",
    "tests/unit/ledger/conftest.py": "",
    "tests/unit/api/test_many.py": "import a\nimport b\nimport c\nfrom gpushare.ledger.room import Room\n",
    "tests/unit/api/test_few.py": "from gpushare.ledger import room\n",
    "tests/unit/api/test_comment.py": "# room\n",
    "tests/unit/api/test_through.py": "from tests.unit.api.building import x\n",
    "tests/unit/api/building.py": "import gpushare.ledger.room\n",
    "tests/integration/whole/test_whole.py": "import gpushare.ledger.room\n",
    "tests/e2e/test_real.py": "import gpushare.ledger.room\n",
    "tests/unit/dashboard/test_page.py": "",
    "tests/unit/isolation/test_turn.py": "",
    "tests/unit/fakegpu/test_state.py": "",
    "tests/unit/fakegpu/race.c": "",
    "tests/unit/documentation/test_links.py": "",
    "docs/index.md": "",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_tests_that_import_a_module_follow_its_namesake_most_specific_first(root: Path) -> None:
    assert closest_tests(root, ["src/gpushare/ledger/room.py"]) == [
        "tests/unit/ledger/test_room.py",
        "tests/unit/api/test_few.py",
        "tests/unit/api/test_many.py",
        "tests/integration/whole/test_whole.py",
        "tests/unit/ledger/test_other.py",
        "tests/unit/api/test_through.py",
    ]


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("tests/unit/ledger/test_other.py", ["tests/unit/ledger/test_other.py"]),
        ("tests/unit/api/building.py", ["tests/unit/api/test_through.py"]),
        (
            "tests/unit/ledger/conftest.py",
            ["tests/unit/ledger/test_other.py", "tests/unit/ledger/test_room.py"],
        ),
        ("src/gpushare/kube/reading.py", ["tests/unit/kube/test_reading.py"]),
        ("src/gpushare/dashboard/page.js", ["tests/unit/dashboard/test_page.py"]),
        ("isolation/files/turn.c", ["tests/unit/isolation/test_turn.py"]),
        ("tests/unit/fakegpu/race.c", ["tests/unit/fakegpu/test_state.py"]),
        ("docs/index.md", ["tests/unit/documentation/test_links.py"]),
        ("tests/e2e/test_real.py", []),
        ("tests/unit/api/test_gone.py", []),
        ("LICENSE", []),
    ],
)
def test_other_files_have_closest_tests_too(root: Path, changed: str, tests: list[str]) -> None:
    assert closest_tests(root, [changed]) == tests


def test_a_changed_test_comes_first(root: Path) -> None:
    changed = ["src/gpushare/ledger/room.py", "tests/unit/api/test_many.py"]
    assert closest_tests(root, changed)[:2] == [
        "tests/unit/api/test_many.py",
        "tests/unit/ledger/test_room.py",
    ]


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    run("init", "-b", "main")
    return run


def commit(git: Callable[..., None], folder: Path, name: str) -> None:
    (folder / name).write_text("x")
    git("add", "-A")
    git("commit", "-m", name)


def test_changes_since_main_count_whether_committed_or_not(git: Callable[..., None], tmp_path: Path) -> None:
    commit(git, tmp_path, "first")
    git("checkout", "-b", "branch")
    commit(git, tmp_path, "second")
    (tmp_path / "first").write_text("changed")
    (tmp_path / "new").write_text("")
    assert changed_files(tmp_path)[1] == ["first", "new", "second"]


def test_on_main_the_last_commit_counts(git: Callable[..., None], tmp_path: Path) -> None:
    commit(git, tmp_path, "first")
    commit(git, tmp_path, "second")
    assert changed_files(tmp_path) == ("HEAD~1", ["second"])


def test_a_deleted_file_counts_as_changed(git: Callable[..., None], tmp_path: Path) -> None:
    commit(git, tmp_path, "first")
    (tmp_path / "first").unlink()
    assert changed_files(tmp_path)[1] == ["first"]
