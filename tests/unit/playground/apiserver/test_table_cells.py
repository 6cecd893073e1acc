"""Cells of the tables that ``kubectl get`` shows."""

from datetime import UTC, datetime

import pytest

from gpushare_playground.apiserver.http.kubelet_proxy import kubelet_address
from gpushare_playground.apiserver.reads.pod_cells import pod_status, ready_count, restarts
from gpushare_playground.apiserver.reads.table_cells import (
    custom_column,
    job_status,
    node_status,
    short_duration,
)

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0s"), (-5, "<invalid>"), (0, "0s"), (119, "119s"), (120, "2m"), (150, "2m30s"), (601, "10m"),
        (3 * 3600, "3h"), (3 * 3600 + 240, "3h4m"), (9 * 3600, "9h"), (48 * 3600, "2d"), (49 * 3600, "2d1h"),
        (9 * 86400, "9d"), (800 * 86400, "2y70d"), (9 * 365 * 86400, "9y"),
    ],
)  # fmt: skip
def test_durations_are_shown_in_two_units_while_these_matter(seconds, text):
    assert short_duration(seconds) == text


def pod(phase="Pending", *, init=(), main=(), metadata=None, **status):
    return {
        "metadata": metadata or {},
        "spec": {
            "containers": [{"name": f"c{number}"} for number in range(max(1, len(main)))],
            "initContainers": [{"name": f"i{number}", **more} for number, (_, more) in enumerate(init)],
        },
        "status": {
            "phase": phase,
            "initContainerStatuses": [{"name": f"i{number}", **one} for number, (one, _) in enumerate(init)],
            "containerStatuses": [{"name": f"c{number}", **one} for number, one in enumerate(main)],
            **status,
        },
    }


def state(kind, **more):
    return {"state": {kind: more}}


RUNNING = {"state": {"running": {}}, "ready": True}


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (pod(), "Pending"),
        (pod("Running", main=[RUNNING]), "Running"),
        (pod("Pending", main=[state("waiting", reason="ImagePullBackOff")]), "ImagePullBackOff"),
        (pod("Succeeded", main=[state("terminated", reason="Completed", exitCode=0)]), "Completed"),
        (pod("Failed", main=[state("terminated", exitCode=3)]), "ExitCode:3"),
        (pod("Failed", main=[state("terminated", signal=9)]), "Signal:9"),
        (pod("Failed", reason="UnexpectedAdmissionError"), "UnexpectedAdmissionError"),
        (pod("Pending", init=[(state("running"), {})]), "Init:0/1"),
        (pod("Pending", init=[(state("waiting", reason="CrashLoopBackOff"), {})]), "Init:CrashLoopBackOff"),
        (pod("Pending", init=[(state("terminated", exitCode=1, reason="Error"), {})]), "Init:Error"),
        (pod("Running", init=[(state("terminated", exitCode=0), {})], main=[RUNNING]), "Running"),
        (
            pod(
                "Running",
                init=[({"started": True, **RUNNING}, {"restartPolicy": "Always"})],
                main=[RUNNING],
            ),
            "Running",
        ),
        (pod("Running", main=[RUNNING], metadata={"deletionTimestamp": "x"}), "Terminating"),
        (pod(conditions=[{"type": "PodScheduled", "reason": "SchedulingGated"}]), "SchedulingGated"),
        (
            pod("Running", main=[RUNNING, state("terminated", reason="Completed", exitCode=0)]),
            "Running",
        ),
    ],
)  # fmt: skip
def test_the_status_word_of_a_pod(found, word):
    if found["status"]["phase"] == "Running":
        found["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    assert pod_status(found, NOW) == word


def test_sidecars_count_as_containers():
    found = pod("Running", init=[(RUNNING, {"restartPolicy": "Always"})], main=[RUNNING, {"ready": False}])
    assert ready_count(found, NOW) == "2/3"


def test_restarts_include_the_time_of_the_last_one():
    last_state = {"terminated": {"finishedAt": "2026-01-01T11:55:00Z"}}
    found = pod("Running", main=[{"restartCount": 2, "lastState": last_state}])
    assert restarts(found, NOW) == "2 (5m ago)"
    assert restarts(pod("Running", main=[{"restartCount": 0}]), NOW) == "0"


@pytest.mark.parametrize(
    ("node", "word"),
    [
        ({}, "Unknown"),
        ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, "Ready"),
        ({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, "NotReady"),
        ({"spec": {"unschedulable": True}}, "Unknown,SchedulingDisabled"),
    ],
)
def test_the_status_word_of_a_node(node, word):
    assert node_status(node, NOW) == word


@pytest.mark.parametrize(
    ("kind", "word"),
    [("Complete", "Complete"), ("Failed", "Failed"), ("", "Running")],
)
def test_the_status_word_of_a_job(kind, word):
    job = {"metadata": {}, "status": {"conditions": [{"type": kind, "status": "True"}]}}
    assert job_status(job, NOW) == word


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".spec.size", 3),
        (".spec.list[1]", "b"),
        (".metadata.labels.x\\.io/y", "z"),
        (".metadata.labels['x.io/y']", "z"),
        (".spec.nope.deeper", None),
        (".spec.list[9]", None),
    ],
)
def test_custom_columns_follow_a_json_path(path, expected):
    obj = {"metadata": {"labels": {"x.io/y": "z"}}, "spec": {"size": 3, "list": ["a", "b"]}}
    name, priority, cell = custom_column({"name": "C", "jsonPath": path})
    assert (name, priority, cell(obj, NOW)) == ("C", 0, expected)


@pytest.mark.parametrize(
    ("status", "address"),
    [
        ({}, None),
        ({"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}, None),
        (
            {
                "addresses": [{"type": "InternalIP", "address": "::1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 5}},
            },
            "[::1]:5",
        ),
    ],
)
def test_a_kubelets_address_is_that_of_the_nodes_status(status, address):
    assert kubelet_address({"status": status}) == address
