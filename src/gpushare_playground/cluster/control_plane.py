"""The control plane of a playground's nodes and extender: the interface of the embedded and the real one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpushare.api.request.unit_conversion import Counting
from gpushare_playground.cluster.parts import Part


@dataclass(frozen=True, slots=True)
class Place:
    """What a cluster provides to its control plane: a folder, a reporter, and a way to start one of our modules.

    ``add`` starts ``python -m ARGUMENTS`` as a part; ``lost`` is called if the cluster cannot be saved any more.
    """

    state: Path
    report: Callable[[str], None]
    add: Callable[[str, list[str], dict[str, str]], Part]
    lost: Callable[[], None]


class Control(Protocol):
    """API server, controllers and schedulers. Starting raises ``ClusterError``."""

    @property
    def contents(self) -> str:
        """Its parts, as text."""

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, which exists from the beginning or soon."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """The parts that it has started itself, without ``Place.add``."""

    @property
    def last(self) -> frozenset[str]:
        """Names of the parts that must outlive the kubelets, which still write to them when they end."""

    @property
    def reaches_agents(self) -> bool:
        """Whether its API server forwards requests to loopback addresses, where the node agents are. A real one refuses."""

    def enter(self, place: Place) -> None:
        """Attach to ``place``; called once, before anything else."""

    async def count(self, counting: Counting) -> None:
        """Convert MiB and percentage requests this way from now on; also called before ``start``."""

    async def start(self) -> None:
        """Start what stores and serves objects; may return before it responds to requests."""

    async def start_controllers(self) -> None:
        """Start what acts on objects; called once the API server responds."""

    def access(self, user: str) -> Path:
        """The kubeconfig of ``extender`` or ``node-agent``."""

    def kubelet_options(self, node: str, address: str) -> list[str]:
        """How the kubelet of ``node`` at ``address`` reaches the API server, and authenticates its calls."""

    async def start_scheduling(self, extender_url: str, ignored: Sequence[str] = ()) -> None:
        """Start the schedulers, which call the extender; returns when they run.

        ``ignored``: resources that only the extender counts.
        """

    async def stop(self) -> None:
        """End what ``parts`` has, in the right order."""
