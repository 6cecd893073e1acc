"""``--recommend`` as typed: whose answers are read, what is missing, and the output formats."""

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from gpushare.api import names
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import Pod
from gpushare.inspect.arguments import parse
from gpushare.inspect.errors import InspectError, KubectlFailed, UnreadableAnswer
from gpushare.inspect.sources.agent_usage import paths_of
from gpushare.inspect.sources.paths import CLAIMS_PATH
from gpushare.inspect.sources.prometheus import PrometheusFailed, figures_of_prometheus, queries
from gpushare.inspect.sources.usage_samples import Used
from gpushare.inspect.views.recommend import recommended
from tests.unit.inspect.clusters import device, node, placed, pod
from tests.unit.inspect.reads import Reads
from tests.unit.inspect.schema import faults
from tests.unit.inspect.test_advice import one
from tests.unit.inspect.test_claims import claim


class Round:
    """A round of kubectls."""

    def __init__(self, answers: list[bytes | Exception]) -> None:
        self._answers = answers

    def finish(self) -> list[bytearray]:
        for answer in self._answers:
            if isinstance(answer, Exception):
                raise answer
        return [bytearray(answer) for answer in self._answers if isinstance(answer, bytes)]

    def outcomes(self) -> list[bytes | Exception]:
        return self._answers

    def __enter__(self) -> "Round":
        return self

    def __exit__(self, *ended: object) -> None:
        self.end()

    def end(self) -> None:
        """Nothing to stop."""


