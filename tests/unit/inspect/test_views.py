"""Output of ``--why`` and ``--pending`` for a real scheduler's answers, and that it matches the schema."""

import json
from typing import Any

import msgspec
import pytest
import yaml

from gpushare.api import names
from gpushare.api.names import LABEL_GANG_LEAST, LABEL_GANG_NAME
from gpushare.inspect.arguments import Options, parse
from gpushare.inspect.color import Paint
from gpushare.inspect.errors import InspectError, KubectlFailed, UsageError
from gpushare.inspect.sources.decision_client import proxy_path
from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.inspect.view_result import Shown
from gpushare.inspect.views.documents import written
from gpushare.inspect.views.explain import why
from gpushare.inspect.views.json_output import encoded
from gpushare.inspect.views.pending import waiting
from gpushare.scheduler.plugins.explain.decisions_api import decisions_response
from tests.at_once import at_once
from tests.unit.inspect.clusters import device, node, placed, seen
from tests.unit.inspect.reads import Reads
from tests.unit.inspect.schema import faults
from tests.unit.scheduler.explain.test_decisions import ask, bind, give
from tests.unit.scheduler.server.test_app import Browser, filter_body
from tests.unit.scheduler.world import World, gpu_node

GIB = 1024
PLAIN = Paint()
DECISIONS = f"{proxy_path('kube-system/ack-co-scheduler')}/gpushare/decisions"


class Answers(Kubectl):
    """A kubectl with answers by path: a text, or a function of the path, or its error."""

    def __init__(self, **known: Any) -> None:
        super().__init__(program="none")
        self.known: dict[str, Any] = known

    def start(self, *paths: str) -> Any:
        return _Round([self._answer(path) for path in paths])

    def reader(self, namespace: str) -> Any:
        assert namespace == "kube-system"
        return Reads(self)

    def _answer(self, path: str) -> bytes | KubectlFailed:
        for start, answer in self.known.items():
            if path.startswith(start):
                found = answer(path) if callable(answer) else answer
                if isinstance(found, str):
                    return KubectlFailed(path, found)
                return found if isinstance(found, bytes) else json.dumps(found).encode()
        return KubectlFailed(path, "Error from server (NotFound): nothing there")


class _Round:
    def __init__(self, outcomes: list[bytes | KubectlFailed]) -> None:
        self._outcomes = outcomes

    def __enter__(self) -> "_Round":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to stop."""

    def outcomes(self) -> list[bytes | KubectlFailed]:
        return self._outcomes


@pytest.fixture
async def world() -> World:
    return World()


@pytest.fixture
def browser(world: World) -> Browser:
    return Browser(world)


def cluster(world: World, **more: Any) -> Answers:
    """The scheduler of ``world`` behind the API server's proxy, and its pods."""
    known: dict[str, Any] = {
        DECISIONS: lambda path: at_once(
            decisions_response(world.decisions, path[path.index("/gpushare/") :])
        ),
        "/api/v1/namespaces/default/events": {"items": []},
    }
    for key, pod in world.api.pods.items():
        pod["metadata"].setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        known[f"/api/v1/namespaces/default/pods/{key.partition('/')[2]}"] = pod
    known |= more
    known.setdefault("/api/v1/namespaces/default", itself)
    return Answers(**known)


def itself(path: str) -> Any:
    return (
        {"kind": "Namespace"} if path.endswith("/default") else "Error from server (NotFound): nothing there"
    )


def options(*words: str) -> Options:
    return parse(words)


def both(shown_in: Any) -> Any:
    """The document, the same as JSON and as YAML, and valid by the schema."""
    as_json, as_yaml = shown_in("json"), shown_in("yaml")
    document = json.loads(as_json.text if isinstance(as_json, Shown) else as_json)
    assert yaml.safe_load(as_yaml.text if isinstance(as_yaml, Shown) else as_yaml) == document
    assert faults(document) == []
    return document


