"""What a check finds, and what a check is."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

State = Literal["ok", "warning", "fault", "unknown"]
#: From the best to the worst.
STATES: Final[tuple[State, ...]] = ("ok", "unknown", "warning", "fault")
#: What each state makes the exit code at the least.
CODES: Final[dict[State, int]] = {"ok": 0, "unknown": 0, "warning": 1, "fault": 2}


class Finding(msgspec.Struct, frozen=True):
    """What ``check`` found of ``subject`` (``node n1``; empty: of all), in words, and what to do about it."""

    check: str
    state: State
    subject: str
    message: str
    suggestion: str = ""


class Result(msgspec.Struct, frozen=True):
    """A finding before its check is known."""

    state: State
    subject: str
    message: str
    suggestion: str = ""


def fault(subject: str, message: str, suggestion: str) -> Result:
    """Something does not work."""
    return Result("fault", subject, message, suggestion)


def warning(subject: str, message: str, suggestion: str) -> Result:
    """Something works, and may soon not."""
    return Result("warning", subject, message, suggestion)


def unknown(subject: str, why: str, suggestion: str = "") -> Result:
    """Something could not be looked at."""
    return Result("unknown", subject, why, suggestion)


def fine(subject: str, message: str) -> Result:
    """All is well with it, in more words than the check's own."""
    return Result("ok", subject, message)


class Unread(msgspec.Struct, frozen=True):
    """Stands for what could not be read. ``why`` in words; ``absent``: there is no such thing; ``refused``: we may not."""

    why: str
    absent: bool = False
    refused: bool = False


def _nothing(facts: Any) -> str:
    return ""


class Check(msgspec.Struct, frozen=True):
    """One check: pure, over what was read. ``about`` says what is well when nothing is found."""

    name: str
    about: str
    suggestion: str
    """What to do, in general; findings say it of their own subject."""
    look: Callable[[Any], Iterable[Result]]
    needs: tuple[tuple[str, str], ...] = ()
    """(field of the facts, right that reading it takes): without one of them it must not say that all is well."""
    lacks: Callable[[Any], str] = _nothing
    """Says what it is about and is not there, so that it was not looked at; empty: all of it is."""


def examine(facts: object, checks: Sequence[Check]) -> list[Finding]:
    """What all ``checks`` say of ``facts``; one that finds nothing, and lacks nothing of what it is about, says that all is well."""
    found = []
    for check in checks:
        said = list(check.look(facts))
        said += _unseen(facts, check, said)
        if not said:
            lacks = check.lacks(facts)
            said = [unknown("", lacks) if lacks else fine("", check.about)]
        found += [Finding(check.name, one.state, one.subject, one.message, one.suggestion) for one in said]
    return found


def _unseen(facts: object, check: Check, said: Sequence[Result]) -> list[Result]:
    """What ``check`` could not see, and has not said itself."""
    if any(one.state == "ok" for one in said):
        return []  # it says why it needs nothing
    told = [one.message for one in said if one.state == "unknown"]
    found: dict[str, Result] = {}
    for field, right in check.needs:
        value = getattr(facts, field)
        if isinstance(value, Unread) and not value.absent and not any(value.why in text for text in told):
            suggestion = f"ask for the right {right}" if value.refused else ""
            found.setdefault(
                value.why, unknown("", f"not all of it could be looked at: {value.why}", suggestion)
            )
    return list(found.values())


def exit_code(findings: Iterable[Finding]) -> int:
    """0: all is well, or unknown; 1: there are warnings; 2: there are faults."""
    return max((CODES[one.state] for one in findings), default=0)


def catalogue(checks: Sequence[Check]) -> str:
    """The checks as a Markdown table."""
    rows = ["| check | well is | otherwise |", "|---|---|---|"]
    rows += [f"| `{one.name}` | {one.about} | {one.suggestion} |" for one in checks]
    return "\n".join(rows)
