"""Pages that are generated from the code."""

from pathlib import Path

import pytest

from documentation import command_line
from documentation.__main__ import DOCS, GENERATED, PROJECT
from documentation.chart_values import Value, values
from documentation.command_line import HelpFailed, tidied, without_options

VALUES = """\
# -- What a unit is.
unit: 1GiB

# A comment that belongs to nothing.

agent:
  # -- Two lines
  # of words.
  level: info
  # About a group.
  watch:
    policy: report
  list:
    - {a: 1}
    - {b: 2}
plain:
  port: 1
"""


@pytest.mark.parametrize("page", GENERATED)
def test_a_generated_page_is_up_to_date(page: str) -> None:
    assert (DOCS / page).read_text() == GENERATED[page](), (
        f"docs/{page} is not up to date; write it again with: make docs"
    )


def test_values_have_their_path_their_default_and_their_comment() -> None:
    assert list(values(VALUES)) == [
        Value("unit", "1GiB", "What a unit is."),
        Value("agent.level", "info", "Two lines of words."),
        Value("agent.watch", "", "About a group."),
        Value("agent.watch.policy", "report", ""),
        Value("agent.list", "{a: 1}, {b: 2}", ""),
        Value("plain.port", "1", ""),
    ]


def test_help_is_the_same_on_every_machine_and_python() -> None:
    text = f"  -o FORM, --output FORM  (default: {PROJECT}/charts/x)\n"
    assert tidied(text, PROJECT) == "  -o, --output FORM  (default: charts/x)\n"


def test_each_command_of_a_role_has_a_section() -> None:
    text = "usage: x\n\npositional arguments:\n  COMMAND\n    show      what holds for\n              it\n    check     x\n\noptions:\n    -h\n"
    assert list(command_line.commands(text)) == ["show", "check"]
    page = (DOCS / "reference" / "command-line.md").read_text()
    for command in ("schema", "show", "check"):
        assert f"## `gpushare config {command}`\n\n```text\nusage: gpushare config {command} " in page


def test_lists_of_options_are_left_out_if_another_page_has_all_of_them() -> None:
    known = (
        "moving:\n  what moves\n\n  --speed M, --velocity M\n                how fast\n  --no-move     stay\n"
    )
    other = "options:\n  -h, --help    show this\n  -d, --details  more\n"
    text = f"usage: x [--speed M]\n\nMoves.\n\n{known}\n{other}\nexamples:\n  x --speed 3\n"
    flags = frozenset({"--speed", "--velocity", "--no-move", "--help"})
    assert (
        without_options(text, flags)
        == f"usage: x [--speed M]\n\nMoves.\n\n{other}\nexamples:\n  x --speed 3\n"
    )


def test_a_role_without_help_is_reported_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_line, "ROLES", {"nobody": ("x", "y")})
    with pytest.raises(
        HelpFailed, match="gpushare nobody --help ended with 2: gpushare: unknown role 'nobody'"
    ):
        command_line.page(Path(PROJECT))
