"""Workloads that already have pods: those count, and only the missing ones are created."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpushare.api import names
from gpushare.api.json_objects import Json, name_of
from gpushare.simulate.__main__ import main
from gpushare.simulate.input.manifests import Manifests, manifests_of
from gpushare.simulate.snapshot import ClusterState, counting_of, read_snapshot, snapshot_of, state_of
from tests.unit.simulate.objects import node, placed, pod, ran, template, workload

T4 = 15360
MANIFEST: list[Json] = [
    {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
    {"key": names.GPU_MEM, "operator": "Exists"},
]


def running(name: str, owner: str, mem: int = 4, labels: Json | None = None, **more: Any) -> Json:
    """A pod as it runs on a cluster; ``owner`` is ``Kind NAME``."""
    spec = {"tolerations": MANIFEST, "schedulerName": names.SCHEDULER_NAME, "priority": 0, "nodeName": "a"}
    made = pod(name, mem, **(spec | more))
    kind, _, owner_name = owner.partition(" ")
    made["metadata"] |= {
        "namespace": "default",
        "uid": f"uid-{name}",
        "labels": labels or {},
        "ownerReferences": [{"kind": kind, "name": owner_name, "controller": True}],
    }
    return made


def of_deployment(name: str, **more: Any) -> Json:
    return running(name, "ReplicaSet web-abc", labels={"app": "web", "pod-template-hash": "abc"}, **more)


def web(replicas: int, mem: int = 4, **more: Any) -> Json:
    return workload("Deployment", "web", replicas, template(mem, labels={"app": "web"}, **more))


def made(document: Json, *pods: Json) -> Manifests:
    state = ClusterState((node("a", T4, T4),), pods)
    return manifests_of([("f.yaml", document)], state, counting_of(state))


def names_of(found: Manifests) -> list[str]:
    return [name_of(one.pod) for one in found.pods]


def test_only_the_missing_pods_of_a_workload_are_created() -> None:
    found = made(
        web(4), of_deployment("web-abc-1"), of_deployment("web-abc-2"), running("x", "ReplicaSet other")
    )
    assert names_of(found) == ["web-2", "web-3"]
    (existing,) = found.existing
    assert (
        existing.workload,
        existing.asked,
        existing.pods,
        existing.coming,
        existing.leaving,
        existing.differs,
    ) == (
        "default/Deployment web",
        4,
        2,
        2,
        0,
        (),
    )
    job = workload("Job", "job", 3, template(4))
    assert names_of(made(job, running("job-xyz", "Job job"))) == ["job-1", "job-2"]
    of_set = workload("ReplicaSet", "web-abc", 2, template(4))
    assert names_of(made(of_set, of_deployment("web-abc-1"))) == ["web-abc-2"]
    assert not made(web(4)).existing


def test_the_missing_ordinals_of_a_stateful_set_are_created() -> None:
    existing = running("set-1", "StatefulSet set", labels={"statefulset.kubernetes.io/pod-name": "set-1"})
    document = workload("StatefulSet", "set", 3, template(4))
    found = made(document, existing)
    assert names_of(found) == ["set-0", "set-2"]
    assert found.existing[0].differs == ()
    document["spec"]["ordinals"] = {"start": 1}
    assert names_of(made(document, existing)) == ["set-2", "set-3"]
    result = ran(ClusterState((node("a", T4, T4),), (existing,)), document)
    assert placed(result) == {"set-2": "a", "set-3": "a"}


def test_pods_being_deleted_are_recreated_unless_their_name_is_still_taken() -> None:
    leaving = of_deployment("web-0")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert names_of(made(web(2), leaving)) == ["web-1", "web-2"]
    ordinal = running("set-0", "StatefulSet set")
    ordinal["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    found = made(workload("StatefulSet", "set", 2, template(4)), ordinal)
    assert names_of(found) == ["set-1"]
    assert found.existing[0].leaving == 1


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ()),
        ({"mem": 6}, ("resources",)),
        ({"nodeSelector": {"zone": "a"}}, ("nodeSelector",)),
        ({"affinity": {"nodeAffinity": {}}}, ("affinity",)),
        ({"tolerations": [{"key": "mine", "operator": "Exists"}]}, ("tolerations",)),
        ({"priority": 7}, ("priority",)),
        ({"schedulerName": "other"}, ("schedulerName",)),
        (
            {"initContainers": [{"name": "i", "restartPolicy": "Always", "ports": [{"hostPort": 1}]}]},
            ("ports",),
        ),
    ],
)
def test_differences_between_template_and_running_pods_are_reported(
    change: dict[str, Any], expected: tuple[str, ...]
) -> None:
    document = web(1, change.get("mem", 4), **{key: value for key, value in change.items() if key != "mem"})
    found = made(document, of_deployment("web-abc-1"))
    assert not found.pods
    assert found.existing[0].differs == expected
    document["spec"]["template"]["metadata"]["labels"]["app"] = "other"
    assert made(document, of_deployment("web-abc-1")).existing[0].differs == (*expected, "labels")


def test_fields_left_out_of_a_saved_cluster_and_requests_in_mib_make_no_difference() -> None:
    state = ClusterState((node("a", T4),), (of_deployment("web-abc-1"),))
    saved = read_snapshot(snapshot_of(state), "saved")
    document = web(1)
    document["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = {
        names.GPU_MEMORY: "4096Mi"
    }
    found = manifests_of([("f.yaml", document)], saved, counting_of(saved))
    assert (found.pods, found.existing[0].differs) == ((), ())


def test_assumptions_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pods = (of_deployment("web-abc-1"), of_deployment("web-abc-2"))
    snapshot, file = tmp_path / "cluster.json", tmp_path / "f.yaml"
    snapshot.write_bytes(snapshot_of(ClusterState((node("a", T4, T4),), pods)))
    file.write_text(json.dumps(web(3, 6)))
    assert main(["--snapshot", str(snapshot), "-f", str(file)]) == 0
    out = capsys.readouterr().out
    assert "default    Deployment web  6 GiB  1     1       a" in out
    assert (
        "default/Deployment web: existing pods: 2, requested: 3, created: 1; its template differs from them in resources: "
        "existing pods are used as they are, no rollout is simulated.\n" in out
    )
    file.write_text(json.dumps(web(1)))
    assert main(["--snapshot", str(snapshot), "-f", str(file), "-o", "json"]) == 0
    (existing,) = json.loads(capsys.readouterr().out)["existing"]
    assert existing == {
        "workload": "default/Deployment web",
        "asked": 1,
        "pods": 2,
        "coming": 0,
        "leaving": 0,
        "differs": [],
        "ended": None,
    }
    assert main(["--snapshot", str(snapshot), "-f", str(file)]) == 0
    assert (
        "default/Deployment web: existing pods: 2, requested: 1, created: 0; 1 more than requested is assumed to stay.\n"
        in capsys.readouterr().out
    )
    of_set = running("set-0", "StatefulSet set")
    of_set["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    snapshot.write_bytes(snapshot_of(ClusterState((node("a", T4),), (of_set,))))
    file.write_text(json.dumps(workload("StatefulSet", "set", 1, template(4))))
    assert main(["--snapshot", str(snapshot), "-f", str(file)]) == 0
    assert "created: 0; 1 being deleted is not recreated.\n" in capsys.readouterr().out


@pytest.mark.parametrize("end", ["Complete", "Failed"])
def test_a_finished_job_is_reported_to_start_no_pods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], end: str
) -> None:
    def job(name: str, *conditions: str) -> Json:
        written = [{"type": one, "status": "True"} for one in conditions]
        return {
            "kind": "Job",
            "metadata": {"name": name, "namespace": "default"},
            "status": {"conditions": written},
        }

    state = state_of([node("a", T4), job("train", end), job("goes-on", "Suspended")], "test")
    saved, file = tmp_path / "cluster.json", tmp_path / "jobs.json"
    saved.write_bytes(snapshot_of(state))
    items = [workload("Job", name, 1, template(2)) for name in ("train", "goes-on")]
    file.write_text(json.dumps({"kind": "List", "items": items}))

    assert main(["--snapshot", str(saved), "-f", str(file)]) == 0
    out = capsys.readouterr().out
    assert (
        "default/Job train: existing pods: 0, requested: 1, created: 1; "
        f"it has ended on the cluster ({end}), and applying it again starts none: its pods are simulated nevertheless.\n"
    ) in out
    assert out.count("it has ended") == 1
    main(["--snapshot", str(saved), "-f", str(file), "-o", "json"])
    (existing,) = json.loads(capsys.readouterr().out)["existing"]
    assert (existing["workload"], existing["ended"]) == ("default/Job train", end)
