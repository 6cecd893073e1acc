"""A served extender that receives the recorded requests of kube-scheduler's own code (see
``recording/SOURCES.md``).
"""

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import pytest

from gpushare.api import names
from gpushare.api.node.device import NodeDevices
from gpushare.httpserver.fast_path import QuickProtocol
from gpushare.httpserver.server import bind, server_of
from gpushare.scheduler.observability.metrics import Metrics
from gpushare.scheduler.plugins.resource_policy.plugin import Policies
from gpushare.scheduler.server.app import ExtenderApp
from gpushare.scheduler.server.protocol import BindingArgs
from tests.unit.scheduler.world import World, gpu_node

FOLDER: Final = Path(__file__).parent / "recording"
CASES: Final = json.loads((FOLDER / "cases.json").read_text())
DEADLINE_S: Final = 60.0

every_recording = pytest.mark.parametrize("form", ["names", "nodes"])
every_version = pytest.mark.parametrize("version", ["1.22", "1.36"])

Json = dict[str, Any]


class Replay:
    """A served extender, and the recorded requests of one version in one form."""

    def __init__(self, world: World, http: aiohttp.ClientSession, url: str, version: str, form: str) -> None:
        self.world = world
        self._http = http
        self._url = url
        recorded = json.loads((FOLDER / f"kube-scheduler-{version}.json").read_text())
        self._requests = {(one["case"], one["verb"]): one for one in recorded if one["form"] == form}

    def body(self, case: str, verb: str) -> Json:
        """The recorded request body."""
        return dict(json.loads(self._requests[case, verb]["body"]))

    async def send(self, case: str, verb: str) -> Any:
        """Send the recorded request byte by byte; returns the response."""
        one = self._requests[case, verb]
        headers = {"Content-Type": one["contentType"]}
        async with self._http.request(
            one["method"], self._url + one["path"], data=one["body"].encode(), headers=headers
        ) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def refusals(self, case: str) -> dict[str, str]:
        """The reason of each node in the filter response; asserts that no node fits."""
        answer = await self.send(case, "filter")
        assert not answer["NodeNames"]
        assert not (answer["Nodes"] or {}).get("items")
        return {**(answer["FailedNodes"] or {}), **(answer["FailedAndUnresolvableNodes"] or {})}

    async def bound(self, case: str, node: str) -> list[tuple[int, int]]:
        """Send all verbs of a case in which only ``node`` fits, and wait for the informer; returns
        the pod's shares.
        """
        assert await self.fits(case) == [node]
        await self.send(case, "prioritize")
        assert await self.send(case, "bind") == {"Error": ""}
        self.world.see(self._name(case))
        return self.shares(case)

    @staticmethod
    def _name(case: str) -> str:
        return str(next(one["pod"] for one in CASES["cases"] if one["name"] == case)["metadata"]["name"])

    async def fits(self, case: str) -> list[str]:
        """The nodes that fit by the filter response, in the form in which nodes were sent."""
        answer = await self.send(case, "filter")
        assert answer["Error"] == ""
        if answer["NodeNames"] is not None:
            assert answer["Nodes"] is None
            return list(answer["NodeNames"])
        sent = self.body(case, "filter")["Nodes"]["items"]
        assert all(item in sent for item in answer["Nodes"]["items"])
        return [item["metadata"]["name"] for item in answer["Nodes"]["items"]]

    def shares(self, case: str) -> list[tuple[int, int]]:
        """GPU and units of the bound pod's allocation."""
        annotations = self.world.api.pods[f"default/{self._name(case)}"]["metadata"]["annotations"]
        return [(one["index"], one["units"]) for one in json.loads(annotations[names.ANN_SHARE])["gpus"]]


@asynccontextmanager
async def serving(
    version: str,
    form: str,
    world: World,
    *,
    policies: Policies | None = None,
) -> AsyncIterator[Replay]:
    """An extender over ``world``."""
    app = ExtenderApp(
        world.view,
        world.binder,
        Metrics(),
        lambda: "",
        framework=world.framework(world.verb(policies)),
    )
    bound = bind("127.0.0.1", 0)
    bound.listen(16)
    server = server_of(app, stop_s=5, protocol=QuickProtocol)
    served = asyncio.create_task(server.serve(sockets=[bound]))
    async with asyncio.timeout(DEADLINE_S), aiohttp.ClientSession() as http:
        try:
            yield Replay(world, http, f"http://127.0.0.1:{bound.getsockname()[1]}", version, form)
        finally:
            await http.close()
            server.should_exit = True
            await served


def create_waiting(world: World) -> None:
    """Create the pods of all cases, pending, in API server and informer."""
    for one in copy.deepcopy(CASES["cases"]):
        world.api.create(one["pod"])
        world.see(one["pod"]["metadata"]["name"])


def four(**how: object) -> NodeDevices:
    """Four GPUs of 15 units."""
    return msgspec.structs.replace(gpu_node("four", *[15360] * 4), **how)


def world_of(*nodes: NodeDevices) -> World:
    """The nodes, with the pods of all cases pending."""
    world = World()
    for node in nodes:
        world.add_node(node)
    create_waiting(world)
    return world


@asynccontextmanager
async def replaying(version: str, form: str) -> AsyncIterator[Replay]:
    """Four GPUs of 15 units, one of 16 of which a low-priority pod has 14, and all pods of the cases, pending."""
    world = World()
    world.add_node(gpu_node("four", *[15360] * 4))
    world.add_node(gpu_node("single", 16384))
    create_waiting(world)
    victim = copy.deepcopy(CASES["cases"][-1]["victims"]["single"][0])
    del victim["spec"]["nodeName"]
    world.api.create(victim)
    world.see(victim["metadata"]["name"])
    await world.binder.bind(BindingArgs("default", "low-0", victim["metadata"]["uid"], "single"))
    world.see("low-0")
    async with serving(version, form, world) as replay:
        yield replay
