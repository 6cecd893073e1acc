from gpushare_playground.objects import JOBS, NODES
from tests.unit.playground.controllers.conftest import Cluster
from tests.unit.playground.controllers.memory_api import until


async def test_pods_of_a_deleted_node_are_deleted_immediately(cluster: Cluster) -> None:
    cluster.job()
    await cluster.settled()
    [name] = cluster.pods()
    cluster.start(name)
    cluster.api.drop("nodes", "n1")
    await until(lambda: name not in cluster.pods())
    cluster.api.add(NODES, {"metadata": {"name": "n1"}})
    await cluster.settled()
    assert len(cluster.pods()) == 1
    assert cluster.api.named(JOBS) == ["work"]


async def test_a_node_that_is_missing_only_in_the_watch_loses_no_pod(cluster: Cluster) -> None:
    cluster.job()
    await cluster.settled()
    [name] = cluster.pods()
    cluster.start(name)
    cluster.api.caches[NODES].remove("n1", cluster.api.get(NODES, "n1"))
    await cluster.settled()
    assert cluster.pods() == [name]
