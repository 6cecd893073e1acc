"""``python -m tests.e2e.cluster build|up|load|exec|down``: see ``docs/developer/test-cluster.md``."""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gpushare_playground.cluster.nodes import DEFAULT_NODES
from gpushare_playground.gpus import PRESETS
from tests.e2e.cluster import driver
from tests.e2e.cluster.binaries import CannotBuild, build
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.hosts import HOSTS
from tests.e2e.cluster.lifecycle import THREE_NODES, down, up
from tests.e2e.cluster.network import NoSlot
from tests.e2e.cluster.programs import KUBERNETES
from tests.e2e.cluster.record import CONTROL, STATES, NodeRecord, to_type


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.command(arguments))
    except (CannotBuild, NoSlot, OSError, RuntimeError, ValueError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1


def _build(arguments: argparse.Namespace) -> int:
    print(build(arguments.k8s, arguments.names, ready=arguments.binaries, host=arguments.host, report=_tell))
    return 0


def _up(arguments: argparse.Namespace) -> int:
    binaries = build(arguments.k8s, ready=arguments.binaries, host=arguments.host, report=_tell)
    # A signal that comes while it starts must find the way down, too.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    state = _state(arguments)
    try:
        cluster = up(
            state,
            binaries,
            k8s=arguments.k8s,
            nodes=arguments.nodes,
            drivers=not arguments.no_driver,
            host=arguments.host,
            report=_tell,
        )
        if arguments.label:
            _label(cluster)
    except KeyboardInterrupt:
        return 130
    print(f"export KUBECONFIG={cluster.kubeconfig}")
    print(f"export PATH={cluster.bin}:$PATH")
    sys.stdout.flush()
    if any(node.preset for node in cluster.nodes) and not arguments.no_driver and not driver.SMI.is_file():
        _tell(
            "there is no nvidia-smi on the nodes: scripts/install-system-packages downloads it for the next `up`"
        )
    if arguments.detach:
        _tell(f"end it with: {to_type('down', state)}")
        return 0
    _tell("Ctrl-C ends it")
    try:
        signal.pause()
    except KeyboardInterrupt:
        _tell("ending …")
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        down(state)
    return 0


def _load(arguments: argparse.Namespace) -> int:
    cluster = Cluster(_state(arguments))
    if arguments.node:
        _known(cluster, arguments.node)
    where = arguments.node or ", ".join(node.name for node in cluster.nodes)
    for archive in arguments.archives:
        if not archive.is_file():
            raise FileNotFoundError(
                f"{archive}: no such archive; `make images` writes those of this checkout into build/images"
            )
        cluster.load_image(archive, arguments.node)
        _tell(f"{archive}: loaded into {where}")
    return 0


def _exec(arguments: argparse.Namespace) -> int:
    cluster = Cluster(_state(arguments))
    if arguments.node == CONTROL:
        machine = cluster.control
    else:
        _known(cluster, arguments.node)
        machine = cluster.node(arguments.node).machine
    return subprocess.run(machine.entering(arguments.argv), check=False).returncode


def _known(cluster: Cluster, node: str) -> None:
    names = [one.name for one in cluster.nodes]
    if node not in names:
        raise ValueError(f"{node}: no such node; there are {', '.join(names)}")


def _label(cluster: Cluster) -> None:
    """Give the nodes the labels that those of the playground have."""
    for described in DEFAULT_NODES:
        if described.name in [node.name for node in cluster.nodes]:
            cluster.kubectl(
                "label", "node", described.name, *(f"{key}={value}" for key, value in described.labels)
            )


def _down(arguments: argparse.Namespace) -> int:
    state = _state(arguments)
    if not down(state):
        _tell(f"{state}: no cluster here")
    return 0


def _interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _state(arguments: argparse.Namespace) -> Path:
    return (arguments.state or STATES / arguments.name).absolute()


def _nodes(text: str) -> tuple[NodeRecord, ...]:
    """``1``, ``3``, or ``NAME=PRESET,NAME=`` (the latter without GPUs)."""
    if text.isdigit():
        if not 1 <= int(text) <= len(THREE_NODES):
            raise argparse.ArgumentTypeError(f"{text} nodes: 1 to {len(THREE_NODES)}, or NAME=PRESET,…")
        return THREE_NODES[: int(text)]
    found = []
    for index, part in enumerate(text.split(",")):
        name, _, preset = part.partition("=")
        if preset and preset not in PRESETS:
            raise argparse.ArgumentTypeError(f"{preset}: no such preset; there are {', '.join(PRESETS)}")
        found.append(NodeRecord(name, index, preset or None))
    return tuple(found)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.cluster", description=__doc__)
    commands = parser.add_subparsers(required=True)

    shared = argparse.ArgumentParser(add_help=False)
    version, ready = os.environ.get("GPUSHARE_E2E_K8S"), os.environ.get("GPUSHARE_E2E_BINARIES")
    shared.add_argument(
        "--k8s",
        choices=KUBERNETES,
        default=version or KUBERNETES[0],
        help="version of Kubernetes; else $GPUSHARE_E2E_K8S, or the newest",
    )
    shared.add_argument(
        "--binaries",
        type=Path,
        metavar="DIR",
        default=Path(ready) if ready else None,
        help="take the programs from here that it has; else from $GPUSHARE_E2E_BINARIES",
    )

    shared.add_argument(
        "--host",
        choices=HOSTS,
        default="kubeadm",
        help="where nodes have their sockets and folders, and which container runtime (default kubeadm)",
    )

    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--name", default="default", help=f"its state is in {STATES}/NAME")
    where.add_argument("--state", type=Path, metavar="DIR", help="its state is in this folder")

    one = commands.add_parser("build", parents=[shared], help="build what is not built yet; print the folder")
    one.add_argument("names", nargs="*", metavar="NAME", help="programs or modules; all when none is named")
    one.set_defaults(command=_build)

    one = commands.add_parser("up", parents=[shared, where], help="bring a cluster up")
    one.add_argument(
        "--nodes", type=_nodes, default=_nodes("1"), help="1 to 3, or NAME=PRESET,NAME=,… (default 1)"
    )
    one.add_argument("--no-driver", action="store_true", help="install no driver on the nodes that have GPUs")
    one.add_argument(
        "--label", action="store_true", help="label the nodes with the modes of the playground's nodes"
    )
    one.add_argument("--detach", action="store_true", help="leave it running and return")
    one.set_defaults(command=_up)

    one = commands.add_parser("load", parents=[where], help="load archives of images into the nodes")
    one.add_argument(
        "archives", nargs="+", type=Path, metavar="IMAGE.tar", help="as `make images` writes them"
    )
    one.add_argument("--node", help="into this node alone")
    one.set_defaults(command=_load)

    one = commands.add_parser(
        "exec",
        parents=[where],
        help="run a command on a node, as root; ctr finds the node's containerd there",
        usage="%(prog)s [--name NAME | --state DIR] NODE -- COMMAND [ARGUMENT ...]",
    )
    one.add_argument("node", metavar="NODE", help=f"its name; {CONTROL}: the machine of the control plane")
    one.add_argument("argv", nargs="+", metavar="COMMAND")
    one.set_defaults(command=_exec)

    one = commands.add_parser("down", parents=[where], help="end a cluster and remove every trace of it")
    one.set_defaults(command=_down)
    return parser


if __name__ == "__main__":
    sys.exit(main())
