"""Log lines of level warning and error, collected from the sources."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from documentation.messages import ANY, LOGGERS, WORD, Message
from documentation.sources import modules

_LEVELS: Final = frozenset({"warning", "error", "exception", "critical"})
_FILLED_IN: Final = re.compile(r"%(?:[-+ #0]*\d*(?:\.\d+)?[sdrfigx]|%)")


def from_logs(src: Path) -> list[Message]:
    """Lines of all modules of the product below ``src``; the playground's logs are for developers."""
    return [
        line
        for name, path in modules(src)
        if not name.startswith("playground/")
        for line in of_module(name, path.read_text())
    ]


def of_module(name: str, source: str) -> list[Message]:
    """The lines of one module. A line without a word of its own (``%s: %s``) is skipped; its parts have entries."""
    if not any(f"{logger}." in source for logger in LOGGERS):
        return []
    lines = [(call.lineno, _template(call)) for call in _lines(ast.parse(source))]
    return [Message(f"{name}:{at}", template) for at, template in lines if WORD.search(template)]


def _lines(module: ast.Module) -> Iterator[ast.Call]:
    """Calls of a logger at these levels, or at one chosen at run time."""
    for node in ast.walk(module):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=logger), attr=level)) if logger in LOGGERS:
                if level in _LEVELS or (level == "log" and not _is_lower(node.args[0])):
                    yield node


def _is_lower(level: ast.expr) -> bool:
    return isinstance(level, ast.Attribute) and level.attr in {"INFO", "DEBUG"}


def _template(call: ast.Call) -> str:
    assert isinstance(call.func, ast.Attribute)
    text = call.args[1 if call.func.attr == "log" else 0]
    if not isinstance(text, ast.Constant):
        raise ValueError(
            f"line {call.lineno}: a log line must be a constant text with %s, so that it can be searched: {ast.unparse(text)}"
        )
    return _FILLED_IN.sub(lambda one: "%" if one[0] == "%%" else ANY, " ".join(str(text.value).split()))
