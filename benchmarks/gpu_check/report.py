"""The report: rows in sections, written immediately, so that an interrupted run leaves its results.

A report covers one driver, named in its first lines. Measurements on the fake driver are never written into the folder
of measurements of real GPUs.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: The folder of figures of real GPUs in the checkout.
MEASUREMENTS = Path("docs") / "measurements"


class Verdict(Enum):
    """The result of a row; the value is the word in the report."""

    HELD = "held"
    FAILED = "**FAILED**"
    MEASURED = ""
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Row:
    """One checked item. ``promised`` is empty without a guarantee."""

    name: str
    promised: str
    got: str
    verdict: Verdict

    def line(self) -> str:
        """A line for the screen."""
        mark = {Verdict.HELD: "held   ", Verdict.FAILED: "FAILED ", Verdict.NOT_RUN: "not run"}
        promised = f"  (promised: {self.promised})" if self.promised else ""
        return f"  {mark.get(self.verdict, '       ')} {self.name}: {self.got}{promised}"


def promise(name: str, promised: str, got: object, holds: bool) -> Row:
    """A row with a guarantee."""
    return Row(name, promised, str(got), Verdict.HELD if holds else Verdict.FAILED)


def measured(name: str, got: object) -> Row:
    """A row without a guarantee."""
    return Row(name, "", str(got), Verdict.MEASURED)


def not_run(name: str, why: str) -> Row:
    """A row of something that could not be checked, and why."""
    return Row(name, "", why, Verdict.NOT_RUN)


@dataclass(frozen=True, slots=True)
class Heading:
    """The subject of a report."""

    date: str
    gpu: str
    #: A description of the driver; ``fake``: whether it is the fake one.
    driver: str
    fake: bool
    command: str


class WrongPlace(Exception):
    """Figures of the fake driver would be written among those of real GPUs."""


def place(root: Path, folder: Path | None, date: str, *, fake: bool) -> Path:
    """The file of a new report: never an existing one, and never one of the fake driver among the measurements."""
    if folder is None:
        folder = root / ("build/gpu-check" if fake else MEASUREMENTS)
    if fake and folder.resolve().is_relative_to((root / MEASUREMENTS).resolve()):
        raise WrongPlace(
            f"{folder}: it is for measurements of real GPUs, but this run is on the fake driver; choose another --out"
        )
    name = f"{date}-{'fake-driver' if fake else 'GPU'}"
    path, number = folder / f"{name}.md", 1
    while path.exists():
        number += 1
        path = folder / f"{name}-{number}.md"
    return path


def cell(text: str) -> str:
    """Text for one cell of a table, without the path of the checkout."""
    text = text.replace(f"{ROOT}/", "")
    return " ".join(text.replace("|", "\\|").split())


@dataclass(slots=True)
class Section:
    """One part of a report."""

    title: str
    rows: list[Row] = field(default_factory=list)


class Report:
    """Rows so far, and the file that holds them."""

    def __init__(self, path: Path, heading: Heading) -> None:
        self.path = path
        self.heading = heading
        self.sections: list[Section] = []
        self.ended = ""

    def begin(self, title: str) -> None:
        """Begin a new section."""
        self.sections.append(Section(title))
        self.write()

    def add(self, row: Row) -> None:
        """Adds a row to the last section, and to the file."""
        self.sections[-1].rows.append(row)
        self.write()

    def end(self, how: str) -> None:
        """Complete the report."""
        self.ended = how
        self.write()

    def count(self, verdict: Verdict) -> int:
        """The number of rows with that result."""
        return sum(row.verdict is verdict for section in self.sections for row in section.rows)

    def failed(self) -> list[str]:
        """The guarantees that did not hold."""
        return [
            f"{section.title}: {row.name}: {row.got}"
            for section in self.sections
            for row in section.rows
            if row.verdict is Verdict.FAILED
        ]

    def summary(self) -> str:
        """A summary in one line."""
        return (
            f"{self.count(Verdict.HELD)} promises held, {self.count(Verdict.FAILED)} failed, "
            f"{self.count(Verdict.MEASURED)} rows measured, {self.count(Verdict.NOT_RUN)} not run"
        )

    def text(self) -> str:
        """The report in Markdown."""
        about = self.heading
        lines = [f"# {about.date}, {about.gpu}", ""]
        if about.fake:
            lines += ["**The fake driver. No figure here was measured on a real GPU.**", ""]
        lines += [
            f"* Driver: {about.driver}",
            f"* Made by `{about.command}`",
            f"* {self.ended or 'Not finished: the run is still going on, or was killed'}",
            f"* {self.summary()}",
        ]
        if failed := self.failed():
            lines += ["", "Failed:", "", *(f"* {cell(text)}" for text in failed)]
        for section in self.sections:
            lines += ["", f"## {section.title}", ""]
            lines += table(section.rows) if section.rows else ["Nothing yet."]
        return "\n".join(lines) + "\n"

    def write(self) -> None:
        """Replaces the file atomically, so that it is always complete."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_name(f".{self.path.name}.new")
        with new.open("w", encoding="utf-8") as file:
            file.write(self.text())
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)


def table(rows: Sequence[Row]) -> list[str]:
    """Rows as lines of Markdown."""
    return [
        "| | promised | got | |",
        "|---|---|---|---|",
        *(
            f"| {cell(row.name)} | {cell(row.promised)} | {cell(row.got)} | {row.verdict.value} |"
            for row in rows
        ),
    ]