async def test_a_pending_pod(browser: Browser, world: World) -> None:
    world.add_node(gpu_node("n1", 11 * GIB))
    world.add_node(gpu_node("n2", 2 * GIB))
    world.add_node(gpu_node("n3", 2 * GIB))
    await give(browser, world, "there", "n1", 7)
    await ask(browser, world, "waits", "n1", "n2")
    kubectl = cluster(world)

    shown = why(kubectl, options("--why", "waits"), PLAIN)
    each = why(kubectl, options("--why=default/waits", "-d"), PLAIN)
    document = both(lambda form: why(kubectl, options("--why", "waits", "-d", "-o", form), PLAIN))

    assert shown.remarks == ()
    assert "default/waits has been pending since 2026-01-01 00:00:00 UTC" in shown.text
    assert "requests:    aliyun.com/gpu-mem: 8" in shown.text
    assert (
        "suggestion:  a GPU with 8 GiB free: the closest has 4 GiB free, GPU 0 of node n1; "
        "deleting pod default/there (7 GiB) would be enough" in shown.text
    )
    assert ": 0 fit, 2 do not" in shown.text
    assert "(1 more node not offered by kube-scheduler: " in shown.text
    assert (
        "1      no single GPU has 8 GiB free                   n1 (largest free: 4 GiB on GPU 0)"
        in shown.text
    )
    assert "n2    requests 8 GiB, but the largest GPU has 2 GiB" in each.text
    assert document["source"] == "scheduler"
    assert [one["node"] for one in document["record"]["nodes"]] == ["n1", "n2"]
    world.decisions.of("uid-waits").each = None  # type: ignore[union-attr]
    assert "results are no longer stored" in why(kubectl, options("--why", "waits", "-d"), PLAIN).text


async def test_a_bound_pod_and_one_whose_binding_failed(browser: Browser, world: World) -> None:
    world.add_node(gpu_node("n1", 8 * GIB, 4 * GIB))
    await ask(browser, world, "late", "n1", mem=7)
    world.create("pod", 6)
    body = filter_body(world.api.pods["default/pod"], "n1")
    await browser.post("filter", body)
    await browser.post("prioritize", body)
    assert not await bind(browser, "pod", "n1")
    world.see("pod")
    assert await bind(browser, "late", "n1")
    kubectl = cluster(world)

    bound = why(kubectl, options("--why", "pod"), PLAIN).text
    late = why(kubectl, options("--why", "late"), PLAIN).text
    document = both(lambda form: why(kubectl, options("--why", "pod", "-o", form), PLAIN))

    assert "default/pod is on node n1" in bound
    assert "Scores: all 1 node are equally good." in bound
    assert (
        "GPUs of node n1 with enough capacity, by binpack (the GPU on which the least is left over" in bound
    )
    assert "0    8192              2048            0            chosen" in bound
    assert "Binding to node n1 at " in bound
    assert "GPU 0  6144 MiB  6 units  GPU-n1-0" in bound
    assert "failed: node n1: no single GPU has 7 GiB free" in late
    assert document["record"]["choice"]["gpus"][0]["chosen"] is True


async def test_a_gpu_out_of_service_is_reported_and_its_usage_unknown(browser: Browser, world: World) -> None:
    sound = gpu_node("n1", 8 * GIB)
    world.add_node(sound)
    await give(browser, world, "pod", "n1", 6)
    assert "Out of service" not in why(cluster(world), options("--why", "pod"), PLAIN).text

    lost = msgspec.structs.replace(sound.devices[0], healthy=False, reason="GPU is lost")
    world.add_node(msgspec.structs.replace(sound, devices=(lost,)))

    document = both(lambda form: why(cluster(world), options("--why", "pod", "-o", form), PLAIN))
    assert (
        "Out of service: GPU 0 is unhealthy: GPU is lost. The pod keeps its share; nothing new is placed there."
        in why(cluster(world), options("--why", "pod"), PLAIN).text
    )
    assert document["record"]["holds"]["gpus"][0]["outOfService"] == "GPU 0 is unhealthy: GPU is lost"


