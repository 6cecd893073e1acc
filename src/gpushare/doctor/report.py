"""Findings as a table for people, and as JSON for programs."""

import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from gpushare import __version__
from gpushare.doctor.findings import STATES, Finding

#: Changes when a field changes its meaning.
SCHEMA: Final = 1
_WIDTH: Final = 118
#: A command stays on one line, so that it can be copied: what stands for its blanks meanwhile.
_HELD: Final = "\x00"
_COMMAND: Final = re.compile(r"`[^`]+`")


def as_table(
    findings: Sequence[Finding], target: str, *, everything: bool = False, wrapped: bool = True
) -> str:
    """What is well comes first, a line a check; below a finding stands what to do.

    Not ``wrapped``, each finding is one line with what to do at its end: so that programs can look for lines.
    """
    lines = [f"{target}\n"]
    width = max((len(one.check) for one in findings), default=0)
    indent = " " * (9 + width + 2)
    for finding in findings:
        if finding.state == "ok" and finding.subject and not everything:
            continue
        words = f"{finding.subject}: {finding.message}" if finding.subject else finding.message
        head = f"{finding.state:<9}{finding.check:<{width}}  "
        todo = f"→ {finding.suggestion}" if finding.suggestion else ""
        if not wrapped:
            lines.append(" ".join(filter(None, (f"{head}{words}", todo))))
            continue
        lines += _wrapped(words, head, indent)
        if todo:
            lines += _wrapped(todo, indent, f"{indent}  ")
    counted = Counter(one.state for one in findings)
    said = ", ".join(f"{counted[state]} {state}" for state in STATES if counted[state])
    return "\n".join([*lines, f"\n{said}"])


def _wrapped(words: str, first: str, then: str) -> list[str]:
    """Lines that break at blanks alone: names have hyphens, and are copied."""
    held = _COMMAND.sub(lambda found: found[0].replace(" ", _HELD), words)
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
    worst = max((STATES.index(one.state) for one in findings), default=0)
    return {
        "schema": SCHEMA,
        "version": __version__,
        "target": target,
        "worst": STATES[worst],
        "findings": [{name: getattr(one, name) for name in Finding.__struct_fields__} for one in findings],
    }
