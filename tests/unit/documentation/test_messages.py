"""Every message of the product has its entry on the pages about messages, and the other way round."""

from pathlib import Path

import pytest

from documentation.__main__ import DOCS, PROJECT
from documentation.entries import Entry, entries, says_nothing, without_entry, without_message
from documentation.messages import INTERNAL, Message, from_charts, from_code, of_module, reasons

PACKAGE = PROJECT / "src" / "gpushare"
ENTRIES = list(entries(DOCS / "troubleshooting"))
MESSAGES = [*from_code(PACKAGE), *from_charts(PROJECT / "charts")]


def _told(found: list[Message]) -> str:
    return "\n".join(f"{one.where}: {one.template}" for one in found)


def test_every_message_has_an_entry() -> None:
    missing = without_entry(MESSAGES, ENTRIES)
    assert not missing, f"no entry in docs/troubleshooting (why it comes, what to do) for:\n{_told(missing)}"


def test_every_reason_of_an_event_has_an_entry() -> None:
    known = {entry.text for entry in ENTRIES}
    missing = {reason: where for reason, where in reasons(PACKAGE).items() if reason not in known}
    assert not missing, f"no entry in docs/troubleshooting/events.md for the events {missing}"


def test_no_entry_is_about_a_message_that_is_gone() -> None:
    gone = without_message(ENTRIES, MESSAGES)
    assert not gone, "\n".join(f"{entry.where}: {entry.text}" for entry in gone)


def test_every_entry_says_why_and_what_to_do() -> None:
    empty = says_nothing(ENTRIES)
    assert not empty, "\n".join(f"{entry.where}: {entry.text}" for entry in empty)


def test_what_is_left_out_exists() -> None:
    for name in INTERNAL:
        file, _, constant = name.partition(":")
        [path, *_] = PACKAGE.glob(file)
        text = path.read_text()
        assert not constant or f"{constant}: Final" in text or f"{constant} =" in text, name


def test_many_messages_are_found_in_every_room_that_speaks() -> None:
    """A collector that finds nothing would pass every other test here."""
    rooms = [one.where.partition("/")[0] for one in MESSAGES]
    for room in (
        "ledger",
        "model",
        "scheduler",
        "nodeagent",
        "admission",
        "inspect",
        "kube",
        "ack-ai-installer",
    ):
        assert rooms.count(room) >= 15, room


SOURCE = '''\
"""A module of its own words."""

HELP = "a help that is left out"
_FORMAT = "two words"


def refuse(name: str) -> str:
    """A docstring of several words."""
    assert name, "an assertion of several words"
    logger.warning("a log of several words")
    parser.add_argument("--x", help="a help of several words")
    for option, text in (("--y", "another help of several words"),):
        parser.add_argument(option, help=text)
    metric("name", "The help of a metric.")
    if not name:
        raise AssertionError("a slip of our own")
    if name == "x":
        raise ValueError(f"pod {name} is not there; {'look at the log' if name else 'x'}")
    return "no single GPU " "has room"


class Named:
    def __repr__(self) -> str:
        return f"Named(what={self.name!r}, for=us alone)"
'''


def test_messages_are_texts_for_people_and_nothing_else() -> None:
    found = [one.template for one in of_module("model/x.py", SOURCE)]
    assert found == [
        "a help that is left out",
        "pod … is not there; …",
        "look at the log",
        "no single GPU has room",
    ]


ENTRY = Entry("p.md:1", "no single GPU has … free (largest free: … on GPU …)", ("why it comes", "what to do"))
WIDE = Entry("p.md:2", "gang …: …", ("why it comes", "what to do"))


@pytest.mark.parametrize(
    ("template", "known"),
    [
        ("no single GPU has … free ", True),
        ("(largest free: … on GPU …)", True),
        ("no single GPU has … left", False),
        ("gang …: something else entirely", False),
    ],
)
def test_an_entry_is_about_the_parts_of_its_message_but_not_about_everything(
    template: str, known: bool
) -> None:
    assert (without_entry([Message("x", template)], [ENTRY, WIDE]) == []) is known


def test_an_entry_may_be_wider_than_a_message() -> None:
    wide = Entry("p.md:1", "label … must be a number: …", ("why", "what"))
    assert without_entry([Message("x", "label a must be a number: it is …")], [wide]) == []


def test_entries_are_read_from_tables_with_several_messages_a_row(tmp_path: Path) -> None:
    (tmp_path / "p.md").write_text(
        "| message | why | what to do |\n|---|---|---|\n| `a b \\| c` `d e f` | because of | do that |\n"
        "## Words of others\n| `x y z` | because of | do that |\n"
    )
    (tmp_path / "index.md").write_text("| `not an entry` | x |\n")
    assert list(entries(tmp_path)) == [
        Entry("p.md:3", "a b | c", ("because of", "do that")),
        Entry("p.md:3", "d e f", ("because of", "do that")),
        Entry("p.md:5", "x y z", ("because of", "do that"), of_others=True),
    ]


@pytest.mark.parametrize(
    ("told", "empty"),
    [
        (("because of", "do that"), False),
        (("because of", "as it says"), False),
        (("as it says", "do that"), True),
        (("because of", ""), True),
        (("because of",), True),
    ],
)
def test_an_entry_without_cause_or_remedy_is_found(told: tuple[str, ...], empty: bool) -> None:
    assert bool(says_nothing([Entry("p.md:1", "x", told)])) is empty


def test_a_chart_says_what_it_refuses_and_what_its_policies_say(tmp_path: Path) -> None:
    folder = tmp_path / "c" / "templates"
    folder.mkdir(parents=True)
    (folder / "x.yaml").write_text(
        '{{- fail (printf "value %s: write %d of 10%%" .a .b) }}\n'
        "  messageExpression: >-\n"
        "    'label x is \\'' + variables.count + '\\': ' + 'write a number'\n"
        "  - message: a quota has no {{ .name }} of its own\n"
    )
    assert [one.template for one in from_charts(tmp_path)] == [
        "value …: write … of 10%",
        "label x is '…': write a number",
        "a quota has no … of its own",
    ]


def test_an_entry_about_a_message_that_is_gone_is_named() -> None:
    gone = Entry("p.md:3", "a message of several words that nobody says", ("why it comes", "what to do"))
    others = Entry(
        "p.md:4", "what another program says in words", ("why it comes", "what to do"), of_others=True
    )
    said = [Message("x", "no single GPU has … free "), Message("x", "gang …: something else entirely")]
    assert without_message([ENTRY, WIDE, gone, others], said) == [gone]