@pytest.mark.parametrize("others", [True, False], ids=["another took its index", "the driver does not work"])
async def test_a_gpu_that_is_gone_from_the_node_is_reported(
    others: bool, browser: Browser, world: World
) -> None:
    node = gpu_node("n1", 8 * GIB)
    world.add_node(node)
    await give(browser, world, "pod", "n1", 6)
    gone = node.devices[0]
    other = msgspec.structs.replace(gone, uuid="GPU-another")
    refusal = "" if others else "node has no working GPU (NVML: Driver Not Loaded)"
    world.add_node(msgspec.structs.replace(node, devices=(other,) if others else (), refusal=refusal))
    cause = f"GPU {gone.uuid} is not on the node any more" if others else refusal
    assert f"Out of service: {cause}. The pod" in why(cluster(world), options("--why", "pod"), PLAIN).text


async def test_a_gpu_kept_back_for_a_pod_from_before_a_mode_change_is_in_service_for_that_pod(
    browser: Browser, world: World
) -> None:
    sound = gpu_node("n1", 8 * GIB)
    world.add_node(sound)
    await give(browser, world, "pod", "n1", 8)
    reason = "held whole by pod default/pod until it ends"
    kept_back = msgspec.structs.replace(sound.devices[0], healthy=False, reason=reason, kept_back=True)
    world.add_node(msgspec.structs.replace(sound, devices=(kept_back,)))
    assert "Out of service" not in why(cluster(world), options("--why", "pod"), PLAIN).text


async def test_a_reason_with_brackets_in_the_middle_stays_in_one_piece(
    browser: Browser, world: World
) -> None:
    full = "elastic quota root/blue: 12 of 12 aliyun.com/gpu-mem used (max), 1 requested"
    world.add_node(msgspec.structs.replace(gpu_node("n1", 8 * GIB), refusal=full))
    await ask(browser, world, "waits", "n1", mem=1)
    text = why(cluster(world), options("--why", "waits"), PLAIN).text
    assert f"1      {full}  n1\n" in text


async def test_scores_nodes_left_out_and_reservations(browser: Browser, world: World) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    world.add_node(gpu_node("n2", 16 * GIB))
    labels = {LABEL_GANG_NAME: "g", LABEL_GANG_LEAST: "1"}
    world.create("pod", 6, labels=labels)
    body = filter_body(world.api.pods["default/pod"], "n1", "n2")
    await browser.post("filter", body)
    await browser.post("prioritize", body)
    text = why(cluster(world), options("--why", "pod"), PLAIN).text
    assert "1 excluded for now (the plan for its gang assigns it to another node)" in text
    assert "Scores above the lowest, of 2 nodes, best first: n" in text
    assert "(reserved; not confirmed by the API server yet)" in text


async def test_without_the_scheduler_annotations_and_events_are_shown_with_a_warning(world: World) -> None:
    world.create("pod", 6)
    pod = world.api.pods["default/pod"]
    event = {"involvedObject": {"uid": "uid-pod"}, "reason": "FailedScheduling", "message": "0/1 nodes"}
    other = {"involvedObject": {"uid": "other"}, "reason": "Old", "message": "of another pod"}
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": "no room"}]
    complaint = 'Error from server (Forbidden): services "http:ack-co-scheduler:health" is forbidden'
    kubectl = cluster(
        world,
        **{DECISIONS: complaint, "/api/v1/namespaces/default/events": {"items": [other, event]}},
    )

    shown = why(kubectl, options("--why", "pod"), PLAIN)
    document = both(lambda form: why(kubectl, options("--why", "pod", "-o", form), PLAIN))

    assert shown.remarks == (
        "warning: no permission to query the scheduler: that needs get on services/proxy ack-co-scheduler and "
        "http:ack-co-scheduler:health, and create on serviceaccounts/token gpushare-reader, in namespace kube-system; showing the pod's annotations and events instead",
    )
    assert "kube-scheduler says:  no room" in shown.text
    assert "FailedScheduling: 0/1 nodes" in shown.text
    assert "of another pod" not in shown.text
    assert (document["source"], document["record"]) == ("annotations", None)
    pod["spec"]["nodeName"] = "n1"
    pod["status"]["conditions"] = []
    assert "It has no GPU allocation." in why(kubectl, options("--why", "pod"), PLAIN).text
    kubectl.known["/api/v1/namespaces/default/events"] = "Error from server (Forbidden): no"
    assert "Events" not in why(kubectl, options("--why", "pod"), PLAIN).text
    del pod["spec"]["nodeName"]
    pod["status"]["phase"] = "Succeeded"
    assert "default/pod has ended" in why(kubectl, options("--why", "pod"), PLAIN).text


