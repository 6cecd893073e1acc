"""The HTTP interface: verbs, probes, metrics, and clear answers to invalid requests."""

import json
from typing import Any

import pytest

from gpushare.api import names
from gpushare.httpserver.authorization import Readers
from gpushare.httpserver.probes import Probes
from gpushare.kube.auth.token_reviews import Caller
from gpushare.scheduler.framework.cycle_state import Bodies
from gpushare.scheduler.framework.services import NodePolicies
from gpushare.scheduler.observability.metrics import Metrics
from gpushare.scheduler.server.app import ExtenderApp
from tests.unit.scheduler.elastic_quota.test_quotas import tree
from tests.unit.scheduler.elastic_quota.test_quotas_of_every_pod import plain, processors
from tests.unit.scheduler.world import World, gpu_node, pod_object


class Knows:
    """An API server that knows one token, whose account may read decisions."""

    async def caller_of(self, token: str, audience: str) -> Caller | None:
        return Caller(username="reader") if (token, audience) == ("good", names.READER_AUDIENCE) else None

    async def may_get(self, caller: Caller, path: str) -> bool:
        return (caller.username, path) == ("reader", "/gpushare/decisions")


class Browser:
    """Calls the application as a server would."""

    def __init__(self, world: World, policies: NodePolicies | None = None) -> None:
        self.missing = ""
        self.token = b"good"
        self.app = ExtenderApp(
            world.view,
            world.binder,
            Metrics(),
            lambda: self.missing,
            framework=world.framework(world.decisions, world.verb(policies, world.decisions)),
            readers=Readers(Knows(), world.clock),
        )

    async def call(self, method: str, path: str, *parts: bytes, cut: bool = False) -> tuple[int, bytes]:
        messages = [
            {"type": "http.request", "body": part, "more_body": cut or number < len(parts) - 1}
            for number, part in enumerate(parts or (b"",))
        ]
        if cut:
            messages.append({"type": "http.disconnect"})
        sent: list[Any] = []

        async def receive() -> Any:
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"x-gpushare-token", self.token)]
        await self.app({"method": method, "path": path, "headers": headers}, receive, send)
        return sent[0]["status"], sent[1]["body"]

    async def post(self, verb: str, body: Any) -> Any:
        status, answer = await self.call("POST", f"/gpushare/{verb}", json.dumps(body).encode())
        assert status == 200, answer
        return json.loads(answer)


def filter_body(pod: dict[str, Any], *nodes: str) -> dict[str, Any]:
    return {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)}


async def test_filter_prioritize_and_bind_assign_a_gpu_to_a_pod(world: World, browser: Browser) -> None:
    world.add_node(gpu_node("n2", 8192))
    world.add_node(gpu_node("n3", 2048))
    pod = pod_object("a", 4)
    world.api.create(pod)
    verdict = await browser.post("filter", filter_body(pod, "n1", "n2", "n3", "n4"))
    assert verdict["NodeNames"] == ["n1", "n2"]
    assert verdict["FailedNodes"] == {"n4": "node is not known to the scheduler yet"}
    assert "the largest GPU has 2 GiB" in verdict["FailedAndUnresolvableNodes"]["n3"]
    scores = await browser.post("prioritize", filter_body(pod, "n1", "n2"))
    [best] = scores  # n1 has the lowest score, which may be omitted
    assert best["Host"] == "n2"
    assert 0 < best["Score"] <= 10
    bound = await browser.post(
        "bind", {"PodName": "a", "PodNamespace": "default", "PodUID": "uid-a", "Node": "n2"}
    )
    assert bound == {"Error": ""}
    again = await browser.post("filter", filter_body(pod, "n1", "n2"))
    assert again["NodeNames"] == ["n2"]
    assert "still being bound" in again["FailedNodes"]["n1"]


