"""Findings and checks."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

State = Literal["ok", "warning", "fault", "unknown"]
#: From best to worst.
STATES: Final[tuple[State, ...]] = ("ok", "unknown", "warning", "fault")
#: The least exit code for each state.
CODES: Final[dict[State, int]] = {"ok": 0, "unknown": 0, "warning": 1, "fault": 2}


class Finding(msgspec.Struct, frozen=True):
    """What ``check`` found about ``subject`` (``node n1``; empty: everything), as text, and what to do about it."""

    check: str
    state: State
    subject: str
    message: str
    suggestion: str = ""


class Result(msgspec.Struct, frozen=True):
    """A finding without its check."""

    state: State
    subject: str
    message: str
    suggestion: str = ""


def fault(subject: str, message: str, suggestion: str) -> Result:
    """Something does not work."""
    return Result("fault", subject, message, suggestion)


def warning(subject: str, message: str, suggestion: str) -> Result:
    """Something works, but may soon stop working."""
    return Result("warning", subject, message, suggestion)


def unknown(subject: str, why: str, suggestion: str = "") -> Result:
    """Something could not be examined."""
    return Result("unknown", subject, why, suggestion)


def fine(subject: str, message: str) -> Result:
    """All is well, with more details than the check's own text."""
    return Result("ok", subject, message)


class Unread(msgspec.Struct, frozen=True):
    """Stands for what could not be read. ``why``: text; ``absent``: it does not exist; ``refused``: no permission."""

    why: str
    absent: bool = False
    refused: bool = False


def _nothing(facts: Any) -> str:
    return ""


class Check(msgspec.Struct, frozen=True):
    """One check: pure, over what was read. ``about`` is the report if nothing is found."""

    name: str
    about: str
    suggestion: str
    """What to do in general; findings have their own suggestions."""
    run: Callable[[Any], Iterable[Result]]
    needs: tuple[tuple[str, str], ...] = ()
    """(field of the facts, permission to read it): if one of them is missing the check must not report that all is well."""
    lacks: Callable[[Any], str] = _nothing
    """Returns which objects of the check do not exist, so that they were not examined; empty: all exist."""


def examine(facts: object, checks: Sequence[Check]) -> list[Finding]:
    """The findings of all ``checks`` about ``facts``; a check without findings that lacks no object reports that all is well."""
    findings = []
    for check in checks:
        results = list(check.run(facts))
        results += _not_examined(facts, check, results)
        if not results:
            lacks = check.lacks(facts)
            results = [unknown("", lacks) if lacks else fine("", check.about)]
        findings += [
            Finding(check.name, one.state, one.subject, one.message, one.suggestion) for one in results
        ]
    return findings


def _not_examined(facts: object, check: Check, results: Sequence[Result]) -> list[Result]:
    """What ``check`` could not examine, and has not reported itself."""
    if any(result.state == "ok" for result in results):
        return []  # it reports why it needs nothing
    reported = [result.message for result in results if result.state == "unknown"]
    unread: dict[str, Result] = {}
    for field, right in check.needs:
        value = getattr(facts, field)
        if isinstance(value, Unread) and not value.absent and not any(value.why in text for text in reported):
            suggestion = f"ask for permission to {right}" if value.refused else ""
            unread.setdefault(
                value.why, unknown("", f"not everything could be checked: {value.why}", suggestion)
            )
    return list(unread.values())


def exit_code(findings: Iterable[Finding]) -> int:
    """0: all is well, or unknown; 1: there are warnings; 2: there are faults."""
    return max((CODES[finding.state] for finding in findings), default=0)


def catalogue(checks: Sequence[Check]) -> str:
    """The checks as a Markdown table."""
    rows = ["| check | passes if | otherwise |", "|---|---|---|"]
    rows += [f"| `{check.name}` | {check.about} | {check.suggestion} |" for check in checks]
    return "\n".join(rows)
