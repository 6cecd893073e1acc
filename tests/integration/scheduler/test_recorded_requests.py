"""What kube-scheduler's own code sent, of the oldest version and of the newest, is answered over HTTP.

The bodies are recorded: see ``recording/SOURCES.md``.
"""

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from gpushare.model import names
from gpushare.scheduler.app import ExtenderApp
from gpushare.scheduler.metrics import Metrics
from gpushare.scheduler.wire import BindingArgs
from gpushare.serving.quick import QuickProtocol
from gpushare.serving.server import bind, server_of
from tests.unit.scheduler.world import World, gpu_node

FOLDER: Final = Path(__file__).parent / "recording"
CASES: Final = json.loads((FOLDER / "cases.json").read_text())
DEADLINE_S: Final = 60.0

every_recording = pytest.mark.parametrize("form", ["names", "nodes"])
every_version = pytest.mark.parametrize("version", ["1.22", "1.36"])

Json = dict[str, Any]


class Replay:
    """A served extender, and the requests of one version in one form."""

    def __init__(self, world: World, http: aiohttp.ClientSession, url: str, version: str, form: str) -> None:
        self.world = world
        self._http = http
        self._url = url
        recorded = json.loads((FOLDER / f"kube-scheduler-{version}.json").read_text())
        self._requests = {(one["case"], one["verb"]): one for one in recorded if one["form"] == form}

    def body(self, case: str, verb: str) -> Json:
        """What was sent."""
        return dict(json.loads(self._requests[case, verb]["body"]))

    async def send(self, case: str, verb: str) -> Any:
        """Send the request as it was, byte by byte; returns the answer."""
        one = self._requests[case, verb]
        headers = {"Content-Type": one["contentType"]}
        async with self._http.request(
            one["method"], self._url + one["path"], data=one["body"].encode(), headers=headers
        ) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def fits(self, case: str) -> list[str]:
        """Where the pod fits by filter's answer, in the form in which nodes were sent."""
        answer = await self.send(case, "filter")
        assert answer["Error"] == ""
        if answer["NodeNames"] is not None:
            assert answer["Nodes"] is None
            return list(answer["NodeNames"])
        sent = self.body(case, "filter")["Nodes"]["items"]
        assert all(item in sent for item in answer["Nodes"]["items"])
        return [item["metadata"]["name"] for item in answer["Nodes"]["items"]]

    def shares(self, case: str) -> list[tuple[int, int]]:
        """GPU and units that the bound pod was given."""
        pod = next(one["pod"] for one in CASES["cases"] if one["name"] == case)
        key = f"default/{pod['metadata']['name']}"
        annotations = self.world.api.pods[key]["metadata"]["annotations"]
        return [(one["index"], one["units"]) for one in json.loads(annotations[names.ANN_SHARE])["gpus"]]


@asynccontextmanager
async def replaying(version: str, form: str) -> AsyncIterator[Replay]:
    """Four GPUs of 15 units, one of 16 of which a pod of little importance has 14, and all pods of the cases, waiting."""
    world = World()
    world.add_node(gpu_node("four", *[15360] * 4))
    world.add_node(gpu_node("single", 16384))
    cases = copy.deepcopy(CASES["cases"])
    victim = cases[-1]["victims"]["single"][0]
    del victim["spec"]["nodeName"]
    for pod in (victim, *(one["pod"] for one in cases)):
        world.api.create(pod)
        world.see(pod["metadata"]["name"])
    uid = victim["metadata"]["uid"]
    await world.binder.bind(BindingArgs("default", "low-0", uid, "single"))
    world.see("low-0")
    app = ExtenderApp(
        world.view, world.binder, world.refused, world.preemptor.left_to_scheduler, Metrics(), lambda: ""
    )
    bound = bind("127.0.0.1", 0)
    bound.listen(16)
    server = server_of(app, stop_s=5, http=QuickProtocol)
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    async with asyncio.timeout(DEADLINE_S), aiohttp.ClientSession() as http:
        try:
            yield Replay(world, http, f"http://127.0.0.1:{bound.getsockname()[1]}", version, form)
        finally:
            await http.close()
            server.should_exit = True
            await serving


@every_version
@every_recording
async def test_a_share_several_gpus_and_a_whole_one_are_filtered_ranked_and_bound(
    version: str, form: str
) -> None:
    async with replaying(version, form) as replay:
        for case, shares in (
            ("single-share", [(0, 3)]),
            ("several-gpus", [(0, 4), (1, 4)]),
            ("whole-gpu", [(2, 15)]),
        ):
            assert await replay.fits(case) == ["four"]
            ranked = await replay.send(case, "prioritize")
            assert all(one.keys() == {"Host", "Score"} and 0 <= one["Score"] <= 10 for one in ranked)
            assert await replay.send(case, "bind") == {"Error": ""}
            assert replay.shares(case) == shares


@every_version
@every_recording
async def test_a_gang_is_bound_when_its_last_pod_comes(version: str, form: str) -> None:
    async with replaying(version, form) as replay:
        for case in ("gang-first", "gang-second"):
            assert await replay.fits(case) == ["four"]
            await replay.send(case, "prioritize")
        answers = await asyncio.gather(
            *(replay.send(f"gang-{which}", "bind") for which in ("first", "second"))
        )
        assert answers == [{"Error": ""}] * 2
        assert replay.shares("gang-first") == replay.shares("gang-second") == [(0, 4)]


@every_version
@every_recording
async def test_victims_are_told_as_they_were_named(version: str, form: str) -> None:
    async with replaying(version, form) as replay:
        assert await replay.fits("preemption") == ["four"]
        victim = CASES["cases"][-1]["victims"]["single"][0]["metadata"]["uid"]
        sent = replay.body("preemption", "preempt")
        by_node = sent["NodeNameToMetaVictims"] if form == "names" else sent["NodeNameToVictims"]
        # 1.22 sends 0 of them where it tells victims by UID, whatever it counted; 1.36 sends what it counted.
        violations = by_node["single"]["NumPDBViolations"]
        assert await replay.send("preemption", "preempt") == {
            "NodeNameToMetaVictims": {"single": {"Pods": [{"UID": victim}], "NumPDBViolations": violations}}
        }
