"""Errors of the tools that build what is installed: ``make images``, ``make krew``, and the single-file plugin.

They print much else (files that they write, single-line programs): only what they raise or exit with is a message.
"""

import ast
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from documentation.messages import ANY, Message, of_tree

#: Calls that end a program with a text.
_ENDS: Final = "exit"


def from_builders(project: Path) -> list[Message]:
    """Messages of the builders of images and plugin."""
    found: list[Message] = []
    for folder in (project / "images", project / "plugins" / "kubectl"):
        for path in sorted(folder.glob("*.py")):
            if path.stem != "msgspec_in_python":
                found += stops(f"{folder.name}/{path.name}", path.read_text())
    return found


def stops(name: str, source: str) -> list[Message]:
    """What a module raises, and what programs in its texts exit with."""
    tree = ast.parse(source)
    kept: list[ast.stmt] = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    for program in _programs(tree):
        kept += [ast.Expr(one) for one in ast.walk(program) if _ends(one)]  # type: ignore[arg-type]
    found = of_tree(name, ast.Module(kept, []))
    return [replace(one, template=one.template.replace("%d", ANY)) for one in found]


def _ends(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") == _ENDS


def _programs(tree: ast.Module) -> Iterator[ast.Module]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "sys.exit(" in node.value:
            # Others are composed of pieces.
            with contextlib.suppress(SyntaxError):
                yield ast.parse(node.value)
