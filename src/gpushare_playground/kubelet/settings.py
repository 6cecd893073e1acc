"""The kubelet's options, checked before anything starts."""

import argparse
import ipaddress
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpushare.api.errors import ModelError
from gpushare.api.quantity import parse_amount, parse_quantity
from gpushare_playground.kubelet.errors import BadSettings
from gpushare_playground.kubelet.paths import Folders

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The kubelet's certificate and key, and the authority that must have signed the API server's; PEM files."""

    certificate: Path
    key: Path
    client_ca: Path


@dataclass(frozen=True, slots=True)
class Settings:
    """One node's kubelet. Times are in seconds; everything ends with the process ``lifeline``."""

    node: str
    folders: Folders
    kubeconfig: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    node_ip: str = "127.0.0.1"
    port: int = 0
    token: str = field(default="", repr=False)
    tls: TlsFiles | None = None
    fakegpu_node: Path | None = None
    fakegpu_lib: Path | None = None
    nvidia_smi: Path | None = None
    images: tuple[Path, ...] = ()
    cpu: str = "8"
    memory: str = "32Gi"
    pods: int = 110
    status_interval_s: float = 10.0
    lease_duration_s: int = 40
    restart_backoff_s: float = 10.0
    most_backoff_s: float = 300.0
    plugin_grace_s: float = 2.0
    endpoint_grace_s: float = 300.0
    prompt_status: bool = True
    lifeline: int = 0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.node):
            raise BadSettings(f"node {self.node!r}", "is no node name; use a-z, 0-9, '-' and '.'")
        for name in ("status_interval_s", "restart_backoff_s", "most_backoff_s", "endpoint_grace_s"):
            if getattr(self, name) <= 0:
                raise BadSettings(name.replace("_", "-"), f"is {getattr(self, name)}; give more than 0")
        try:
            if not ipaddress.ip_address(self.node_ip).is_loopback:
                raise BadSettings(
                    "--node-ip", f"{self.node_ip} is no loopback address; use one of 127.0.0.0/8"
                )
            parse_quantity(self.cpu, "--cpu")
            parse_amount(self.memory, "--memory")
        except ModelError as error:
            raise BadSettings(error.subject, error.problem) from None
        except ValueError:
            raise BadSettings("--node-ip", f"{self.node_ip!r} is no IP address") from None
        if self.pods < 1:
            raise BadSettings("--pods", f"is {self.pods}; give at least 1")
        if (self.fakegpu_node is None) != (self.fakegpu_lib is None):
            raise BadSettings("--fakegpu-node and --fakegpu-lib", "belong together; give both or none")
        if self.fakegpu_node is not None and not self.fakegpu_node.is_file():
            raise BadSettings(
                "--fakegpu-node", f"{self.fakegpu_node} is no file; it describes the node's GPUs"
            )
        if self.fakegpu_lib is not None and not self.fakegpu_lib.is_dir():
            raise BadSettings(
                "--fakegpu-lib", f"{self.fakegpu_lib} is no folder; build the fake driver first"
            )


def node_address(node: str) -> str:
    """The default loopback address of a node: 127.0.0.2 to 127.0.0.250, by its name."""
    return f"127.0.0.{2 + zlib.crc32(node.encode()) % 249}"


def read_settings(arguments: Sequence[str] | None = None) -> Settings:
    """Settings from the command line; raises ``BadSettings`` (and ``SystemExit`` as argparse does)."""
    parser = argparse.ArgumentParser(
        prog="gpushare_playground.kubelet",
        description="One node of the playground: a kubelet without a host.",
    )
    add = parser.add_argument
    add("--node", required=True, help="name of the node")
    add("--kubeconfig", default="", help="way to the API server")
    add("--root", required=True, type=Path, help="folder of this node; short, its sockets live there")
    add(
        "--label", action="append", default=[], metavar="KEY=VALUE", help="label of the node; may be repeated"
    )
    add("--node-ip", default="", help="loopback address (default: one made of the name)")
    add("--port", type=int, default=0, help="port of logs and exec (default: a free one)")
    add("--token", default="", help="bearer token that the API server shows")
    add("--token-file", type=Path, help="file that holds the token")
    add(
        "--tls",
        type=Path,
        nargs=3,
        metavar=("CERT", "KEY", "CLIENT_CA"),
        help="serve HTTPS; the API server may show a client certificate signed by CLIENT_CA",
    )
    add("--fakegpu-node", type=Path, help="file that describes the node's GPUs")
    add("--fakegpu-lib", type=Path, help="folder of the fake driver's libraries")
    add("--nvidia-smi", type=Path, help="the real nvidia-smi (default: unpacked in the checkout, or on PATH)")
    add("--images", type=Path, action="append", default=[], help="folder of image descriptions of your own")
    add("--cpu", default="8")
    add("--memory", default="32Gi")
    add("--pods", type=int, default=110)
    add("--status-interval-s", type=float, default=10.0)
    add("--restart-backoff-s", type=float, default=10.0)
    add("--plugin-grace-s", type=float, default=2.0)
    add("--endpoint-grace-s", type=float, default=300.0)
    add(
        "--devices-at-tick",
        action="store_true",
        help="report devices only with the next status, as a real kubelet",
    )
    add("--lifeline", type=int, default=0, metavar="PID", help="end with that process, containers too")
    options = parser.parse_args(arguments)
    token = options.token
    if options.token_file is not None:
        try:
            token = options.token_file.read_text().strip()
        except OSError as error:
            raise BadSettings(
                "--token-file", f"{options.token_file} cannot be read: {error.strerror}"
            ) from None
    if options.tls is not None:
        for path in options.tls:
            if not path.is_file():
                raise BadSettings("--tls", f"{path} is no file; give a certificate, its key and an authority")
    elif not token:
        raise BadSettings(
            "--token", "is missing; without it every user of this machine could run commands here"
        )
    return Settings(
        node=options.node,
        folders=Folders(options.root.absolute()),
        kubeconfig=options.kubeconfig,
        labels=tuple(_label(text) for text in options.label),
        node_ip=options.node_ip or node_address(options.node),
        port=options.port,
        token=token,
        tls=TlsFiles(*options.tls) if options.tls is not None else None,
        fakegpu_node=options.fakegpu_node and options.fakegpu_node.absolute(),
        fakegpu_lib=options.fakegpu_lib and options.fakegpu_lib.absolute(),
        nvidia_smi=options.nvidia_smi,
        images=tuple(options.images),
        cpu=options.cpu,
        memory=options.memory,
        pods=options.pods,
        status_interval_s=options.status_interval_s,
        restart_backoff_s=options.restart_backoff_s,
        plugin_grace_s=options.plugin_grace_s,
        endpoint_grace_s=options.endpoint_grace_s,
        prompt_status=not options.devices_at_tick,
        lifeline=options.lifeline,
    )


def _label(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise BadSettings(f"--label {text!r}", "is not of the form KEY=VALUE")
    return key, value
