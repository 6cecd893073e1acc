"""The same simulation under every policy, ours and those of peers."""

from collections.abc import Callable, Sequence

import msgspec

from gpushare.api.node.device import Placement
from gpushare.simulate.engine.engine import Settings
from gpushare.simulate.engine.simulation import Result, simulate
from gpushare.simulate.input.manifests import NewPod
from gpushare.simulate.peers.names import PEERS
from gpushare.simulate.snapshot import ClusterState


def with_policy(settings: Settings, name: str) -> Settings:
    """``settings`` with another policy: a value of ``Placement``, or one of ``PEERS``."""
    if name in PEERS:
        return msgspec.structs.replace(settings, policy=Placement.BINPACK, peer=name)
    return msgspec.structs.replace(settings, policy=Placement(name), peer="")


def compare(
    state: ClusterState,
    new_pods: Sequence[NewPod],
    settings: Settings,
    *,
    reschedule: bool = False,
    on_run: Callable[[str], None] = lambda text: None,
) -> list[Result]:
    """A run for each policy, otherwise with the same settings. Raises ``SimulateError``."""
    results = []
    for name in (*(placement.value for placement in Placement), *PEERS):
        on_run(name)
        results.append(simulate(state, new_pods, with_policy(settings, name), reschedule=reschedule))
    return results
