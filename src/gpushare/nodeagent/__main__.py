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
from gpushare.nodeagent.container_runtime import Asked
from gpushare.nodeagent.errors import InvalidSetting
from gpushare.nodeagent.footprint import prepare
from gpushare.nodeagent.isolation.options import (
    CORE_POLICIES,
    ISOLATION_DIR,
    ISOLATION_LIBRARY_DIR,
    WATCH_POLICIES,
    AskedIsolation,
    IsolationOptions,
    Watch,
)
from gpushare.nodeagent.settings import CDI_FOLDERS, PROGRAM, Pace, Settings, check_socket_paths

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
    parser.add_argument(
        "--driver-root",
        type=Path,
        default=Path("/"),
        metavar="DIR",
        help="the node's root folder as this process sees it, to find the driver's library in (%(default)s)",
    )
    parser.add_argument(
        "--container-runtime",
        choices=[asked.value for asked in Asked],
        default=Asked.AUTO.value,
        help="how containers get their GPU: by NVIDIA's runtime, by CDI, or as the node can (default: auto)",
    )
    parser.add_argument(
        "--cdi-dirs",
        default=",".join(map(str, CDI_FOLDERS)),
        metavar="DIR,…",
        help="folders of CDI descriptions, as this process sees them; the last one is written to (%(default)s)",
    )
    parser.add_argument(
        "--host-root",
        type=Path,
        default=Path("/"),
        metavar="DIR",
        help="the node's root folder as this process sees it: paths below it are told to the kubelet without it (%(default)s)",
    )
    _isolation_options(parser)
    parser.add_argument("--log-level", choices=LEVELS, default="info")
    parser.add_argument("--log-format", choices=LAYOUTS, default="text")
    return parser


def _isolation_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--isolation",
        choices=[asked.value for asked in AskedIsolation],
        default=AskedIsolation.NONE.value,
        help="what holds containers to their share on nodes that isolate (modes cgpu, core_mem, mps): nothing, our "
        "libraries (preload), NVIDIA's MPS, the driver's own limits by cgroup (driver: memory alone), or as the mode says "
        "(auto) (default: %(default)s)",
    )
    parser.add_argument(
        "--isolation-dir",
        type=Path,
        default=ISOLATION_DIR,
        metavar="DIR",
        help="files of isolated containers, by the path that the node has for it, too; libraries go beside it (%(default)s)",
    )
    parser.add_argument(
        "--isolation-library-dir",
        type=Path,
        default=ISOLATION_LIBRARY_DIR,
        metavar="DIR",
        help="where our own libraries and the arbiter are (%(default)s)",
    )
    parser.add_argument(
        "--core-policy",
        choices=CORE_POLICIES,
        default="hard",
        help="hard: a container gets its share of compute and no more; idle: what others leave idle, too (%(default)s)",
    )
    parser.add_argument(
        "--isolated-pods",
        type=int,
        default=16,
        metavar="NUMBER",
        help="the most pods that are held apart on one GPU (%(default)s)",
    )
    parser.add_argument(
        "--watchdog",
        choices=WATCH_POLICIES,
        default="report",
        help="what is done about processes that hold more of a GPU than their container was given: nothing is looked "
        "at (off), it is told (report), or they are ended as well (kill). It needs the node's PIDs (%(default)s)",
    )
    parser.add_argument(
        "--proc",
        type=Path,
        default=Path("/proc"),
        metavar="DIR",
        help="where the node's processes are told of, by the PIDs that the driver has for them (%(default)s)",
    )
    parser.add_argument(
        "--cgroups",
        type=Path,
        default=Path("/sys/fs/cgroup"),
        metavar="DIR",
        help="the root of the node's cgroups of version 2, on which drivers from r615 on hold containers to their share "
        "(%(default)s)",
    )
    parser.add_argument(
        "--watchdog-period",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="between two looks (%(default)s)",
    )
    parser.add_argument(
        "--watchdog-grace",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long they may before they are ended (%(default)s)",
    )


def _isolation(options: argparse.Namespace) -> IsolationOptions:
    if not options.isolation_dir.is_absolute() or options.isolation_dir.parent == Path("/"):
        raise InvalidSetting(
            f"--isolation-dir {options.isolation_dir}",
            "give an absolute path of two parts or more: /var/lib/NAME",
        )
    if not 1 <= options.isolated_pods <= 128:
        raise InvalidSetting(f"--isolated-pods {options.isolated_pods}", "give a number from 1 to 128")
    if not 0 <= options.watchdog_grace <= 86400:
        raise InvalidSetting(f"--watchdog-grace {options.watchdog_grace}", "give seconds from 0 to 86400")
    if options.isolation == AskedIsolation.DRIVER.value and options.watchdog == "off":
        raise InvalidSetting(
            "--isolation driver", "it needs the looks of the watchdog; set --watchdog to report or kill"
        )
    return IsolationOptions(
        asked=AskedIsolation(options.isolation),
        folder=options.isolation_dir,
        library_folder=options.isolation_library_dir.absolute(),
        core_policy=options.core_policy,
        pods_per_gpu=options.isolated_pods,
        watch=Watch(
            options.watchdog, options.watchdog_grace, options.proc.absolute(), options.cgroups.absolute()
        ),
    )


def _settings(options: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    node = options.node or environ.get("NODE_NAME", "")
    if not node:
        raise InvalidSetting("--node", "give the name of this node, or set $NODE_NAME")
    if _NODE_NAME.fullmatch(node) is None:
        raise InvalidSetting(f"--node {node}", "not a name that a node can have (a-z, 0-9, dots and dashes)")
    for option, value in (
        ("--health-period", options.health_period),
        ("--xid-quiet", options.xid_quiet),
        ("--watchdog-period", options.watchdog_period),
    ):
        if not 0.01 <= value <= 86400:
            raise InvalidSetting(f"{option} {value}", "give seconds from 0.01 to 86400")
    if not options.driver_root.is_dir():
        raise InvalidSetting(f"--driver-root {options.driver_root}", "there is no such folder")
    if not options.host_root.is_dir():
        raise InvalidSetting(f"--host-root {options.host_root}", "there is no such folder")
    cdi_folders = tuple(Path(one.strip()) for one in options.cdi_dirs.split(","))
    if not all(one.is_absolute() for one in cdi_folders):
        raise InvalidSetting(
            f"--cdi-dirs {options.cdi_dirs}", "give absolute paths, with commas between them"
        )
    folder = options.kubelet_dir.absolute()
    check_socket_paths(folder)
    return Settings(
        node=node,
        kubelet_dir=folder,
        pod_resources=options.pod_resources.absolute(),
        unit=MemoryUnit.parse(options.unit, "--unit"),
        listen=_address(options.metrics_listen),
        pace=Pace(
            wait_s=min(1.0, options.health_period, options.watchdog_period),
            probe_s=options.health_period,
            watch_s=options.watchdog_period,
        ),
        xid_quiet_s=options.xid_quiet,
        driver_root=options.driver_root.absolute(),
        container_runtime=Asked(options.container_runtime),
        cdi_folders=cdi_folders,
        host_root=options.host_root.absolute(),
        isolation=_isolation(options),
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
    code: int = process.run(settings, access, process.DriverNvml(settings.driver_root))
    return code


if __name__ == "__main__":
    sys.exit(main())
