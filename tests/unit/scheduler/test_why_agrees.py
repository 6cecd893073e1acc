"""What the record of decisions says agrees with what happened, for each of 1,000 random pods on random nodes with random policies.

What should happen is worked out once more, by the naive ledger and a few lines for policies; what happens comes of the verbs, over
HTTP's own bytes.
"""

import asyncio
import random
from collections.abc import Collection
from typing import Any

import msgspec
import pytest

from gpushare.ledger.records import Held
from gpushare.model.device import Device, NodeDevices, NodeMode, Placement
from gpushare.model.objects import decode_pod
from gpushare.model.quantity import MemoryUnit
from gpushare.model.request import Request, request_of
from gpushare.scheduler.app import ExtenderApp
from gpushare.scheduler.decisions import Decisions
from gpushare.scheduler.metrics import Metrics
from gpushare.scheduler.telling import told
from tests.unit.ledger.naive_ledger import Holding, NaiveLedger
from tests.unit.scheduler.policy_world import PolicyWorld
from tests.unit.scheduler.test_preemption import look

PODS = 1000
PODS_OF_ONE_WORLD = 8
SIZES_MIB = (2048, 4096, 8192, 16160)
MODES = (NodeMode.SHARE, NodeMode.SHARE, NodeMode.CORE_MEM, NodeMode.CORE_MEM, NodeMode.MPS, NodeMode.DEFAULT)
POOLS = ("a", "b", "n")
PRIORITIES = (0, 0, 0, 5, 9)


def some_node(choose: random.Random, name: str) -> NodeDevices:
    devices = tuple(
        Device(
            index,
            f"GPU-{name}-{index}",
            choose.choice(SIZES_MIB),
            healthy=choose.random() > 0.1,
            reason="XID 79",
        )
        for index in range(choose.randint(1, 4))
    )
    return NodeDevices(
        name,
        choose.choice(MODES),
        MemoryUnit.GIB,
        devices,
        placement=choose.choice((Placement.BINPACK, Placement.SPREAD)),
        max_pods=choose.choice((None, None, 2)),
        max_node_pods=choose.choice((None, None, None, 3)),
    )


