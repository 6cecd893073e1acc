"""What is advised to drawn pods on drawn clusters is true: it is done, and who takes the pod then is worked out once more."""

import asyncio
import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from gpushare.api import names
from gpushare.api.node.device import NodeDevices
from gpushare.api.request.request import Request
from gpushare.ledger.preemption.victims import Rank
from tests.randomized import SOAK, rounds, seeds
from tests.unit.scheduler import why_truth
from tests.unit.scheduler.gang_suggestion_truth import BY_ITSELF, Drawn, GangJudge, renamed
from tests.unit.scheduler.health_suggestion_truth import in_service
from tests.unit.scheduler.quota_suggestion_truth import of_quota
from tests.unit.scheduler.suggestion_truth import Judge
from tests.unit.scheduler.why_world import OFFERS, SLIP, Scene

WORLDS = rounds(200, soak=800)
#: Seeds of worlds with advice that hardly comes up in others.
RARE_WORLDS = (345,)
PODS_OF_ONE_WORLD = 10
#: More than those of which it is looked why they refuse where a list is too long for all: those with the most free.
MANY_NODES = 140
LARGE_WORLDS = rounds(10, soak=40)
#: Longer than what the ledger said of a request is remembered.
LONG_S = 11.0


class Tried(Scene):
    """A scene in which what every pod is told to wait for is done."""

    def __init__(self, seed: int, *, most_nodes: int = 6) -> None:
        super().__init__(seed, short=True, most_nodes=most_nodes)
        self.said: Counter[str] = Counter()
        self.gangs: list[Drawn] = []
        self.others = random.Random(seed)
        if not self.units and self.others.random() < 0.3:
            leaf = self.others.choice((2, 6, 12, 24))
            root = self.others.choice((6, 12, 30))
            self.limit([("root", root), ("leaf", min(leaf, root))])

    def drawn(self, name: str) -> dict[str, Any]:
        pod = super().drawn(name)
        labels, annotations = pod["metadata"]["labels"], pod["metadata"]["annotations"]
        asks = [one["resources"]["limits"] for one in pod["spec"]["containers"]]
        of_memory = all(list(one) == [names.GPU_MEM] for one in asks)
        plain = of_memory and not annotations and names.LABEL_POD_APART not in labels
        # What quotas count of whole GPUs differs from node to node.
        if self.quotas and plain and self.others.random() < 0.5:
            labels[names.LABEL_POD_PLACEMENT] = names.POD_PLACEMENT_WHOLE_DEVICE
        return pod

    async def fill(self) -> None:
        """Pods are bound on every node, until it is nearly full."""
        for node in sorted(self.pool_of):
            for number in range(6):
                name = f"on-{node}-{number}"
                pod, request = self.make(name)
                asked = {"Pod": pod, "Nodes": None, "NodeNames": [node]}
                if request is not None and (await self.post("filter", asked))["NodeNames"]:
                    await self.bind(name, node, request)
                elif f"uid-{name}" in self.world.view.waiting:
                    self.leave(name)

    async def one(self, number: int) -> str:
        self.world.clock.now_s += LONG_S
        name = f"p{number}"
        if not self.units and self.others.random() < 0.15:
            await self._gang(number)
        pod, request = self.make(name)
        if request is None:
            return "wrong"
        if number and self.choose.random() < 0.2:
            self._unasked(name, request)
        answer = await self.filter(pod, request)
        if answer.fits:
            self._has_room(name, answer.fits)
            await self.bind(name, self.choose.choice(answer.fits), request)
            return "bound"
        category = self._judged(name, request, answer.offered)
        assert category == why_truth.nearest(
            why_truth.kind_of_text(self.naive, request, node, text) for node, text in answer.texts.items()
        )
        # Later it may be another thing that would help.
        self._turn()
        self._judged(name, request, answer.offered)
        self._keep(name, request)
        return "waits"

    # --- gangs --------------------------------------------------------------------------------------

    def end(self, uid: str) -> None:
        super().end(uid)
        for gang in self.gangs:
            gang.requests.pop(uid.removeprefix("uid-"), None)

    async def _gang(self, number: int) -> None:
        """Some pods come that run together, or follow those of a gang that runs; each is judged, and what finds room is bound."""
        others, some = self.others, [gang for gang in self.gangs if gang.requests]
        if some and others.random() < 0.3:
            gang, count = others.choice(some), 1
        else:
            gang, count = Drawn(f"g{number}", others.randint(2, 4)), others.randint(1, 4)
            self.gangs.append(gang)
        template = self.drawn("template")
        names_of = [f"{gang.name}x{len(gang.requests) + one}x{number}" for one in range(count)]
        for name in names_of:
            pod = renamed(template if others.random() < 0.7 else self.drawn(name), name)
            pod["metadata"]["labels"] |= gang.labels
            gang.requests[name] = self.seen(pod)
        for name in others.sample(names_of, others.randint(1, count)):
            await self._member(gang, name)
        await self._together(gang, names_of)
        for name in names_of:
            if f"uid-{name}" not in self.naive.holdings:
                self.leave(name)
                del gang.requests[name]

    async def _member(self, gang: Drawn, name: str) -> None:
        request = gang.requests[name]
        if request is None:
            return
        answer = await self.filter(self.world.api.pods[f"default/{name}"], request)
        if gang.least > sum(f"uid-{one}" in self.naive.holdings for one in gang.requests):
            short = {node for node, text in answer.texts.items() if text.startswith(OFFERS)}
            gang.offered[name] = [node for node in answer.offered if node not in short]
        if answer.fits:
            return
        self._judged_together(gang, name, answer.offered)
        self._turn()
        self._judged_together(gang, name, answer.offered)

    def _judged_together(self, gang: Drawn, name: str, asked: list[str]) -> None:
        ledger, nodes = self.world.ledger, sorted(self.pool_of)
        before = [ledger.totals(), *map(ledger.usage, nodes)]
        suggestion = self.says(name)["waiting"]["suggestion"]
        # It was tried with the ledger itself.
        assert [ledger.totals(), *map(ledger.usage, nodes)] == before
        if any(
            self.world.ledger.held(f"uid-{one}")
            for one in gang.requests
            if f"uid-{one}" not in self.naive.holdings
        ):
            # Another of them was asked about meanwhile, and there is room for as many as have to run.
            assert suggestion == BY_ITSELF or suggestion.startswith("there is room by now, on node ")
            return
        if self.says(name)["waiting"]["category"] == "unit":
            # Whoever else comes, or ends: no node takes it as it is.
            request = gang.requests[name]
            assert request is not None
            self.said[f"gang: {Judge(self, name, request, asked).holds('unit', suggestion)}"] += 1
            return
        judge = GangJudge(self, gang, name, asked)
        if judge.need > 0:
            self.said.update(f"gang: {form}" for form in judge.holds(suggestion))

    async def _together(self, gang: Drawn, names_of: list[str]) -> None:
        """kube-scheduler's turns, and bindings, of those that have room together."""
        chosen: dict[str, str] = {}
        for name in names_of:
            if gang.requests[name] is None:
                continue
            pod = self.world.api.pods[f"default/{name}"]
            nodes = sorted(self.pool_of)
            answer = await self.post("filter", {"Pod": pod, "Nodes": None, "NodeNames": nodes})
            if answer["NodeNames"]:
                chosen[name] = answer["NodeNames"][0]
            elif chosen:
                assert self.says(name)["waiting"]["suggestion"] == BY_ITSELF or self.quotas
        running = sum(f"uid-{one}" in self.naive.holdings for one in gang.requests)
        if len(chosen) + running < gang.least:
            return
        bound = [(name, node, gang.requests[name]) for name, node in chosen.items()]
        await asyncio.gather(*(self.bind(name, node, request) for name, node, request in bound if request))

    def _keep(self, name: str, request: Request) -> None:
        """Sometimes room is kept for a pod, or for what replaces one that moves, once some that are there have ended."""
        ledger = self.world.ledger
        if self.others.random() < 0.5 or self.passed(name):
            return
        plan = ledger.plan(request, sorted(self.pool_of), lambda uid: Rank(0))
        if plan is None:
            return
        uid = f"uid-{name}" if self.others.random() < 0.7 else "moved"
        ledger.keep(uid, request, plan)
        self.naive.keep(uid, request, plan.node, plan.rows)
        for gone in plan.victims:
            if self.others.random() < 0.5:
                self.end(gone)
        if uid != "moved":
            waiting = self.says(name)["waiting"]
            assert waiting["suggestion"].startswith(f"room is being made for it on node {plan.node}: ")

    def _judged(self, name: str, request: Request, asked: list[str], *, known: bool = True) -> str:
        waiting: Any = self.says(name)["waiting"]
        judge = Judge(self, name, request, asked, known=known)
        if passed := self.passed(name):
            self.said[of_quota(judge, passed, waiting["suggestion"])] += 1
            return str(waiting["category"])
        self.said[judge.holds(waiting["category"], waiting["suggestion"])] += 1
        self.said["kept"] += judge.said_kept
        return str(waiting["category"])

    def _unasked(self, name: str, request: Request) -> None:
        """What the ledger says of all nodes stands for a pod about which nobody has asked."""
        refusals = {node: self.naive.reason(request, node) for node in self.pool_of}
        waiting = self.says(name)["waiting"]
        if self.passed(name):
            assert waiting["category"] == "quota"
            self._judged(name, request, list(self.pool_of), known=False)
            return
        if None in refusals.values():
            assert waiting["category"] == "unasked"
            return
        assert waiting["reason"].startswith("kube-scheduler has not asked about any node; ")
        kinds = [why_truth.kind_of(self.naive, request, node) for node in self.pool_of]
        assert waiting["category"] == why_truth.nearest(kinds)
        self._judged(name, request, list(self.pool_of), known=False)

    def _has_room(self, name: str, fits: list[str]) -> None:
        waiting = self.says(name)["waiting"]
        some = ", ".join(fits[:3]) + (", …" if len(fits) > 3 else "")
        count = "1 node" if len(fits) == 1 else f"{len(fits)} nodes"
        assert (waiting["category"], waiting["reason"]) == (
            "scheduler",
            f"there is room on {count} ({some}): its binding is awaited",
        )
        assert waiting["suggestion"].startswith("`kubectl describe pod` tells what kube-scheduler found: ")

    def _turn(self) -> None:
        """Somebody ends, a kubelet offers all, somebody labels a node wrongly, or one comes back into service and order."""
        node = self.choose.choice(sorted(self.pool_of))
        turn = self.choose.random()
        if turn < 0.5 and self.naive.holdings:
            self.end(self.choose.choice(sorted(self.naive.holdings)))
        elif turn < 0.7 and node in self.short:
            self.short.discard(node)
            self.world.view.offers.set_node(node, None)
        elif turn < 0.8:
            self._becomes(msgspec.structs.replace(self.naive.nodes[node], refusal=SLIP, problem=SLIP))
        else:
            known = self.naive.nodes[node]
            self._becomes(msgspec.structs.replace(known, devices=in_service(known), refusal="", problem=""))
            self.world.view.offers.set_node(node, None)
            self.short.discard(node)

    def _becomes(self, node: NodeDevices) -> None:
        self.naive.nodes[node.name] = node
        self.world.add_node(node)
        # What is kept on a node that changes may be given up.
        self.naive.kept = {uid: one for uid, one in self.naive.kept.items() if self.world.ledger.kept_on(uid)}


