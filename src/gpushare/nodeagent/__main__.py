"""``gpushare node-agent``: the command line of the node agent."""

import argparse
import asyncio
import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

from gpushare.kube.access import Access, load_access
from gpushare.kube.errors import KubeError
from gpushare.kube.session import Session
from gpushare.model.errors import InvalidUnit
from gpushare.model.quantity import MemoryUnit
from gpushare.nodeagent.agent import Agent, Settings
from gpushare.nodeagent.device_lists import SOCKETS
from gpushare.nodeagent.discovery import Pace
from gpushare.nodeagent.errors import InvalidSetting
from gpushare.nodeagent.logs import LEVELS, configure
from gpushare.nodeagent.nvml import DriverNvml, Nvml
from gpushare.nodeagent.registration import check_socket_path

PROGRAM: Final = "gpushare node-agent"
KUBELET_DIR: Final = Path("/var/lib/kubelet/device-plugins")
POD_RESOURCES: Final = Path("/var/lib/kubelet/pod-resources/kubelet.sock")

_NODE_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise InvalidSetting("", f"{message}; {PROGRAM} --help tells the options")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROGRAM,
        description="Device plugin of one node: shares its NVIDIA GPUs as the node's label asks. Keeps no state on disk.",
    )
    parser.add_argument("--node", help="name of this node (default: $NODE_NAME)")
    parser.add_argument(
        "--kubeconfig", help="kubeconfig file (default: $KUBECONFIG, the pod's account, ~/.kube/config)"
    )
    parser.add_argument("--context", help="context of the kubeconfig (default: its current one)")
    parser.add_argument(
        "--kubelet-dir", type=Path, default=KUBELET_DIR, help="folder of the kubelet's sockets (%(default)s)"
    )
    parser.add_argument(
        "--pod-resources",
        type=Path,
        default=POD_RESOURCES,
        help="the kubelet's pod resources socket (%(default)s)",
    )
    parser.add_argument("--unit", default="1GiB", help="unit of aliyun.com/gpu-mem: 1GiB (default) or 128MiB")
    parser.add_argument(
        "--metrics-listen",
        metavar="HOST:PORT",
        help="serve /healthz, /readyz and /metrics there (default: nowhere)",
    )
    parser.add_argument(
        "--health-period",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="between probes of a GPU (%(default)s)",
    )
    parser.add_argument(
        "--xid-quiet",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long after a critical error a GPU that answers is trusted again (%(default)s)",
    )
    parser.add_argument("--log-level", choices=LEVELS, default="info")
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    return parser


def _settings(options: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    node = options.node or environ.get("NODE_NAME", "")
    if not node:
        raise InvalidSetting("--node", "give the name of this node, or set $NODE_NAME")
    if _NODE_NAME.fullmatch(node) is None:
        raise InvalidSetting(f"--node {node}", "not a name that a node can have (a-z, 0-9, dots and dashes)")
    for option, value in (("--health-period", options.health_period), ("--xid-quiet", options.xid_quiet)):
        if not 0.01 <= value <= 86400:
            raise InvalidSetting(f"{option} {value}", "give seconds from 0.01 to 86400")
    folder = options.kubelet_dir.absolute()
    for socket in SOCKETS.values():
        check_socket_path(folder, socket)
    return Settings(
        node=node,
        kubelet_dir=folder,
        pod_resources=options.pod_resources.absolute(),
        unit=MemoryUnit.parse(options.unit, "--unit"),
        listen=_address(options.metrics_listen),
        pace=Pace(wait_s=min(1.0, options.health_period), probe_s=options.health_period),
        xid_quiet_s=options.xid_quiet,
    )


def _address(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise InvalidSetting(f"--metrics-listen {text}", "write HOST:PORT, such as 0.0.0.0:9452")
    return host.strip("[]"), int(port)


def main(argv: list[str] | None = None) -> int:
    """Run the node agent; 0 after SIGTERM or SIGINT, 2 on bad input, 1 when a part of it failed."""
    try:
        options = _parser().parse_args(argv)
        settings = _settings(options, os.environ)
        access = load_access(options.kubeconfig, options.context)
    except (InvalidSetting, InvalidUnit, KubeError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2
    configure(options.log_level, options.log_format)
    return run(settings, access, DriverNvml())


def run(settings: Settings, access: Access, nvml: Nvml) -> int:
    """Run until a signal ends it; the process's exit code."""
    try:
        asyncio.run(_until_signalled(settings, access, nvml))
    except KubeError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1
    return 0


async def _until_signalled(settings: Settings, access: Access, nvml: Nvml) -> None:
    async with Session(access) as session:
        serving = asyncio.create_task(Agent(settings, session, nvml).run())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, serving.cancel)
        try:
            await serving
        except asyncio.CancelledError:
            if not serving.cancelled():
                raise


if __name__ == "__main__":
    sys.exit(main())
