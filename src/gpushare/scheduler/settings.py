"""The scheduler's settings, made from its options."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from gpushare.api.node.device import Placement
from gpushare.api.quantity import MemoryUnit
from gpushare.httpserver.listeners import Door
from gpushare.scheduler.framework.binder import RESERVATION_TTL_S
from gpushare.scheduler.plugins.autoscaling.settings import Autoscaling
from gpushare.scheduler.plugins.defragmentation.limits import Limits


class Settings(msgspec.Struct, frozen=True):
    """Settings of one scheduler.

    ``host`` and ``port`` (0: any free port): the address of the verbs.
    ``doors``: the addresses of probes, metrics and decisions, for clients that must not bind pods.
    ``defragmentation``: limits on moving pods for others (``None``: pods are never moved).
    """

    host: str = "127.0.0.1"
    port: int = 9451
    port_file: Path | None = None
    doors: tuple[Door, ...] = ()
    unit: MemoryUnit = MemoryUnit.GIB
    isolated_cap: int = 16
    node_policy: Placement = Placement.BINPACK
    reservation_ttl_s: float = RESERVATION_TTL_S
    lease: tuple[str, str] | None = None
    """Namespace and name of the leader election Lease of our kube-scheduler; ``None`` if there is only one replica."""
    defragmentation: Limits | None = None
    autoscaling: Autoscaling | None = None
    plugins: Mapping[str, Mapping[str, Any]] = {}
    """Enabled third-party plugins: the name of the entry point, and its arguments."""
