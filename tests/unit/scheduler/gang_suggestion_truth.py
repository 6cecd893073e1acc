"""Whether what is advised to a pod of a gang is true: it is done, and the naive ledger is asked where all of them would go then."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpushare.api.request.request import Request
from tests.unit.scheduler import why_truth
from tests.unit.scheduler.quota_suggestion_truth import PATHS
from tests.unit.scheduler.suggestion_truth import Judge
from tests.unit.scheduler.why_world import Scene

LABEL = "pod-group.scheduling.sigs.k8s.io/min-available"
BY_ITSELF = "nothing: it is tried again by itself"
MISSING = r"(\d+) more pods? of gang default/(\S+): (\d+) of (\d+) (?:is|are) there(?:; and then (.+))?"
WRONG = r"another request of pod default/(\S+), without which gang default/(\S+) does not run: (.+)"
NOW = r"there is room by now, for (\d+) pods? of gang default/(\S+) at once: kube-scheduler asks again by itself"
FEWER = rf', or {re.escape(LABEL)}: "(\d+)" on each of its pods: there is room for so many now$'
AT_ONCE = r"room for (\d+) pods? of gang default/(\S+) at once"
NOT_THERE = rf"; and {AT_ONCE}, which is not there now$"
ALONE = rf"{AT_ONCE}, and this pod alone has none: (.+)"
ENDS = r"pods of (.+) that end, or a larger max of (it|each)"
LESS = r"ask for less, or a larger max of (.+): (\d+) pods? of gang default/(\S+) together ask for more than that alone"


@dataclass
class Drawn:
    """A gang: what its pods that are there ask for, ``None`` for one that contradicts itself, and where each may go."""

    name: str
    least: int
    requests: dict[str, Request | None] = field(default_factory=dict)
    offered: dict[str, list[str]] = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        return {"pod-group.scheduling.sigs.k8s.io/name": self.name, LABEL: str(self.least)}


class GangJudge:
    """What may be said to a pod ``name`` of ``gang``, about which was last asked with the nodes ``asked``."""

    def __init__(self, scene: Scene, gang: Drawn, name: str, asked: Sequence[str]) -> None:
        self.scene, self.naive, self.gang, self.name, self.asked = scene, scene.naive, gang, name, asked
        request = gang.requests[name]
        assert request is not None
        self.request = request
        self.running = [one for one in gang.requests if f"uid-{one}" in self.naive.holdings]
        self.need = gang.least - len(self.running)
        asks = {one: asks for one, asks in gang.requests.items() if asks and one not in self.running}
        del asks[name]
        others = sorted(asks, key=lambda one: one not in gang.offered)
        self.candidates: dict[str, Request] = {name: request} | {one: asks[one] for one in others}
        self.nodes = [node for node in asked if not scene.is_short(request, node)]
        self.said: list[str] = []
        self._found: dict[tuple[int, bool, int], dict[str, int]] = {}

    def holds(self, suggestion: str) -> list[str]:
        """Which forms the advice has; raises ``AssertionError`` where it is no known form, or not true."""
        gang, there = self.gang, len(self.gang.requests)
        if there < gang.least:
            found = re.fullmatch(MISSING, suggestion)
            assert found, suggestion
            lack = gang.least - there
            assert (int(found[1]), found[2]) == (lack, gang.name)
            assert (int(found[3]), int(found[4])) == (there, gang.least)
            more = {f"{self.name}+{number}": self.request for number in range(lack)}
            others = dict(list(self.candidates.items())[1:])
            self.candidates = {self.name: self.request} | more | others
            self.said.append("missing")
            if len(self.candidates) < self.need:
                self._wrong(found[5])
            else:
                self._room(found[5] or "", lack)
        elif len(self.candidates) < self.need:
            self._wrong(suggestion)
        else:
            self._room(suggestion, 0)
        return self.said

    def _wrong(self, suggestion: str) -> None:
        """With those that contradict themselves there would be enough."""
        found = re.fullmatch(WRONG, suggestion)
        assert found, suggestion
        wrong = [one for one, request in self.gang.requests.items() if request is None]
        assert found[1] in wrong
        assert found[3] == self.scene.says(found[1])["waiting"]["reason"]
        assert len(self.candidates) + len(wrong) >= self.need
        self.said.append("wrong")

    def _room(self, suggestion: str, lack: int) -> None:
        """That there is room for all of them, or what would make it."""
        given = self.placed(self.need)
        quotas = bool(self.scene.quotas)
        lets = bool(self.placed(self.need, by_quotas=True)) if quotas and not lack else bool(given)
        over = self._over(given) if quotas and (lack or not lets) else []
        if lets and not over:
            found = re.fullmatch(NOW, suggestion)
            assert lack or found, suggestion
            assert not found or (int(found[1]), found[2]) == (self.need, self.gang.name)
            assert not lack or not suggestion, suggestion
            self.said.append("enough" if lack else "room now")
            return
        assert suggestion, (given, over)
        if over or given:
            suggestion = self._quota(suggestion, over, given)
        fewer = re.search(FEWER, suggestion)
        if fewer is not None:
            assert not lack
            self._fewer(int(fewer[1]), by_quotas=quotas)
            suggestion = suggestion[: fewer.start()]
        if over:
            assert bool(fewer) == bool(not lack and self.placed(1, by_quotas=True))
            return
        alone = re.fullmatch(ALONE, suggestion)
        head = alone or re.fullmatch(AT_ONCE, suggestion)
        assert head, suggestion
        assert (int(head[1]), head[2]) == (self.need, self.gang.name)
        judge = Judge(self.scene, self.name, self.request, self.asked)
        has_room = any(map(judge.takes, self.asked))
        assert bool(alone) == (not has_room and not self.placed(1, by_quotas=quotas and not lack)), suggestion
        if alone is None:
            assert bool(fewer) or lack or has_room
            self.said.append("at once")
            return
        kind = why_truth.nearest(judge.kinds.values() or ["policy"])
        self.said += ["alone", f"alone: {judge.holds(kind, alone[3])}"]

    def _fewer(self, least: int, *, by_quotas: bool) -> None:
        """So many run at once where the label says that they are enough, and where all ask alike no more do."""
        need = least - len(self.running)
        assert 0 < need < self.need
        assert self.placed(need, by_quotas=by_quotas)
        alike = len({(asks, str(self._nodes(one))) for one, asks in self.candidates.items()}) == 1
        assert not alike or need + 1 == self.need or not self.placed(need + 1, by_quotas=by_quotas)
        self.said.append("fewer")

    # --- quotas -------------------------------------------------------------------------------------

    def _amounts(self, given: Mapping[str, int]) -> int:
        """What as many as are needed ask for, those that ask for the least, or are given where there is room for them."""
        asked = {one: self.scene.asked_units(one.partition("+")[0]) for one in self.candidates}
        if given:
            return sum(max(asked[one], units) if asked[one] else 0 for one, units in given.items())
        own = [one for one in self.candidates if one.partition("+")[0] == self.name]
        others = sorted((one for one in self.candidates if one not in own), key=lambda one: asked[one])
        return sum(asked[one] for one in [*own, *others][: self.need])

    def _over(self, given: Mapping[str, int]) -> list[tuple[str, int]]:
        charged, amounts = self.scene.charged_units(), self._amounts(given)
        return [one for one in reversed(self.scene.quotas) if amounts and charged + amounts > one[1]]

    def _quota(self, suggestion: str, over: Sequence[tuple[str, int]], given: Mapping[str, int]) -> str:
        """What is left of the advice behind what it says of quotas."""
        not_there = re.search(NOT_THERE, suggestion)
        assert bool(not_there) == (not given), suggestion
        if not_there is not None:
            assert (int(not_there[1]), not_there[2]) == (self.need, self.gang.name)
            suggestion = suggestion[: not_there.start()]
            self.said.append("quota, and room")
        fewer = re.search(FEWER, suggestion)
        head = suggestion[: fewer.start()] if fewer else suggestion
        which = " and ".join(PATHS[quota] for quota, _ in over)
        which = f"elastic quota{'s' if len(over) > 1 else ''} {which}"
        its = sum(self._charged(one) for one in self.running)
        if its + self._amounts(given) > min(most for _, most in over):
            found = re.fullmatch(LESS, head)
            assert found, suggestion
            assert (found[1], int(found[2]), found[3]) == (which, self.gang.least, self.gang.name)
            self.said.append("quota, less")
        else:
            found = re.fullmatch(ENDS, head)
            assert found, suggestion
            assert (found[1], found[2]) == (which, "each" if len(over) > 1 else "it")
            self.said.append("quota, ends")
        if given and not any("+" in one for one in given):
            # Each that is named is in the way, and no other is.
            self._raised(over, by=self._amounts(given))
        return fewer[0] if fewer else ""

    def _raised(self, over: Sequence[tuple[str, int]], by: int) -> None:
        before = self.scene.quotas
        more = [(quota, most + by + self.scene.charged_units()) for quota, most in over]
        # Others of its pods may do with less than those that are tried first.
        needed = [[one] for one in over] if len(self.candidates) == self.need else []
        for left in ([], *needed):
            larger = dict(more) | dict(left)
            self.scene.quotas = [(quota, larger.get(quota, most)) for quota, most in before]
            try:
                assert bool(self._placed(self.need, by_quotas=True)) == (not left)
            finally:
                self.scene.quotas = before

    def _charged(self, name: str) -> int:
        asked = self.scene.asked_units(name)
        held = self.naive.holdings[f"uid-{name}"].allocation.gpus
        return max(asked, sum(share.units for share in held)) if asked else 0

    # --- where they would go ------------------------------------------------------------------------

    def _nodes(self, name: str) -> list[str]:
        return self.nodes if name == self.name else self.gang.offered.get(name, self.nodes)

    def _size(self, name: str) -> int:
        return self.candidates[name].memory_units * self.candidates[name].gpu_count

    def placed(self, need: int, *, by_quotas: bool = False) -> dict[str, int]:
        """The units that each of ``need`` pods would be given at once, the one that is judged among them; empty where they have no room."""
        key = (need, by_quotas, len(self.candidates))
        if key not in self._found:
            self._found[key] = self._placed(need, by_quotas=by_quotas)
        return self._found[key]

    def _placed(self, need: int, *, by_quotas: bool) -> dict[str, int]:
        first, *others = self.candidates
        tries = [sorted([first, *others][:need], key=self._size, reverse=True)]
        if len(self.candidates) > need:
            tries.append([first, *sorted(others, key=self._size)])
        for order in tries:
            with self._room_for(order, need, by_quotas=by_quotas) as given:
                if len(given) == need:
                    return dict(given)
        return {}

    @contextmanager
    def _room_for(self, order: Collection[str], need: int, *, by_quotas: bool) -> Iterator[dict[str, int]]:
        before = dict(self.naive.holdings)
        given: dict[str, int] = {}
        try:
            for name in order:
                units = self._place(name, by_quotas=by_quotas) if len(given) < need else 0
                if units:
                    given[name] = units
                elif name == self.name and len(given) < need:
                    given.clear()
                    break
            yield given
        finally:
            self.naive.holdings = before

    def _place(self, name: str, *, by_quotas: bool) -> int:
        """The units that the pod was given; 0 where it has none."""
        naive, request, uid = self.naive, self.candidates[name], f"uid-{name}"
        charged = self.scene.charged_units() if by_quotas else 0
        asked = self.scene.asked_units(name) if by_quotas else 0
        if asked and any(charged + asked > most for _, most in self.scene.quotas):
            return 0
        fits = [node for node in self._nodes(name) if naive.reason(request, node) is None]
        if not fits:
            return 0
        best = fits[0]
        if len(fits) > 1:
            # Scores of nodes that do not take it are none.
            scores = dict(zip(fits, naive.scores(request, fits, self.scene.policy), strict=True))
            best = max(fits, key=lambda node: scores[node])
        allocation = naive.reserve(uid, f"default/{name}", request, best)
        if asked and any(self.scene.charged_units() > most for _, most in self.scene.quotas):
            del naive.holdings[uid]
            return 0
        return sum(share.units for share in allocation.gpus)


def renamed(pod: dict[str, Any], name: str) -> dict[str, Any]:
    """Another pod that asks for the same."""
    copy: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(pod))
    copy["metadata"] |= {"name": name, "uid": f"uid-{name}"}
    return copy
