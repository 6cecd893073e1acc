"""The command line of a role that serves: its addresses, and its run to the exit code."""

import asyncio
import sys
from collections.abc import Coroutine

import uvloop

from gpushare.kube.client.errors import KubeconfigError
from gpushare.options.option import InvalidSettings


class InvalidAddress(ValueError):
    """An address that cannot be listened on; ``str()`` says what to write instead."""


def address(option: str, text: str, example: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``; raises ``InvalidAddress``."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise InvalidAddress(f"{option} {text}: write HOST:PORT, such as {example}")
    return host.strip("[]"), int(port)


def address_if(option: str, text: str | None, example: str) -> tuple[str, int] | None:
    """The same for an optional option (``None``)."""
    return None if text is None else address(option, text, example)


def run(program: str, serving: Coroutine[None, None, None]) -> int:
    """Run until it ends; returns 0 after a signal, 2 for bad access or settings, 1 when a component failed."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serving)
    except (KubeconfigError, InvalidSettings) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{program}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0