class Tried:
    """One scheduler, what should happen there beside it, and the pods that come one after the other."""

    def __init__(self, seed: int) -> None:
        self.choose = choose = random.Random(seed)
        self.world = PolicyWorld()
        self.policy = choose.choice((Placement.BINPACK, Placement.SPREAD))
        self.world.ledger._left.policy = self.policy  # what ``--node-policy`` sets
        self.naive = NaiveLedger()
        self.decisions = Decisions(self.world.view, self.world.clock)
        self.world.preemptor.told = self.decisions.preempted
        self.pool_of: dict[str, str] = {}
        for number in range(choose.randint(1, 6)):
            node = some_node(choose, f"{choose.choice(POOLS)}{number}")
            self.pool_of[node.name] = node.name[0]
            self.world.add_node(node)
            self.world.policies.census.set_node(node.name, {"pool": node.name[0]})
            self.naive.nodes[node.name] = node
        self.units: list[tuple[str, int]] = []
        if choose.random() < 0.5:
            self.units = [(pool, choose.randint(1, 3)) for pool in choose.sample(POOLS, 2)]
            self.world.rules(
                *(
                    {"resource": "ecs", "nodeSelector": {"pool": pool}, "max": most}
                    for pool, most in self.units
                )
            )
        self.app = ExtenderApp(
            self.world.view,
            self.world.binder,
            lambda uid, nodes: None,
            lambda uid: None,
            self.world.api,
            Metrics(),
            lambda: "",
            self.world.policies,
            self.decisions,
        )

    def says(self, name: str) -> Any:
        return msgspec.json.decode(told(self.decisions, f"/gpushare/decisions/default/{name}/nodes"))

    async def post(self, verb: str, body: Any) -> Any:
        answered = self.app.quick(f"/gpushare/{verb}".encode())(msgspec.json.encode(body))  # type: ignore[misc]
        return msgspec.json.decode(answered if isinstance(answered, bytes) else await answered)

    def expected(self, request: Request, offered: list[str]) -> dict[str, str]:
        """Node by node the reason, empty where it takes the pod; beginnings alone where a policy speaks."""
        refusals = {name: self.naive.reason(request, name) for name in offered}
        said = {name: "" if found is None else found[0] for name, found in refusals.items()}
        if not self.units:
            return said
        open_to_pod = [name for name in offered if not said[name]]
        its = self.in_first_unit(open_to_pod)
        if its:
            return {name: said[name] or ("" if name in its else "not in the unit") for name in offered}
        return {name: said[name] or "ResourcePolicy" for name in offered}

    def in_first_unit(self, nodes: list[str]) -> list[str]:
        """Those of ``nodes`` in the first unit that has any and is not full; all of them where there is no policy."""
        if not self.units:
            return nodes
        taken = [self.pool_of[one.node] for one in self.naive.holdings.values()]
        for pool, most in self.units:
            its = [name for name in nodes if self.pool_of[name] == pool]
            if its and taken.count(pool) < most:
                return its
        return []

    async def one(self, number: int) -> str:
        choose, name = self.choose, f"p{number}"
        core = choose.choice((None,) * 9 + (20,) * 4 + (60, 101))
        labels = {} if choose.random() < 0.8 else {"aliyun.com/gpu-count": "2"}
        priority = choose.choice(PRIORITIES)
        self.world.make(
            name, choose.choice((1, 2, 2, 4, 4, 8, 20)), core=core, labels=labels, priority=priority
        )
        pod = self.world.api.pods[f"default/{name}"]
        try:
            request = request_of(decode_pod(pod))
        except msgspec.MsgspecError:
            raise
        except Exception:
            return await self._wrong(name, pod)
        assert request is not None
        offered = choose.sample(sorted(self.pool_of), choose.randint(1, len(self.pool_of)))
        body = {"Pod": pod, "Nodes": None, "NodeNames": offered}
        expected = self.expected(request, offered)
        fits = (await self.post("filter", body))["NodeNames"] or []
        assert fits == [node for node in offered if not expected[node]]
        self._same(name, expected)
        assert self.says(name)["preemption"] is None
        if not fits:
            self._waits(name, expected)
            found = await self._kube_scheduler_would_end(name, pod, request, priority)
            return await self._we_end(name, pod, request, priority) or found
        await self.post("prioritize", {**body, "NodeNames": fits})
        node = choose.choice(fits)
        devices = self.naive.chosen(request, node)
        free = {device.index: self.naive.free_mib(node, device) for device in self.naive.nodes[node].devices}
        answer = await self.post(
            "bind", {"PodNamespace": "default", "PodName": name, "PodUID": f"uid-{name}", "Node": node}
        )
        assert answer["Error"] == ""
        self.world.look(name)
        held = self.world.ledger.held(f"uid-{name}")
        assert held is not None
        self.naive.holdings[f"uid-{name}"] = Holding(f"default/{name}", node, held.allocation, confirmed=True)
        self._bound(name, node, devices, free, held, expected)
        return "bound"

    def _without(self, uids: Collection[str], request: Request, node: str) -> bool:
        """Whether the naive ledger has room there once these pods are gone."""
        kept = self.naive.holdings
        self.naive.holdings = {uid: one for uid, one in kept.items() if uid not in uids}
        try:
            return self.naive.reason(request, node) is None
        finally:
            self.naive.holdings = kept

    def _lesser(self, priority: int, node: str) -> list[str]:
        bound = self.world.view.bound
        return sorted(
            uid
            for uid, one in bound.items()
            if one.node == node and one.priority < priority and uid in self.naive.holdings
        )

    async def _kube_scheduler_would_end(self, name: str, pod: Any, request: Request, priority: int) -> str:
        """kube-scheduler asks with ends in mind: what is recorded is what it was answered, and true."""
        lesser = {node: self._lesser(priority, node) for node in sorted(self.pool_of)}
        mind = {
            node: self.choose.sample(its, self.choose.randint(0, len(its))) for node, its in lesser.items()
        }
        offered = {
            node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": self.choose.choice((0, 0, 1))}
            for node, uids in mind.items()
        }
        answer = (await self.post("preempt", {"Pod": pod, "NodeNameToMetaVictims": offered}))[
            "NodeNameToMetaVictims"
        ]
        said = self.says(name)
        told = said["preemption"]
        assert (told["by"], told["nodes"]) == ("kube-scheduler", len(offered))
        assert {room["node"]: [one["uid"] for one in room["victims"]] for room in told["room"]} == {
            node: [one["UID"] for one in victims["Pods"]] for node, victims in answer.items()
        }
        assert len(told["room"]) + sum(one["nodes"] for one in told["refused"]) == len(offered)
        for room in told["room"]:
            uids = [one["uid"] for one in room["victims"]]
            assert [one["uid"] for one in room["victims"] if not one["besides"]] == mind[room["node"]]
            assert {one["pod"] for one in room["victims"]} == {
                f"default/{uid.removeprefix('uid-')}" for uid in uids
            }
            assert self._without(uids, request, room["node"])
            for uid in uids:
                ends_for = self.says(uid.removeprefix("uid-"))["endsFor"]
                assert f"default/{name}" in [one["pod"] for one in ends_for]
        if not self.units:
            # Nobody is left out on whose node ends would help.
            could = {node for node, uids in lesser.items() if self._without(uids, request, node)}
            assert could == set(answer)
        return "would end" if answer else "waits"

    async def _we_end(self, name: str, pod: Any, request: Request, priority: int) -> str:
        """The preemptor looks at what was refused: what is recorded is whom it asked to end, on the node that it keeps."""
        uid, nodes = f"uid-{name}", sorted(self.pool_of)
        could = self.in_first_unit(
            [node for node in nodes if self._without(self._lesser(priority, node), request, node)]
        )
        self.world.preemptor.refused(uid, nodes)
        before = len(self.world.api.evicted)
        await look(self.world)
        evicted = [f"uid-{one}" for one in self.world.api.evicted[before:]]
        told = self.says(name)["preemption"]
        assert (told["by"], told["nodes"]) == ("gpushare", len(nodes))
        if not could:
            assert (told["room"], evicted) == ([], [])
            assert told["said"] == "no end of pods that may go leaves room for it on any node"
            return ""
        (room,) = told["room"]
        assert [one["uid"] for one in room["victims"]] == evicted
        assert self.world.ledger.kept_on(uid) == room["node"]
        assert room["node"] in could
        assert self._without(evicted, request, room["node"])
        assert sorted(one["uid"] for one in self.says(name)["awaited"]) == sorted(evicted)
        assert self.says(name)["waiting"]["remedy"].startswith(
            f"room is being made for it on node {room['node']}"
        )
        for gone in evicted:
            assert {"pod": f"default/{name}", "by": "gpushare", "node": room["node"]} in self.says(
                gone.removeprefix("uid-")
            )["endsFor"]
            record = self.world.view.bound[gone]
            self.world.gone(gone.removeprefix("uid-"))
            self.world.view.remove_pod(record)
            self.decisions.gone(gone)
            del self.naive.holdings[gone]
        assert self.says(name)["awaited"] == []
        # What it would take now is given back: the pods that follow meet the cluster that the naive ledger knows.
        self.world.view.remove_pod(self.world.view.waiting[uid])
        self.world.gone(name)
        self.decisions.gone(uid)
        return "ended"

    async def _wrong(self, name: str, pod: Any) -> str:
        offered = sorted(self.pool_of)
        await self.post("filter", {"Pod": pod, "Nodes": None, "NodeNames": offered})
        said = self.says(name)
        assert said["waiting"]["category"] == "request"
        assert {one["reason"] for one in said["nodes"]} == {said["waiting"]["reason"]}
        return "wrong"

    def _same(self, name: str, expected: dict[str, str]) -> None:
        said = self.says(name)
        nodes = {one["node"]: one["reason"] for one in said["nodes"]}
        assert list(nodes) == list(expected)
        for node, reason in expected.items():
            if reason in ("ResourcePolicy", "not in the unit"):
                assert nodes[node].startswith(reason)
            elif nodes[node] != reason:
                # Where no unit takes the pod, the policy may have the last word on refusing nodes too.
                assert nodes[node].startswith("ResourcePolicy"), (node, nodes[node], reason)
                assert self.units
                assert not any(one == "" for one in nodes.values())
        answer = said["answer"]
        assert answer["nodes"] == len(expected)
        assert answer["fits"] == sum(not reason for reason in expected.values())
        assert sum(group["nodes"] for group in answer["groups"]) + answer["fits"] + answer["leftOut"] == len(
            expected
        )

    def _waits(self, name: str, expected: dict[str, str]) -> None:
        said = self.says(name)
        assert said["state"] == "waiting"
        assert said["holds"] is None
        assert said["choice"] is None
        assert said["waiting"]["remedy"]
        assert said["waiting"] in [msgspec.to_builtins(one) for one in self.decisions.waiting()]
        if len(expected) == 1 and not self.units:
            assert said["waiting"]["reason"] == next(iter(expected.values()))

    def _bound(
        self,
        name: str,
        node: str,
        devices: list[Device],
        free: dict[int, int],
        held: Held,
        expected: dict[str, str],
    ) -> None:
        said = self.says(name)
        wanted = [device.index for device in devices]
        assert (said["state"], said["waiting"], said["bind"]["error"]) == ("bound", None, "")
        assert said["holds"]["node"] == said["choice"]["node"] == said["bind"]["node"] == node == held.node
        assert sorted(gpu["index"] for gpu in said["holds"]["gpus"]) == sorted(wanted)
        assert sorted(gpu["index"] for gpu in said["choice"]["gpus"] if gpu["chosen"]) == sorted(wanted)
        assert said["choice"]["placement"] == self.naive.nodes[node].placement.value
        assert all(gpu["freeMiB"] == free[gpu["index"]] for gpu in said["choice"]["gpus"])
        assert expected[node] == ""


@pytest.mark.timeout(240)
def test_what_is_said_of_a_thousand_random_pods_is_what_happened() -> None:
    async def all_of_one(seed: int) -> list[str]:
        tried = Tried(seed)
        return [await tried.one(number) for number in range(PODS_OF_ONE_WORLD)]

    outcomes = [one for seed in range(PODS // PODS_OF_ONE_WORLD) for one in asyncio.run(all_of_one(seed))]

    assert len(outcomes) == PODS
    # Each kind of outcome is there often enough to mean something.
    assert outcomes.count("bound") > 150
    assert outcomes.count("waits") > 50
    assert outcomes.count("would end") + outcomes.count("ended") > 50
    assert outcomes.count("ended") > 30
