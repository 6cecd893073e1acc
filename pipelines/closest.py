"""The tests closest to a change: changed tests, then those that import a changed module, the most specific first."""

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

#: Folders of tests that need neither root nor a cluster; the closest first.
SUITES: Final = ("tests/unit", "tests/integration")
#: Files that are not Python, by path prefix → the folder of their tests.
_FOLDERS: Final = {
    "fakegpu/": "tests/unit/fakegpu",
    "isolation/": "tests/unit/isolation",
    "lookahead/": "tests/unit/ledger",
    "docs/": "tests/unit/documentation",
    "README.md": "tests/unit/documentation",
    "examples/": "tests/unit/documentation",
    "Makefile": "tests/unit/documentation",
    "charts/": "tests/unit/documentation",
}


def changed_files(root: Path) -> tuple[str, list[str]]:
    """The base commit and the files that differ from it, including the working tree; if none do, those of the last commit."""
    mains = (_git(root, "merge-base", "HEAD", main).strip() for main in ("origin/main", "main"))
    base = next(filter(None, mains), "HEAD")
    new = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    if names := _names(_differing(root, base) + new):
        return base[:8], names
    return "HEAD~1", _names(_differing(root, "HEAD~1"))


def closest_tests(root: Path, changed: Iterable[str]) -> list[str]:
    """Files of tests, each once: changed ones, namesakes of a changed module, those that import one, those of its folder.

    At last those that import a helper which imports one: most of these bring up whole processes.
    """
    ranks: dict[str, tuple[int, int]] = {}

    def note(path: str, rank: int, imports: int = 0) -> None:
        if path.startswith(SUITES) and _is_test(path) and (root / path).is_file():
            ranks[path] = min(ranks.get(path, (rank, imports)), (rank, imports))

    changed = list(changed)
    for path in changed:
        note(path, 0)
        for test in _in_folder(root, path):
            note(test, 3)
    modules = {_module(path) for path in changed if path.endswith(".py") and not _is_test(path)}
    for test in _namesakes(root, modules):
        note(test, 1)
    seen: set[str] = set()
    for rank in (2, 4):
        importers = dict(_importers(root, modules))
        for path, imports in importers.items():
            note(path, rank, imports)
        seen |= modules
        modules = {_module(path) for path in importers if not _is_test(path)} - seen
    return sorted(ranks, key=lambda path: (ranks[path][0], _suite(path), ranks[path][1], path))


def _importers(root: Path, modules: set[str]) -> Iterator[tuple[str, int]]:
    """Files below ``tests/`` that import one of the modules, and how many modules each imports."""
    if not modules:
        return
    # Only files that contain one of the names are parsed.
    named = re.compile(rf"\b({'|'.join(re.escape(one.rpartition('.')[2]) for one in modules)})\b")
    for path in sorted((root / "tests").rglob("*.py")):
        text = path.read_text()
        if named.search(text) and modules & (imports := _imports(text)):
            yield path.relative_to(root).as_posix(), len(imports)


def _imports(text: str) -> set[str]:
    """Every module that a source may import: for ``from a import b`` both a and a.b."""
    found: set[str] = set()
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
    return found


def _namesakes(root: Path, modules: set[str]) -> Iterator[str]:
    """``test_X.py`` in the folder that has the tests of a module X's package."""
    for module in modules:
        package, _, name = module.rpartition(".")
        for suite in SUITES:
            folder = f"{suite}/{package.removeprefix('gpushare').strip('.').replace('.', '/')}"
            path = (PurePosixPath(folder) / f"test_{name}.py").as_posix()
            if (root / path).is_file():
                yield path


def _in_folder(root: Path, path: str) -> list[str]:
    """The tests of the folder that a changed file belongs to, unless imports say more."""
    at = PurePosixPath(path)
    if at.name == "conftest.py" or (path.startswith(SUITES) and at.suffix != ".py"):
        folder = at.parent.as_posix()
    elif path.startswith("src/gpushare/"):
        folder = f"tests/unit/{at.parts[2]}"
    elif path.startswith("src/gpushare_playground/"):
        folder = "/".join(("tests/unit/playground", *at.parts[2:3]))
    else:
        folder = next((tests for start, tests in _FOLDERS.items() if path.startswith(start)), "")
    if not folder.startswith(SUITES) or folder in SUITES:
        return []
    return [one.relative_to(root).as_posix() for one in sorted((root / folder).rglob("test_*.py"))]


def _module(path: str) -> str:
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _is_test(path: str) -> bool:
    return PurePosixPath(path).match("test_*.py")


def _suite(path: str) -> int:
    return next(number for number, suite in enumerate(SUITES) if path.startswith(suite))


def _differing(root: Path, base: str) -> str:
    return _git(root, "diff", "--name-only", "--no-renames", "-z", base)


def _names(listed: str) -> list[str]:
    return sorted(set(filter(None, listed.split("\0"))))


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout
