"""``gpushare doctor`` finds nothing wrong with a playground, and of each fault that is brought about just that one.

What the charts install is not there in a playground: for faults of theirs, the objects are taken from what helm renders
(tests/e2e/charts/golden).
"""

import json
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.api import names
from gpushare.doctor.__main__ import of_cluster
from gpushare.doctor.findings import exit_code
from gpushare.doctor.options import ROLE
from gpushare.doctor.report import as_json
from gpushare.kube.auth.access import load_access
from gpushare.options.reading import read
from gpushare_playground import gpus
from tests.integration.whole.seen import Json, is_running, record_of
from tests.integration.whole.world import CHECKOUT, World, gpu_pod, run, shared_node, until

pytestmark = pytest.mark.asyncio(loop_scope="session")
NODES = (shared_node("first", "t4"), shared_node("second", "core-mem-4", "core_mem"))
GOLDEN = CHECKOUT / "tests" / "e2e" / "charts" / "golden"
FIRST = "/api/v1/nodes/first"
MERGE = "application/merge-patch+json"


async def doctor(seen: World, *options: str) -> tuple[int, list[dict[str, str]]]:
    """Exit code, and the findings that are not ok, as the command has them: in this process, for it is asked often."""
    asked = read(ROLE, options, {"KUBECONFIG": str(seen.cluster.kubeconfig)})
    access = load_access(asked.kubeconfig or str(seen.cluster.kubeconfig), asked.context)
    findings = await of_cluster(access, asked.timeout, asked.namespace)
    told = as_json(findings, "")["findings"]
    return exit_code(findings), [one for one in told if one["state"] != "ok"]


