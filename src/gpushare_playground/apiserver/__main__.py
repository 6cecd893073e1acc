"""``python -m gpushare_playground.apiserver --dir STATE``: the API server as a process."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from gpushare.api.request.unit_conversion import Counting
from gpushare.process import log_setup
from gpushare.process.signals import stop_event
from gpushare_playground.apiserver.server import ApiServer
from gpushare_playground.apiserver.store import HISTORY
from gpushare_playground.apiserver.writes.admission import ACCEPTABLE, Admission
from gpushare_playground.unit_file import UnitFile

KUBELET_TOKEN_ENV = "GPUSHARE_KUBELET_TOKEN"
ACCEPT_ENV = "GPUSHARE_ACCEPT"
"""Of the webhook's option, too."""


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; give a number from 0 to 65535")
    return int(text)


def _accepted(text: str) -> list[str]:
    names = text.split(",") if text else []
    if unknown := [name for name in names if name not in ACCEPTABLE]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: give some of {', '.join(ACCEPTABLE)}")
    return names


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpushare_playground.apiserver",
        description="A small Kubernetes API server that keeps its objects in memory.",
    )
    parser.add_argument("--dir", required=True, metavar="STATE", help="folder that gets the kubeconfig files")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=_port, default=0, help="port to listen on; 0 takes a free one (default)"
    )
    parser.add_argument(
        "--kubelet-token",
        default=os.environ.get(KUBELET_TOKEN_ENV, ""),
        metavar="T",
        help=f"bearer token for the kubelets' endpoints (default: ${KUBELET_TOKEN_ENV})",
    )
    parser.add_argument(
        "--user",
        action="append",
        default=[],
        metavar="NAME",
        help="make a token for this user too, in STATE/NAME.kubeconfig; may be repeated",
    )
    parser.add_argument(
        "--record-writer",
        action="append",
        default=[],
        metavar="NAME",
        help="let only this user write allocation annotations; may be repeated (default: everyone)",
    )
    parser.add_argument(
        "--counting",
        type=Path,
        metavar="FILE",
        help="with --record-writer: memory unit and reference GPU for MiB and percentage requests, as 'UNIT MIB', such as '1GiB 16160'; "
        "read for every pod (default: 1GiB, and no reference GPU)",
    )
    parser.add_argument(
        "--accept",
        default=os.environ.get(ACCEPT_ENV, ""),
        type=_accepted,
        metavar="NAMES",
        help=f"with --record-writer: schedulers whose pods' GPU requests are replaced by ours, of {', '.join(ACCEPTABLE)}, with commas "
        f"between them (default: ${ACCEPT_ENV})",
    )
    parser.add_argument(
        "--history",
        type=int,
        default=HISTORY,
        metavar="N",
        help="changes per kind that a watch can still ask for (default: %(default)s)",
    )
    return parser.parse_args(argv)


def _admission(options: argparse.Namespace) -> Admission | None:
    if not options.record_writer:
        return None
    counting = Counting if options.counting is None else UnitFile(options.counting)
    return Admission.guarded(options.record_writer, counting, options.accept)


async def _serve(options: argparse.Namespace) -> None:
    stop = stop_event()
    server = ApiServer(
        options.dir,
        host=options.host,
        port=options.port,
        kubelet_token=options.kubelet_token,
        users=options.user,
        admission=_admission(options),
        history=options.history,
    )
    async with server:
        print(f"ready {server.url} {server.kubeconfig_path}", flush=True)
        await stop.wait()


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code: 0, or 1 if the server cannot start."""
    options = _arguments(argv)
    log_setup.configure("warning", role="apiserver")
    logging.getLogger("gpushare_playground").setLevel(logging.INFO)
    try:
        uvloop.run(_serve(options))
    except OSError as error:
        print(f"apiserver: cannot serve on {options.host}:{options.port}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
