"""What ``make gpu-check`` says to people: why it ends, why a row was not run, and what was promised where a row says ``FAILED``.

Names of rows are headings, and what was measured is no message; programs that it starts are texts of several lines.
"""

import ast
from pathlib import Path
from typing import Final

from documentation.messages import Message, of_tree

#: Calls that make a row → which of their arguments is a message.
_ROWS: Final = {"promise": (1, 2), "not_run": (1,), "measured": ()}
#: Constants and functions (``FILE:NAME``) that are no messages, each for its reason.
INTERNAL: Final = {
    "__main__.py:heading": "the report's head",
    "driver.py:loaded": "a program",
    "report.py:text": "the report's head",
}
#: What texts begin with that are formats, patterns, options or programs of a line.
_NO_WORDS: Final = ("--", "import ", "core_percent=", "CFLAGS=", "^(", "exec ", "FB Memory")
_HEADINGS: Final = ("TITLE",)


def from_check(folder: Path) -> list[Message]:
    """Of all modules of the check."""
    found: list[Message] = []
    for path in sorted(folder.glob("*.py")):
        tree = _Rows(path.name).visit(ast.parse(path.read_text()))
        found += of_tree(f"gpu_check/{path.name}", tree)
    return [one for one in found if not one.template.startswith(_NO_WORDS)]


class _Rows(ast.NodeTransformer):
    """Takes out what is no message."""

    def __init__(self, name: str) -> None:
        self._name = name

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """Of rows the messages stay."""
        kept = _ROWS.get(getattr(node.func, "id", ""))
        if kept is not None:
            node.args = [one for place, one in enumerate(node.args) if place in kept]
        self.generic_visit(node)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Those that are named as none go."""
        if f"{self._name}:{node.name}" in INTERNAL:
            return ast.Pass()
        self.generic_visit(node)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """So do headings."""
        if any(getattr(one, "id", "") in _HEADINGS for one in node.targets):
            return ast.Pass()
        self.generic_visit(node)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        """So do programs."""
        return ast.Constant("") if isinstance(node.value, str) and "\n" in node.value.strip() else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        """With something to fill in, too."""
        said = "".join(str(one.value) for one in node.values if isinstance(one, ast.Constant))
        return ast.copy_location(ast.Constant(""), node) if "\n" in said.strip() else node
