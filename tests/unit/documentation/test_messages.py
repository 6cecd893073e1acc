"""Every message of the product has an entry on the pages about messages, and vice versa."""

import functools
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from documentation.__main__ import DOCS, PROJECT
from documentation.build_messages import from_builders, stops
from documentation.c_messages import INTERNAL as INTERNAL_OF_C
from documentation.c_messages import from_c
from documentation.chart_messages import from_charts
from documentation.entries import Entry, entries, incomplete, without_entry, without_message
from documentation.log_lines import from_logs
from documentation.messages import INTERNAL, Message, from_code, of_module, reasons
from documentation.script_messages import from_scripts
from documentation.sources import modules

SOURCES = PROJECT / "src"
ENTRIES = list(entries(DOCS / "troubleshooting"))


class Found:
    """The messages of all sources. Read on first use, not while tests are collected, because it takes long."""

    @functools.cached_property
    def messages(self) -> list[Message]:
        return [*from_code(SOURCES), *from_charts(PROJECT / "charts"), *from_builders(PROJECT)]

    @functools.cached_property
    def logs(self) -> list[Message]:
        return from_logs(SOURCES)

    @functools.cached_property
    def c_lines(self) -> list[Message]:
        return from_c(PROJECT / "isolation")

    @functools.cached_property
    def fake_driver_lines(self) -> list[Message]:
        return from_c(PROJECT / "fakegpu")

    @functools.cached_property
    def script_lines(self) -> list[Message]:
        return from_scripts(SOURCES / "gpushare" / "dashboard" / "static")

    @property
    def lines(self) -> list[Message]:
        """Texts that users copy verbatim and search for."""
        return [*self.logs, *self.c_lines, *self.fake_driver_lines, *self.script_lines]


FOUND = Found()


def _listed(found: list[Message]) -> str:
    return "\n".join(f"{one.where}: {one.template}" for one in found)


def test_every_message_has_an_entry() -> None:
    missing = [
        *without_entry(FOUND.messages, ENTRIES),
        *without_entry(FOUND.lines, ENTRIES, to_the_letter=True),
    ]
    assert not missing, (
        f"no entry in docs/troubleshooting (why it comes, what to do) for:\n{_listed(missing)}"
    )


def test_errors_of_builders_and_of_programs_that_they_write_are_messages() -> None:
    source = """
PROGRAM = '''import sys; sys.exit("it needs an older Python than %d")'''
def main():
    print("a file of some kilobytes")
    raise CannotBuild(f"{name} is missing: install it")
"""
    assert {one.template for one in stops("x.py", source)} == {
        "… is missing: install it",
        "it needs an older Python than …",
    }


def test_no_entry_is_source_text() -> None:
    """The text of a policy's expression is shown as users read it."""
    assert [entry for entry in ENTRIES if "' + " in entry.text or " + '" in entry.text] == []


def test_every_reason_of_an_event_has_an_entry() -> None:
    known = {entry.text for entry in ENTRIES}
    missing = {reason: where for reason, where in reasons(SOURCES).items() if reason not in known}
    assert not missing, f"no entry in docs/troubleshooting/events.md for the events {missing}"


def test_no_entry_is_about_a_message_that_is_gone() -> None:
    gone = without_message(ENTRIES, [*FOUND.messages, *FOUND.lines])
    assert not gone, "\n".join(f"{entry.where}: {entry.text}" for entry in gone)


def test_every_entry_has_a_cause_and_a_suggestion() -> None:
    empty = incomplete(ENTRIES)
    assert not empty, "\n".join(f"{entry.where}: {entry.text}" for entry in empty)


def test_what_is_excluded_exists() -> None:
    for name in INTERNAL:
        file, _, constant = name.partition(":")
        texts = [path.read_text() for name_, path in modules(SOURCES) if fnmatch(name_, file)]
        named = re.escape(constant).replace(r"\*", r"\w+")
        assert texts, name
        assert any(re.search(rf"\b{named}(: Final| =|\()", text) for text in texts), name
    for name in INTERNAL_OF_C:
        assert (PROJECT / "fakegpu" / name).is_file(), name


