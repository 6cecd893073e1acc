"""The node's condition GPUShareReady follows the driver, the GPUs and the mode, and is removed when sharing ends."""

from typing import Any

from gpushare.api import names
from tests.integration.nodeagent.cluster_objects import NODE
from tests.integration.nodeagent.conftest import World


def conditions(world: World) -> dict[str, Any]:
    status = world.api.objects["nodes", NODE].get("status", {})
    return {one["type"]: one for one in status.get("conditions") or ()}


def ready(world: World) -> tuple[str, str, str]:
    condition = conditions(world).get(names.CONDITION_READY, {})
    return condition.get("status", ""), condition.get("reason", ""), condition.get("message", "")


async def test_a_cordoned_gpu_is_reported_and_does_not_count(world: World) -> None:
    await world.start()
    await world.changes.until(lambda: ready(world)[1] == "Sharing", "shares")
    node = world.api.objects["nodes", NODE]
    node["metadata"]["annotations"][names.ANN_CORDONED] = "1"
    world.api.put("nodes", NODE, node)
    await world.changes.until(lambda: ready(world)[2].startswith("GPU 1: cordoned; mode "), "named")
    assert ready(world)[1] == "Sharing", "it is no fault"
    assert ", 1 of 2 GPUs in service, " in ready(world)[2]
    node = world.api.objects["nodes", NODE]
    del node["metadata"]["annotations"][names.ANN_CORDONED]
    world.api.put("nodes", NODE, node)
    await world.changes.until(lambda: ", 2 of 2 GPUs in service, " in ready(world)[2], "counts again")


async def test_the_condition_is_removed_with_the_sharing_and_others_stay(world: World) -> None:
    await world.start()
    await world.changes.until(lambda: ready(world)[1] == "Sharing", "shares")
    node = world.api.objects["nodes", NODE]
    others = {"type": "Ready", "status": "True"}
    node["status"]["conditions"].append(others)
    node["metadata"]["labels"][names.LABEL_MODE] = "default"
    world.api.put("nodes", NODE, node)
    await world.changes.until(lambda: names.CONDITION_READY not in conditions(world), "gone")
    assert conditions(world) == {"Ready": others}
    await world.changes.until(
        lambda: names.LABEL_DESCRIBED not in world.api.objects["nodes", NODE]["metadata"]["labels"], "no mark"
    )
