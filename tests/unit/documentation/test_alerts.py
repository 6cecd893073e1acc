"""Every alert of the charts has a complete section on the page about alerts, in the same order."""

from documentation.__main__ import DOCS, PROJECT
from documentation.alerts import PAGE, PARTS, of_charts, parts, sections

ALERTS = of_charts(PROJECT / "charts")
SECTIONS = sections((DOCS / PAGE).read_text())


def test_every_alert_has_a_section_and_there_are_no_others() -> None:
    assert list(SECTIONS) == list(ALERTS), f"docs/{PAGE} has a section for each alert, in the charts' order"
    assert len(ALERTS) >= 10


def test_every_section_has_its_severity_and_all_parts() -> None:
    for alert, section in SECTIONS.items():
        assert parts(section) == PARTS, alert
        assert section.strip().startswith(f"*{ALERTS[alert]}"), f"{alert}: its severity is {ALERTS[alert]}"


def test_a_section_goes_up_to_the_next_heading() -> None:
    found = sections("# Alerts\n\n## A\n\n**Meaning.** It is.\n\n**Do.** That.\n\n## B\n\ntext\n")
    assert {name: parts(section) for name, section in found.items()} == {"A": ("Meaning", "Do"), "B": ()}
