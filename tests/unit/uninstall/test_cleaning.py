"""After an uninstall nodes are as before, though kubelets write for minutes what is removed."""

from collections.abc import Mapping
from typing import Any

import pytest

from gpushare.api import names
from gpushare.api.objects import Node, decode_node
from gpushare.kube.client.errors import ApiError, Unreachable
from gpushare.uninstall.cleaner import Cleaner, Outcome, Pace
from gpushare.uninstall.leftovers import advertised, is_described, used_up

#: Seconds: how often a kubelet writes, and how long it remembers a plugin that ended.
TICK_S = 10
MEMORY_S = 300
FULL = {names.GPU_MEM: "60", names.GPU_CORE: "400", names.GPU_COUNT: "4"}


class World:
    """Nodes with kubelets, and a clock that moves only by sleeping."""

    def __init__(self, *, agents_for_s: float = 0.0, memory_s: float = MEMORY_S) -> None:
        self.now_s = 0.0
        self.agents_for_s = agents_for_s
        self.memory_s = memory_s
        self.again_at_s = float("inf")
        self.silent_until_s = -1.0
        self.objects: dict[str, dict[str, Any]] = {}
        self.first_touched_s = float("inf")
        self.slices_removed_s: float | None = None

    def add(self, name: str, *, described: bool, **resources: str) -> None:
        self.objects[name] = {
            "labels": {"app": "x", **({names.LABEL_DESCRIBED: "true"} if described else {})},
            "annotations": {"note": "x", **({names.ANN_DEVICES: "{}"} if described else {})},
            "capacity": {"cpu": "8", **resources},
            "conditions": {"Ready", *([names.CONDITION_READY] if described else ())},
        }

    def bare(self, name: str) -> bool:
        one = self.objects[name]
        return (one["labels"], one["annotations"], one["capacity"], one["conditions"]) == (
            {"app": "x"},
            {"note": "x"},
            {"cpu": "8"},
            {"Ready"},
        )

    # --- the clock ------------------------------------------------------------------------------

    def monotonic(self) -> float:
        return self.now_s

    def time_ns(self) -> int:
        return int(self.now_s * 1e9)

    async def sleep(self, seconds: float) -> None:
        before, self.now_s = self.now_s, self.now_s + seconds
        for tick in range(int(before // TICK_S) + 1, int(self.now_s // TICK_S) + 1):
            self._kubelets(tick * TICK_S)

    def _kubelets(self, at_s: float) -> None:
        ended_s = self.agents_for_s
        for one in self.objects.values():
            if not one.get("plugin"):
                continue
            if not self.memory_s:
                del one["plugin"]
            elif at_s - ended_s <= self.memory_s:
                one["capacity"] |= one["plugin"]
            else:
                one["capacity"] |= dict.fromkeys(one.pop("plugin"), "0")

    # --- the cluster ----------------------------------------------------------------------------

    def _answer(self) -> None:
        if self.now_s < self.silent_until_s:
            raise Unreachable("https://api", "connection refused", sent=False)

    async def installed_in(self) -> str | None:
        self._answer()
        return "kube-system" if self.now_s >= self.again_at_s else None

    async def count_agents(self) -> int:
        self._answer()
        return 3 if self.now_s < self.agents_for_s else 0

    async def remove_slices(self) -> None:
        self._answer()
        self.slices_removed_s = self.now_s

    async def list_nodes(self, *, label_selector: str = "") -> list[Node]:
        self._answer()
        assert label_selector in ("", names.LABEL_DESCRIBED)
        return [
            decode_node(
                {
                    "metadata": {
                        "name": name,
                        "labels": dict(one["labels"]),
                        "annotations": dict(one["annotations"]),
                    },
                    "status": {"capacity": dict(one["capacity"]), "allocatable": dict(one["capacity"])},
                }
            )
            for name, one in self.objects.items()
            if not label_selector or label_selector in one["labels"]
        ]

    async def annotate_node(
        self,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        labels: Mapping[str, str | None] | None = None,
    ) -> None:
        self._patch(name, "annotations", annotations)
        self._patch(name, "labels", labels or {})

    async def patch_node_capacity(self, name: str, resources: Mapping[str, str | None]) -> None:
        self._patch(name, "capacity", resources)

    async def set_node_condition(self, name: str, kind: str, said: Mapping[str, str] | None) -> None:
        assert said is None
        self._patch(name, "labels", {})
        self.objects[name]["conditions"].discard(kind)

    def _patch(self, name: str, part: str, patch: Mapping[str, str | None]) -> None:
        self._answer()
        if name not in self.objects:
            raise ApiError(404, "NotFound", f'nodes "{name}" not found', f"/api/v1/nodes/{name}")
        self.first_touched_s = min(self.first_touched_s, self.now_s)
        merged = {**self.objects[name][part], **patch}
        self.objects[name][part] = {key: value for key, value in merged.items() if value is not None}


def shared(world: World, name: str) -> None:
    world.add(name, described=True, **FULL)
    world.objects[name]["plugin"] = {names.GPU_MEM: "60", names.GPU_CORE: "400"}


async def test_nodes_are_as_before_once_their_kubelets_have_forgotten() -> None:
    world = World(agents_for_s=25)
    shared(world, "a")
    shared(world, "b")
    world.add("plain", described=False)
    assert await Cleaner(world, world, Pace()).run() is Outcome.CLEAN
    assert world.first_touched_s >= 25  # agents that still run would write it again
    assert world.slices_removed_s is not None
    assert world.slices_removed_s >= 25
    await world.sleep(3600)
    assert all(map(world.bare, ("a", "b", "plain")))
    assert 300 < world.now_s - 3600 < 400


async def test_a_kubelet_that_remembers_nothing_is_not_waited_for() -> None:
    world = World(memory_s=0)
    shared(world, "a")
    assert await Cleaner(world, world, Pace()).run() is Outcome.CLEAN
    assert world.now_s < 120
    await world.sleep(3600)
    assert world.objects["a"]["capacity"] == {"cpu": "8"}


async def test_other_plugins_are_left_alone_and_what_is_used_up_is_not() -> None:
    world = World()
    world.add("another-plugin", described=False, **FULL)
    world.add("shared-once", described=False, **{names.GPU_MEM: "0"})
    assert await Cleaner(world, world, Pace()).run() is Outcome.CLEAN
    assert world.objects["another-plugin"]["capacity"] == {"cpu": "8", **FULL}
    assert world.bare("shared-once")
    assert world.now_s < 60  # no node of ours: nothing to wait for


async def test_who_installs_again_keeps_what_the_new_agents_write() -> None:
    world = World()
    shared(world, "a")
    world.again_at_s = 100
    cleaner = Cleaner(world, world, Pace())
    assert await cleaner.run() is Outcome.INSTALLED_AGAIN
    assert world.now_s <= 105


async def test_agents_that_are_installed_already_are_not_fought(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world = World()
    shared(world, "a")
    world.again_at_s = 0
    assert await Cleaner(world, world, Pace()).run() is Outcome.INSTALLED_AGAIN
    assert (world.now_s, world.first_touched_s) == (0, float("inf"))
    assert "the agents' DaemonSet is in namespace kube-system" in caplog.text


async def test_who_installs_while_agents_end_keeps_the_nodes() -> None:
    world = World(agents_for_s=60)
    shared(world, "a")
    world.again_at_s = 30
    assert await Cleaner(world, world, Pace()).run() is Outcome.INSTALLED_AGAIN
    assert world.first_touched_s == float("inf")


async def test_a_write_that_failed_is_not_tried_again_on_agents_that_came_meanwhile() -> None:
    world = World()
    shared(world, "a")

    async def refused(*_: Any, **__: Any) -> None:
        world.again_at_s = world.now_s
        raise ApiError(500, "InternalError", "no", "/api/v1/nodes/a/status")

    world.patch_node_capacity = refused  # type: ignore[method-assign]
    assert await Cleaner(world, world, Pace()).run() is Outcome.INSTALLED_AGAIN
    assert world.first_touched_s == float("inf")


async def test_a_killed_cleaner_is_followed_by_one_that_knows_the_nodes() -> None:
    world = World()
    shared(world, "a")
    cleaner = Cleaner(world, world, Pace())
    await cleaner._undescribe()
    await world.sleep(20)
    assert world.objects["a"]["capacity"] == {"cpu": "8", names.GPU_MEM: "60", names.GPU_CORE: "400"}
    assert await Cleaner(world, world, Pace()).run() is Outcome.CLEAN
    await world.sleep(3600)
    assert world.bare("a")


async def test_an_api_server_that_is_away_is_waited_for() -> None:
    world = World()
    shared(world, "a")
    world.silent_until_s = 45
    assert await Cleaner(world, world, Pace()).run() is Outcome.CLEAN
    assert world.bare("a")


async def test_a_node_that_goes_meanwhile_is_done_with() -> None:
    world = World()
    shared(world, "a")

    class Going(World):
        async def annotate_node(self, name: str, *_: Any, **__: Any) -> None:
            del world.objects[name]
            raise ApiError(404, "NotFound", f'nodes "{name}" not found', f"/api/v1/nodes/{name}")

    world.annotate_node = Going.annotate_node.__get__(world)  # type: ignore[method-assign]
    assert await Cleaner(world, world, Pace()).run() is Outcome.CLEAN
    assert not world.objects


async def test_agents_on_lost_nodes_and_kubelets_that_never_forget_do_not_hold_it_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(agents_for_s=float("inf"), memory_s=float("inf"))
    shared(world, "a")
    assert await Cleaner(world, world, Pace(patience_s=900)).run() is Outcome.UNFINISHED
    assert world.now_s <= 900
    assert "agents that have not ended after 120 s (nodes that are lost?): 3" in caplog.text
    assert f"not clean after 900 s: a; see their kubelets, then remove label {names.LABEL_DESCRIBED}" in (
        caplog.text
    )


def test_what_is_left_is_read_from_capacity_and_allocatable() -> None:
    node = decode_node({"metadata": {"name": "n"}, "status": {"allocatable": {names.GPU_WHOLE: "0"}}})
    assert (is_described(node), advertised(node), used_up(node)) == (
        False,
        [names.GPU_WHOLE],
        [names.GPU_WHOLE],
    )
    odd = decode_node({"metadata": {"name": "n"}, "status": {"capacity": {names.GPU_MEM: "many"}}})
    assert (advertised(odd), used_up(odd)) == ([names.GPU_MEM], [])
    half = {"capacity": {names.GPU_MEM: "4"}, "allocatable": {names.GPU_MEM: "0"}}
    assert used_up(decode_node({"metadata": {"name": "n"}, "status": half})) == []
