"""Manifests and snapshots: what is read, what is skipped, and what is rejected."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpushare.api import names
from gpushare.api.json_objects import Json
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.unit_conversion import Counting
from gpushare.simulate.__main__ import main
from gpushare.simulate.errors import SimulateError
from gpushare.simulate.input import manifests
from gpushare.simulate.input.documents import read_documents
from gpushare.simulate.input.manifests import Manifests, joined, manifests_of
from gpushare.simulate.snapshot import (
    ClusterState,
    counting_of,
    namespace_labels,
    read_snapshot,
    snapshot_of,
    state_of,
    workload_of,
)
from tests.unit.simulate.objects import node, pod, template, workload

EMPTY = ClusterState(())


def made(*documents: Json, state: ClusterState = EMPTY, counting: Counting | None = None) -> Manifests:
    return manifests_of([("f.yaml", one) for one in documents], state, counting or Counting())


def names_of(found: Manifests) -> list[str]:
    return [one.pod["metadata"]["name"] for one in found.pods]


def test_controllers_create_as_many_pods_as_they_declare() -> None:
    job = workload("Job", "job", 5, template(1))
    job["spec"]["completions"] = 2
    lone = workload("Deployment", "lone", 0, template(1))
    del lone["spec"]["replicas"]
    found = made(
        pod("p", 1),
        workload("Deployment", "web", 2, template(1)),
        workload("StatefulSet", "set", 1, template(1)),
        workload("ReplicaSet", "none", 0, template(1)),
        lone,
        job,
        {"kind": "Service", "metadata": {"name": "s"}},
    )
    assert names_of(found) == ["p", "web-0", "web-1", "set-0", "lone-0", "job-0", "job-1"]
    assert found.skipped == ("Service s",)
    assert found.pods[1].workload == "default/Deployment web"
    assert found.pods[3].pod["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] == "set-0"
    assert workload_of(found.pods[1].pod) == "default/Deployment web"
    assert workload_of(found.pods[0].pod) == "default/Pod p"


@pytest.mark.parametrize(
    ("kind", "suggestion"),
    [("Deploymnt", "Deployment"), ("statefulset", "StatefulSet"), ("Pods", "Pod"), ("Jbo", "")],
)
def test_a_misspelt_kind_is_rejected_with_a_suggestion(kind: str, suggestion: str) -> None:
    document = {"kind": kind, "metadata": {"name": "d"}, "spec": {}}
    if not suggestion:
        assert made(document).skipped == (f"{kind} d",)
        return
    with pytest.raises(SimulateError, match=f"f.yaml: {kind} d: is no kind; write {suggestion}"):
        made(document)


@pytest.mark.parametrize("kind", ["CronJob", "DaemonSet", "ElasticQuota", "MPIJob", "CloneSet", "PodGroup"])
def test_foreign_kinds_with_similar_names_are_skipped(kind: str) -> None:
    assert made({"kind": kind, "metadata": {"name": "d"}}).skipped == (f"{kind} d",)


@pytest.mark.parametrize(("value", "quoted"), [(8, '"8"'), (True, '"true"'), (0.5, '"0.5"')])
def test_a_label_without_quotes_is_reported_with_its_correction(value: Any, quoted: str) -> None:
    key = names.LABEL_GANG_LEAST
    advice = re.escape(f"in labels, put the value of {key} in quotes: {quoted}")
    for document in (
        workload("Deployment", "d", 1, template(1, labels={"app": "d", key: value})),
        pod("d", 1, labels={key: value}),
    ):
        with pytest.raises(SimulateError, match=advice):
            made(document)


def test_a_replica_set_of_a_deployment_is_shown_as_the_deployment() -> None:
    owned = pod("web-abc-1", 1, labels={"pod-template-hash": "abc"})
    owned["metadata"] |= {
        "namespace": "x",
        "ownerReferences": [
            {"kind": "Odd", "name": "o"},
            {"kind": "ReplicaSet", "name": "web-abc", "controller": True},
        ],
    }
    assert workload_of(owned) == "x/Deployment web"
    owned["metadata"]["labels"] = {}
    assert workload_of(owned) == "x/ReplicaSet web-abc"


def test_admission_is_applied_first() -> None:
    found = made(
        pod("points", 1),
        pod("own", 1, schedulerName="mine"),
        pod("wrong", 1, 33),
        pod("plain"),
        counting=Counting(MemoryUnit.GIB, 16160),
    )
    assert [one.pod["spec"].get("schedulerName") for one in found.pods] == [
        names.SCHEDULER_NAME,
        "mine",
        None,
        None,
    ]
    assert found.pods[2].refused.startswith(names.GPU_CORE)


def test_percentages_of_memory_become_units() -> None:
    half = pod("half")
    half["spec"]["containers"][0]["resources"] = {
        "limits": {names.GPU_MEMORY_PERCENT: "50"},
        "requests": {names.GPU_MEMORY_PERCENT: "50"},
    }
    (one,) = made(half, counting=Counting(MemoryUnit.GIB, 16160)).pods
    assert one.pod["spec"]["containers"][0]["resources"] == {
        "limits": {names.GPU_MEM: "7"},
        "requests": {names.GPU_MEM: "7"},
    }
    assert names.ANN_REQUESTED in one.pod["metadata"]["annotations"]
    assert made(half).pods[0].refused.startswith(names.GPU_MEMORY_PERCENT)


def test_namespaces_can_opt_out_and_kube_system_is_excluded() -> None:
    quiet = {
        "kind": "Namespace",
        "metadata": {"name": "quiet", "labels": {names.LABEL_ADMISSION: "disabled"}},
    }
    inside = pod("p", 1)
    inside["metadata"]["namespace"] = "quiet"
    system = pod("s", 1, 33)
    system["metadata"]["namespace"] = "kube-system"
    found = made(quiet, inside, system)
    assert [one.pod["spec"].get("schedulerName") for one in found.pods] == [None, None]
    assert not found.pods[1].refused
    assert namespace_labels(found.state, "other") == {}


def test_priorities_come_from_their_classes() -> None:
    classes = (
        {"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 7, "preemptionPolicy": "Never"},
        {"kind": "PriorityClass", "metadata": {"name": "usual"}, "value": 3, "globalDefault": True},
    )
    found = made(
        *classes,
        pod("high", 1, priorityClassName="high"),
        pod("usual", 1),
        pod("set", 1, priority=9),
        pod("none", 1, priorityClassName="unknown"),
        pod("node", 1, priorityClassName="system-node-critical"),
    )
    specs = [one.pod["spec"] for one in found.pods]
    assert [spec.get("priority") for spec in specs] == [7, 3, 9, None, 2_000_001_000]
    assert specs[0]["preemptionPolicy"] == "Never"
    assert found.pods[3].refused == "no PriorityClass with name unknown was found"


def test_objects_of_manifests_replace_those_of_the_cluster() -> None:
    old = {"kind": "PriorityClass", "metadata": {"name": "a"}, "value": 1}
    other = {"kind": "PriorityClass", "metadata": {"name": "b"}, "value": 1}
    new = {"kind": "PriorityClass", "metadata": {"name": "a"}, "value": 2}
    cluster = state_of([old, other], "test")
    assert joined(cluster, state_of([new], "test")).priority_classes == (other, new)


def test_files_are_yaml_or_json_of_one_or_many() -> None:
    text = b"---\nkind: Pod\nmetadata: {name: a}\n---\n---\nkind: List\nitems:\n- {kind: Job}\n"
    assert [one["kind"] for one in read_documents(text, "f")] == ["Pod", "Job"]
    assert read_documents(b'{"kind": "Pod"}', "f") == [{"kind": "Pod"}]
    for wrong, expected in (
        (b"a: [", "is no YAML"),
        (b"- a", "document 1 is no Kubernetes object"),
        (b"a: 1", "has no kind"),
    ):
        with pytest.raises(SimulateError, match=expected):
            read_documents(wrong, "f")


def test_an_invalid_workload_is_rejected_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SimulateError, match=r"f.yaml: a Pod has no metadata.name"):
        made({"kind": "Pod"})
    with pytest.raises(SimulateError, match=r"f.yaml: Deployment d: cannot be read \('template'\)"):
        made({"kind": "Deployment", "metadata": {"name": "d"}, "spec": {}})
    bad = workload("Deployment", "d", 1, template(1))
    bad["spec"]["replicas"] = -1
    with pytest.raises(SimulateError, match="replicas is -1, not a whole number"):
        made(bad)
    odd = pod("p", 1)
    odd["spec"]["containers"] = "none"
    with pytest.raises(SimulateError, match="Pod p: cannot be read"):
        made(odd)
    monkeypatch.setattr(manifests, "MOST_PODS", 2)
    with pytest.raises(SimulateError, match="more than 2 pods"):
        made(workload("Deployment", "d", 3, template(1)))


def test_a_snapshot_contains_what_affects_scheduling_and_no_secrets() -> None:
    pending = pod("p", 2, priorityClassName="high")
    pending["metadata"] |= {
        "namespace": "x",
        "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": "secret",
            "vault.example/token": "secret",
            "team": "a",
            names.ANN_DELETION_COST: "7",
            names.ANN_DEFRAGMENTATION: "Never",
        },
        "managedFields": [{}],
    }
    pending["spec"]["initContainers"] = [{"name": "i", "command": ["secret"], "ports": [{"hostPort": 1}, {}]}]
    pending["status"] = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "message": "secret"}, {"type": "Ready"}],
    }
    finished = {**pending, "status": {"phase": "Succeeded"}}
    state = state_of(
        [
            {**node("a", 16160), "kind": "Node"},
            pending,
            finished,
            {
                "kind": "ResourcePolicy",
                "metadata": {"name": "r", "namespace": "x"},
                "spec": {"units": [{"podAnnotations": {"team": "a"}}, {}]},
            },
            {"kind": "ElasticQuotaTree", "metadata": {"name": "t"}, "spec": {}},
            {"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 5},
            {"kind": "Namespace", "metadata": {"name": "x", "labels": {"l": "1"}}},
            {"kind": "ConfigMap", "metadata": {"name": "c"}},
        ],
        "test",
    )
    raw = snapshot_of(state)
    assert b"secret" not in raw
    restored = read_snapshot(raw, "file")
    assert snapshot_of(restored) == raw
    assert len(restored.pods) == 1
    assert restored.pods[0]["metadata"]["annotations"] == {
        "team": "a",
        names.ANN_DELETION_COST: "7",
        names.ANN_DEFRAGMENTATION: "Never",
    }
    assert restored.pods[0]["spec"]["initContainers"] == [{"name": "i", "ports": [{"hostPort": 1}]}]
    assert restored.waiting == list(restored.pods)
    assert counting_of(restored) == Counting(MemoryUnit.GIB, 16160)
    assert counting_of(ClusterState((node("plain"),))) == Counting(MemoryUnit.GIB, 0)
    broken = node("b", 16160)
    broken["metadata"]["annotations"][names.ANN_DEVICES] = "{"
    assert counting_of(ClusterState((broken,))) == Counting(MemoryUnit.GIB, 0)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"{", "is no JSON"),
        (b"[]", "is no List"),
        (json.dumps({"items": [1]}).encode(), "item 1 is no Kubernetes object"),
        (json.dumps({"items": [{"kind": "Node"}]}).encode(), "item 1 \\(Node\\) has no metadata.name"),
        (json.dumps({"items": []}).encode(), "has no nodes"),
    ],
)
def test_a_file_that_is_no_snapshot_is_rejected(raw: bytes, expected: str) -> None:
    with pytest.raises(SimulateError, match=f"f.json: {expected}"):
        read_snapshot(raw, "f.json")


def test_of_a_directory_the_manifests_directly_in_it_are_read_like_kubectl_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, folder, empty = tmp_path / "cluster.json", tmp_path / "manifests", tmp_path / "empty"
    cluster.write_bytes(snapshot_of(ClusterState((node("a", 16160),))))
    (folder / "deeper.yaml").mkdir(parents=True)
    for name in ("b.yml", "a.yaml", "c.json", "notes.md", "deeper.yaml/d.yaml"):
        (folder / name).write_text(json.dumps(pod(f"from-{Path(name).stem}", 1)))
    assert main(["--snapshot", str(cluster), "-f", str(folder)]) == 0
    assert re.findall(r"from-\w+", capsys.readouterr().out) == ["from-a", "from-b", "from-c"]
    empty.mkdir()
    assert main(["--snapshot", str(cluster), "-f", str(empty)]) == 2
    assert "empty: the directory has no file that ends with .json, .yaml, .yml\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        (
            [("a.yaml", pod("big", 2)), ("b.yaml", pod("big", 3))],
            "default/Pod big: is in a.yaml and in b.yaml; remove or rename one",
        ),
        (
            [("a.yaml", workload("Deployment", "web", 2, template(2)))] * 2,
            "default/Deployment web: is twice in a.yaml; remove or rename one",
        ),
        (
            [("a.yaml", workload("StatefulSet", "web", 1, template(2))), ("b.yaml", pod("web-0", 3))],
            "pod default/web-0: is created by default/StatefulSet web in a.yaml and by default/Pod web-0 in b.yaml; "
            "rename one of them",
        ),
    ],
)
def test_for_duplicate_names_both_files_are_named(documents: list[tuple[str, Json]], expected: str) -> None:
    with pytest.raises(SimulateError) as refused:
        manifests_of(documents, ClusterState((node("a", 15360),)), Counting())
    assert str(refused.value) == expected
