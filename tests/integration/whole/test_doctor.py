"""``gpushare doctor`` finds no fault in a playground, and exactly the one that a test causes.

A playground lacks what the charts install: for faults of that, the objects are taken from what helm renders
(tests/e2e/charts/golden).
"""

import json
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
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
from tests.integration.whole.cluster import Json
from tests.integration.whole.world import CHECKOUT, World, gpu_pod, run, shared_node, until

pytestmark = pytest.mark.asyncio(loop_scope="session")
NODES = (shared_node("first", "t4"), shared_node("second", "core-mem-4", "core_mem"))
GOLDEN = CHECKOUT / "tests" / "e2e" / "charts" / "golden"


async def doctor(cluster: World, *options: str) -> tuple[int, list[dict[str, str]]]:
    """Exit code, and the findings that are not ok, by the command in this process, since it runs often."""
    arguments = read(ROLE, options, {"KUBECONFIG": str(cluster.playground.kubeconfig)})
    access = load_access(arguments.kubeconfig or str(cluster.playground.kubeconfig), arguments.context)
    findings = await of_cluster(access, arguments.timeout, arguments.namespace)
    document = as_json(findings, "")["findings"]
    return exit_code(findings), [one for one in document if one["state"] != "ok"]


@pytest.fixture(autouse=True)
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes are read again soon, and given up soon: tests repeat the command until they get the expected result."""
    monkeypatch.setattr("gpushare.doctor.__main__._PATIENCE_S", 0.5)
    monkeypatch.setattr("gpushare.doctor.__main__._AGAIN_S", 0.1)


async def finds(cluster: World, check: str, subject: str, message: str, *, state: str = "fault") -> None:
    """Wait until the doctor has this finding and no other."""
    found: list[dict[str, str]] = []

    async def just_that() -> bool:
        nonlocal found
        code, found = await doctor(cluster)
        return (
            code == {"warning": 1, "fault": 2}[state]
            and [(one["check"], one["subject"], one["state"]) for one in found] == [(check, subject, state)]
            and message in found[0]["message"]
            and bool(found[0]["suggestion"])
        )

    await until(just_that, f"{check} {subject}: {message}", detail=lambda: found)


async def is_well(cluster: World) -> None:
    """Wait until the doctor finds nothing."""
    found: list[dict[str, str]] = []

    async def nothing() -> bool:
        nonlocal found
        code, found = await doctor(cluster)
        return code == 0 and not found

    await until(nothing, "all is well", detail=lambda: found)


def rendered(name: str) -> dict[str, Json]:
    """Kind/name → what helm renders."""
    found = [one for one in yaml.safe_load_all((GOLDEN / name).read_text()) if "metadata" in one]
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in found}


@asynccontextmanager
async def stopped(cluster: World, part: str) -> AsyncIterator[None]:
    """A stopped process: its connections stay open, and it does nothing."""
    cluster.playground.parts[part].kill(signal.SIGSTOP)
    try:
        yield
    finally:
        cluster.playground.parts[part].kill(signal.SIGCONT)


@asynccontextmanager
async def killed(cluster: World, part: str) -> AsyncIterator[None]:
    await cluster.playground.parts[part].stop()
    try:
        yield
    finally:
        cluster.playground.parts[part].start()


async def test_a_playground_is_sound_and_the_doctor_reports_all_checks_as_ok(cluster: World) -> None:
    # In this order: memory alone may go to either node, and would keep compute from the only one that has it.
    await cluster.create(gpu_pod("b", 2, limits={names.GPU_CORE: 30}))
    await cluster.run_all("b")
    await cluster.create(gpu_pod("a", 3))
    await cluster.run_all("a")
    await is_well(cluster)
    ran = await run(
        sys.executable, "-m", "gpushare", "doctor", env={"KUBECONFIG": str(cluster.playground.kubeconfig)}
    )
    assert ran.code == 0
    lines = [line for line in ran.out.splitlines() if line.startswith("ok ")]
    assert ran.out.rstrip().endswith(f"{len(lines)} ok")
    assert len(lines) >= 19


async def test_a_stopped_agent_is_reported(cluster: World) -> None:
    async with killed(cluster, "node-agent first"):
        await finds(cluster, "node-capacity", "node first", "0 of aliyun.com/gpu-mem instead of 15")
    await is_well(cluster)


async def test_a_stopped_scheduler_is_reported(cluster: World) -> None:
    async with killed(cluster, "extender"):
        await finds(cluster, "scheduler", "the extender", "no answer")
    await cluster.playground.extender_ready()
    await is_well(cluster)


async def test_an_agents_description_is_compared_with_label_and_kubelet(cluster: World) -> None:
    before = cluster.nodes.items["first"]["metadata"]["annotations"][names.ANN_DEVICES]

    def described(text: str | None) -> Awaitable[None]:
        return written(cluster, "node-agent", "node", "first", {names.ANN_DEVICES: text})

    async with stopped(cluster, "node-agent first"):
        await described("{")
        await finds(cluster, "node-devices", "node first", "cannot be read")
        stale = json.loads(before)
        stale["gpus"][0]["mib"] *= 2
        await described(json.dumps(stale))
        await finds(cluster, "node-capacity", "node first", "15 of aliyun.com/gpu-mem instead of")
        await described(None)
        await finds(cluster, "node-devices", "node first", "no agent has reported its GPUs")
        await described(before)
        await cluster.label("first", {names.LABEL_MODE: "cgpu"})
        await finds(
            cluster,
            "node-devices",
            "node first",
            "its label says cgpu, but its agent still runs in mode share",
        )
        await cluster.label("first", {names.LABEL_MODE: "share"})
    await is_well(cluster)


async def written(
    cluster: World, user: str, kind: str, name: str, annotations: Mapping[str, str | None]
) -> None:
    """Only our own parts write descriptions and records."""
    change = json.dumps({"metadata": {"annotations": annotations}})
    ran = await cluster.kubectl("patch", kind, name, "--type=merge", "-p", change, user=user)
    assert ran.code == 0, ran.err


async def test_a_kind_that_is_not_served_is_reported(cluster: World) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    name = "elasticquotatrees.scheduling.sigs.k8s.io"
    definition = json.loads(await cluster.session.request("GET", f"{path}/{name}"))
    await cluster.session.request("DELETE", f"{path}/{name}")
    await finds(cluster, "definitions", f"crd {name}", "it does not exist")
    metadata = {key: definition["metadata"][key] for key in ("name",)}
    made = {**definition, "metadata": metadata, "status": {}}
    await cluster.session.request("POST", path, body=json.dumps(made).encode())
    await is_well(cluster)


async def test_a_missing_namespace_is_reported(cluster: World) -> None:
    code, (finding,) = await doctor(cluster, "-n", "foo")
    assert (code, finding["check"], finding["subject"]) == (2, "installation", "namespace foo")


# --- what the charts install ------------------------------------------------------------------------


MutateFn = Callable[[dict[str, Json]], Any]


async def with_charts(cluster: World, change: MutateFn, then: Callable[[], Awaitable[None]]) -> None:
    """Objects of both charts exist, changed, while ``then`` runs; no pods are made of them."""
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
        ran = await cluster.apply(*objects.values())
        assert ran.code == 0, ran.err
        await then()
    finally:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects.values())}
        await cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=json.dumps(listed))


async def test_what_the_charts_install_has_no_fault(cluster: World) -> None:
    await with_charts(cluster, lambda objects: None, lambda: is_well(cluster))


async def test_a_missing_permission_is_reported(cluster: World) -> None:
    def without_binding(objects: dict[str, Json]) -> None:
        role = objects["ClusterRole/ack-co-scheduler"]
        role["rules"] = [one for one in role["rules"] if "pods/binding" not in one["resources"]]

    await with_charts(
        cluster,
        without_binding,
        lambda: finds(cluster, "process-rights", "clusterrole ack-co-scheduler", "create pods/binding"),
    )


async def test_an_expired_token_is_one_fault_and_no_check_is_reported_as_ok(
    cluster: World, tmp_path: Path
) -> None:
    expired = tmp_path / "config"
    expired.write_text(re.sub(r"token: .*", "token: expired", cluster.playground.kubeconfig.read_text()))
    code, (finding,) = await doctor(cluster, "--kubeconfig", str(expired))
    assert (code, finding["check"], finding["state"]) == (2, "api-server", "fault")
    assert "401" in finding["message"]


async def test_an_unreachable_cluster_is_one_fault(cluster: World, tmp_path: Path) -> None:
    away = tmp_path / "config"
    away.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        'clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]\nusers: [{name: u, user: {}}]\n'
        "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
    )
    code, (finding,) = await doctor(cluster, "--kubeconfig", str(away), "--timeout", "2s")
    assert (code, finding["check"], finding["state"]) == (2, "api-server", "fault")
    ran = await run(sys.executable, "-m", "gpushare", "doctor", "--kubeconfig", str(tmp_path / "none"))
    assert (ran.code, ran.err.count("\n")) == (2, 1)
