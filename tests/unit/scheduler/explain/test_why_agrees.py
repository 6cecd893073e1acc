"""The record of decisions agrees with what happened, for random pods on random nodes with random policies.

``make soak`` tries 1,000 pods a round, ``make test`` 400.

The expected outcome is computed again, by the naive ledger and a few lines for policies (``why_world``, ``why_truth``); the real
outcome comes from the verbs, over HTTP's own bytes.
"""

import asyncio
from collections.abc import Collection
from typing import Any

import msgspec
import pytest

from gpushare.api.node.device import Device, Placement
from gpushare.api.request.request import Request
from gpushare.ledger.results import Held
from tests.randomized import SOAK, rounds, seeds
from tests.unit.scheduler.explain import why_truth
from tests.unit.scheduler.explain.why_world import Answer, Scene
from tests.unit.scheduler.preemption.test_preemption import look

PODS_OF_ONE_WORLD = 8
WORLDS = rounds(36, soak=125)


class Tried(Scene):
    """A scene in which every answer is compared with the expected one."""

    async def one(self, number: int) -> str:
        choose, name = self.choose, f"p{number}"
        pod, request = self.make(name)
        if request is None:
            return await self._wrong(name, pod)
        priority = pod["spec"]["priority"]
        answer = await self.filter(pod, request)
        expected, fits = self.expected(request, answer.offered), answer.fits
        assert fits == [node for node in answer.offered if not expected[node]]
        self._same(name, answer, expected)
        assert self.record_of(name)["preemption"] is None
        if not fits:
            self._waits(name, answer)
            found = await self._kube_scheduler_would_end(name, pod, request, priority)
            return await self._we_end(name, pod, request, priority) or found
        await self._scores(name, answer)
        node = choose.choice(fits)
        could = self.could_take(request, node)
        wanted = self.naive.chosen(request, node)
        held = await self.bind(name, node, request)
        self._bound(name, request, node, wanted, could, held)
        return "bound"

    def could_take(self, request: Request, node: str) -> dict[int, tuple[int, int, int, int]]:
        """By GPU what is free before, left over after, how many pods are there, by how much fragments grow."""
        naive, found = self.naive, {}
        by_fragments = naive.nodes[node].placement is Placement.FRAGMENTATION and not request.by_gpu
        for device in naive.preferred(request, node):
            left = 0 if request.by_gpu else naive.left_mib(request, node, device)
            grown = naive.grown_on(request, node, device) if by_fragments else 0
            found[device.index] = (
                naive.free_mib(node, device),
                left,
                len(naive.pods(node, device.uuid)),
                grown,
            )
        return found

    async def _scores(self, name: str, answer: Answer) -> None:
        """All scores of ``prioritize`` are correct, and the record contains the best of them."""
        body = {"Pod": answer.pod, "Nodes": None, "NodeNames": answer.fits}
        above = {one["Host"]: one["Score"] for one in await self.post("prioritize", body)}
        scores = self.naive.scores(answer.request, answer.fits, self.policy)
        shown = [above.get(node, 0) for node in answer.fits]
        assert shown == [score - min(scores) for score in scores]
        best = sorted(((node, score) for node, score in above.items()), key=lambda one: -one[1])
        record = self.record_of(name)["scores"]
        assert record == {
            "nodes": len(answer.fits),
            "equals": shown.count(max(shown)),
            "best": [list(one) for one in best[:5]],
        }

    def _without(self, uids: Collection[str], request: Request, node: str) -> bool:
        """Whether the naive ledger has room there once these pods are gone."""
        holdings = self.naive.holdings
        self.naive.holdings = {uid: one for uid, one in holdings.items() if uid not in uids}
        try:
            return self.naive.reason(request, node) is None
        finally:
            self.naive.holdings = holdings

    def _lesser(self, priority: int, node: str) -> list[str]:
        bound = self.world.view.bound
        return sorted(
            uid
            for uid, one in bound.items()
            if one.node == node and one.priority < priority and uid in self.naive.holdings
        )

    async def _kube_scheduler_would_end(self, name: str, pod: Any, request: Request, priority: int) -> str:
        """kube-scheduler's request with victims in mind: the record matches the answer, and is true."""
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
        record = self.record_of(name)
        preemption = record["preemption"]
        assert (preemption["by"], preemption["nodes"]) == ("kube-scheduler", len(offered))
        assert {room["node"]: [one["uid"] for one in room["victims"]] for room in preemption["room"]} == {
            node: [one["UID"] for one in victims["Pods"]] for node, victims in answer.items()
        }
        assert len(preemption["room"]) + sum(one["nodes"] for one in preemption["refused"]) == len(offered)
        for room in preemption["room"]:
            uids = [one["uid"] for one in room["victims"]]
            assert [one["uid"] for one in room["victims"] if not one["besides"]] == mind[room["node"]]
            assert {one["pod"] for one in room["victims"]} == {
                f"default/{uid.removeprefix('uid-')}" for uid in uids
            }
            assert self._without(uids, request, room["node"])
            for uid in uids:
                ends_for = self.record_of(uid.removeprefix("uid-"))["endsFor"]
                assert f"default/{name}" in [one["pod"] for one in ends_for]
        if not self.units:
            # No node is left out on which evictions would help.
            could = {node for node, uids in lesser.items() if self._without(uids, request, node)}
            assert could == set(answer)
        return "would end" if answer else "waits"

    async def _we_end(self, name: str, pod: Any, request: Request, priority: int) -> str:
        """The preemptor processes the refusal: the record contains its victims on the reserved node."""
        uid, nodes = f"uid-{name}", sorted(self.pool_of)
        could = self.in_first_unit(
            [node for node in nodes if self._without(self._lesser(priority, node), request, node)]
        )
        self.world.preemptor.post_filter(uid, nodes)
        before = len(self.world.api.evicted)
        await look(self.world)
        evicted = [f"uid-{one}" for one in self.world.api.evicted[before:]]
        preemption = self.record_of(name)["preemption"]
        assert (preemption["by"], preemption["nodes"]) == ("gpushare", len(nodes))
        if not could:
            assert (preemption["room"], evicted) == ([], [])
            assert (
                preemption["said"]
                == "no node would have enough free even if every pod that may be preempted were evicted"
            )
            return ""
        (room,) = preemption["room"]
        assert [one["uid"] for one in room["victims"]] == evicted
        assert self.world.ledger.nominations.node_of(uid) == room["node"]
        assert room["node"] in could
        assert self._without(evicted, request, room["node"])
        assert sorted(one["uid"] for one in self.record_of(name)["awaited"]) == sorted(evicted)
        assert self.record_of(name)["waiting"]["suggestion"].startswith(
            f"capacity is being freed on node {room['node']}"
        )
        for gone in evicted:
            assert {"pod": f"default/{name}", "by": "gpushare", "node": room["node"]} in self.record_of(
                gone.removeprefix("uid-")
            )["endsFor"]
            self.end(gone)
        assert self.record_of(name)["awaited"] == []
        # What it would take now is released: the following pods see the cluster that the naive ledger knows.
        self.leave(name)
        return "ended"

    async def _wrong(self, name: str, pod: Any) -> str:
        offered = sorted(self.pool_of)
        await self.post("filter", {"Pod": pod, "Nodes": None, "NodeNames": offered})
        record = self.record_of(name)
        assert record["waiting"]["category"] == "request"
        assert record["asks"] == record["waiting"]["asks"] == ""
        assert {one["reason"] for one in record["nodes"]} == {record["waiting"]["reason"]}
        assert record["waiting"]["suggestion"] == "another request: change the pod's template"
        (group,) = record["answer"]["groups"]
        assert (group["nodes"], group["final"]) == (len(offered), True)
        return "wrong"

    def _same(self, name: str, answer: Answer, expected: dict[str, str]) -> None:
        record = self.record_of(name)
        nodes = {one["node"]: one["reason"] for one in record["nodes"]}
        assert list(nodes) == list(expected) == answer.offered
        for node, reason in expected.items():
            assert nodes[node] == answer.texts.get(node, "" if node in answer.fits else record["leftOut"])
            if reason in ("ResourcePolicy", "an earlier unit"):
                assert nodes[node].startswith(reason)
            elif nodes[node] != reason:
                # If no unit takes the pod, the policy may have the last word on refusing nodes too.
                assert nodes[node].startswith("ResourcePolicy"), (node, nodes[node], reason)
                assert self.units
                assert not any(one == "" for one in nodes.values())
        self._counted(record, answer, expected)

    def _counted(self, record: Any, answer: Answer, expected: dict[str, str]) -> None:
        """Each node is counted once, where it belongs, and with its own text."""
        shown, naive, request = record["answer"], self.naive, answer.request
        left_out = [node for node, reason in expected.items() if reason == "an earlier unit"]
        assert (shown["nodes"], shown["fits"], shown["leftOut"], shown["sampled"]) == (
            len(answer.offered),
            len(answer.fits),
            len(left_out),
            len(answer.texts),
        )
        assert shown["fitting"] == answer.fits[:3]
        assert record["notOffered"] == len(self.pool_of) - len(answer.offered)
        assert record["asks"] == why_truth.asks(answer.pod)
        kinds = {
            node: why_truth.kind_of_text(naive, request, node, text) for node, text in answer.texts.items()
        }
        texts = {
            node: (text, kinds[node] == "policy" or not self.takes_when_empty(request, node))
            for node, text in answer.texts.items()
        }
        why_truth.groups_are_true(shown["groups"], texts, kinds)

    def takes_when_empty(self, request: Request, node: str) -> bool:
        """Whether ending pods and other holders of its GPUs could make room there."""
        holdings, full = self.naive.holdings, self.naive.nodes[node]
        devices = tuple(msgspec.structs.replace(one, foreign_mib=0) for one in full.devices)
        self.naive.holdings = {}
        self.naive.nodes[node] = msgspec.structs.replace(full, devices=devices)
        try:
            return self.naive.reason(request, node) is None
        finally:
            self.naive.holdings, self.naive.nodes[node] = holdings, full

    def _waits(self, name: str, answer: Answer) -> None:
        record = self.record_of(name)
        waiting = record["waiting"]
        assert record["state"] == "waiting"
        assert record["holds"] is record["choice"] is record["scores"] is record["bind"] is None
        assert waiting["asks"] == why_truth.asks(answer.pod)
        assert waiting in [msgspec.to_builtins(one) for one in self.decisions.waiting()]
        assert waiting["reason"] == why_truth.line(record["answer"])
        assert waiting["category"] == why_truth.nearest(
            why_truth.kind_of_text(self.naive, answer.request, node, text)
            for node, text in answer.texts.items()
        )

    def _bound(
        self,
        name: str,
        request: Request,
        node: str,
        devices: list[Device],
        could: dict[int, tuple[int, int, int, int]],
        held: Held,
    ) -> None:
        record = self.record_of(name)
        wanted = {device.index for device in devices}
        assert (record["state"], record["waiting"], record["bind"]["error"]) == ("bound", None, "")
        assert (
            record["holds"]["node"] == record["choice"]["node"] == record["bind"]["node"] == node == held.node
        )
        assert {
            (one["index"], one["units"], one["MiB"], one["corePercent"]) for one in record["holds"]["gpus"]
        } == {
            (
                device.index,
                request.allocated_units(
                    request.memory_units, units := self.naive.nodes[node].units_of(device)
                ),
                device.total_mib * request.allocated_units(request.memory_units, units) // units,
                request.core_percent,
            )
            for device in devices
        }
        choice = record["choice"]
        assert {one["index"] for one in choice["gpus"] if one["chosen"]} == wanted
        assert {
            one["index"]: (one["freeMiB"], one["leftMiB"], one["pods"], one["grown"])
            for one in choice["gpus"]
        } == could
        placement = self.naive.nodes[node].placement
        assert choice["placement"] == placement.value
        assert choice["why"] == why_truth.preference(placement, request)


@pytest.mark.randomized
@pytest.mark.no_cover  # would double the duration; other tests cover the same lines
def test_records_of_random_pods_match_what_happened() -> None:
    async def all_of_one(seed: int) -> list[str]:
        tried = Tried(seed)
        return [await tried.one(number) for number in range(PODS_OF_ONE_WORLD)]

    outcomes = [one for seed in seeds(WORLDS) for one in asyncio.run(all_of_one(seed))]

    assert len(outcomes) == WORLDS * PODS_OF_ONE_WORLD
    if SOAK:
        return  # other pods each time: now and then one kind of outcome is rare
    # Each kind of outcome occurs often enough to mean something.
    assert outcomes.count("bound") > WORLDS
    assert outcomes.count("waits") > WORLDS // 3
    assert outcomes.count("would end") + outcomes.count("ended") > WORLDS // 3
    assert outcomes.count("ended") > WORLDS // 4
