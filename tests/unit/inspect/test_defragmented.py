"""``--why`` of a pod for which defragmentation moved others reports it, by the event that names them, or by its own mark."""

from typing import Any

import pytest

from gpushare.api import names
from gpushare.inspect.views.explain import why
from tests.unit.inspect.test_views import PLAIN, cluster, options
from tests.unit.scheduler.explain.test_decisions import give
from tests.unit.scheduler.server.test_app import Browser
from tests.unit.scheduler.world import World, gpu_node

MOVED = "on GPU 0 of n1, by moving default/a to n2, default/b to n3"


@pytest.fixture
async def world() -> World:
    return World()


def event(reason: str, message: str, minute: int, uid: str = "uid-pod") -> dict[str, Any]:
    it = {"kind": "Pod", "name": "pod", "uid": uid}
    at = f"2026-01-01T00:{minute:02}:00Z"
    return {"involvedObject": it, "reason": reason, "message": message, "lastTimestamp": at}


async def test_moved_pods_are_named_while_an_event_names_them(world: World) -> None:
    world.add_node(gpu_node("n1", 8192))
    await give(Browser(world), world, "pod", "n1", 6)
    lately = [event("Pulled", f"image {minute}", minute) for minute in range(10, 20)]

    def text(*events: dict[str, Any]) -> str:
        known = {"/api/v1/namespaces/default/events": {"items": [*events, *lately]}}
        return why(cluster(world, **known), options("--why", "pod"), PLAIN).text

    assert "Defragmentation" not in text(event("DefragmentationSucceeded", MOVED, 1, uid="another"))
    made = event("DefragmentationSucceeded", MOVED, 1)
    assert f"\n\nDefragmentation: capacity was freed for it {MOVED}.\n" in text(made)
    world.api.pods["default/pod"]["metadata"]["annotations"][names.ANN_ROOM_MADE] = "1767225600000000000"
    assert f"\n\nDefragmentation: capacity was freed for it {MOVED}.\n" in text(made)
    assert (
        "\n\nDefragmentation: at 2026-01-01 00:00:00 UTC pods were moved for it; the events that name them have expired.\n"
        in text()
    )
