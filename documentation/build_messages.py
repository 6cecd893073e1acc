"""What stops the tools that make what is installed: ``make images``, ``make krew``, and the plugin as one file, which says so itself.

They print much that is no message (files that they write, programs of a line): what they raise, and what they end with, is.
"""

import ast
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from documentation.messages import ANY, Message, of_tree

#: What a program ends with when it takes a text.
_ENDS: Final = "exit"


def from_builders(project: Path) -> list[Message]:
    """Of the images' builder and of the plugin's."""
    found: list[Message] = []
    for folder in (project / "images", project / "plugins" / "kubectl"):
        for path in sorted(folder.glob("*.py")):
            if path.stem != "msgspec_in_python":
                found += stops(f"{folder.name}/{path.name}", path.read_text())
    return found


def stops(name: str, source: str) -> list[Message]:
    """What a module raises, and what the programs end with that it holds as texts."""
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
            # Others are put together of pieces.
            with contextlib.suppress(SyntaxError):
                yield ast.parse(node.value)