async def test_a_pod_without_a_gpu_is_limited_by_its_quota_in_filter_and_bind(
    world: World, browser: Browser
) -> None:
    world.quotas.upsert(tree(processors(a=4, b=4)))
    first, second = plain("x", "first", cpu=3), plain("x", "second", cpu="1500m")
    for pod in (first, second):
        world.api.create(pod)
    where = {"PodNamespace": "x", "Node": "n1"}
    assert (await browser.post("filter", filter_body(first, "n1")))["NodeNames"] == ["n1"]
    answer = await browser.post("bind", {**where, "PodName": "first", "PodUID": "uid-first"})
    assert answer == {"Error": ""}
    verdict = await browser.post("filter", filter_body(second, "n1"))
    reason = "elastic quota root/a: 3 of 4 cpu used (max), 1500m requested"
    assert (verdict["NodeNames"], verdict["FailedAndUnresolvableNodes"]) == ([], {"n1": reason})
    answer = await browser.post("bind", {**where, "PodName": "second", "PodUID": "uid-second"})
    assert answer == {"Error": reason}
    assert world.api.bindings == [("x/first", "n1")]


async def test_a_refused_bind_gives_the_reason(world: World, browser: Browser) -> None:
    world.create("a", 17)
    answer = await browser.post(
        "bind", {"PodName": "a", "PodNamespace": "default", "PodUID": "uid-a", "Node": "n1"}
    )
    assert "requests 17 GiB, but the largest GPU has 16 GiB" in answer["Error"]


async def test_a_pod_with_an_invalid_request_fits_nowhere_with_the_reason(browser: Browser) -> None:
    verdict = await browser.post("filter", filter_body(pod_object("a", core=30), "n1"))
    assert "without aliyun.com/gpu-mem" in verdict["FailedAndUnresolvableNodes"]["n1"]
    assert await browser.post("prioritize", filter_body(pod_object("a", core=30), "n1")) == []


async def test_only_nodes_above_the_minimum_get_a_score(world: World, browser: Browser) -> None:
    for number in range(2, 9):
        world.add_node(gpu_node(f"n{number}", 16384))
    names = [f"n{number}" for number in range(1, 9)]
    pod = pod_object("a", 4)
    assert await browser.post("prioritize", filter_body(pod, *names)) == []
    world.create("b", 8)
    bound = {"PodName": "b", "PodNamespace": "default", "PodUID": "uid-b", "Node": "n5"}
    assert await browser.post("bind", bound) == {"Error": ""}
    [fuller] = await browser.post("prioritize", filter_body(pod, *names))
    assert fuller["Host"] == "n5"
    assert 0 < fuller["Score"] <= 10


async def test_a_pod_without_a_gpu_request_fits_everywhere(browser: Browser) -> None:
    verdict = await browser.post("filter", filter_body(pod_object("a"), "n1", "n4"))
    assert verdict["NodeNames"] == ["n1", "n4"]


async def test_nothing_is_answered_before_the_first_sync(browser: Browser) -> None:
    browser.missing = "pods not read yet"
    assert await browser.call("GET", "/readyz") == (503, b"not ready: pods not read yet\n")
    assert await browser.call("POST", "/gpushare/filter", b"{}") == (503, b"not ready: pods not read yet\n")
    assert await browser.call("GET", "/healthz") == (200, b"ok\n")
    browser.missing = ""
    assert await browser.call("GET", "/readyz") == (200, b"ok\n")


async def test_metrics_count_verbs_and_refusals(world: World, browser: Browser) -> None:
    world.create("a", 17)
    await browser.post("bind", {"PodName": "a", "PodNamespace": "default", "PodUID": "uid-a", "Node": "n1"})
    await browser.call("POST", "/gpushare/filter", b"nonsense")
    status, text = await browser.call("GET", "/metrics")
    assert status == 200
    assert b'gpushare_scheduler_bind_attempts_total{result="rejected"} 1.0' in text
    assert b'gpushare_scheduler_extender_bad_requests_total{verb="filter"} 1.0' in text
    assert b'gpushare_scheduler_extender_request_duration_seconds_count{verb="bind"} 1.0' in text