async def test_a_finished_pod_is_explained_by_its_annotations(browser: Browser, world: World) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    world.create("pod", 6)
    await browser.post("filter", filter_body(world.api.pods["default/pod"], "n1"))
    body = {"PodNamespace": "default", "PodName": "pod", "PodUID": "uid-pod", "Node": "n1"}
    await browser.post("bind", body)
    world.api.pods["default/pod"]["status"]["phase"] = "Succeeded"

    shown = why(cluster(world), options("--why", "pod"), PLAIN)

    assert shown.remarks == ()
    assert shown.text.startswith("default/pod has ended, on node n1\n")
    assert 'scheduler.framework.gpushare.allocation:  {"0":{"0":6}}' in shown.text


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            "Error from server (NotFound): services not found",
            "there is no Service ack-co-scheduler in namespace",
        ),
        ("error: dial tcp: refused", "the scheduler does not answer: dial tcp: refused"),
        (b"<html>", "Service kube-system/ack-co-scheduler is not a gpushare scheduler"),
        (b"[]", "is not a gpushare scheduler"),
    ],
)
async def test_the_reason_why_the_scheduler_did_not_answer_is_reported(
    world: World, answer: Any, words: str
) -> None:
    world.create("pod", 6)
    (remark,) = why(cluster(world, **{DECISIONS: answer}), options("--why", "pod"), PLAIN).remarks
    assert words in remark


async def test_of_several_replicas_the_leader_counts(world: World) -> None:
    standby = {"scheduler": {"name": "b", "firstAsked": None, "lastAsked": None}, "waiting": []}
    leader = {"scheduler": {"name": "a", "firstAsked": 1.0, "lastAsked": 9.0}, "waiting": []}
    turns = iter([standby] * 4 + [leader] + [standby] * 9)
    shown = waiting(Answers(**{DECISIONS: lambda path: next(turns)}), options("--pending"), PLAIN)
    assert shown == Shown("No pod that requests GPU memory is pending.\n", ())
    alone = waiting(Answers(**{DECISIONS: standby}), options("--pending"), PLAIN)
    assert "another one may lead" in alone.remarks[0]


@pytest.mark.parametrize(
    ("leads", "remarks"),
    [
        (True, ()),
        (False, ("warning: kube-scheduler has not called the replica that answered: another one leads",)),
        (None, ("warning: kube-scheduler has not called the replica that answered; another one may lead",)),
    ],
)
async def test_a_replica_without_pods_reports_whether_it_leads(
    leads: bool | None, remarks: tuple[str, ...]
) -> None:
    decisions_of = {"name": "a", "firstAsked": None, "lastAsked": None, "leads": leads}
    shown = waiting(
        Answers(**{DECISIONS: {"scheduler": decisions_of, "waiting": []}}), options("--pending"), PLAIN
    )
    assert shown == Shown("No pod that requests GPU memory is pending.\n", remarks)


async def test_the_reported_leader_counts_although_another_was_queried_before() -> None:
    one = {
        "key": "default/pod",
        "since": 0,
        "asks": "x",
        "category": "memory",
        "reason": "r",
        "suggestion": "",
    }
    before = {"name": "b", "firstAsked": 1.0, "lastAsked": 9.0, "leads": False}
    leader = {"name": "a", "firstAsked": None, "lastAsked": None, "leads": True}
    turns = iter(
        [{"scheduler": before, "waiting": []}, {"scheduler": leader, "waiting": [one]}]
        + [{"scheduler": before, "waiting": []}] * 9
    )
    shown = waiting(Answers(**{DECISIONS: lambda path: next(turns)}), options("--pending"), PLAIN)
    assert "default" in shown.text


async def test_the_suggestion_of_a_scheduler_of_version_0_1_0_is_read() -> None:
    one = {
        "key": "default/pod",
        "since": 0,
        "asks": "x",
        "category": "memory",
        "reason": "r",
        "remedy": "less",
    }
    leader = {"name": "a", "firstAsked": 1.0, "lastAsked": 1.0, "leads": True}
    decisions = {"scheduler": leader, "waiting": [one]}
    shown = waiting(Answers(**{DECISIONS: decisions}), options("--pending"), PLAIN)
    assert "suggestion: less" in shown.text


