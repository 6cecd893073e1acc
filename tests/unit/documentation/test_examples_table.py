"""Commands of the examples' table are typed by a page's test, or by the walk of ``make run``."""

import ast
import re
from collections.abc import Iterator

import pytest

from documentation.__main__ import DOCS, PROJECT
from documentation.blocks import read_page
from documentation.navigation import in_order
from gpushare_playground import walk

TABLE = PROJECT / "examples" / "README.md"
PAGES = [*(f"docs/{name}" for name in in_order(DOCS)), "README.md"]


def typed_commands() -> list[str]:
    """The kubectl commands in the table's second column."""
    rows = [line.split(" | ")[1] for line in TABLE.read_text().splitlines() if line.startswith("| ")]
    return [command for cell in rows for command in re.findall(r"`(kubectl [^`]+)`", cell)]


def typed_by_pages() -> Iterator[str]:
    for name in PAGES:
        page = read_page(name, (PROJECT / name).read_text())
        for block in page.blocks:
            if block.is_typed:
                yield from block.first
                yield from (command.text for command in page.commands(block))


def typed_by_the_walk() -> Iterator[str]:
    """The walk's string literals; a placeholder becomes a word in capitals."""
    for path in walk.__path__:
        for source in sorted((PROJECT / path).glob("*.py")):
            for node in ast.walk(ast.parse(source.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value
                elif isinstance(node, ast.JoinedStr):
                    yield "".join(
                        str(one.value) if isinstance(one, ast.Constant) else "FILLED" for one in node.values
                    )


TYPED = [*typed_by_pages(), *typed_by_the_walk()]


@pytest.mark.parametrize("command", dict.fromkeys(typed_commands()))
def test_a_command_of_the_table_is_typed_by_a_test(command: str) -> None:
    words = [r"[A-Z_]+" if word == "NODE" else re.escape(word) for word in command.split()]
    # Commands of a page run in the checkout, those of the table and of the walk in its folder of examples.
    pattern = re.compile(
        r"(^|&& )" + r"\s+".join(words).replace(r"\-f\s+", r"\-f\s+(examples/)?") + r"(\s|$)"
    )
    assert any(pattern.search(one) for one in TYPED), f"no page's block and no walk types: {command}"


def test_every_manifest_of_the_examples_is_in_the_table_or_invalid_on_purpose() -> None:
    """Pages apply the invalid ones, to show the errors."""
    existing = {path.name for path in TABLE.parent.glob("*.yaml")}
    named = {word for command in typed_commands() for word in command.split() if word.endswith(".yaml")}
    assert existing - named == {"invalid-core.yaml", "too-large.yaml"}
    assert not named - existing
