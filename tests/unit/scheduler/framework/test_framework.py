"""Plugins at their extension points: what each adds to an answer, and that the core works without any of them."""

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.kube.auth.access import Access
from gpushare.kube.client.errors import ApiError, Unreachable
from gpushare.kube.client.session import Session
from gpushare.options.option import InvalidSettings
from gpushare.scheduler.cache.cache import NodeRecord
from gpushare.scheduler.cache.pod_records import decode_record
from gpushare.scheduler.core import Core
from gpushare.scheduler.framework.binder import Binder, BindRefused
from gpushare.scheduler.framework.cycle import filter_nodes, prioritize_nodes
from gpushare.scheduler.framework.cycle_state import Bodies, CycleState
from gpushare.scheduler.framework.interface import (
    Assume,
    Controller,
    Explain,
    Filter,
    FindRoom,
    Narrow,
    Pages,
    PodToBind,
    PostFilter,
    Score,
    Verbs,
)
from gpushare.scheduler.framework.runtime import Enabled, Framework
from gpushare.scheduler.framework.services import NO_GANGS, NO_QUOTAS
from gpushare.scheduler.leader.lease import always_leads
from gpushare.scheduler.plugins.autoscaling.settings import Autoscaling, PlaceholderLimits
from gpushare.scheduler.plugins.defragmentation.limits import Limits
from gpushare.scheduler.plugins.explain.decision_log import DecisionLog
from gpushare.scheduler.plugins.preemption.plugin import Preemptor
from gpushare.scheduler.plugins.registry import built_in, third_party
from gpushare.scheduler.server.protocol import BindingArgs
from gpushare.scheduler.settings import Settings
from tests.integration.kube.served import serving
from tests.unit.scheduler.world import TurnedClock, World, gpu_node, pod_object

BUILT_IN = (
    "pod-log",
    "gangs",
    "pod-groups",
    "elastic-quota",
    "resource-policy",
    "requeue",
    "preemption",
    "preempt-verb",
    "defragmentation",
    "autoscaling",
    "nominations",
    "decisions",
)


class Refusing:
    def __init__(self, nodes: Collection[str], reason: str) -> None:
        self._nodes = nodes
        self._reason = reason
        self.offered: list[list[str]] = []

    def filter(self, state: CycleState, nodes: Sequence[str]) -> Mapping[str, str]:
        self.offered.append(list(nodes))
        return {name: self._reason for name in nodes if name in self._nodes}


class PostRefusing:
    def __init__(self, refused: list[set[str]]) -> None:
        self._refused = refused

    def post_filter(self, uid: str, nodes: Collection[str]) -> None:
        self._refused.append(set(nodes))


class Scoring:
    def __init__(self, scores: Mapping[str, float]) -> None:
        self._scores = scores

    def score(self, state: CycleState, nodes: Sequence[str]) -> Mapping[str, float]:
        return self._scores


def filter_state(nodes: Sequence[str], units: int = 4) -> CycleState:
    pod = pod_object("p", units)
    return Bodies().read(msgspec.json.encode({"Pod": pod, "NodeNames": list(nodes)}))


def world_of(*nodes: str) -> World:
    world = World()
    for name in nodes:
        world.add_node(gpu_node(name, 16384))
    return world


def answered(world: World, framework: Framework, nodes: Sequence[str]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(filter_nodes(world.view, filter_state(nodes), framework))
    return answer


def test_a_filter_removes_nodes_and_its_reason_is_the_answer() -> None:
    first, second = Refusing({"a"}, "no licence"), Refusing({"a", "b"}, "too hot")
    framework = Framework([Enabled("first", first), Enabled("second", second)])
    answer = answered(world_of("a", "b", "c"), framework, ["a", "b", "c"])
    assert answer["NodeNames"] == ["c"]
    assert answer["FailedAndUnresolvableNodes"] == {"a": "no licence", "b": "too hot"}
    assert (first.offered, second.offered) == ([["a", "b", "c"]], [["b", "c"]])


def test_pods_are_not_evicted_from_nodes_that_a_filter_refuses() -> None:
    refused: list[tuple[str, list[str]]] = []

    class Watching:
        def post_filter(self, uid: str, nodes: Collection[str]) -> None:
            refused.append((uid, list(nodes)))

    framework = Framework([Enabled("f", Refusing({"a"}, "no licence")), Enabled("w", Watching())])
    world = world_of("a", "b")
    filter_nodes(world.view, filter_state(["a", "b"], units=99), framework)
    assert [uid for uid, _ in refused] == ["uid-p"]
    assert "a" not in refused[0][1]


def test_a_pod_whose_binding_is_under_way_is_not_filtered_again() -> None:
    world = world_of("a", "b")
    pod = world.create("p", 4)
    world.ledger.reserve("uid-p", pod.key, world.view.waiting["uid-p"].request, "a")  # type: ignore[arg-type]
    answer = answered(world, Framework([Enabled("f", Refusing({"a"}, "no licence"))]), ["a", "b"])
    assert answer["NodeNames"] == ["a"]


def test_scores_are_a_weighted_mean_with_gpu_placement() -> None:
    framework = Framework([Enabled("s", Scoring({"b": 10, "unknown": 10, "c": 99}), 3.0)])
    assert framework.scores(filter_state(["a", "b", "c"]), ["a", "b", "c"], [("a", 10), ("b", 10)]) == [
        ("a", 2),
        ("b", 10),
        ("c", 8),
    ]


@given(
    placement=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 10)),
    plugin=st.dictionaries(st.sampled_from("abcde"), st.floats(-20, 20)),
    weight=st.floats(0.01, 100),
)
def test_scores_stay_within_what_an_extender_may_answer(
    placement: dict[str, int], plugin: dict[str, float], weight: float
) -> None:
    framework = Framework([Enabled("s", Scoring(plugin), weight)])
    found = framework.scores(filter_state("abcd"), "abcd", list(placement.items()))
    assert all(name in "abcd" and 0 < score <= 10 for name, score in found)


