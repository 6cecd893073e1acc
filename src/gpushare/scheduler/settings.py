"""What the command line sets of the scheduler."""

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
    """``host`` and ``port`` (0: any) are where the verbs are served.

    ``doors`` are where probes, metrics and decisions are served, for those who must not bind pods.
    ``defragmentation``: how often pods may be moved for others (``None``: never).
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
    """Namespace and name of the Lease by which the kube-scheduler beside us leads; ``None``: there is one alone."""
    defragmentation: Limits | None = None
    autoscaling: Autoscaling | None = None
    plugins: Mapping[str, Mapping[str, Any]] = {}
    """Plugins of others that are enabled, by the name of their entry point, and the arguments of each."""
