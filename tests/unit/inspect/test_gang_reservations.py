"""Reservations of gangs are shown below the tables, and in JSON and YAML; without any, nothing is added."""

import json
from typing import Any

import msgspec
import pytest

from gpushare.api import names
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import Node, Pod
from gpushare.inspect.render import render
from gpushare.inspect.view_result import Shown
from gpushare.scheduler.plugins.explain.decisions_api import decisions_response
from tests.at_once import at_once
from tests.unit.inspect.clusters import device, node
from tests.unit.inspect.test_views import DECISIONS, Answers, both, options
from tests.unit.scheduler.gangs.test_gang_room import GIB, keep
from tests.unit.scheduler.server.test_app import Browser
from tests.unit.scheduler.world import World, gpu_node

FORBIDDEN = 'Error from server (Forbidden): services "http:ack-co-scheduler:health" is forbidden'


class Kubectl(Answers):
    """As ``Answers``, which records its requests."""

    def __init__(self, **known: Any) -> None:
        super().__init__(**known)
        self.requests: list[str] = []

    def start(self, *paths: str) -> Any:
        self.requests += paths
        begun = super().start(*paths)
        begun.finish = begun.outcomes
        return begun


@pytest.fixture
async def world() -> World:
    return World()


async def keeping(world: World, *, mode: NodeMode = NodeMode.SHARE, **settings: Any) -> Kubectl:
    """A cluster of two nodes with a GPU of 16 GiB each, on which gang ``tenant/g`` keeps room."""
    for name in ("n1", "n2"):
        world.add_node(gpu_node(name, 16 * GIB, mode=mode))
    await keep(Browser(world), world, **settings)
    nodes = [node(name, "10.0.0.1", [device(0, 16 * GIB)], mode=mode) for name in ("n1", "n2")]
    return cluster(nodes, list(world.api.pods.values()), world)


def cluster(nodes: list[Node], pods: list[Any], world: World) -> Kubectl:
    found = msgspec.json.encode({"items": pods})
    one = msgspec.json.encode({"items": [pod for pod in pods if pod["metadata"]["labels"]][:1]})
    known = {
        f"/api/v1/pods?limit=1&fieldSelector=spec.nodeName%3D%2Cstatus.phase%3DPending&labelSelector={names.LABEL_GANG_NAME.replace('/', '%2F')}": one,
        "/api/v1/pods?limit=5000&fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed%2Cspec.nodeName": b'{"items":[]}',
        "/api/v1/pods?": found,
        DECISIONS: lambda path: at_once(
            decisions_response(world.decisions, path[path.index("/gpushare/") :])
        ),
        **{f"/api/v1/nodes/{one.metadata.name}": msgspec.json.encode(one) for one in nodes},
        "/api/v1/nodes": msgspec.json.encode({"items": nodes}),
    }
    return Kubectl(**known)


def reservation_lines(shown: Shown) -> list[str]:
    return [line for line in shown.text.splitlines() if line.startswith("Reserved for ")]


END = "(0 of 2 pods exist; until 1970-01-01 00:17:10 UTC, unless more are created)"


async def test_a_line_below_the_table_shows_reservations_of_gangs(world: World) -> None:
    kubectl = await keeping(world)
    for flags in ((), ("-o", "wide"), ("-d",)):
        shown = render(kubectl, options(*flags))
        assert shown.remarks == ()
        assert shown.text.splitlines()[-1] == (
            f"Reserved for gang tenant/g: 15 GiB on node n1 GPU 0, 15 GiB on node n2 GPU 0 {END}"
        )


async def test_compute_is_named_and_of_many_gpus_the_first(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr("gpushare.inspect.sources.gang_reservations._NAMED", 1)
    kubectl = await keeping(world, mode=NodeMode.CORE_MEM, core=60)
    all_of_it = "15 GiB and 60% compute on node n1 GPU 0"
    assert reservation_lines(render(kubectl, options())) == [
        f"Reserved for gang tenant/g: {all_of_it} and on 1 GPU more {END}"
    ]
    assert reservation_lines(render(kubectl, options("-d"))) == [
        f"Reserved for gang tenant/g: {all_of_it}, {all_of_it.replace('n1', 'n2')} {END}"
    ]


async def test_for_one_node_only_its_reservations_are_shown(world: World) -> None:
    kubectl = await keeping(world)
    assert reservation_lines(render(kubectl, options("n2"))) == [
        f"Reserved for gang tenant/g: 15 GiB on node n2 GPU 0 {END}"
    ]


async def test_a_gang_of_another_namespace_than_requested_is_not_named(world: World) -> None:
    kubectl = await keeping(world)
    (line,) = reservation_lines(render(kubectl, options("-n", "default")))
    assert line.startswith("Reserved for a gang of another namespace: 15 GiB on node n1 GPU 0")
    (line,) = reservation_lines(render(kubectl, options("-n", "tenant")))
    assert line.startswith("Reserved for gang tenant/g: ")


async def test_structured_output_contains_them_too(world: World) -> None:
    kubectl = await keeping(world)
    document = both(lambda form: render(kubectl, options("-o", form)))
    share = {"gpu": 0, "units": 15, "MiB": 15360, "corePercent": 0}
    assert document["kept"] == [
        {
            "namespace": "tenant",
            "name": "g",
            "come": 0,
            "least": 2,
            "until": 1030,
            "shares": [{"node": name, "uuid": f"GPU-{name}-0", **share} for name in ("n1", "n2")],
        }
    ]


@pytest.mark.parametrize("form", ["", "json"])
async def test_without_reservations_nothing_is_shown(world: World, form: str) -> None:
    kubectl = await keeping(world)
    flags = ("-o", form) if form else ()
    world.gangs.give_up_all()
    nothing = render(kubectl, options(*flags))
    without = cluster([], [], world).known | {"/api/v1/nodes": kubectl.known["/api/v1/nodes"]}
    empty = Kubectl(**without)

    assert render(empty, options(*flags)) == nothing
    assert "kept" not in nothing.text.lower()
    assert not [path for path in empty.requests if path.startswith(DECISIONS)]


async def test_unknown_reservations_are_a_warning(world: World) -> None:
    kubectl = await keeping(world)
    table = render(kubectl, options())
    kubectl.known[DECISIONS] = FORBIDDEN
    shown = render(kubectl, options())
    assert shown.text == table.text[: table.text.index("Reserved for")]
    (remark,) = shown.remarks
    assert remark.startswith(
        "warning: capacity reserved for gangs with pending pods is unknown: no permission to query the scheduler: that needs get"
    )


def test_pods_without_a_gang_cause_no_request(world: World) -> None:
    pod = msgspec.convert({"metadata": {"name": "waits", "labels": {"app": "x"}}}, Pod)
    found = json.loads(msgspec.json.encode(pod))
    kubectl = cluster([node("n1", "10.0.0.1", [device(0)])], [found], world)
    render(kubectl, options())
    render(kubectl, options("n1"))
    assert not [path for path in kubectl.requests if path.startswith(DECISIONS)]