def test_without_plugins_the_ledgers_scores_are_returned_unchanged() -> None:
    world = world_of("a", "b")
    placement = [("a", 3)]
    assert Framework().scores(filter_state(["a", "b"]), ["a", "b"], placement) is placement
    assert prioritize_nodes(world.view, filter_state(["a", "b"])) == b"[]"


async def core_of(settings: Settings, *without: str) -> tuple[Core, list[Enabled]]:
    core = Core(Session(Access("http://127.0.0.1:1")), settings, TurnedClock())
    return core, list(
        built_in(core, core.handle(synced=lambda: True, relist_pods=always_leads), without=without)
    )


EVERYTHING = Settings(
    defragmentation=Limits(300.0, 120.0, 2), autoscaling=Autoscaling(PlaceholderLimits("s"), True)
)


async def test_the_table_has_the_plugins_that_the_settings_enable() -> None:
    _, everything = await core_of(EVERYTHING)
    assert tuple(one.name for one in everything) == BUILT_IN
    _, default = await core_of(Settings())
    assert {one.name for one in everything} - {one.name for one in default} == {
        "defragmentation",
        "autoscaling",
    }
    points = {one.name: one.plugin for one in everything}
    assert all(isinstance(points[name], PostFilter) for name in ("requeue", "preemption", "defragmentation"))
    assert not any(isinstance(one, Filter | Score) for one in points.values())
    assert {name for name, one in points.items() if isinstance(one, Controller)} == {
        "gangs",
        "pod-groups",
        "elastic-quota",
        "resource-policy",
        "requeue",
        "preemption",
        "defragmentation",
        "autoscaling",
        "decisions",
    }
    assert {name for name, one in points.items() if isinstance(one, FindRoom)} == {"gangs"}
    assert {name for name, one in points.items() if isinstance(one, Assume)} == {"pod-groups"}
    assert {name for name, one in points.items() if isinstance(one, Narrow)} == {"resource-policy"}
    assert {name for name, one in points.items() if isinstance(one, Verbs)} == {"preempt-verb"}
    assert {name for name, one in points.items() if isinstance(one, Explain | Pages)} == {"decisions"}


async def test_plugins_meet_each_other_or_the_stand_in_of_a_disabled_one() -> None:
    _, everything = await core_of(EVERYTHING)
    points = {one.name: one.plugin for one in everything}
    decisions, preemption = points["decisions"], points["preemption"]
    assert isinstance(decisions, DecisionLog)
    assert isinstance(preemption, Preemptor)
    assert decisions.gangs is preemption._gangs is points["gangs"]
    assert decisions.quotas is preemption._quotas is points["elastic-quota"]
    _, others = await core_of(EVERYTHING, "gangs", "elastic-quota")
    (decisions,) = (one.plugin for one in others if isinstance(one.plugin, DecisionLog))
    assert decisions.gangs is NO_GANGS
    assert decisions.quotas is NO_QUOTAS


