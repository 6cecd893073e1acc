"""Blocks that are typed by another test than the playground's: ``<!-- typed by: PATH, HOW -->``.

The test at PATH gets them here, by its own file and the page's name, and unpacks exactly as many as it types: so it
fails when the page gets another one. ``tests/unit/documentation`` checks that each test named by a page does so.
"""

import ast
from collections.abc import Iterator

from documentation.blocks import Block, Command, Page, read_page
from tests.docs.typist import PROJECT


def commands_typed_by(file: str, page: str) -> list[Command]:
    """The commands of the page that ``file`` (a test's ``__file__``) types, in order, from all blocks."""
    read = read_page(page, (PROJECT / page).read_text())
    found = [command for block in blocks_typed_by(file, read) for command in read.commands(block)]
    assert found, f"{page}: no block has the mark 'typed by: {_path(file)}'"
    return found


def blocks_typed_by(file: str, page: Page) -> list[Block]:
    """The blocks of a page whose mark names the test."""
    return [block for block in page.blocks if block.is_typed and block.typed_by == _path(file)]


def pages_asked_for(source: str) -> Iterator[str]:
    """The pages whose commands a test's source gets here, as written in it."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == commands_typed_by.__name__
            and [ast.unparse(one) for one in node.args[:1]] == ["__file__"]
            and isinstance(node.args[1], ast.Constant)
        ):
            yield str(node.args[1].value)


def _path(file: str) -> str:
    return file.removeprefix(f"{PROJECT}/")
