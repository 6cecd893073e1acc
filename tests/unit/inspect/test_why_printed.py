"""What ``--why`` prints has the counts, figures and words of what it writes as JSON, for drawn pods on drawn clusters."""

import asyncio
import json
import re
from collections import Counter
from typing import Any

from gpushare.inspect.arguments import parse
from gpushare.inspect.color import Paint
from gpushare.inspect.views.explain import why
from tests.unit.inspect.test_views import cluster
from tests.unit.scheduler.why_world import Scene

WORLDS = 16
PODS_OF_ONE_WORLD = 8
Json = dict[str, Any]


def numbers(pattern: str, text: str) -> list[int] | None:
    """The numbers that the groups of ``pattern`` find, 0 for a group that is not there; ``None``: nothing like it is printed."""
    found = re.search(pattern, text, re.MULTILINE)
    return None if found is None else [int(one or 0) for one in found.groups()]


def rows(text: str, *head: str) -> list[list[str]]:
    """The cells of the table with that head, without it; the last column may be empty."""
    lines = text.splitlines()
    at = next(
        (
            at
            for at, line in enumerate(lines)
            if line.split("  ")[0].strip() == head[0] or line.strip().startswith(f"{head[0]}  ")
        ),
        None,
    )
    if at is None:
        return []
    starts = [lines[at].index(name) for name in head]
    ends = [*starts[1:], None]
    found = []
    for line in lines[at + 1 :]:
        if not line.strip():
            break
        found.append([line[start:end].strip() for start, end in zip(starts, ends, strict=True)])
    return found


class Printed:
    """What is printed of one pod, beside what is written of it as JSON."""

    def __init__(self, scene: Scene, name: str) -> None:
        kubectl = cluster(scene.world)

        def shown(*words: str) -> str:
            return why(kubectl, parse(("--why", name, *words)), Paint()).text

        self.text, self.each = shown(), shown("-d")
        self.record: Json = json.loads(shown("-d", "-o", "json"))["record"]

    def agrees(self) -> None:
        waiting, record = self.record["waiting"], self.record
        told = {
            "asks for": record["asks"] or None,
            "because": waiting and waiting["reason"],
            "would fit with": waiting and waiting["suggestion"],
            "kind of reason": waiting and waiting["category"],
        }
        for label, value in told.items():
            found = re.search(rf"^{label}: +(.*)$", self.text, re.MULTILINE)
            assert (found and found[1]) == value
        if record["answer"] is not None:
            self._answer(record["answer"])
        self._scores(record["scores"])
        self._choice(record["choice"])
        self._holds(record["holds"])
        self._preemption(record["preemption"])

    def _answer(self, answer: Json) -> None:
        refusing = sum(group["nodes"] for group in answer["groups"])
        for text in (self.text, self.each):
            assert numbers(
                r"was asked at .* about (\d+) nodes?: (\d+) take it, (\d+) refuse(?:, (\d+) not for it now \(.*\))?$",
                text,
            ) == [answer["nodes"], answer["fits"], refusing, answer["leftOut"]]
            others = self.record["notOffered"]
            assert numbers(r"^\((\d+) more nodes? not asked about", text) == ([others] if others else None)
        if answer["leftOut"]:
            assert f" not for it now ({self.record['leftOut']})" in self.text
        printed = rows(self.text, "NODES", "REASON", "FOR EXAMPLE")
        assert [int(count) for count, _, _ in printed] == [group["nodes"] for group in answer["groups"]]
        for (_, reason, such), group in zip(printed, answer["groups"], strict=True):
            node = such.partition(" ")[0].rstrip(";")
            more = such.removeprefix(node).removeprefix(" ")
            assert (reason, node) == (group["reason"], group["examples"][0]["node"])
            assert group["examples"][0]["reason"] in (f"{reason}{more}", f"{reason} {more}")
            assert " ;" not in such
        assert rows(self.each, "NODE", "ANSWER") == [
            [one["node"], one["reason"] or "takes it"] for one in self.record["nodes"]
        ]

    def _scores(self, scores: Json | None) -> None:
        found = re.search(
            r"^Scores: all (\d+) nodes? (?:is|are) equally good\.$"
            r"|^Scores above the least, of (\d+) nodes?, best first: (.*)$",
            self.text,
            re.MULTILINE,
        )
        if scores is None:
            assert found is None
            return
        assert found
        assert int(found[1] or found[2]) == scores["nodes"]
        best = re.findall(r"(\S+) \+(\d+)", found[3] or "")
        assert [[node, int(score)] for node, score in best] == scores["best"]

    def _choice(self, choice: Json | None) -> None:
        head = "GPUs of node "
        if choice is None:
            assert head not in self.text
            return
        assert (
            f"{head}{choice['node']} that could take it, by {choice['placement']} ({choice['why']}):\n"
            in self.text
        )
        printed = rows(self.text, "GPU", "FREE BEFORE(MiB)", "LEFT OVER(MiB)", "PODS BEFORE")
        assert printed == [
            [
                *(str(gpu[what]) for what in ("index", "freeMiB", "leftMiB")),
                f"{gpu['pods']}{' ' * 12 + 'chosen' if gpu['chosen'] else ''}",
            ]
            for gpu in choice["gpus"]
        ]

    def _holds(self, holds: Json | None) -> None:
        found = re.findall(
            r"^  GPU (\d+) +(\d+) MiB +(\d+) units? +(\S+)(?: +containers? (\S+(?:, \S+)*))?(?: +(\d+)% compute)?$",
            self.text,
            re.MULTILINE,
        )
        assert [(int(a), int(b), int(c), d, e, int(f or 0)) for a, b, c, d, e, f in found] == [
            (
                *(gpu[what] for what in ("index", "MiB", "units", "uuid")),
                ", ".join(gpu.get("containers", ())),
                gpu["corePercent"],
            )
            for gpu in (holds or {"gpus": []})["gpus"]
        ]
        assert re.findall(r"^Holds on node (\w+):$", self.text, re.MULTILINE) == (
            [holds["node"]] if holds else []
        )

    def _preemption(self, found: Json | None) -> None:
        if found is None or found["by"] != "kube-scheduler":
            return
        said = numbers(r"would end on (\d+) nodes?: that leaves room on GPUs of (\d+)", self.text)
        assert said == [found["nodes"], len(found["room"])]
        refused = re.findall(r"^  not on (\d+): (.*?)(?: \(such as (.*)\))?$", self.text, re.MULTILINE)
        assert [(int(many), why, such) for many, why, such in refused] == [
            (one["nodes"], one["reason"], ", ".join(one["examples"])) for one in found["refused"]
        ]
        for room in found["room"]:
            (row,) = [line for line in self.text.splitlines() if line.startswith(f"  {room['node']} ")]
            for victim in room["victims"]:
                assert f"{victim['pod']} (priority {victim['priority']})" in row