@pytest.fixture(autouse=True)
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes are read again soon, and given up soon: tests ask again until they are told what they wait for."""
    monkeypatch.setattr("gpushare.doctor.__main__._PATIENCE_S", 0.5)
    monkeypatch.setattr("gpushare.doctor.__main__._AGAIN_S", 0.1)


async def finds(seen: World, check: str, subject: str, message: str, *, state: str = "fault") -> None:
    """Wait until the doctor has this finding and no other."""
    found: list[dict[str, str]] = []

    async def just_that() -> bool:
        nonlocal found
        code, found = await doctor(seen)
        return (
            code == {"warning": 1, "fault": 2}[state]
            and [(one["check"], one["subject"], one["state"]) for one in found] == [(check, subject, state)]
            and message in found[0]["message"]
            and bool(found[0]["suggestion"])
        )

    await until(just_that, f"{check} {subject}: {message}", tell=lambda: found)


async def is_well(seen: World) -> None:
    """Wait until the doctor finds nothing."""
    found: list[dict[str, str]] = []

    async def nothing() -> bool:
        nonlocal found
        code, found = await doctor(seen)
        return code == 0 and not found

    await until(nothing, "all is well", tell=lambda: found)


async def merge(seen: World, path: str, change: Json) -> None:
    await seen.session.request("PATCH", path, body=json.dumps(change).encode(), content_type=MERGE)


def rendered(name: str) -> dict[str, Json]:
    """Kind/name → what helm renders."""
    found = [one for one in yaml.safe_load_all((GOLDEN / name).read_text()) if "metadata" in one]
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in found}


@asynccontextmanager
async def stopped(seen: World, part: str) -> AsyncIterator[None]:
    """A part stands still: nobody hangs up on it, and it does nothing."""
    seen.cluster.parts[part].kill(signal.SIGSTOP)
    try:
        yield
    finally:
        seen.cluster.parts[part].kill(signal.SIGCONT)


@asynccontextmanager
async def ended(seen: World, part: str) -> AsyncIterator[None]:
    await seen.cluster.parts[part].stop()
    try:
        yield
    finally:
        seen.cluster.parts[part].start()


async def test_a_playground_is_well_and_the_doctor_says_of_all_checks_so(seen: World) -> None:
    # In this order: memory alone may go to either node, and would keep compute from the only one that has it.
    await seen.create(gpu_pod("b", 2, limits={names.GPU_CORE: 30}))
    await seen.run_all("b")
    await seen.create(gpu_pod("a", 3))
    await seen.run_all("a")
    await is_well(seen)
    ran = await run(
        sys.executable, "-m", "gpushare", "doctor", env={"KUBECONFIG": str(seen.cluster.kubeconfig)}
    )
    assert ran.code == 0
    lines = [line for line in ran.out.splitlines() if line.startswith("ok ")]
    assert ran.out.rstrip().endswith(f"{len(lines)} ok")
    assert len(lines) >= 19


async def test_wrong_labels_of_a_node_are_named(seen: World) -> None:
    await seen.label("first", {names.LABEL_MODE: "shared"})
    await finds(seen, "node-labels", "node first", f"label {names.LABEL_MODE}=shared is unknown")
    await seen.label("first", {names.LABEL_MODE: "share", names.LABEL_MAX_PODS: "many"})
    await finds(seen, "node-labels", "node first", "is not a number from 1")
    await seen.label("first", {names.LABEL_MAX_PODS: None, "ack.node.gpu.placment": "spread"})
    await finds(seen, "node-labels", "node first", "ack.node.gpu.placment", state="warning")
    await seen.label("first", {"ack.node.gpu.placment": None})
    await is_well(seen)


async def test_an_agent_that_has_ended_is_missed(seen: World) -> None:
    async with ended(seen, "node-agent first"):
        await finds(seen, "node-capacity", "node first", "0 of aliyun.com/gpu-mem instead of 15")
    await is_well(seen)


async def test_a_scheduler_that_has_ended_is_missed(seen: World) -> None:
    async with ended(seen, "extender"):
        await finds(seen, "scheduler", "the extender", "no answer")
    await seen.cluster.extender_ready()
    await is_well(seen)


async def test_what_an_agent_says_is_held_against_label_and_kubelet(seen: World) -> None:
    before = seen.nodes.items["first"]["metadata"]["annotations"][names.ANN_DEVICES]

    def described(text: str | None) -> Awaitable[None]:
        return written(seen, "node-agent", "node", "first", {names.ANN_DEVICES: text})

    async with stopped(seen, "node-agent first"):
        await described("{")
        await finds(seen, "node-devices", "node first", "cannot be read")
        stale = json.loads(before)
        stale["gpus"][0]["mib"] *= 2
        await described(json.dumps(stale))
        await finds(seen, "node-capacity", "node first", "15 of aliyun.com/gpu-mem instead of")
        await described(None)
        await finds(seen, "node-devices", "node first", "no agent has described its GPUs")
        await described(before)
        await seen.label("first", {names.LABEL_MODE: "cgpu"})
        await finds(seen, "node-devices", "node first", "its label says cgpu, and its agent still share")
        await seen.label("first", {names.LABEL_MODE: "share"})
    await is_well(seen)


async def test_a_gpu_out_of_service_is_a_warning(seen: World) -> None:
    file = seen.cluster.gpu_file("second")
    good = gpus.preset("core-mem-4", "second")
    gpus.write(
        file,
        replace(
            good,
            gpus=tuple(replace(one, fault="lost") if at == 1 else one for at, one in enumerate(good.gpus)),
        ),
    )
    await finds(seen, "node-health", "node second", "GPU 1", state="warning")
    gpus.write(file, good)
    await is_well(seen)


async def test_records_that_are_broken_or_untrue_are_named(seen: World) -> None:
    await seen.create(gpu_pod("held", 3, node="first"))
    await seen.run_all("held")
    record = seen.pod("held")["metadata"]["annotations"][names.ANN_SHARE]
    (share,) = record_of(seen.pod("held"))

    def recorded(text: str) -> Awaitable[None]:
        return written(seen, "extender", "pod", "held", {names.ANN_SHARE: text})

    async with stopped(seen, "node-agent first"):
        await recorded("{")
        await finds(seen, "pod-records", "pod default/held", "cannot be read")
        await recorded(record.replace(share["uuid"], "GPU-other"))
        await finds(seen, "pod-records", "pod default/held", "which node first does not have")
        await recorded(record.replace(f'"mib":{share["mib"]}', '"mib":99999'))
        await finds(seen, "pod-records", "node first", "99999 MiB of GPU 0 are given")
        await recorded(record)
    await seen.pods.until(lambda: is_running(seen.pod("held")), "it runs on")
    await is_well(seen)


async def test_a_pod_whose_share_no_context_fits_into_is_named_by_doctor_and_why(seen: World) -> None:
    await seen.create(gpu_pod("little", 1, node="first"))
    await seen.run_all("little")
    annotations = seen.nodes.items["first"]["metadata"]["annotations"]
    before = {key: annotations[key] for key in (names.ANN_DEVICES, names.ANN_ISOLATION)}
    held = json.loads(before[names.ANN_DEVICES]) | {"mode": "cgpu"}
    held["gpus"][0]["context"] = 1500
    says = "less than the 1500 MiB that a CUDA context takes there"

    async with stopped(seen, "node-agent first"):
        # As an agent describes a node that isolates, once a container has measured a context.
        described = {names.ANN_DEVICES: json.dumps(held), names.ANN_ISOLATION: "preload: mode cgpu"}
        await written(seen, "node-agent", "node", "first", described)
        await seen.label("first", {names.LABEL_MODE: "cgpu"})
        await finds(seen, "pod-shares", "pod default/little", says, state="warning")
        assert says in (await seen.kubectl("inspect", "cgpu", "--why", "little")).err
        await written(seen, "node-agent", "node", "first", before)
        await seen.label("first", {names.LABEL_MODE: "share"})
        await is_well(seen)
        assert says not in (await seen.kubectl("inspect", "cgpu", "--why", "little")).err
    await is_well(seen)


async def written(
    seen: World, user: str, kind: str, name: str, annotations: Mapping[str, str | None]
) -> None:
    """Descriptions and records are written by our own parts alone."""
    change = json.dumps({"metadata": {"annotations": annotations}})
    ran = await seen.kubectl("patch", kind, name, "--type=merge", "-p", change, user=user)
    assert ran.code == 0, ran.err


async def test_a_pod_that_waits_for_another_scheduler_is_named(seen: World) -> None:
    pod = gpu_pod("lost", 3)
    pod["spec"]["schedulerName"] = "somebody"
    await seen.create(pod)
    await finds(seen, "waiting-pods", "pod default/lost", "it waits for scheduler somebody", state="warning")


async def test_a_kind_that_is_not_served_is_named(seen: World) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    name = "elasticquotatrees.scheduling.sigs.k8s.io"
    definition = json.loads(await seen.session.request("GET", f"{path}/{name}"))
    await seen.session.request("DELETE", f"{path}/{name}")
    await finds(seen, "definitions", f"crd {name}", "it is not there")
    kept = {key: definition["metadata"][key] for key in ("name",)}
    made = {**definition, "metadata": kept, "status": {}}
    await seen.session.request("POST", path, body=json.dumps(made).encode())
    await is_well(seen)


# --- what people ask for, and nothing comes of it ----------------------------------------------------


def tree(namespace: str, most: int, *namespaces: str) -> Json:
    amounts = {"min": {names.GPU_MEM: 3}, "max": {names.GPU_MEM: most}}
    return {
        "apiVersion": names.QUOTA_GROUP,
        "kind": names.QUOTA_KIND,
        "metadata": {"name": "tree", "namespace": namespace},
        "spec": {"root": {"name": "all", "namespaces": list(namespaces), **amounts}},
    }


@asynccontextmanager
async def applied(seen: World, *objects: Json) -> AsyncIterator[None]:
    ran = await seen.apply(*objects)
    assert ran.code == 0, ran.err
    try:
        yield
    finally:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        await seen.kubectl("delete", "--now", "--ignore-not-found", "-f", "-", stdin=json.dumps(listed))


async def test_quotas_that_do_not_count_are_named(seen: World) -> None:
    tree_of = "elasticquotatree {}/tree".format
    async with applied(seen, tree("default", 5, "default")):
        says = "trees count in namespace kube-system alone"
        await finds(seen, "elastic-quotas", tree_of("default"), says, state="warning")
        shown = await seen.kubectl("get", "elasticquotatrees", "-o", "wide")
        assert "NotLookedAt" in shown.out
    async with applied(seen, tree("kube-system", 2, "default")):
        await finds(seen, "elastic-quotas", tree_of("kube-system"), "no quota is in force: quota all: min")
    async with applied(seen, tree("kube-system", 5, "defaults")):
        says = "quota all names what is no namespace: defaults (there is default)"
        await finds(seen, "elastic-quotas", tree_of("kube-system"), says, state="warning")
    await is_well(seen)


async def test_pods_that_do_not_go_by_their_policy_are_named_and_counted_in_its_status(seen: World) -> None:
    policy = {
        "apiVersion": f"{names.POLICY_GROUP}/{names.POLICY_VERSION}",
        "kind": "ResourcePolicy",
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"selector": {"app": "stray"}, "units": [{"resource": "ecs", "max": 2}]},
    }
    pod = gpu_pod("stray", None)
    pod["metadata"].setdefault("labels", {})["app"] = "stray"
    pod["spec"]["schedulerName"] = "somebody"
    told = "1 pod that it selects names another scheduler, to which neither its order nor its max is known"
    async with applied(seen, policy, pod):
        await finds(seen, "policy-pods", "resourcepolicy default/p", told, state="warning")

        async def says_so() -> bool:
            return told in (await seen.kubectl("get", "resourcepolicies", "-o", "wide")).out

        await until(says_so, "its status says so")
    await is_well(seen)


async def test_a_gang_whose_job_makes_too_few_pods_is_named(seen: World) -> None:
    labels = {names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: "5"}
    template = {"metadata": {"labels": labels}, "spec": {**gpu_pod("x", 1)["spec"], "restartPolicy": "Never"}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"parallelism": 3, "completions": 3, "template": template},
    }
    async with applied(seen, job):
        says = "it never has its pods: 5 must run together, and Job default/train makes 3 at once"
        await finds(seen, "gangs", "gang default/g", says, state="warning")
    await is_well(seen)


async def test_a_resource_in_a_misspelt_domain_is_named_as_admission_does(seen: World) -> None:
    pod = gpu_pod("alyun", None)
    pod["spec"]["containers"][0]["resources"] = {"limits": {"alyun.com/gpu-mem": "5"}}
    async with applied(seen, pod):
        says = "asks for alyun.com/gpu-mem, which no node offers to pods"
        await finds(seen, "waiting-pods", "pod default/alyun", says, state="warning")
    await is_well(seen)


async def test_a_namespace_that_is_not_there_is_named(seen: World) -> None:
    code, (finding,) = await doctor(seen, "-n", "foo")
    assert (code, finding["check"], finding["subject"]) == (2, "installation", "namespace foo")


# --- what the charts install ------------------------------------------------------------------------


MutateFn = Callable[[dict[str, Json]], Any]


async def with_charts(seen: World, change: MutateFn, then: Callable[[], Awaitable[None]]) -> None:
    """Objects of both charts are there, changed, while ``then`` looks; no pods are made of them."""
    objects = {
        key: one
        for key, one in (rendered("installer-1.36.yaml") | rendered("scheduler-1.36.yaml")).items()
        if key.partition("/")[0]
        in (
            "DaemonSet",
            "Deployment",
            "ConfigMap",
            "ClusterRole",
            "ClusterRoleBinding",
            "Role",
            "RoleBinding",
        )
        and "uninstall" not in key
    }
    objects["Deployment/ack-co-scheduler"]["spec"]["replicas"] = 0
    change(objects)
    try:
        ran = await seen.apply(*objects.values())
        assert ran.code == 0, ran.err
        await then()
    finally:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects.values())}
        await seen.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=json.dumps(listed))


async def test_what_the_charts_install_is_well_as_it_is(seen: World) -> None:
    await with_charts(seen, lambda objects: None, lambda: is_well(seen))


async def test_a_right_that_is_missing_is_named(seen: World) -> None:
    def without_binding(objects: dict[str, Json]) -> None:
        role = objects["ClusterRole/ack-co-scheduler"]
        role["rules"] = [one for one in role["rules"] if "pods/binding" not in one["resources"]]

    await with_charts(
        seen,
        without_binding,
        lambda: finds(seen, "process-rights", "clusterrole ack-co-scheduler", "create pods/binding"),
    )


async def test_rights_that_nobody_has_are_named(seen: World) -> None:
    await with_charts(
        seen,
        lambda objects: objects.pop("ClusterRoleBinding/gpushare-device-plugin"),
        lambda: finds(seen, "process-rights", "clusterrolebinding gpushare-device-plugin", "it is not there"),
    )


async def test_two_schedulers_of_one_name_are_named(seen: World) -> None:
    def twice(objects: dict[str, Json]) -> None:
        one = objects["Deployment/ack-co-scheduler"]
        objects["second"] = {**one, "metadata": {**one["metadata"], "namespace": "default"}}

    says = "installed 2 times: default/ack-co-scheduler, kube-system/ack-co-scheduler"
    await with_charts(seen, twice, lambda: finds(seen, "one-scheduler", "scheduler ack-co-scheduler", says))


async def test_a_configuration_that_forgets_the_extender_is_named(seen: World) -> None:
    def ignorable(objects: dict[str, Json]) -> None:
        data = objects["ConfigMap/ack-co-scheduler"]["data"]
        data["config.yaml"] = data["config.yaml"].replace("ignorable: false", "ignorable: true")

    await with_charts(
        seen,
        ignorable,
        lambda: finds(
            seen, "scheduler-config", "configmap kube-system/ack-co-scheduler", "ignorable is true"
        ),
    )


async def test_a_taint_that_keeps_the_agent_away_is_named(seen: World) -> None:
    def intolerant(objects: dict[str, Json]) -> None:
        objects["DaemonSet/gpushare-device-plugin-ds"]["spec"]["template"]["spec"]["tolerations"] = []

    taint = {"key": "team", "value": "ml", "effect": "NoSchedule"}
    try:
        await merge(seen, FIRST, {"spec": {"taints": [taint]}})
        await with_charts(
            seen, intolerant, lambda: finds(seen, "taints", "node first", "the taint team=ml:NoSchedule")
        )
    finally:
        await merge(seen, FIRST, {"spec": {"taints": None}})


async def test_charts_of_two_versions_are_named(seen: World) -> None:
    def old(objects: dict[str, Json]) -> None:
        objects["DaemonSet/gpushare-device-plugin-ds"]["metadata"]["labels"]["app.kubernetes.io/version"] = (
            "0.0.9"
        )

    await with_charts(
        seen, old, lambda: finds(seen, "versions", "the charts", "of different versions", state="warning")
    )


async def test_a_leader_that_is_silent_is_named(seen: World) -> None:
    path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "ack-co-scheduler", "namespace": "kube-system"},
        "spec": {"holderIdentity": "pod-1", "renewTime": "2026-01-01T00:00:00.000000Z"},
    }
    await seen.session.request("POST", path, body=json.dumps(lease).encode())
    try:
        await finds(seen, "scheduler", "lease kube-system/ack-co-scheduler", "has not said so for")
        await merge(seen, f"{path}/ack-co-scheduler", {"spec": {"holderIdentity": None}})
        await finds(seen, "scheduler", "lease kube-system/ack-co-scheduler", "no scheduler leads")
    finally:
        await seen.session.request("DELETE", f"{path}/ack-co-scheduler")


async def test_a_token_that_has_expired_is_one_fault_and_no_check_says_that_all_is_well(
    seen: World, tmp_path: Path
) -> None:
    expired = tmp_path / "config"
    expired.write_text(re.sub(r"token: .*", "token: expired", seen.cluster.kubeconfig.read_text()))
    code, (finding,) = await doctor(seen, "--kubeconfig", str(expired))
    assert (code, finding["check"], finding["state"]) == (2, "api-server", "fault")
    assert "401" in finding["message"]


async def test_a_cluster_that_is_away_is_one_fault(seen: World, tmp_path: Path) -> None:
    away = tmp_path / "config"
    away.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        'clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]\nusers: [{name: u, user: {}}]\n'
        "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
    )
    code, (finding,) = await doctor(seen, "--kubeconfig", str(away), "--timeout", "2s")
    assert (code, finding["check"], finding["state"]) == (2, "api-server", "fault")
    ran = await run(sys.executable, "-m", "gpushare", "doctor", "--kubeconfig", str(tmp_path / "none"))
    assert (ran.code, ran.err.count("\n")) == (2, 1)
