"""Log lines at the levels warning and error, as users look them up."""

import pytest

from documentation.log_lines import of_module

SOURCE = """\
def run(level):
    logger.warning("%s cannot be read: %s; again in %.1f s", path, error, wait_s)
    logger.error(
        "two nodes "
        "are %d%% full",
        share,
        extra=about(pod=key),
    )
    _LOG.exception("it failed")
    logger.warning("%s: %s", reason, note)
    logger.log(level, "GPU %s: XID %d", uuid, xid)
    logger.log(logging.WARNING if bad else logging.INFO, "a state of %s", node)
    logger.log(logging.INFO, "all is well")
    logger.info("begun with %s", name)
    logger.debug("a detail of it")
    warning("node", "a finding of the doctor", "no line")
    answers.warning("no logger at all")
"""


def test_log_calls_at_warning_and_above_are_collected() -> None:
    assert [(one.where, one.template) for one in of_module("x.py", SOURCE)] == [
        ("x.py:2", "… cannot be read: …; again in … s"),
        ("x.py:3", "two nodes are …% full"),
        ("x.py:9", "it failed"),
        ("x.py:11", "GPU …: XID …"),
        ("x.py:12", "a state of …"),
    ]


@pytest.mark.parametrize("line", ['logger.warning(f"pod {pod} is gone")', "logger.error(text)"])
def test_a_line_that_cannot_be_looked_up_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="line 1: a log line must be a constant text with %s"):
        of_module("x.py", line)