class Shown(Scene):
    """A scene of which everything is printed."""

    async def one(self, number: int) -> str:
        name = f"p{number}"
        pod, request = self.make(name)
        if request is None:
            await self.post("filter", {"Pod": pod, "Nodes": None, "NodeNames": sorted(self.pool_of)})
            Printed(self, name).agrees()
            return "wrong"
        answer = await self.filter(pod, request)
        if not answer.fits:
            await self._would_end(pod)
            Printed(self, name).agrees()
            return "waits"
        await self.post("prioritize", {"Pod": pod, "Nodes": None, "NodeNames": answer.fits})
        await self.bind(name, self.choose.choice(answer.fits), request)
        printed = Printed(self, name)
        printed.agrees()
        return "bound with a GPU for each" if " container c\n" in printed.text else "bound"

    async def _would_end(self, pod: Json) -> None:
        bound = self.world.view.bound
        offered: Json = {node: {"Pods": [], "NumPDBViolations": 0} for node in sorted(self.pool_of)}
        for uid, one in sorted(bound.items()):
            if one.priority < pod["spec"]["priority"]:
                offered[one.node]["Pods"].append({"UID": uid})
        await self.post("preempt", {"Pod": pod, "NodeNameToMetaVictims": offered})


def test_what_is_printed_of_random_pods_is_what_is_written_of_them() -> None:
    async def all_of_one(seed: int) -> list[str]:
        shown = Shown(seed)
        return [await shown.one(number) for number in range(PODS_OF_ONE_WORLD)]

    outcomes = Counter(one for seed in range(WORLDS) for one in asyncio.run(all_of_one(seed)))

    assert outcomes["waits"] > 30
    assert outcomes["bound"] > 30
    assert outcomes["bound with a GPU for each"] > 2
