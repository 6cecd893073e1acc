"""A pod that is deleted while the kubelet admits it was served from the claim of another that asked alike."""

import pytest

from gpushare.api import names
from tests.integration.nodeagent.cluster_objects import container
from tests.integration.nodeagent.conftest import World


@pytest.mark.parametrize("on", [0, 1])
async def test_the_other_pod_is_served_when_its_turn_comes(world: World, on: int) -> None:
    await world.start()
    gone = world.bind("gone", container("c", 3), on=0)
    following = world.bind("next", container("c", 3), on=on)
    # The API server has forgotten it, and the agent knows; the kubelet does not yet.
    world.api.drop("pods", "default/gone")
    await world.run_pod("other", 2, on=0)
    await world.kubelet.admit(gone)
    world.kubelet.remove("default/gone")
    admitted = await world.kubelet.admit(following)
    assert admitted.envs["c"][names.ENV_MEM_INDEX] in ("0", "1")
    await world.until_assigned("next")