class Scripted:
    """Answers by path prefix."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self._answers = {
            key: one if isinstance(one, (bytes, Exception)) else json.dumps(one).encode()
            for key, one in answers.items()
        }
        self.requests: list[str] = []

    def reader(self, namespace: str) -> Any:
        return Reads(self)

    def start(self, *paths: str) -> Any:
        self.requests += paths
        return Round([self._of(path) for path in paths])

    def _of(self, path: str) -> bytes | Exception:
        matching = [key for key in self._answers if path.startswith(key)]
        return self._answers[max(matching, key=len)] if matching else KubectlFailed(path, "(NotFound)")


def as_json(item: Any) -> Any:
    import msgspec

    return json.loads(msgspec.json.encode(item))


def cluster_answers(**more: Any) -> dict[str, Any]:
    labelled = node("n", "10.0.0.1", [device(0)])
    assert labelled.metadata.labels is not None
    labelled.metadata.labels[names.LABEL_AGENT_PORT] = "9452"
    web = as_json(one("web", 8))
    web["metadata"]["ownerReferences"] = [{"kind": "StatefulSet", "name": "web", "controller": True}]
    waits = as_json(pod("waits", "", 12, phase="Pending"))
    odd = as_json(pod("odd", "", 12, phase="Pending", labels={names.LABEL_POD_GPU_COUNT: "x"}))
    agent = {
        "metadata": {
            "name": "agent",
            "namespace": "kube-system",
            "labels": {"app.kubernetes.io/name": names.AGENT_PART},
        },
        "spec": {"nodeName": "other", "containers": []},
        "status": {"phase": "Running"},
    }
    other = as_json(node("other", "10.0.0.2", [device(1)]))
    idle = as_json(placed("idle", "other", device(1), 3))
    silent = as_json(node("silent", "10.0.0.3", [device(2)]))
    lost = as_json(placed("lost", "silent", device(2), 3))
    return {
        "/api/v1/nodes": {"items": [as_json(labelled), other, silent]},
        "/api/v1/pods?limit=5000&fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed&continue=x": {
            "items": [idle, lost, agent, waits, odd]
        },
        "/api/v1/pods": {"metadata": {"continue": "x"}, "items": [web]},
        "/api/v1/nodes/n:9452/proxy/usage": answer("web", 2000, 0, 7200),
        "/api/v1/namespaces/kube-system/pods/agent/proxy/usage": answer("none", 1, 9, 10),
        **more,
    }


def answer(pod_name: str, peak: int, first: int, last: int, version: int = 1) -> dict[str, Any]:
    container = {
        "namespace": "default",
        "pod": pod_name,
        "uid": f"uid-default-{pod_name}",
        "container": "main",
        "gpu": device(0).uuid,
        "looks": 3,
        "first": first,
        "last": last,
        "givenMiB": 8192,
        "peakMiB": peak,
        "p95MiB": peak,
        "lastMiB": peak,
        "givenCorePercent": 0,
        "peakPercent": 0,
        "p95Percent": 0,
    }
    return {"version": version, "since": 77, "containers": [container]}


def shown(typed: str, **more: Any) -> tuple[str, tuple[str, ...]]:
    kubectl: Any = Scripted(cluster_answers(**more))
    return recommended(kubectl, parse(typed.split()))


def test_the_table_names_workloads_and_what_is_missing() -> None:
    text, remarks = shown("--recommend")
    assert text.splitlines()[0].split() == [
        "NAMESPACE",
        "WORKLOAD",
        "PODS",
        "SEEN",
        "USED(peak/p95)",
        "gpu-mem",
        "RECOMMENDED",
        "NOTE",
    ]
    assert "default    StatefulSet web  1     2 h   2000/2000 MiB   8        3" in text
    assert (
        "default    Pod idle         1     0 s   0/0 MiB         3        -            no GPU usage was recorded"
        in text
    )
    assert "Usage from the node agents; 15% headroom." in text
    assert "Following all recommendations would free 5.0 GiB of GPU memory." in text
    assert "Pending pods that request a share of one GPU: 1; 1 would fit then, 1 fit now." in text
    assert remarks == ("warning: node silent: no node agent runs there",)


def claiming(name: str, **entry: str) -> Any:
    """A running pod whose container ``main`` uses a claim, and whose ``side`` uses none."""
    made = (
        [{"name": "share", "resourceClaimName": f"{name}-x"}]
        if "resourceClaimTemplateName" in entry
        else None
    )
    return {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}"},
        "spec": {
            "nodeName": "c",
            "containers": [{"name": "main", "resources": {"claims": [{"name": "share"}]}}, {"name": "side"}],
            "resourceClaims": [{"name": "share", **entry}],
        },
        "status": {"phase": "Running", "resourceClaimStatuses": made},
    }


def claim_answers(pods: list[Any], claims: list[Any], *used: tuple[str, str, int, int]) -> dict[str, Any]:
    """A node in mode ``dra``; ``used``: pod, container, MiB and percent, for two hours."""
    for each in claims:
        for result in each["status"]["allocation"]["devices"]["results"]:
            result["pool"] = "c"
    dra = as_json(node("c", "10.0.0.4", [device(0)], mode=NodeMode.DRA, advertised=False))
    dra["metadata"]["labels"][names.LABEL_AGENT_PORT] = "9452"
    samples = [
        answer(name, mib, 0, 7200)["containers"][0]
        | {"namespace": "team", "uid": f"uid-{name}", "container": container}
        | {"p95Percent": percent, "peakPercent": percent}
        for name, container, mib, percent in used
    ]
    return {
        "/api/v1/nodes": {"items": [dra]},
        "/api/v1/nodes/c:9452/proxy/usage": answer("none", 1, 9, 10) | {"containers": samples},
        "/api/v1/pods": {"items": pods},
        CLAIMS_PATH: {"items": claims},
    }


def test_a_template_is_recommended_the_needs_of_its_claims() -> None:
    pods = [claiming(name, resourceClaimTemplateName="share") for name in ("a", "b")]
    claims = [claim(f"{name}-x", (0, "6Gi", 50), pods=(name,)) for name in ("a", "b")]
    lists = claim_answers(
        pods, claims, ("a", "main", 1000, 20), ("b", "main", 2000, 10), ("b", "side", 4000, 0)
    )
    text, remarks = shown("--recommend", **lists)
    assert remarks == ()
    assert (
        "team       ResourceClaimTemplate share  2     2 h   2000/2000 MiB   6Gi      2304Mi       20/20 %              50    25"
        in text
    )
    assert "would free 7.5 GiB" in text
    document = json.loads(shown("--recommend -o json", **lists)[0])
    assert faults(document) == []
    (share,) = document["workloads"]
    assert (share["kind"], share["name"], share["unit"]) == ("ResourceClaimTemplate", "share", "1MiB")
    assert (share["memory"]["givenUnits"], share["memory"]["advisedUnits"]) == (6144, 2304)


def test_pods_sharing_a_claim_are_summed_and_an_unused_claim_is_named() -> None:
    pods = [claiming(name, resourceClaimName="shared") for name in ("a", "b")]
    claims = [claim("shared", (0, "3Gi", 0), pods=("a", "b")), claim("idle", (0, "1Gi", 0))]
    text, _ = shown(
        "--recommend", **claim_answers(pods, claims, ("a", "main", 1000, 0), ("b", "main", 900, 0))
    )
    assert (
        "team       ResourceClaim idle    0     0 s   0/0 MiB         1Gi      -            no GPU usage"
        in text
    )
    assert "team       ResourceClaim shared  2     2 h   1900/1900 MiB   3Gi      2304Mi" in text
    text, _ = shown("--recommend -n other", **claim_answers(pods, claims))
    assert text == "No pod has a share of a GPU.\n"


def test_unreadable_claims_are_named_and_their_nodes_hold_no_pending_pod() -> None:
    lists = claim_answers([as_json(pod("waits", "", 3, phase="Pending"))], []) | {
        CLAIMS_PATH: KubectlFailed("c", "no")
    }
    text, remarks = shown("--recommend -o json", **lists)
    assert json.loads(text)["gain"] == {"freeMiB": 0, "waiting": 1, "fitNow": 0, "fitThen": 0}
    assert any("ResourceClaims are not counted on nodes in mode dra" in remark for remark in remarks)


def test_the_length_of_the_history_and_of_the_window_is_reported() -> None:
    text, _ = shown("--recommend")
    assert (
        "The longest history of a pod is 2 h; recommendations are only as representative as that period."
        in text
    )

    begins = int(time.time()) - 5 * 3600 - 10
    windowed = answer("web", 2000, 0, 7200) | {"from": begins}
    windowed["containers"][0] |= {"workSeconds": 1000, "waitedSeconds": 400}
    old = answer("none", 1, 9, 10) | {"since": begins + 60}
    kubectl: Any = Scripted(
        cluster_answers(
            **{
                "/api/v1/nodes/n:9452/proxy/usage?window=14400": windowed,
                "/api/v1/namespaces/kube-system/pods/agent/proxy/usage?window=14400": old,
            }
        )
    )
    text, remarks = recommended(kubectl, parse(["--recommend", "--window=4h"]))
    assert "/api/v1/nodes/n:9452/proxy/usage?window=14400" in kubectl.requests
    assert "Based on the usage of the last 4h, recorded for 5 h. " in text
    assert "The longest history of a pod is 2 h; " in text
    assert any(
        "node other: its agent is of an earlier version, which supports no window" in one for one in remarks
    )

    document = json.loads(recommended(kubectl, parse(["--recommend", "--window=4h", "-o", "json"])).text)
    assert faults(document) == []
    assert (document["windowSeconds"], document["from"], document["historySeconds"]) == (14400, begins, 7200)
    document = json.loads(shown("--recommend -o json")[0])
    assert (document["windowSeconds"], document["from"]) == (None, 77)


def test_throttling_is_reported_as_text_and_as_numbers() -> None:
    core = node("n", "10.0.0.1", [device(0)], mode=NodeMode.CORE_MEM)
    assert core.metadata.labels is not None
    core.metadata.labels[names.LABEL_AGENT_PORT] = "9452"
    slow = answer("c", 1000, 0, 7200)
    slow["containers"][0] |= {
        "peakPercent": 31,
        "p95Percent": 30,
        "workSeconds": 1000,
        "waitedSeconds": 500,
    }
    lists = {
        "/api/v1/nodes": {"items": [as_json(core)]},
        "/api/v1/pods": {"items": [as_json(one("c", 2, 30))]},
        "/api/v1/nodes/n:9452/proxy/usage": slow,
    }
    text, _ = shown("--recommend", **lists)
    assert "it was throttled 50% of the time: without a limit it would use about 60%" in text
    whole = json.loads(shown("--recommend -o json", **lists)[0])
    assert faults(whole) == []
    (workload,) = whole["workloads"]
    assert workload["core"] == {
        "givenPercent": 30,
        "advisedPercent": 70,
        "peakPercent": 31,
        "p95Percent": 30,
        "throttledPercent": 50,
        "needPercent": 60,
    }


@pytest.mark.parametrize(("unreported", "peak", "advised_units"), [(5, 2000, 3), (6, None, None)])
def test_unreported_memory_is_not_zero(unreported: int, peak: int | None, advised_units: int | None) -> None:
    quiet = answer("web", 2000, 0, 7200)
    quiet["containers"][0] |= {"looks": 100, "untoldLooks": unreported}
    lists = {"/api/v1/nodes/n:9452/proxy/usage": quiet}
    whole = json.loads(shown("--recommend -o json", **lists)[0])
    assert faults(whole) == []
    web = next(one for one in whole["workloads"] if one["name"] == "web")
    assert (web["memory"]["peakMiB"], web["memory"]["advisedUnits"]) == (peak, advised_units)
    (line,) = [one for one in shown("--recommend", **lists)[0].splitlines() if "StatefulSet web" in one]
    assert ("does not report its memory" in line, "/2000 MiB" in line) == (peak is None, peak is not None)


def test_an_agent_without_samples_is_named() -> None:
    idle = answer("web", 2000, 0, 7200) | {"looked": 0, "containers": []}
    _, remarks = shown("--recommend", **{"/api/v1/nodes/n:9452/proxy/usage": idle})
    assert (
        "warning: node n: its node agent is not sampling GPU processes (nodeAgent.watchdog.policy=off, a node without "
        "shared GPUs, or an agent that has just started)" in remarks
    )


def test_whole_gpus_are_distinguished_from_large_shares_by_the_request() -> None:
    alone = {names.LABEL_POD_PLACEMENT: names.POD_PLACEMENT_WHOLE_DEVICE}
    large, label = (as_json(one(name, 15, gpu=number)) for number, name in enumerate(("large", "label")))
    label["metadata"]["labels"] = alone
    counts = as_json(one("counts", 15, gpu=2))
    counts["spec"]["containers"][0]["resources"] = {"limits": {names.GPU_WHOLE: "1"}}
    unclear = as_json(one("unclear", 15, gpu=3))
    unclear["metadata"]["labels"] = {names.LABEL_POD_GPU_COUNT: "x"}
    gpus = [device(number) for number in range(4)]
    lists = {
        "/api/v1/nodes": {"items": [as_json(node("n", "10.0.0.1", gpus))]},
        "/api/v1/pods": {"items": [large, label, counts, unclear]},
    }
    whole = json.loads(shown("--recommend -o json", **lists)[0])
    notes = {each["name"]: each["note"] for each in whole["workloads"]}
    assert notes == {
        "large": "no GPU usage was recorded",
        "label": "it requests whole GPUs",
        "counts": "it requests whole GPUs",
        "unclear": "no GPU usage was recorded",
    }


def test_compute_has_columns_if_a_pod_requests_it() -> None:
    core = node("n", "10.0.0.1", [device(0)], mode=NodeMode.CORE_MEM)
    lists = {
        "/api/v1/nodes": {"items": [as_json(core), as_json(node("m", "10.0.0.2", [device(1)]))]},
        "/api/v1/pods": {"items": [as_json(one("c", 2, 30)), as_json(placed("m", "m", device(1), 3))]},
    }
    text, _ = shown("--recommend", **lists)
    assert "CORE USED(peak/p95)" in text
    assert "0/0 %" in text


@pytest.mark.parametrize(
    ("response", "why"),
    [
        (KubectlFailed("p", "error: boom"), "cannot be read: error: boom"),
        (b"{", "cannot be read"),
        (answer("web", 1, 0, 1, version=2), "uses version 2 of the format, this command version 1"),
    ],
)
def test_an_agent_with_a_useless_answer_is_named(response: Any, why: str) -> None:
    _, remarks = shown("--recommend", **{"/api/v1/nodes/n:9452/proxy/usage": response})
    assert any(remark.startswith("warning: node n: its agent") and why in remark for remark in remarks)


def test_only_running_agents_are_queried() -> None:
    pending = Pod()
    pending.metadata.labels = {"app.kubernetes.io/name": names.AGENT_PART}
    labelled = node("n", "10.0.0.1", [device(0)])
    assert labelled.metadata.labels is not None
    labelled.metadata.labels[names.LABEL_AGENT_PORT] = "x"
    assert paths_of([labelled], [pending, Pod()]) == {}


def test_an_answer_that_is_no_list_is_refused() -> None:
    with pytest.raises(UnreadableAnswer, match="answer to /api/v1/nodes"):
        shown("--recommend", **{"/api/v1/nodes": b"{"})


# --- Prometheus, through the API server's proxy -----------------------------------------------------------


SERVICE = "/api/v1/namespaces/monitoring/services/prometheus:9090/proxy"


def vector(*values: tuple[Mapping[str, str], str]) -> dict[str, Any]:
    listed = [{"metric": dict(labels), "value": [1, value]} for labels, value in values]
    return {"status": "success", "data": {"resultType": "vector", "result": listed}}


def test_a_prometheus_in_the_cluster_is_queried_through_the_api_server() -> None:
    labels = {
        "exported_namespace": "default",
        "namespace": "kube-system",
        "exported_pod": "web",
        "exported_container": "main",
        "UUID": device(0).uuid,
    }
    values = {
        "peak": 2000 << 20,
        "p95": 1500 << 20,
        "last": 1000 << 20,
        "memory_minutes": 90,
        "minutes": 90,
        "busy": 0.5,
        "busy95": 0.251,
        "work": 30,
        "throttled": 900,
    }
    from urllib.parse import urlencode

    answers = {
        f"{SERVICE}/api/v1/query?{urlencode({'query': query})}": vector((labels, str(values[name])))
        for name, query in queries("2h").items()
    }
    kubectl: Any = Scripted(answers)
    figures = figures_of_prometheus(kubectl, SERVICE, "2h")
    assert figures.used == (
        Used("default", "web", "main", device(0).uuid, 5400.0, 2000, 1500, 1000, 50, 26, 0.5),
    )
    text, remarks = shown(f"--recommend --prometheus {SERVICE} --window 2h", **answers)
    assert f"Usage from Prometheus at {SERVICE}, 2h; 15% headroom" in text
    assert "default    StatefulSet web  1     1 h   2000/1500 MiB   8        3" in text
    assert remarks == ()


def test_series_of_a_restarted_agent_and_of_replicas_of_prometheus_are_merged() -> None:
    from urllib.parse import urlencode

    workload = {"exported_namespace": "default", "exported_pod": "web", "container": "main"}
    base = {**workload, "namespace": "kube-system", "UUID": device(0).uuid}

    def series(before: float, now: float) -> dict[str, Any]:
        replicas = [{"prometheus_replica": "a"}, {"prometheus_replica": "b"}]
        agents = [("agent-before", before), ("agent-now", now)]
        values = [({**base, "pod": pod, **more}, str(value)) for pod, value in agents for more in replicas]
        return vector(*values)

    memory = {"peak": (12000 << 20, 300 << 20), "p95": (9000 << 20, 300 << 20), "last": (8 << 20, 9 << 20)}
    values = {
        **memory,
        "busy": (0.1, 0.4),
        "busy95": (0.1, 0.3),
        "memory_minutes": (60, 30),
        "minutes": (60, 30),
    }
    values |= {"work": (20, 10), "throttled": (300, 600)}
    answers = {
        f"{SERVICE}/api/v1/query?{urlencode({'query': query})}": series(*values[name])
        for name, query in queries("2h").items()
    }
    kubectl: Any = Scripted(answers)
    assert figures_of_prometheus(kubectl, SERVICE, "2h").used == (
        Used("default", "web", "main", device(0).uuid, 5400.0, 12000, 9000, 9, 40, 30, 0.5),
    )


def test_compute_without_memory_means_that_the_driver_does_not_report_memory() -> None:
    from urllib.parse import urlencode

    labels = {"namespace": "default", "pod": "web", "container": "main", "UUID": device(0).uuid}
    answers = {
        f"{SERVICE}/api/v1/query?{urlencode({'query': query})}": vector((labels, "1"))
        if name in ("minutes", "work", "busy", "busy95")
        else vector()
        for name, query in queries("7d").items()
    }
    kubectl: Any = Scripted(answers)
    (one,) = figures_of_prometheus(kubectl, SERVICE, "7d").used
    assert (one.seen_s, one.peak_percent, one.memory_known) == (60.0, 100, False)
    text, _ = shown(f"--recommend --min-history 1m --prometheus {SERVICE}", **answers)
    assert "the driver does not report its memory" in text


def test_a_prometheus_without_data_is_reported() -> None:
    text, remarks = shown(f"--recommend --prometheus {SERVICE}", **{SERVICE: vector()})
    assert "no GPU usage was recorded" in text
    assert "has no gpushare_container_memory_used_bytes of the last 7d" in remarks[0]


def test_a_prometheus_with_gpus_and_no_pods_is_not_reported_as_empty() -> None:
    from urllib.parse import urlencode

    query = urlencode({"query": "count(last_over_time(gpushare_gpu_info[7d]))"})
    answers = {f"{SERVICE}/api/v1/query?{query}": vector(({}, "4")), SERVICE: vector()}
    _, remarks = shown(f"--recommend --prometheus {SERVICE}", **answers)
    assert remarks == (
        "warning: no GPU pod ran in the last 7d, or no node agent sampled it: "
        f"{SERVICE} has metrics of GPUs only",
    )


@pytest.mark.parametrize(
    ("response", "why"),
    [
        ({"status": "error", "error": "bad"}, "rejects max_over_time"),
        ([], "returned an unexpected answer"),
        (b"<html>", "returned an unexpected answer"),
    ],
)
def test_a_service_that_is_no_prometheus_is_refused(response: Any, why: str) -> None:
    with pytest.raises(PrometheusFailed, match=why):
        shown(f"--recommend --prometheus {SERVICE}", **{SERVICE: response})


@pytest.mark.parametrize(
    ("where", "why"),
    [("prometheus:9090", "write http://HOST:PORT"), ("http://127.0.0.1:1", "cannot be reached")],
)
def test_an_address_that_cannot_be_queried_is_refused(where: str, why: str) -> None:
    with pytest.raises(InspectError, match=why):
        shown(f"--recommend --prometheus {where}")


def test_placeholder_pods_are_not_counted_as_pending() -> None:
    lists = cluster_answers()
    (following,) = (key for key in lists if key.endswith("continue=x"))
    placeholder = as_json(pod("placeholder", "", 12, phase="Pending"))
    placeholder["spec"]["schedulerName"] = names.PLACEHOLDER_SCHEDULER
    lists[following]["items"].append(placeholder)
    assert json.loads(shown("--recommend -o json", **lists)[0])["gain"]["waiting"] == 1


def test_a_list_whose_continue_token_expired_is_read_again() -> None:
    class Expiring(Scripted):
        def _of(self, path: str) -> bytes | Exception:
            expired = path.endswith("continue=x") and self.requests.count(path) == 1
            return KubectlFailed(path, "(Expired)") if expired else super()._of(path)

    kubectl: Any = Expiring(cluster_answers())
    assert "StatefulSet web" in recommended(kubectl, parse(["--recommend"])).text


def test_pods_blocked_by_other_causes_are_not_counted_as_waiting_for_room() -> None:
    def waiting(**more: Any) -> Any:
        text, _ = shown("--recommend -o json", **more)
        return json.loads(text)["gain"]["waiting"]

    def decisions_with(category: str) -> dict[str, Any]:
        one = {"uid": "uid-default-waits", "category": category, "reason": "its gates"}
        decisions = {"scheduler": {"firstAsked": 1.0, "lastAsked": 1.0}, "waiting": [one]}
        return {"/api/v1/namespaces/kube-system/services/http:ack-co-scheduler:health/proxy": decisions}

    assert (waiting(), waiting(**decisions_with("memory")), waiting(**decisions_with("gates"))) == (1, 1, 0)
