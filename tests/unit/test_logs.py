"""Formats of log lines, and their additional fields."""

import json
import logging
from collections.abc import Iterator

import pytest

from gpushare.process.log_setup import FIELDS, about, configure


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_json_line_has_its_fields_in_order_and_omits_empty_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure("debug", "json", role="scheduler")
    logging.getLogger("a.b").info("bound", extra=about(pod="default/x", uid="u-1", node="n1"))
    logging.getLogger("a.b").debug("reviewed", extra=about(request="r-1"))
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert list(first) == [one for one in FIELDS if one != "error"]
    assert (first["role"], first["pod"], first["uid"], first["node"], first["request"]) == (
        "scheduler",
        "default/x",
        "u-1",
        "n1",
        "u-1",
    )
    assert (second["request"], "uid" in second, "pod" in second) == ("r-1", False, False)


def test_log_lines_of_a_node_process_have_the_node(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "json", role="node-agent", node="n1")
    logging.getLogger("a").info("")
    line = json.loads(capsys.readouterr().err)
    assert (line["node"], line["msg"], line["role"]) == ("n1", "", "node-agent")


def test_a_text_line_ends_with_its_request(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "text", role="scheduler")
    logging.getLogger("a").info("bound", extra=about(pod="default/x", uid="u-1"))
    logging.getLogger("a").info("ready")
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("a").exception("failed", extra=about(uid="u-2"))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("a: bound request=u-1")
    assert lines[1].endswith("a: ready")
    assert lines[2].endswith("a: failed request=u-2")
    assert lines[-1] == "  ValueError: broken"


FORGED = "2026-01-01 00:00:00,000 INFO    gpushare.scheduler.framework.binder: pod default/x bound"


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\v", "\f", "\x85", "\u2028", "\x1b[2K\x1b[1G"])
@pytest.mark.parametrize("layout", ["text", "json"])
def test_foreign_text_cannot_forge_a_log_line(
    capsys: pytest.CaptureFixture[str], layout: str, end: str
) -> None:
    configure("info", layout)
    text = f"x{end}{FORGED}{end}"
    logging.getLogger("a").info("label %s is unknown", text, extra=about(uid="u"))
    try:
        raise ValueError(text)
    except ValueError:
        logging.getLogger("a").exception("pod %s", text)
    error = capsys.readouterr().err
    assert "\x1b" not in error
    lines = error.split("\n")
    assert not [line for line in lines if line.startswith((FORGED, f"\r{FORGED}"))]
    # One line per event; lines of a traceback are indented.
    events = [line for line in lines if line and not line.startswith(" ")]
    assert [FORGED in line for line in events] == [True, True]
