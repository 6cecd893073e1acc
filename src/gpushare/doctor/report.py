"""Findings as a table for people, and as JSON for programs."""

import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from gpushare import __version__
from gpushare.doctor.findings import STATES, Finding

#: Changes when the meaning of a field changes.
SCHEMA: Final = 1
_WIDTH: Final = 118
#: Stands for blanks in commands while lines are wrapped, so that a command stays on one line and can be copied.
_HELD: Final = "\x00"
_COMMAND: Final = re.compile(r"`[^`]+`")


def as_table(
    findings: Sequence[Finding], target: str, *, everything: bool = False, wrapped: bool = True
) -> str:
    """Checks that pass come first, one line each; below a finding is what to do.

    If not ``wrapped``, each finding is one line that ends with what to do, so that programs can search for lines.
    """
    lines = [f"{target}\n"]
    width = max((len(finding.check) for finding in findings), default=0)
    indent = " " * (9 + width + 2)
    for finding in findings:
        if finding.state == "ok" and finding.subject and not everything:
            continue
        text = f"{finding.subject}: {finding.message}" if finding.subject else finding.message
        head = f"{finding.state:<9}{finding.check:<{width}}  "
        todo = f"→ {finding.suggestion}" if finding.suggestion else ""
        if not wrapped:
            lines.append(" ".join(filter(None, (f"{head}{text}", todo))))
            continue
        lines += _wrapped(text, head, indent)
        if todo:
            lines += _wrapped(todo, indent, f"{indent}  ")
    counted = Counter(finding.state for finding in findings)
    summary = ", ".join(f"{counted[state]} {state}" for state in STATES if counted[state])
    return "\n".join([*lines, f"\n{summary}"])


def _wrapped(text: str, first: str, then: str) -> list[str]:
    """Lines that break at blanks only: names contain hyphens, and are copied."""
    held = _COMMAND.sub(lambda match: match[0].replace(" ", _HELD), text)
    lines = textwrap.wrap(
        held,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=then,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_HELD, " ") for line in lines]


def as_json(findings: Sequence[Finding], target: str) -> dict[str, Any]:
    """``{"schema", "version", "target", "worst", "findings": [{"check", "state", "subject", "message", "suggestion"}]}``."""
    worst = max((STATES.index(finding.state) for finding in findings), default=0)
    return {
        "schema": SCHEMA,
        "version": __version__,
        "target": target,
        "worst": STATES[worst],
        "findings": [
            {name: getattr(finding, name) for name in Finding.__struct_fields__} for finding in findings
        ],
    }
