"""A small cluster for each test."""

import pytest

from tests.integration.kubelet.scripted_plugin import ScriptedPlugin
from tests.integration.kubelet.small_cluster import small_cluster


@pytest.fixture
async def bare():
    """API server without a kubelet."""
    async with small_cluster() as cluster:
        yield cluster


@pytest.fixture
async def cluster(bare):
    """API server and kubelet."""
    await bare.start_kubelet()
    return bare


@pytest.fixture
async def plugins(bare):
    """Makes device plugins that stop with the test."""
    made = []

    def make(**options):
        made.append(ScriptedPlugin(bare.folders, **options))
        return made[-1]

    yield make
    for plugin in made:
        await plugin.die()


@pytest.fixture
async def plugin(cluster, plugins):
    """A plugin of two GPUs of four parts, registered."""
    return await plugins().start()