class Budget:
    """Lets this many pods be bound, on nodes that it accepts."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.reserved: set[str] = set()
        self.bad: set[str] = set()

    def pre_filter(self, state: CycleState) -> str:
        return "" if self.left else "the budget is spent"

    def filter_fits(self, state: CycleState, nodes: list[str]) -> Mapping[str, str]:
        return {name: "too dear" for name in nodes if name in self.bad}

    def reserve(self, pod: PodToBind) -> str:
        if not self.left:
            return "the budget is spent"
        self.left -= 1
        self.reserved.add(pod.uid)
        return ""

    def is_reserved(self, uid: str) -> bool:
        return uid in self.reserved

    def unreserve(self, uid: str) -> None:
        if uid in self.reserved:
            self.reserved.remove(uid)
            self.left += 1


def test_a_plugin_refuses_all_or_some_nodes_and_those_are_considered_for_preemption() -> None:
    world, budget = world_of("a", "b"), Budget(1)
    refused: list[set[str]] = []
    framework = Framework([Enabled("b", budget), Enabled("r", PostRefusing(refused))])
    budget.bad = {"a"}
    assert answered(world, framework, ["a", "b"])["NodeNames"] == ["b"]
    budget.bad = {"a", "b"}
    answer = answered(world, framework, ["a", "b"])
    assert set(answer["FailedAndUnresolvableNodes"].values()) == {"too dear"}
    budget.left = 0
    answer = answered(world, framework, ["a", "b"])
    assert set(answer["FailedAndUnresolvableNodes"].values()) == {"the budget is spent"}
    assert refused == [{"a", "b"}, {"a", "b"}]


@pytest.mark.parametrize("mem", [4, None])
async def test_a_plugins_reservation_ends_with_a_failed_binding_and_is_not_made_twice(
    mem: int | None,
) -> None:
    world, budget = world_of("a"), Budget(1)
    world.plugins.append(budget)
    binder = Binder(world.view, world.api, world.reservations, world.clock, world.framework())
    for name in ("p", "q"):
        world.create(name, mem)

    def raising(error: Exception) -> Callable[[], None]:
        def fail() -> None:
            raise error

        return fail

    world.api.before.append(raising(ApiError(403, "Forbidden", "quota of bindings", "")))
    with pytest.raises(BindRefused, match="quota of bindings"):
        await binder.bind(BindingArgs("default", "p", "uid-p", "a"))
    assert (budget.left, world.ledger.held("uid-p")) == (1, None)
    world.api.before.append(raising(Unreachable("https://api", "it did not answer", sent=None)))
    with pytest.raises(BindRefused):
        await binder.bind(BindingArgs("default", "p", "uid-p", "a"))
    assert (budget.left, len(world.reservations.deadlines)) == (0, 1), "it may be bound yet"
    await binder.bind(BindingArgs("default", "p", "uid-p", "a"))
    with pytest.raises(BindRefused, match="budget is spent"):
        await binder.bind(BindingArgs("default", "q", "uid-q", "a"))
    assert world.ledger.held("uid-q") is None


@pytest.mark.parametrize("left_out", BUILT_IN)
async def test_pods_are_placed_with_any_of_the_plugins_disabled(left_out: str) -> None:
    core, others = await core_of(EVERYTHING, left_out)
    together = {"preemption": {"preemption", "preempt-verb", "nominations"}}.get(left_out, {left_out})
    assert [one.name for one in others] == [name for name in BUILT_IN if name not in together]
    framework = Framework(others)
    nodes, pods = framework.nodes(core.cache), framework.pods(core.cache)
    decode = framework.pod_decoder(decode_record)
    nodes.upsert(NodeRecord(gpu_node("a", 16384), ""))
    nodes.synced()
    raw = msgspec.json.encode(pod_object("p", 4))
    found = decode(raw)
    assert found is not None
    pods.upsert(found[1])
    pods.synced()
    answer = json.loads(filter_nodes(core.cache, filter_state(["a"]), framework))
    assert answer["NodeNames"] == ["a"]
    filter_nodes(core.cache, filter_state(["a"], units=99), framework)
    pods.remove(*found)
    assert not core.cache.waiting
    for _, task in framework.tasks():
        task.close()


async def test_a_refused_pod_is_tried_again_once_another_ends() -> None:
    """The parts as the process composes them, down to the write that makes kube-scheduler retry the pod."""
    clock = TurnedClock()
    async with serving() as api, Session(Access(api.url)) as session:
        core = Core(session, Settings(), clock)
        framework = Framework(
            list(built_in(core, core.handle(synced=lambda: True, relist_pods=always_leads)))
        )
        pods = framework.pods(core.cache)
        framework.nodes(core.cache).upsert(NodeRecord(gpu_node("a", 16384), ""))
        records = [decode_record(msgspec.json.encode(pod_object(name, 15))) for name in ("first", "second")]
        for record in records:
            assert record is not None
            pods.upsert(record[1])
        assert records[0] is not None
        held = records[0][1]
        assert held.request is not None
        core.ledger.reserve(held.uid, held.pod, held.request, "a")
        body = msgspec.json.encode({"Pod": pod_object("second", 15), "NodeNames": ["a"]})
        answer = filter_nodes(core.cache, Bodies().read(body), framework)
        assert json.loads(answer)["NodeNames"] == []
        running = [asyncio.create_task(task) for _, task in framework.tasks()]
        pods.remove(*records[0])
        async with asyncio.timeout(30):
            while not any("/pods/second" in one.path and one.method == "PATCH" for one in api.requests):
                await clock.turn(1.0)
                await asyncio.sleep(0)
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nobodys": {}}, "plugin nobodys is not installed; installed are: "),
        ({"nobodys": {"weight": 0}}, "is not installed"),
    ],
)
async def test_a_plugin_that_cannot_be_enabled_is_refused_by_name(
    arguments: dict[str, dict[str, Any]], message: str
) -> None:
    core, _ = await core_of(Settings())
    with pytest.raises(InvalidSettings, match=message):
        list(third_party(core.handle(synced=lambda: True, relist_pods=always_leads), arguments))