async def test_the_answer_of_a_former_leader_is_not_sufficient() -> None:
    one = {
        "key": "default/pod",
        "since": 0,
        "asks": "x",
        "category": "memory",
        "reason": "r",
        "suggestion": "",
    }
    before = {"scheduler": {"name": "b", "firstAsked": 1.0, "lastAsked": 9.0, "leads": False}, "waiting": []}
    leader = {
        "scheduler": {"name": "a", "firstAsked": 5.0, "lastAsked": 8.0, "leads": True},
        "waiting": [one],
    }
    turns = iter([before] * 5 + [leader] + [before] * 9)
    shown = waiting(Answers(**{DECISIONS: lambda path: next(turns)}), options("--pending"), PLAIN)
    assert "default" in shown.text


def test_pending_pods_that_were_not_read_are_a_warning() -> None:
    decisions = {"scheduler": {"name": "a", "firstAsked": 1.0, "lastAsked": 9.0}, "waiting": []}
    pending = {"metadata": {"continue": "more"}, "items": []}
    shown = waiting(Answers(**{DECISIONS: decisions, "/api/v1/pods": pending}), options("--pending"), PLAIN)
    assert any("only the first 500 were checked" in remark for remark in shown.remarks)


def test_placeholder_pods_are_not_shown_as_pending() -> None:
    def item(scheduler: str) -> dict[str, Any]:
        limits = {"limits": {names.GPU_MEM: "2"}}
        return {
            "metadata": {"name": scheduler, "namespace": "default", "uid": scheduler},
            "spec": {"schedulerName": scheduler, "containers": [{"name": "c", "resources": limits}]},
        }

    pending = {"items": [item(names.SCHEDULER_NAME), item(names.PLACEHOLDER_SCHEDULER)]}
    text = waiting(Answers(**{"/api/v1/pods": pending}), options("--pending"), PLAIN).text
    assert names.SCHEDULER_NAME in text
    assert names.PLACEHOLDER_SCHEDULER not in text


async def test_all_pending_pods(browser: Browser, world: World) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    await ask(browser, world, "large", "n1", mem=99)
    await ask(browser, world, "never", "n1", mem="x")
    kubectl = cluster(world)

    text = waiting(kubectl, options("--pending"), PLAIN).text
    document = both(lambda form: waiting(kubectl, options("--pending", "-o", form), PLAIN))

    assert text.splitlines()[0].split() == [
        "NAMESPACE",
        "NAME",
        "PENDING",
        "REQUESTS",
        "CATEGORY",
        "REASON",
    ]
    assert "requests 99 GiB, but the largest GPU has 8 GiB" in text
    assert "  suggestion: a node with larger GPUs" in text
    assert {one["category"] for one in document["waiting"]} == {"size", "request"}
    assert "large" not in waiting(kubectl, options("--pending", "-n", "other"), PLAIN).text


async def test_without_the_scheduler_pending_pods_show_kube_schedulers_message(world: World) -> None:
    for name, mem in (("pod", 6), ("plain", None)):
        world.create(name, mem)
    pod, plain = (world.api.pods[f"default/{name}"] for name in ("pod", "plain"))
    pod["status"]["conditions"] = [{"type": "PodScheduled", "message": "0/3 nodes"}]
    kubectl = Answers(**{"/api/v1/pods": {"items": [pod, plain]}})
    document = both(lambda form: waiting(kubectl, options("--pending", "-o", form), PLAIN))
    assert [(one["asks"], one["reason"]) for one in document["waiting"]] == [
        ("aliyun.com/gpu-mem: 6", "0/3 nodes")
    ]
    assert document["source"] == "conditions"
    # As Kubernetes counts: an init container ends before the others start.
    pod["spec"]["initContainers"] = [{"name": "i", "resources": {"limits": {names.GPU_MEM: "4"}}}]
    pod["metadata"]["labels"] = {names.LABEL_POD_GPU_COUNT: "2"}
    plain["spec"]["containers"][0]["resources"] = {"limits": {names.GPU_CORE: "30"}}
    document = both(lambda form: waiting(kubectl, options("--pending", "-o", form), PLAIN))
    pending = {one["key"]: (one["asks"], one["category"]) for one in document["waiting"]}
    assert pending == {
        "default/pod": (f"{names.GPU_MEM}: 6, {names.LABEL_POD_GPU_COUNT}: 2", ""),
        "default/plain": ("", "request"),
    }
    assert "unknown" in waiting(kubectl, options("--pending"), PLAIN).text
    with pytest.raises(KubectlFailed):
        waiting(Answers(), options("--pending"), PLAIN)


