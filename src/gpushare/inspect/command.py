"""From the command line to the exit status.

kubectl is started before the rest of this package is imported, so that both happen at the same time.
"""

import contextlib
import gc
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpushare.inspect.arguments import HELP, Options, parse
from gpushare.inspect.errors import InspectError, UsageError
from gpushare.inspect.lazy_sigint import held_back
from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.inspect.sources.paths import begin

if TYPE_CHECKING:
    from gpushare.inspect.view_result import Shown

_PIPE_CLOSED = 141


def run(arguments: Sequence[str]) -> int:
    """Run the command line ``arguments``; returns the exit status. Raises nothing but ``KeyboardInterrupt``."""
    try:
        _run(arguments)
    except InspectError as error:
        _say(f"error: {error}")
        if isinstance(error, UsageError):
            _say("see `kubectl inspect cgpu --help`")
        return error.status
    except BrokenPipeError:
        _discard_output()  # the reader closed the pipe, as head does
        return _PIPE_CLOSED
    except OSError as error:
        _say(f"error: cannot write the output: {error.strerror}")
        _discard_output()
        return 1
    return 0


def _run(arguments: Sequence[str]) -> None:
    if sys.stdout is None:
        raise InspectError("", "standard output is closed; there is no output to write to")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a GPU model's name must not break the output
    if arguments and arguments[0] in ("completion", "__complete"):
        from gpushare.inspect import completion

        complete = completion.script if arguments[0] == "completion" else completion.completed
        sys.stdout.write(complete(arguments[1:]))
        sys.stdout.flush()
        return
    options = parse(arguments, os.environ)
    if options.help:
        sys.stdout.write(HELP)
        sys.stdout.flush()
        return
    kubectl = Kubectl(options.kubectl_flags)
    if options.view == "top" and not options.output and _is_terminal():
        with held_back():
            from gpushare.inspect.views.top import top
        top(kubectl, options, sys.stdin, sys.stdout)
        return
    if options.watch:
        _watch(kubectl, options)
    gc.disable()  # the rest is short and creates no reference cycles: collecting only costs time
    try:
        _show_once(kubectl, options)
    finally:
        gc.enable()


def _show_once(kubectl: Kubectl, options: Options) -> None:
    if options.view:
        with held_back():
            from gpushare.inspect.view_registry import render as render_view
        _write(render_view(kubectl, options, sys.stdout))
        return
    with begin(kubectl, options.node) as reading:
        with held_back():
            from gpushare.inspect.render import render
        shown = render(kubectl, options, reading)
    _write(shown)


def _write(shown: "Shown") -> None:
    for remark in shown.remarks:
        _say(remark)
    sys.stdout.write(shown.text)
    sys.stdout.flush()


def _watch(kubectl: Kubectl, options: Options) -> None:
    with held_back():
        from gpushare.inspect.render import render
        from gpushare.inspect.watch import watch

        if options.view:
            from gpushare.inspect.view_registry import render as render_view

    separator = "---\n" if options.output == "yaml" else "" if options.output == "json" else "\n"
    watch(
        (lambda: render_view(kubectl, options, sys.stdout))
        if options.view
        else (lambda: render(kubectl, options)),
        sys.stdout,
        sys.stderr,
        interval_s=options.interval_s,
        separator=separator,
    )


def _is_terminal() -> bool:
    return sys.stdout.isatty() and sys.stdin is not None and sys.stdin.isatty()


def _say(text: str) -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError):  # stderr is closed: only the exit status can report it
            print(text, file=sys.stderr, flush=True)


def _discard_output() -> None:
    """Redirect stdout to /dev/null: flushing what is still buffered would fail again at exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
