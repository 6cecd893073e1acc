"""What the nodes and the extender of a playground are put under: the seam between the embedded and the real one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpushare.api.request.unit_conversion import Counting
from gpushare_playground.cluster.parts import Part


@dataclass(frozen=True, slots=True)
class Place:
    """What a cluster provides to its control plane: a folder, a reporter, and a way to start a module of ours.

    ``add`` starts ``python -m ARGUMENTS`` as a part; ``lost`` is called when the cluster cannot be saved any more.
    """

    state: Path
    report: Callable[[str], None]
    add: Callable[[str, list[str], dict[str, str]], Part]
    lost: Callable[[], None]


class Control(Protocol):
    """API server, controllers and schedulers. Starting raises ``ClusterError``."""

    @property
    def contents(self) -> str:
        """Its parts in words."""

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, there from the beginning or soon."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """The parts that it has started by itself, not by ``Place.add``."""

    @property
    def last(self) -> frozenset[str]:
        """Names of the parts that must outlive the kubelets, which have last words for them."""

    @property
    def reaches_agents(self) -> bool:
        """Whether its API server passes requests on to loopback addresses, where the node agents are. A real one refuses."""

    def enter(self, place: Place) -> None:
        """Take the place; called once, before anything else."""

    async def count(self, counting: Counting) -> None:
        """Convert MiB and percentage requests this way from now on; also called before ``start``."""

    async def start(self) -> None:
        """Start what stores and serves objects; it may return before it answers."""

    async def start_controllers(self) -> None:
        """Start what acts on objects by itself; called once the API server answers."""

    def access(self, user: str) -> Path:
        """The kubeconfig of ``extender`` or ``node-agent``."""

    def kubelet_options(self, node: str, address: str) -> list[str]:
        """How the kubelet of ``node`` at ``address`` reaches the API server, and knows it when it calls."""

    async def start_scheduling(self, extender_url: str, ignored: Sequence[str] = ()) -> None:
        """Start what schedules, asking the extender; returns when it does.

        ``ignored``: resources that the extender alone counts.
        """

    async def stop(self) -> None:
        """End what ``parts`` has, in good order."""
