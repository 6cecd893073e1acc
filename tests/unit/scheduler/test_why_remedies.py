"""What is advised to drawn pods on drawn clusters is true: it is done, and who takes the pod then is worked out once more."""

import asyncio
import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from gpushare.ledger.preemption import Rank
from gpushare.model.device import NodeDevices
from gpushare.model.request import Request
from tests.unit.scheduler import why_truth
from tests.unit.scheduler.quota_remedy_truth import of_quota
from tests.unit.scheduler.remedy_truth import Judge, in_service
from tests.unit.scheduler.why_world import SLIP, Scene

WORLDS = 360
PODS_OF_ONE_WORLD = 10
#: Longer than what the ledger said of a request is remembered.
LONG_S = 11.0


class Tried(Scene):
    """A scene in which what every pod is told to wait for is done."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, short=True)
        self.said: Counter[str] = Counter()
        self.others = random.Random(seed)
        if not self.units and self.others.random() < 0.3:
            leaf = self.others.choice((2, 6, 12, 24))
            root = self.others.choice((6, 12, 30))
            self.limit([("root", root), ("leaf", min(leaf, root))])

    async def one(self, number: int) -> str:
        self.world.clock.now_s += LONG_S
        name = f"p{number}"
        pod, request = self.make(name)
        if request is None:
            return "wrong"
        if self.quotas and request.whole_device and not request.by_gpu:
            return "not looked at"  # its quota counts the units of the GPUs, which differ from node to node
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
            assert waiting["remedy"].startswith(f"room is being made for it on node {plan.node}: ")

    def _judged(self, name: str, request: Request, asked: list[str], *, known: bool = True) -> str:
        waiting: Any = self.says(name)["waiting"]
        judge = Judge(self, request, asked, known=known)
        if passed := self.passed(name):
            self.said[of_quota(judge, name, passed, waiting["remedy"])] += 1
            return str(waiting["category"])
        self.said[judge.holds(waiting["category"], waiting["remedy"])] += 1
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
        assert waiting["remedy"].startswith("`kubectl describe pod` tells what kube-scheduler found: ")

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


@pytest.mark.timeout(120)
def test_what_is_advised_to_hundreds_of_random_pods_would_help() -> None:
    async def all_of_one(seed: int) -> Tried:
        tried = Tried(seed)
        for number in range(PODS_OF_ONE_WORLD):
            await tried.one(number)
        return tried

    said = sum((asyncio.run(all_of_one(seed)).said for seed in range(WORLDS)), Counter[str]())

    # Each form of advice was given often enough to mean something.
    often = "nearest|nearest, without compute|compute|several|several, with compute|full|scattered|label|label of some|larger|node|corrected"
    often += "|size|size, divided|size of compute|kinds|health|offers|policy|policy, and more|unit|room|kept"
    often += "|quota, ends|quota, less|quota, ends, and room|quota, less, and room"
    assert {form: said[form] for form in often.split("|") if said[form] < 10} == {}
    rarely = "pods|pods, and more|pods at most|pods at most, and more"
    assert {form: said[form] for form in rarely.split("|") if said[form] < 2} == {}