def test_many_messages_are_found_in_every_package_that_has_some() -> None:
    """A collector that finds nothing would pass every other test here."""
    packages = [one.where.partition("/")[0] for one in FOUND.messages]
    for package in (
        "ledger",
        "api",
        "scheduler",
        "nodeagent",
        "admission",
        "inspect",
        "kube",
        "doctor",
        "playground",
        "simulate",
        "ack-ai-installer",
    ):
        assert packages.count(package) >= 15, package
    of_logs = [one.where.partition("/")[0] for one in FOUND.logs]
    for package, least in (
        ("scheduler", 15),
        ("nodeagent", 25),
        ("admission", 2),
        ("kube", 4),
        ("uninstall", 2),
    ):
        assert of_logs.count(package) >= least, package
    assert len(FOUND.c_lines) >= 30
    assert len(FOUND.fake_driver_lines) >= 30
    assert len(FOUND.script_lines) >= 30


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
    if name == "y":
        raise reader.error("the line is too long")
    return "no single GPU " "has room"


class Named:
    def __repr__(self) -> str:
        return f"Named(what={self.name!r}, for=us alone)"
'''


FINDINGS = """\
CHECKS = (Check("kubelet", "the kubelet answers well", "look at the kubelet", kubelet),)


def kubelet(facts):
    yield fault("kubelet", f"it has not answered for {facts.s} s", "journalctl -u kubelet says more")
    yield warning("the kubelet here", "it is rather old", "upgrade the whole node")
    yield fine("", "it answers without delay")
    logger.warning("a log of several words")
"""


def test_the_suggestion_of_a_doctors_finding_is_not_a_message() -> None:
    assert [one.template for one in of_module("doctor/x.py", FINDINGS)] == [
        "it has not answered for … s",
        "the kubelet here",
        "it is rather old",
    ]


def test_messages_are_texts_for_people_and_nothing_else() -> None:
    found = [one.template for one in of_module("model/metrics.py", SOURCE)]
    assert found == [
        "a help that is left out",
        "pod … is not there; …",
        "look at the log",
        "the line is too long",
        "no single GPU has room",
    ]


def test_a_sentence_is_a_help_text_only_in_modules_of_metrics() -> None:
    source = 'def f():\n    print("The whole cluster is gone.")\n'
    assert [one.template for one in of_module("playground/x.py", source)] == ["The whole cluster is gone."]
    assert of_module("scheduler/observability/metrics.py", source) == []


def test_a_function_is_excluded_by_its_name() -> None:
    source = 'def cookie():\n    return "three words here"\n\ndef said():\n    return "and three others"\n'
    assert [one.template for one in of_module("dashboard/server/auth.py", source)] == ["and three others"]


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
def test_an_entry_covers_the_parts_of_its_message_but_not_everything(template: str, known: bool) -> None:
    assert (without_entry([Message("x", template)], [ENTRY, WIDE]) == []) is known


def test_a_wider_entry_does_not_cover_a_line_that_must_match_verbatim() -> None:
    wide, contained = Message("x", "label a must be a number: it is …"), Message("x", "must be a number")
    entry = Entry("p.md:1", "label … must be a number: …", ("why", "what"))
    assert without_entry([wide, contained], [entry], to_the_letter=True) == [wide]


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
    ("cells", "empty"),
    [
        (("because of", "do that"), False),
        (("because of", "as it says"), False),
        (("as it says", "do that"), True),
        (("because of", ""), True),
        (("because of",), True),
    ],
)
def test_an_entry_without_cause_or_suggestion_is_found(cells: tuple[str, ...], empty: bool) -> None:
    assert bool(incomplete([Entry("p.md:1", "x", cells)])) is empty


def test_an_entry_about_a_message_that_is_gone_is_named() -> None:
    gone = Entry("p.md:3", "a message of several words that is never printed", ("why it comes", "what to do"))
    others = Entry(
        "p.md:4", "what another program says in words", ("why it comes", "what to do"), of_others=True
    )
    existing = [Message("x", "no single GPU has … free "), Message("x", "gang …: something else entirely")]
    assert without_message([ENTRY, WIDE, gone, others], existing) == [gone]