async def test_invalid_requests_are_answered_with_messages(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await browser.call("POST", "/gpushare/filter", b"{"))[0] == 400
    assert (await browser.call("POST", "/gpushare/preempt", b"{}"))[0] == 400
    assert (await browser.call("POST", "/gpushare/score", b"{}"))[0] == 404
    assert (await browser.call("GET", "/other"))[0] == 404
    assert await browser.call("POST", "/gpushare/filter", b"{", cut=True) == (400, b"the body was cut off\n")
    monkeypatch.setattr("gpushare.scheduler.server.protocol.MAX_BODY_BYTES", 10)
    assert (await browser.call("POST", "/gpushare/filter", b"x" * 8, b"x" * 8))[0] == 413


async def test_the_probe_address_binds_no_pods_and_reports_what_is_missing(
    world: World, browser: Browser
) -> None:
    browser.app = Probes(lambda: browser.missing, Metrics())
    body = json.dumps(filter_body(pod_object("a", 4), "n1")).encode()
    for verb in ("filter", "prioritize", "bind"):
        status, answer = await browser.call("POST", f"/gpushare/{verb}", body)
        assert (status, answer) == (405, b"only /healthz, /readyz and /metrics are here, for GET\n")
        assert (await browser.call("GET", f"/gpushare/{verb}"))[0] == 404
    assert await browser.call("GET", "/healthz") == (200, b"ok\n")
    assert await browser.call("GET", "/readyz") == (200, b"ok\n")
    browser.missing = "pods not read yet"
    assert await browser.call("GET", "/readyz") == (503, b"not ready: pods not read yet\n")
    assert await browser.call("GET", "/healthz") == (200, b"ok\n")
    assert b"gpushare_scheduler_bind_attempts" in (await browser.call("GET", "/metrics"))[1]


async def test_a_repeated_body_is_answered_by_the_current_state(world: World, browser: Browser) -> None:
    world.add_node(gpu_node("n2", 16384))
    world.add_node(gpu_node("n3", 16384))
    body = filter_body(pod_object("a", 12), "n2", "n3")
    assert (await browser.post("filter", body))["NodeNames"] == ["n2", "n3"]
    assert await browser.post("prioritize", body) == []
    world.create("b", 2)
    bound = {"PodName": "b", "PodNamespace": "default", "PodUID": "uid-b", "Node": "n3"}
    assert await browser.post("bind", bound) == {"Error": ""}
    assert [one["Host"] for one in await browser.post("prioritize", body)] == ["n3"]
    world.create("c", 12)
    bound = {"PodName": "c", "PodNamespace": "default", "PodUID": "uid-c", "Node": "n3"}
    assert await browser.post("bind", bound) == {"Error": ""}
    assert (await browser.post("filter", body))["NodeNames"] == ["n2"]
    assert [one["Host"] for one in await browser.post("prioritize", body)] == ["n2"]


def test_a_body_is_parsed_once_if_it_is_not_large() -> None:
    bodies = Bodies()
    first = json.dumps(filter_body(pod_object("a", 8), "n1")).encode()
    second = json.dumps(filter_body(pod_object("a", 9), "n1")).encode()
    assert bodies.read(first) is bodies.read(bytes(bytearray(first)))
    assert bodies.read(second).request != bodies.read(first).request
    large = json.dumps(filter_body(pod_object("a", 8), "n" * 2**20)).encode()
    assert bodies.read(large) is not bodies.read(large)


@pytest.mark.parametrize("path", ["", "/", "/default/p", "/default/p/nodes", "/nonsense/a/b/c"])
async def test_decisions_are_for_authorized_readers(browser: Browser, path: str) -> None:
    browser.token = b""
    status, body = await browser.call("GET", f"/gpushare/decisions{path}")
    assert status == 401
    assert b"X-Gpushare-Token" in body
    for page in ("/healthz", "/metrics"):
        assert (await browser.call("GET", page))[0] == 200
