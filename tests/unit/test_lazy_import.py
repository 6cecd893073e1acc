"""Unused parts of libraries are imported on first use."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpushare.process.lazy_import import deferring, initialize_later

PART = """
READ = []
CONSTANT = 7
def double(number):
    return 2 * number
class Kept(list):
    made = "here"
"""
WHOLE = """
import re
from library.part import double, Kept
from library import part
WORD = re.compile("[a-z]+")
is_word = re.compile("[a-z]+").fullmatch
COMPILED = re.compile(re.compile("x"))
def many(asked: "Kept | None" = None, also: Kept | None = None, other: int | Kept = 1, listed: Kept[int] = ()):
    return double(21)
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "library"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "part.py").write_text(PART)
    (folder / "whole.py").write_text(WHOLE)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "library"]:
        del sys.modules[name]


def imported(*names: str) -> Any:
    with deferring({"library.part": names}, patterns=True):
        import library.whole  # type: ignore[import-not-found]
    return library.whole


def is_loaded() -> bool:
    return "library.part" in sys.modules


@pytest.mark.usefixtures("library")
def test_a_module_is_loaded_when_a_name_imported_from_it_is_called() -> None:
    whole = imported("double", "Kept")
    assert not is_loaded()
    assert whole.many() == 42
    assert is_loaded()
    assert isinstance(sys.modules["library.part"].Kept, type)


@pytest.mark.usefixtures("library")
def test_a_module_is_loaded_when_an_attribute_of_an_imported_name_is_read() -> None:
    whole = imported("double", "Kept")
    assert whole.Kept.made == "here"


@pytest.mark.usefixtures("library")
def test_a_module_is_loaded_when_another_of_its_names_is_read() -> None:
    whole = imported("double", "Kept")
    assert whole.part.CONSTANT == 7
    assert is_loaded()
    assert whole.part.READ is sys.modules["library.part"].READ


@pytest.mark.usefixtures("library")
def test_importing_an_unlisted_name_loads_the_module() -> None:
    """As after an update of the library: slower, but correct."""
    with deferring({"library.part": ("double",)}):
        from library.part import Kept  # type: ignore[import-not-found]
    assert isinstance(Kept, type)
    assert is_loaded()


@pytest.mark.usefixtures("library")
def test_later_imports_get_the_real_module() -> None:
    imported("double", "Kept")
    from library.part import CONSTANT

    assert CONSTANT == 7


@pytest.mark.usefixtures("library")
def test_a_module_that_is_already_loaded_is_used() -> None:
    import library.part

    real = library.part
    whole = imported("double", "Kept")
    assert whole.part is real
    assert isinstance(whole.Kept, type)


@pytest.mark.usefixtures("library")
def test_inspecting_a_placeholder_loads_nothing() -> None:
    whole = imported("double", "Kept")
    assert not hasattr(whole.Kept, "__wrapped__")
    assert not hasattr(whole.part, "__path__")
    assert not hasattr(whole.WORD, "__wrapped__")
    assert isinstance(whole.part, ModuleType)
    assert not is_loaded()


@pytest.mark.usefixtures("library")
def test_patterns_are_compiled_once_on_first_use() -> None:
    whole = imported("double", "Kept")
    assert not isinstance(whole.WORD, re.Pattern)
    assert whole.is_word("abc")
    assert not whole.is_word("a c")
    assert whole.WORD.match("abc def")[0] == "abc"
    assert whole.WORD.match.__self__ is whole.WORD.search.__self__
    assert whole.WORD.pattern == "[a-z]+"
    assert isinstance(whole.COMPILED.sub("y", "x"), str)
    assert re.compile("a").match("a")


def test_an_invalid_pattern_raises_when_it_is_used() -> None:
    with deferring(patterns=True):
        wrong = re.compile("(")
    with pytest.raises(re.error, match="missing"):
        wrong.match("x")


def test_patterns_are_compiled_immediately_again_after_a_failure() -> None:
    with pytest.raises(RuntimeError), deferring(patterns=True):
        raise RuntimeError
    assert isinstance(re.compile("a"), re.Pattern)


PACKAGE = """
from package.front import whole
from . import apart
"""
FRONT = """
from . import apart
def whole():
    return apart.READ
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "package"
    folder.mkdir()
    for name, text in (("__init__", PACKAGE), ("front", FRONT), ("apart", "READ = 1"), ("beside", "")):
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "package"]:
        del sys.modules[name]


@pytest.mark.usefixtures("package")
def test_a_module_is_imported_without_what_its_package_would_import() -> None:
    initialize_later("package")
    import package.beside  # type: ignore[import-not-found]

    assert "package.front" not in sys.modules
    assert not hasattr(package, "__wrapped__")
    assert package.whole() == 1
    assert type(package) is ModuleType


@pytest.mark.usefixtures("package")
def test_modules_of_a_package_can_import_others_from_it() -> None:
    initialize_later("package", "apart")
    from package.front import whole  # type: ignore[import-not-found]

    assert whole() == 1
    assert "whole" not in sys.modules["package"].__dict__


@pytest.mark.usefixtures("package")
def test_an_imported_or_missing_package_is_left_unchanged() -> None:
    import package

    initialize_later("package")
    assert type(package) is ModuleType
    assert sys.modules["package"] is package
    initialize_later("package_that_is_not_there")
    assert "package_that_is_not_there" not in sys.modules


@pytest.mark.usefixtures("library")
def test_a_module_is_found_by_its_full_name() -> None:
    import library  # type: ignore[import-not-found]

    with deferring({"library.part": ()}):
        import library.part
    assert library.part.double(2) == 4
