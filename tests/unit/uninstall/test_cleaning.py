"""Uninstalling restores nodes, although kubelets write removed resources again for minutes."""

from collections.abc import Mapping
from typing import Any

import pytest

from gpushare.api import names
from gpushare.api.objects import Node, decode_node
from gpushare.kube.client.errors import ApiError, Unreachable
from gpushare.uninstall.cleaner import Cleaner, Outcome, Pace
from gpushare.uninstall.leftovers import advertised, is_described, used_up

#: Seconds: how often a kubelet writes its status, and how long it remembers a plugin that has ended.
TICK_S = 10
MEMORY_S = 300
FULL = {names.GPU_MEM: "60", names.GPU_CORE: "400", names.GPU_COUNT: "4"}


class World:
    """Nodes with kubelets, and a clock that moves only by sleeping."""

    def __init__(self, *, agents_for_s: float = 0.0, memory_s: float = MEMORY_S) -> None:
        self.now_s = 0.0
        self.agents_for_s = agents_for_s
        self.memory_s = memory_s
        self.reinstalled_at_s = float("inf")
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
        return "kube-system" if self.now_s >= self.reinstalled_at_s else None

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


def add_shared(world: World, name: str) -> None:
    world.add(name, described=True, **FULL)
    world.objects[name]["plugin"] = {names.GPU_MEM: "60", names.GPU_CORE: "400"}


async def test_nodes_are_restored_once_their_kubelets_have_forgotten() -> None:
    world = World(agents_for_s=25)
    add_shared(world, "a")
    add_shared(world, "b")
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
    add_shared(world, "a")
    assert await Cleaner(world, world, Pace()).run() is Outcome.CLEAN
    assert world.now_s < 120
    await world.sleep(3600)
    assert world.objects["a"]["capacity"] == {"cpu": "8"}


async def test_resources_of_other_plugins_stay_and_expired_ones_are_removed() -> None:
    world = World()
    world.add("another-plugin", described=False, **FULL)
    world.add("shared-once", described=False, **{names.GPU_MEM: "0"})
    assert await Cleaner(world, world, Pace()).run() is Outcome.CLEAN
    assert world.objects["another-plugin"]["capacity"] == {"cpu": "8", **FULL}
    assert world.bare("shared-once")
    assert world.now_s < 60  # no node of ours: nothing to wait for


async def test_after_a_reinstall_the_new_agents_keep_what_they_write() -> None:
    world = World()
    add_shared(world, "a")
    world.reinstalled_at_s = 100
    cleaner = Cleaner(world, world, Pace())
    assert await cleaner.run() is Outcome.INSTALLED_AGAIN
    assert world.now_s <= 105


async def test_nothing_is_removed_where_agents_are_installed_already(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    world = World()
    add_shared(world, "a")
    world.reinstalled_at_s = 0
    assert await Cleaner(world, world, Pace()).run() is Outcome.INSTALLED_AGAIN
    assert (world.now_s, world.first_touched_s) == (0, float("inf"))
    assert "the agents' DaemonSet is in namespace kube-system" in caplog.text


async def test_a_reinstall_while_agents_end_leaves_nodes_alone() -> None:
    world = World(agents_for_s=60)
    add_shared(world, "a")
    world.reinstalled_at_s = 30
    assert await Cleaner(world, world, Pace()).run() is Outcome.INSTALLED_AGAIN
    assert world.first_touched_s == float("inf")


async def test_a_failed_write_is_not_retried_after_a_reinstall() -> None:
    world = World()
    add_shared(world, "a")

    async def refused(*_: Any, **__: Any) -> None:
        world.reinstalled_at_s = world.now_s
        raise ApiError(500, "InternalError", "no", "/api/v1/nodes/a/status")

    world.patch_node_capacity = refused  # type: ignore[method-assign]
    assert await Cleaner(world, world, Pace()).run() is Outcome.INSTALLED_AGAIN
    assert world.first_touched_s == float("inf")


async def test_the_next_cleaner_after_a_killed_one_finds_the_nodes() -> None:
    world = World()
    add_shared(world, "a")
    cleaner = Cleaner(world, world, Pace())
    await cleaner._undescribe()
    await world.sleep(20)
    assert world.objects["a"]["capacity"] == {"cpu": "8", names.GPU_MEM: "60", names.GPU_CORE: "400"}
    assert await Cleaner(world, world, Pace()).run() is Outcome.CLEAN
    await world.sleep(3600)
    assert world.bare("a")


async def test_an_unavailable_api_server_is_waited_for() -> None:
    world = World()
    add_shared(world, "a")
    world.silent_until_s = 45
    assert await Cleaner(world, world, Pace()).run() is Outcome.CLEAN
    assert world.bare("a")


async def test_a_node_that_is_deleted_meanwhile_is_done() -> None:
    world = World()
    add_shared(world, "a")

    class Going(World):
        async def annotate_node(self, name: str, *_: Any, **__: Any) -> None:
            del world.objects[name]
            raise ApiError(404, "NotFound", f'nodes "{name}" not found', f"/api/v1/nodes/{name}")

    world.annotate_node = Going.annotate_node.__get__(world)  # type: ignore[method-assign]
    assert await Cleaner(world, world, Pace()).run() is Outcome.CLEAN
    assert not world.objects


async def test_lost_nodes_and_kubelets_that_never_forget_do_not_block_it_forever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(agents_for_s=float("inf"), memory_s=float("inf"))
    add_shared(world, "a")
    assert await Cleaner(world, world, Pace(patience_s=900)).run() is Outcome.UNFINISHED
    assert world.now_s <= 900
    assert "agents that are still running after 120 s (lost nodes?): 3" in caplog.text
    assert (
        f"not clean after 900 s: a; check their kubelets, then remove the label {names.LABEL_DESCRIBED}"
        in caplog.text
    )


def test_leftovers_are_read_from_capacity_and_allocatable() -> None:
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
