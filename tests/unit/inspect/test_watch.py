import io

import pytest

from gpushare.inspect.errors import InspectError
from gpushare.inspect.render import Shown
from gpushare.inspect.watch import LONGEST_WAIT_S, watch


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Script:
    """Looks that were written down before; ``^C`` is pressed after the last one."""

    def __init__(self, *looks: str | InspectError | Shown) -> None:
        self._looks = iter(looks)
        self._left = len(looks)
        self.waits_s: list[float] = []

    def render(self) -> Shown:
        self._left -= 1
        seen = next(self._looks)
        if isinstance(seen, InspectError):
            raise seen
        return seen if isinstance(seen, Shown) else Shown(seen, ())

    def pause(self, seconds: float, /) -> None:
        self.waits_s.append(seconds)
        if not self._left:
            raise KeyboardInterrupt


def watched(script: Script, out: io.StringIO, interval_s: float = 2.0) -> str:
    """The output on ``out``; complaints are returned."""
    complaints = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        watch(script.render, out, complaints, interval_s=interval_s, pause=script.pause, jitter=lambda: 1.0)
    return complaints.getvalue()


def test_only_changes_are_appended() -> None:
    out = io.StringIO()
    script = Script("one\n", "one\n", "two\n", "two\n", "one\n")
    assert watched(script, out) == ""
    assert out.getvalue() == "one\n\ntwo\n\none\n"
    assert script.waits_s == [2.0] * 5


def test_terminal_is_cleared_before_each_drawing() -> None:
    out = Terminal()
    watched(Script("one\n", "two\n"), out)
    assert out.getvalue() == "\x1b[H\x1b[2J\x1b[3Jone\n\x1b[H\x1b[2J\x1b[3Jtwo\n"


def test_failures_are_reported_once_and_retried_with_backoff() -> None:
    out = io.StringIO()
    broken = [InspectError("", "no route")] * 6
    script = Script("one\n", *broken, "one\n", "two\n")
    assert watched(script, out) == "error: no route; retrying\n"
    assert out.getvalue() == "one\n\ntwo\n"
    assert script.waits_s == [2, 4, 8, 16, LONGEST_WAIT_S, LONGEST_WAIT_S, LONGEST_WAIT_S, 2, 2]


def test_interval_above_the_longest_wait_is_kept_on_failure() -> None:
    script = Script("one\n", InspectError("", "no route"), "one\n")
    watched(script, io.StringIO(), interval_s=100.0)
    assert script.waits_s == [100.0] * 3


def test_terminal_is_drawn_again_after_a_failure_wrote_on_it() -> None:
    out = Terminal()
    watched(Script("one\n", InspectError("", "no route"), "one\n"), out)
    assert out.getvalue().count("one\n") == 2


def test_first_rendering_that_fails_ends_the_watch() -> None:
    script = Script(InspectError("", "no route"))
    with pytest.raises(InspectError, match="no route"):
        watch(script.render, io.StringIO(), io.StringIO(), interval_s=2.0, pause=script.pause)


def test_remarks_are_repeated_with_each_drawing() -> None:
    script = Script(Shown("one\n", ("warning: a",)), Shown("two\n", ("warning: b",)))
    assert watched(script, io.StringIO()) == "warning: a\nwarning: b\n"