@pytest.mark.randomized
@pytest.mark.no_cover  # it would take twice as long; other tests go through the same lines
def test_what_is_advised_where_there_are_more_nodes_than_have_the_most_free_would_help() -> None:
    async def all_of_one(tried: Tried) -> Counter[str]:
        await tried.fill()
        for number in range(PODS_OF_ONE_WORLD):
            await tried.one(number)
        return tried.said

    worlds = [Tried(seed, most_nodes=MANY_NODES) for seed in seeds(LARGE_WORLDS)]
    # Policies and quotas would let nearly nobody in.
    free = [tried for tried in worlds if not tried.units and not tried.quotas]
    said = sum((asyncio.run(all_of_one(tried)) for tried in free), Counter[str]())

    if SOAK:
        return  # other clusters each time: now and then one form of advice is rare in all of them
    assert said.total() > 50, said
    assert all(said[form] for form in ("several", "size", "gang: at once", "gang: alone")), said


@pytest.mark.randomized
@pytest.mark.no_cover
def test_what_is_advised_to_hundreds_of_random_pods_would_help() -> None:
    async def all_of_one(seed: int) -> Tried:
        tried = Tried(seed)
        for number in range(PODS_OF_ONE_WORLD):
            await tried.one(number)
        return tried

    said = sum(
        (asyncio.run(all_of_one(seed)).said for seed in (*seeds(WORLDS), *RARE_WORLDS)), Counter[str]()
    )

    if SOAK:
        return
    # Each form of advice was given often enough to mean something.
    often = "nearest|one end|nearest, without compute|compute|several|several, with compute|full|scattered|label|label of some|larger|node|corrected"
    often += "|size|size, divided|size of compute|kinds|kinds, ends|kinds, ends, label|health|offers|policy|policy, and more|unit|room|kept"
    often += "|quota, ends|quota, less|quota, ends, and room|quota, less, and room"
    often += "|whole quota, less|whole quota, smaller|whole quota, smaller, and room"
    assert {form: said[form] for form in often.split("|") if said[form] < 5} == {}
    of_gangs = "missing|enough|wrong|room now|at once|fewer|alone|quota, ends|quota, less|quota, and room"
    of_gangs += "|alone: size|alone: node|alone: label|alone: corrected|alone: health|alone: several"
    assert {form: said[f"gang: {form}"] for form in of_gangs.split("|") if said[f"gang: {form}"] < 5} == {}
    rarely = "gang: alone: compute|gang: alone: pods|gang: alone: scattered|gang: alone: offers|gang: alone: kinds, ends, label|kinds, label|several ends|"
    rarely += "whole quota, ends|whole quota, ends, and room|whole quota, less, and room|larger, divided|pods|pods, and more|pods at most|pods at most, and more"
    assert {form: said[form] for form in rarely.split("|") if said[form] < 1} == {}
