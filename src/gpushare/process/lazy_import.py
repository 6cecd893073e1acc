"""Imports libraries without the parts that gpushare does not use; those are imported on first use.

The scheduler has to be ready in a fraction of a second, most of which is spent on imports: of a command line, of web
sockets, of documentation, and in compiling patterns for headers that no API server sends. Nothing is left out for good: what
stands in for a name or a pattern reads the real one at its first use, and is it from then on.
"""

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any, Final

_compile: Final = re.compile
_METHODS: Final = frozenset({"findall", "finditer", "fullmatch", "match", "search", "split", "sub", "subn"})


class _Late:
    """A placeholder for ``name`` of a module. It can be called, indexed and used in annotations like the real one."""

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name

    def _real(self) -> Any:
        return getattr(importlib.import_module(self._module), self._name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._real()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # inspecting it, as typing does, is no use
        return getattr(self._real(), name)

    def __getitem__(self, item: Any) -> "_Late":
        return self

    def __or__(self, other: Any) -> "_Late":
        return self

    __ror__ = __or__


class _Placeholder(ModuleType):
    """A placeholder for a module, with the names that others import from it; everything else comes from the real one."""

    def __init__(self, module: str, taken: Iterable[str]) -> None:
        super().__init__(module)
        for name in taken:
            setattr(self, name, _Late(module, name))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


class _LatePackage(ModuleType):
    """A package whose modules can be imported, and whose own ``__init__`` runs on first attribute access."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self.__dict__["_modules"]:
            return importlib.import_module(f"{self.__name__}.{name}")
        self.__class__ = ModuleType  # type: ignore[assignment]
        assert self.__spec__ is not None
        assert self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


class _LatePattern:
    """A pattern that is compiled on first use."""

    def __init__(self, pattern: Any, flags: Any) -> None:
        self._asked = (pattern, flags)
        self._compiled: re.Pattern[Any] | None = None

    def _real(self) -> re.Pattern[Any]:
        if self._compiled is None:
            self._compiled = _compile(*self._asked)
            # From now on attribute lookup finds them directly.
            self.__dict__.update((name, getattr(self._compiled, name)) for name in _METHODS)
        return self._compiled

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._real(), method)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _METHODS and self._compiled is None:
            # Modules usually keep a pattern's method rather than the pattern.
            return partial(self._call, name)
        return getattr(self._real(), name)


@contextmanager
def deferring(parts: Mapping[str, Iterable[str]] | None = None, *, patterns: bool = False) -> Iterator[None]:
    """Within the block, imported modules get placeholders for ``parts``: module → names that are imported from it.

    With ``patterns``, regular expressions compiled at import are compiled on first use instead. Modules that are already
    imported do not change. Not for code that subclasses a replaced name or uses it in ``isinstance``.
    """
    placeholders = {
        name: _Placeholder(name, taken) for name, taken in (parts or {}).items() if name not in sys.modules
    }
    for name, one in placeholders.items():
        sys.modules[name] = one
        package, _, child = name.rpartition(".")
        if package in sys.modules:
            # ``import package.child`` looks for it there.
            setattr(sys.modules[package], child, one)
    before = re.compile
    if patterns:
        re.compile = _compile_later
    try:
        yield
    finally:
        re.compile = before
        for name, one in placeholders.items():
            if sys.modules.get(name) is one:
                del sys.modules[name]


def initialize_later(package: str, *modules: str) -> None:
    """Run the ``__init__`` of a top-level package on first attribute access, not when one of its modules is imported.

    ``modules`` are those that its modules access through the package. A package that is already imported, or does not
    exist, does not change.
    """
    if package in sys.modules or (spec := importlib.util.find_spec(package)) is None:
        return
    made = sys.modules[package] = importlib.util.module_from_spec(spec)
    made.__dict__["_modules"] = modules
    made.__class__ = _LatePackage


def _compile_later(pattern: Any, flags: Any = 0) -> Any:
    return pattern if isinstance(pattern, (re.Pattern, _LatePattern)) else _LatePattern(pattern, flags)
