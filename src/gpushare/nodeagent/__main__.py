"""``gpushare node-agent``: the command line of the node agent."""

import argparse
import importlib
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

from gpushare.kube.access import load_access
from gpushare.kube.errors import KubeError
from gpushare.logs import LAYOUTS, LEVELS, configure
from gpushare.model.errors import InvalidUnit
from gpushare.model.quantity import MemoryUnit
from gpushare.nodeagent.errors import InvalidSetting
from gpushare.nodeagent.footprint import prepare
from gpushare.nodeagent.settings import PROGRAM, Pace, Settings, check_socket_paths

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
    parser.add_argument("--log-format", choices=LAYOUTS, default="text")
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
    check_socket_paths(folder)
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
    prepare()
    process = importlib.import_module("gpushare.nodeagent.process")
    code: int = process.run(settings, access, process.DriverNvml())
    return code


if __name__ == "__main__":
    sys.exit(main())
