"""Pods of a PodGroup, which kube-scheduler filters one after the other before it binds any, keep their shares in between."""

from typing import Any

import msgspec
import pytest

from gpushare.api.objects import decode_pod
from gpushare.api.request.pod_group import gang_of
from gpushare.scheduler.cache.pod_records import record_of
from gpushare.scheduler.framework.binder import Binder
from gpushare.scheduler.framework.cycle import filter_nodes
from gpushare.scheduler.framework.cycle_state import Bodies
from gpushare.scheduler.plugins.pod_groups.least import LeastPods, decode_pod_group
from gpushare.scheduler.plugins.pod_groups.plugin import IDLE_S, Assumed
from gpushare.scheduler.server.protocol import BindingArgs
from tests.unit.scheduler.world import World, gpu_node, pod_object

GPUS = ("n1", "n2", "n3")


class Groups:
    """A scheduler of three nodes with one GPU of 16 GiB each; pods request it whole."""

    def __init__(self, world: World) -> None:
        for node in GPUS[1:]:
            world.add_node(gpu_node(node, 16384))
        self.world = world
        self.least: dict[str, int] = {}
        self.retried: list[str] = []
        self.assumed = Assumed(world.view, world.clock, self.least, self.retried.extend)
        world.plugins.append(self.assumed)
        world.binder = Binder(world.view, world.api, world.reservations, world.clock, world.framework())

    def create(self, name: str, group: str = "", mem: int | None = 16, **settings: Any) -> None:
        """A pod of the group, which the watch has shown."""
        pod = pod_object(name, mem, **settings)
        if group:
            pod["spec"] |= {
                "schedulingGroup": {"podGroupName": group},
                "schedulerName": "ack-co-scheduler",
            }
        self.world.api.create(pod)
        self.world.see(name)

    def ask(self, name: str, *nodes: str) -> list[str]:
        """The nodes that one filter request leaves."""
        body = {"Pod": self.world.api.pods[f"default/{name}"], "NodeNames": list(nodes or GPUS)}
        state = Bodies().read(msgspec.json.encode(body))
        answer = filter_nodes(self.world.view, state, self.world.framework())
        return msgspec.json.decode(answer)["NodeNames"] or []

    async def bind(self, name: str, node: str) -> None:
        await self.world.binder.bind(BindingArgs("default", name, f"uid-{name}", node))
        self.world.see(name)

    @property
    def used(self) -> int:
        """How many GPUs are allocated or reserved."""
        return sum(sum(self.world.used_mib(node)) for node in GPUS) // 16384

    async def pass_s(self, seconds: float) -> None:
        """Time passes, and the plugin's task runs."""
        await self.world.clock.turn(seconds)
        self.assumed.wake()


@pytest.fixture
def groups(world: World) -> Groups:
    return Groups(world)


async def test_a_group_that_fits_has_a_node_for_each_pod_and_is_bound_completely(groups: Groups) -> None:
    groups.least["default/g"] = 3
    for name in "abc":
        groups.create(name, "g")
    nodes = {name: groups.ask(name) for name in "abc"}
    assert sorted(nodes.values()) == [["n1"], ["n2"], ["n3"]]
    groups.create("other")
    assert groups.ask("other") == []
    for name, (node,) in nodes.items():
        await groups.bind(name, node)
    assert len(groups.world.api.bindings) == 3
    await groups.pass_s(IDLE_S + 1)
    assert groups.used == 3


def test_a_group_that_does_not_fit_holds_nothing_once_a_pod_was_refused(groups: Groups) -> None:
    groups.least["default/g"] = 4
    for name in "abcd":
        groups.create(name, "g")
    assert [bool(groups.ask(name)) for name in "abcd"] == [True, True, True, False]
    assert groups.used == 0


def test_of_two_groups_that_compete_the_second_holds_nothing(groups: Groups) -> None:
    groups.least |= {"default/g": 2, "default/h": 2}
    for name in ("g1", "g2", "h1", "h2"):
        groups.create(name, name[0])
    assert [bool(groups.ask(name)) for name in ("g1", "g2", "h1", "h2")] == [True, True, True, False]
    assert groups.used == 2
    assert groups.ask("h2") != []  # kube-scheduler's next cycle begins with any pod


def test_a_pod_beyond_the_minimum_may_be_refused_and_the_others_keep_their_shares(groups: Groups) -> None:
    groups.least["default/g"] = 3
    for name in "abcd":
        groups.create(name, "g")
    assert [bool(groups.ask(name)) for name in "abcd"] == [True, True, True, False]
    assert groups.used == 3


def test_pods_without_a_gpu_count_for_their_group(groups: Groups) -> None:
    groups.least["default/g"] = 4
    groups.create("launcher", "g", None)
    for name in "abcd":
        groups.create(name, "g")
    assert [bool(groups.ask(name)) for name in "abcd"] == [True, True, True, False]
    assert groups.used == 3


