"""Imports libraries without the parts of them that nobody here uses: these are read when somebody does.

The scheduler has to be ready in a fraction of a second, and most of that goes by in imports: of a command line, of web
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
    """Stands for ``name`` of a module. It can be called, indexed and stand in annotations as the real one can."""

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


class _PlaceholderPod(ModuleType):
    """Stands for a module, with what others take from it at their import; all else is taken from the real one."""

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
    """A package whose modules can be imported, and whose own ``__init__`` is run when something of it is asked for."""

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
    """A pattern that is compiled when it is first used."""

    def __init__(self, pattern: Any, flags: Any) -> None:
        self._asked = (pattern, flags)
        self._compiled: re.Pattern[Any] | None = None

    def _real(self) -> re.Pattern[Any]:
        if self._compiled is None:
            self._compiled = _compile(*self._asked)
            # From now on they are found without being looked for.
            self.__dict__.update((name, getattr(self._compiled, name)) for name in _METHODS)
        return self._compiled

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._real(), method)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _METHODS and self._compiled is None:
            # Modules keep a pattern's method more often than the pattern.
            return partial(self._call, name)
        return getattr(self._real(), name)


@contextmanager
def putting_off(
    parts: Mapping[str, Iterable[str]] | None = None, *, patterns: bool = False
) -> Iterator[None]:
    """Within, modules that are imported get stand-ins for ``parts``: module → names that are taken from it at import.

    With ``patterns`` those that they compile at import are compiled when first used. Modules that were read before stay as
    they are. Not for code that derives from what is stood in for, or asks whether something is an instance of it.
    """
    standing = {
        name: _PlaceholderPod(name, taken) for name, taken in (parts or {}).items() if name not in sys.modules
    }
    for name, one in standing.items():
        sys.modules[name] = one
        package, _, child = name.rpartition(".")
        if package in sys.modules:
            # Who says ``import package.child`` looks for it there.
            setattr(sys.modules[package], child, one)
    before = re.compile
    if patterns:
        re.compile = _compile_later
    try:
        yield
    finally:
        re.compile = before
        for name, one in standing.items():
            if sys.modules.get(name) is one:
                del sys.modules[name]


def initialize_later(package: str, *modules: str) -> None:
    """Have the ``__init__`` of a top package run only when something of it is asked for, and not of its modules.

    ``modules`` are those that its modules ask the package itself for. A package that was imported before, or that there is
    not, stays as it is.
    """
    if package in sys.modules or (spec := importlib.util.find_spec(package)) is None:
        return
    made = sys.modules[package] = importlib.util.module_from_spec(spec)
    made.__dict__["_modules"] = modules
    made.__class__ = _LatePackage


def _compile_later(pattern: Any, flags: Any = 0) -> Any:
    return pattern if isinstance(pattern, (re.Pattern, _LatePattern)) else _LatePattern(pattern, flags)
