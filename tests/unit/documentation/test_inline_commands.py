"""Commands in the pages' sentences and tables exist and are valid."""

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
def test_every_command_in_a_pages_text_is_valid(page: str) -> None:
    wrong = [
        f"{one.where}: `{one.text}`: {problem}"
        for one in commands(page)
        if (problem := fault(one.text, PROJECT))
    ]
    assert not wrong, "\n".join(wrong)