def test_a_pod_that_is_filtered_again_may_go_elsewhere_and_holds_one_share(groups: Groups) -> None:
    groups.create("a", "g")
    assert groups.ask("a", "n1") == ["n1"]
    assert groups.ask("a", "n2") == ["n2"]
    assert groups.used == 1


async def test_a_cycle_that_ends_without_our_refusal_holds_its_shares_for_seconds(groups: Groups) -> None:
    """kube-scheduler's own filters refuse the third pod, and we are not called for it."""
    groups.least["default/g"] = 3
    for name in "abc":
        groups.create(name, "g")
    groups.create("other")
    assert groups.ask("a", "n1") == ["n1"]
    assert groups.ask("b", "n2") == ["n2"]
    assert groups.ask("other", "n1", "n2") == []
    await groups.pass_s(IDLE_S - 1)
    assert groups.used == 2
    await groups.pass_s(1)
    assert groups.used == 0
    assert groups.retried == ["uid-other"]


async def test_shares_of_a_long_cycle_do_not_expire(groups: Groups) -> None:
    groups.least["default/g"] = 20
    for name in (f"p{number}" for number in range(20)):
        groups.create(name, "g", 2)
        assert groups.ask(name)
        await groups.pass_s(1)
    assert groups.world.reservations.due(groups.world.clock.monotonic()) == []
    await groups.pass_s(IDLE_S)
    assert sum(sum(groups.world.used_mib(node)) for node in GPUS) == 20 * 2048


async def test_a_complete_group_that_is_never_bound_loses_its_shares_like_any_pod(groups: Groups) -> None:
    groups.least["default/g"] = 1
    groups.create("a", "g")
    assert groups.ask("a")
    await groups.pass_s(14)
    assert groups.used == 1
    await groups.pass_s(2)
    ((uid, pod),) = groups.world.reservations.due(groups.world.clock.monotonic())
    await groups.world.binder.settle(uid, pod)
    assert groups.used == 0
    assert groups.ask("a") != []


async def test_while_its_group_is_unknown_all_pods_are_needed(groups: Groups) -> None:
    groups.create("a", "g")
    groups.create("b", "g")
    assert groups.ask("a")
    await groups.pass_s(IDLE_S)
    assert groups.used == 0
    assert groups.ask("a")
    assert groups.ask("b")
    await groups.pass_s(IDLE_S)
    assert groups.used == 2


def test_a_deleted_pod_holds_nothing(groups: Groups) -> None:
    groups.create("a", "g")
    assert groups.ask("a")
    groups.world.view.remove_pod(groups.world.view.waiting["uid-a"])
    assert groups.used == 0
    assert not groups.assumed._groups
    assert not groups.assumed._group_of


def test_a_new_leader_begins_without_the_shares_of_groups(groups: Groups) -> None:
    groups.create("a", "g")
    assert groups.ask("a")
    groups.assumed.give_up_all()
    assert groups.used == 0


def test_a_pod_that_the_watch_has_not_shown_keeps_its_share_until_it_expires(groups: Groups) -> None:
    pod = pod_object("early", 16)
    pod["spec"]["schedulingGroup"] = {"podGroupName": "g"}
    groups.world.api.create(pod)
    assert groups.ask("early")
    assert groups.used == 1
    groups.assumed.reservation_expired("uid-early")
    assert not groups.assumed._groups
    assert not groups.assumed._group_of


def test_our_own_gangs_and_preemption_leave_pods_of_a_group_alone() -> None:
    labels = {
        "pod-group.scheduling.sigs.k8s.io/name": "g",
        "pod-group.scheduling.sigs.k8s.io/min-available": "2",
    }
    pod = pod_object("a", 4, labels=labels)
    assert gang_of(decode_pod(pod)) is not None
    pod["spec"]["schedulingGroup"] = {"podGroupName": "g"}
    assert gang_of(decode_pod(pod)) is None
    record = record_of(decode_pod(pod))
    assert record is not None
    assert (record.gang, record.pod_group, record.preempts) == (None, "default/g", False)


@pytest.mark.parametrize(("policy", "least"), [({"gang": {"minCount": 3}}, 3), ({"basic": {}}, 1)])
def test_the_number_of_pods_needed_is_read_from_a_pod_group(policy: dict[str, Any], least: int) -> None:
    group = {"metadata": {"namespace": "team", "name": "g"}, "spec": {"schedulingPolicy": policy}}
    known = LeastPods()
    key, read = decode_pod_group(msgspec.json.encode(group))
    known.upsert(read)
    assert known.by_key == {"team/g": least}
    known.remove(key, read)
    assert not known.by_key
