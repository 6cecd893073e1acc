"""The commands in the pages' sentences and tables: each is one that exists and would be understood."""

from typing import Final

import pytest

from documentation.__main__ import DOCS, PROJECT
from documentation.inline import Inline, inline_commands
from documentation.navigation import in_order
from documentation.understood import fault

PAGES: Final = [*(f"docs/{name}" for name in in_order(DOCS)), "README.md", "examples/README.md"]


def commands(page: str) -> list[Inline]:
    return list(inline_commands(page, (PROJECT / page).read_text()))


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_a_pages_text_would_be_understood(page: str) -> None:
    wrong = [
        f"{one.where}: `{one.text}`: {said}" for one in commands(page) if (said := fault(one.text, PROJECT))
    ]
    assert not wrong, "\n".join(wrong)