def event(reason: str, message: str, minute: int, kind: str = "Pod") -> dict[str, Any]:
    it = {"kind": kind, "name": "x", "uid": f"uid-{kind}"}
    at = f"2026-01-01T00:{minute:02}:00Z"
    return {"involvedObject": it, "reason": reason, "message": message, "lastTimestamp": at}


async def test_the_last_events_of_a_deleted_pod_are_shown(world: World) -> None:
    preempted = event("Preempted", "evicted for pod default/y", 2)
    rest = [event("Killing", "Stopping container c", 3), event("Started", "Started container c", 1)]
    alien = event("Scaled", "a Deployment of that name", 4, "Deployment")

    def gone(*events: dict[str, Any]) -> str:
        kubectl = cluster(world, **{"/api/v1/namespaces/default/events": {"items": events}})
        with pytest.raises(InspectError) as found:
            why(kubectl, options("--why", "x"), PLAIN)
        return str(found.value)

    head = 'pod "x" of namespace default is gone'
    assert gone(*rest, alien) == (
        f"{head}; its last events:\n  Started: Started container c\n  Killing: Stopping container c"
    )
    assert gone(preempted) == f"{head}: Preempted: evicted for pod default/y"
    assert gone(*rest, preempted) == (
        f"{head}: Preempted: evicted for pod default/y; its last events:\n  Started: Started container c\n"
        "  Preempted: evicted for pod default/y\n  Killing: Stopping container c"
    )
    assert gone(alien).startswith('pod "x" not found in namespace default')


async def test_a_recreated_pod_is_not_explained_by_its_predecessors_record(
    browser: Browser, world: World
) -> None:
    await ask(browser, world, "pod", "n1")
    kubectl = cluster(world)
    kubectl.known["/api/v1/namespaces/default/pods/pod"] = {
        "metadata": {"name": "pod", "namespace": "default", "uid": "new"},
        "spec": {},
    }
    shown = why(kubectl, options("--why", "pod"), PLAIN)
    assert "the scheduler's record is about another pod of that name" in shown.remarks[0]


def test_nodes_match_the_schema() -> None:
    gpus = [device(0), device(1, healthy=False, reason='XID "79": lost')]
    some = seen([node("n1", "10.0.0.1", gpus)], [placed("train", "n1", gpus[0], 6, core_percent=20)])
    assert both(lambda form: encoded(some, form))["nodes"][0]["name"] == "n1"


@pytest.mark.parametrize(
    "words",
    [
        ("--why", "x", "--pending"),
        ("--why", "x", "n1"),
        ("--why", "x", "-o", "wide"),
        ("--pending", "-d"),
        ("--top", "-o", "wide"),
        ("--top", "-w"),
        ("--why", "a/b/c"),
        ("--why", ""),
        ("--scheduler", "x", "--pending"),
    ],
)
def test_contradictory_options_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        parse(words)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "yes",
        "No",
        "1",
        "-1",
        "1e3",
        " x",
        "x ",
        "a: b",
        "a #b",
        "ü",
        "a\nb",
        "\x1b",
        "~",
        "null",
        "- a",
        "?",
        "=",
        "<<",
        "@x",
        "`x",
        "%x",
    ],
)
def test_texts_stay_texts_in_yaml(value: str) -> None:
    document = {"a": value, value or "k": [value, [], {}, [value], {"b": [{"c": value}, 1, None, True, 1.5]}]}
    assert yaml.safe_load(written(document, "yaml")) == document


def test_the_schema_finds_errors() -> None:
    assert faults({"version": 2}) != []
    assert faults({"version": 1, "kind": "Waiting", "source": "x", "waiting": [], "warnings": []}) != []
