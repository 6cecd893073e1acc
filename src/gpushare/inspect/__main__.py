"""``kubectl inspect cgpu``: command line in, exit status out.

kubectl finds this as ``kubectl-inspect-cgpu`` on PATH and hands over all that follows. kubectl proper is
started before the rest of this package is imported, as each takes some of the time that people wait.
"""

import contextlib
import gc
import io
import os
import sys
from collections.abc import Sequence

from gpushare.inspect.arguments import HELP, Options, parse
from gpushare.inspect.errors import InspectError, UsageError
from gpushare.inspect.kubectl import Kubectl
from gpushare.inspect.listing import begin

_INTERRUPTED = 130
_PIPE_CLOSED = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with ``arguments`` (those of the process by default); returns the exit status."""
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    except InspectError as error:
        _say(f"error: {error}")
        if isinstance(error, UsageError):
            _say("see kubectl inspect cgpu --help")
        return error.status
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        _discard_output()  # whoever read us has seen enough
        return _PIPE_CLOSED
    except OSError as error:
        _say(f"error: cannot write the output: {error.strerror}")
        _discard_output()
        return 1


def _run(arguments: Sequence[str]) -> int:
    if sys.stdout is None:
        raise InspectError("", "standard output is closed; there is nowhere to show anything")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a model's name must not stop the table
    options = parse(arguments)
    if options.help:
        sys.stdout.write(HELP)
        sys.stdout.flush()
        return 0
    kubectl = Kubectl(options.kubectl_flags)
    if options.watch:
        _watch(kubectl, options)
    begun = begin(kubectl, options.node)
    from gpushare.inspect.show import look

    # Nothing here forms cycles, and the process ends soon: collecting garbage would only cost time.
    gc.disable()
    try:
        shown = look(kubectl, options, begun)
    finally:
        gc.enable()
    for remark in shown.remarks:
        _say(remark)
    sys.stdout.write(shown.text)
    sys.stdout.flush()
    return 0


def _watch(kubectl: Kubectl, options: Options) -> None:
    from gpushare.inspect.show import look
    from gpushare.inspect.watch import watch

    separator = "---\n" if options.output == "yaml" else "" if options.output == "json" else "\n"
    watch(
        lambda: look(kubectl, options),
        sys.stdout,
        sys.stderr,
        interval_s=options.interval_s,
        separator=separator,
    )


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads our complaints: the exit status has to do
        print(text, file=sys.stderr, flush=True)


def _discard_output() -> None:
    """Let what is still buffered go nowhere: writing it would fail once more at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
