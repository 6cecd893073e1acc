"""Writes ``kubectl-inspect-cgpu`` as one file that any Python from 3.9 on runs: ``python plugins/kubectl/build.py FILE``.

The file is a zip with the modules that the command imports, each turned into what Python 3.9 understands, and a stand-in for
msgspec. The same checkout gives the same bytes.
"""

import ast
import io
import sys
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
STAND_IN: Final = Path(__file__).with_name("msgspec_in_python.py")
#: The oldest Python that runs the file.
OLDEST: Final = (3, 9)
_INTERPRETER: Final = b"#!/usr/bin/env python3\n"
_ENTRY: Final = """\
import sys
if sys.version_info < (3, 9):
    sys.exit("kubectl-inspect-cgpu needs Python 3.9 or newer, this is %d.%d" % sys.version_info[:2])
from gpushare.inspect.__main__ import main
sys.exit(main())
"""
_TIME: Final = (1980, 1, 1, 0, 0, 0)


def modules(start: str = "gpushare.inspect.__main__") -> dict[str, Path]:
    """Every module of ours that the command may import, by name, with its file."""
    found: dict[str, Path] = {}
    sources = (ROOT / "src").glob("gpushare/inspect/**/*.py")
    todo = [start, *(".".join(one.relative_to(ROOT / "src").with_suffix("").parts) for one in sources)]
    while todo:
        name = todo.pop()
        path = _file_of(name)
        if path is None or name in found:
            continue
        found[name] = path
        todo.append(name.rpartition(".")[0])
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                todo += [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                todo += [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
    return dict(sorted(found.items()))


def _file_of(name: str) -> Path | None:
    if name.partition(".")[0] != "gpushare":
        return None
    path = ROOT / "src" / name.replace(".", "/")
    return next((one for one in (path / "__init__.py", path.with_suffix(".py")) if one.is_file()), None)


class _Older(ast.NodeTransformer):
    """Takes out what Python 3.9 does not know, where it means the same without."""

    def __init__(self) -> None:
        self._depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """``zip(strict=…)`` guards against our own mistakes, ``Popen(pipesize=…)`` is speed; ``isinstance(x, A | B)`` is ``(A, B)``."""
        self.generic_visit(node)
        if _name_of(node.func) == "isinstance":
            node.args[1] = _either(node.args[1])
        gone = {"zip": "strict", "Popen": "pipesize"}.get(_name_of(node.func))
        node.keywords = [one for one in node.keywords if one.arg != gone or gone is None]
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """``Alias = A | B`` is evaluated when the module is imported."""
        self.generic_visit(node)
        names = [_name_of(one) for one in node.targets]
        if self._depth == 0 and all(one[:1].isupper() and not one.isupper() for one in names):
            node.value = _union(node.value)
        return node


def _name_of(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _either(node: ast.expr) -> ast.expr:
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)):
        return node
    return ast.Tuple([_either(node.left), _either(node.right)], ast.Load())


def _union(node: ast.expr) -> ast.expr:
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)):
        return node
    union = ast.parse("__import__('typing').Union", mode="eval").body
    parts = ast.Tuple([_union(node.left), _union(node.right)], ast.Load())
    return ast.Subscript(union, parts, ast.Load())


def older(source: str) -> str:
    """``source`` for Python 3.9: annotations are texts there."""
    tree = _Older().visit(ast.parse(source))
    at = 1 if ast.get_docstring(tree) is not None else 0
    tree.body.insert(at, ast.parse("from __future__ import annotations").body[0])
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def built() -> bytes:
    """The whole file."""
    files = {"__main__.py": _ENTRY, "msgspec.py": older(STAND_IN.read_text())}
    for path in modules().values():
        files[str(path.relative_to(ROOT / "src"))] = older(path.read_text())
    packed = io.BytesIO(_INTERPRETER)
    packed.seek(0, io.SEEK_END)
    with zipfile.ZipFile(packed, "a", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted(files.items()):
            info = zipfile.ZipInfo(name, _TIME)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(info, text)
    return packed.getvalue()


def main(arguments: list[str]) -> int:
    """Write the file."""
    if len(arguments) != 1:
        print("usage: python plugins/kubectl/build.py FILE", file=sys.stderr)
        return 2
    target = Path(arguments[0])
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.new")
    fresh.write_bytes(built())
    fresh.chmod(0o755)
    fresh.replace(target)
    print(f"{target}: {target.stat().st_size // 1024} KiB, runs with Python {OLDEST[0]}.{OLDEST[1]} or newer")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
