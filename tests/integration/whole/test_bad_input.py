"""Bad input end to end: each mistake has a message that names the object and the correction."""

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from gpushare.api import names
from tests.integration.whole.cluster import Json, is_running, phase_of, waits_because
from tests.integration.whole.world import World, environment, gpu_pod, run, shared_node, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

NODES = (shared_node("four", "core-mem-4"), shared_node("single", "v100-16384"))
UNREACHABLE = """
apiVersion: v1
kind: Config
current-context: a
contexts: [{name: a, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
"""
GPUSHARE = (sys.executable, "-m", "gpushare")
INSPECT = ("kubectl-inspect-cgpu",)


@pytest.mark.parametrize(
    ("number", "units", "reason"),
    [
        (1, "1000000000", "requests 1000000000 GiB"),
        (
            2,
            "9223372036854775807",
            "asks for aliyun.com/gpu-mem: 9223372036854775807 is more than any node has",
        ),
        # kube-scheduler's own filter treats it as 0, so the extender is called.
        (3, "1e30", "container main asks for aliyun.com/gpu-mem: 1e30 is larger than"),
    ],
)
async def test_a_huge_amount_is_pending_with_a_reason(
    cluster: World, number: int, units: str, reason: str
) -> None:
    ran = await cluster.apply(gpu_pod(f"huge-{number}", units))
    assert ran.code == 0, ran.err
    assert (
        f"{names.GPU_MEM} is a number of units of 1GiB, without Mi or Gi, and no GPU has that many" in ran.err
    )
    await cluster.event(f"huge-{number}", reason)
    why = await cluster.pods.until(
        lambda: waits_because(cluster.pod(f"huge-{number}")), "it says why it waits"
    )
    assert reason in why
    assert (await cluster.kubectl("inspect", "cgpu", "-d")).code == 0


async def test_a_mistake_is_a_warning_in_kubectl_and_blocks_nothing(cluster: World) -> None:
    mistaken = gpu_pod("slip", None, limits={"aliyun.com/gpu-memory": 3})
    mistaken["metadata"]["labels"] = {**mistaken["metadata"].get("labels", {}), names.LABEL_MODE: "share"}
    template = {
        "metadata": {"labels": {"app": "slip", names.LABEL_MODE: "share"}},
        "spec": dict(mistaken["spec"]),
    }
    template["spec"]["restartPolicy"] = "Always"
    spec = {"replicas": 0, "selector": {"matchLabels": {"app": "slip"}}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "slip"}, "spec": spec}
    for manifest in (mistaken, deployment):
        ran = await cluster.apply(manifest)
        assert ran.code == 0, ran.err
        assert (
            "container main asks for aliyun.com/gpu-memory (write aliyun.com/gpu-mem in units, or" in ran.err
        )
        assert (
            "unknown labels or annotations of a pod: label ack.node.gpu.schedule (it looks like a label of nodes: "
            in ran.err
        )
    await cluster.event("slip", "Insufficient aliyun.com/gpu-memory")
    ran = await cluster.apply(gpu_pod("no-slip", 2))
    assert (ran.code, ran.err) == (0, "")
    await cluster.kubectl("delete", "deployment", "slip")


async def test_a_record_broken_under_a_running_pod_is_an_event_on_the_pod(cluster: World) -> None:
    await cluster.create(gpu_pod("scribbled", 2, node="single"))
    await cluster.pods.until(lambda: is_running(cluster.pod("scribbled")), "it runs")
    record = cluster.pod("scribbled")["metadata"]["annotations"][names.ANN_SHARE]
    annotate = ("annotate", "pod", "scribbled", "--overwrite")
    refused = await cluster.kubectl(*annotate, f"{names.ANN_SHARE}={{nonsense")
    assert f"annotations that only gpushare itself writes: {names.ANN_SHARE}" in refused.err
    # Only a component can break it, or a user who removed the policies.
    written = await cluster.kubectl(*annotate, f"{names.ANN_SHARE}={{nonsense", user="extender")
    assert written.code == 0, written.err
    await cluster.event("scribbled", "MalformedGPUAllocation", f"annotation {names.ANN_SHARE} cannot be read")

    async def noticed() -> bool:
        return (await cluster.metrics())["invalid_objects"] == 1

    # The event may be the agent's, which sees the change by its own watch.
    await until(noticed, "the extender has seen it, too")
    assert (await cluster.kubectl("inspect", "cgpu")).code == 0
    assert is_running(cluster.pod("scribbled"))
    assert (await cluster.kubectl(*annotate, f"{names.ANN_SHARE}={record}", user="extender")).code == 0

    async def counted() -> bool:
        figures = await cluster.metrics()
        return (figures["invalid_objects"], figures["memory_allocated_bytes"]) == (0, 2048 << 20)

    await until(counted, "it is counted again")
    assert sum("MalformedGPUAllocation" in one for one in cluster.events_of("scribbled")) == 1, "both saw it"


@pytest.mark.parametrize(
    ("number", "annotations", "message"),
    [
        (1, {names.ANN_SHARE: "[1]"}, f"annotation {names.ANN_SHARE} cannot be read"),
        (
            2,
            {names.ANN_MEM_INDEX: "x", names.ANN_MEM_POD: "2"},
            f"annotation {names.ANN_MEM_INDEX}='x' is not a number",
        ),
        (3, {names.ANN_ALLOCATION: '{"0":{"9":2}}'}, "names GPU 9, which node single does not have"),
    ],
)
async def test_a_pod_bound_with_a_malformed_record_gets_no_gpu_and_an_event(
    cluster: World, number: int, annotations: dict[str, str], message: str
) -> None:
    pod: Json = gpu_pod(f"bound-{number}", 2)
    pod["spec"]["nodeName"] = "single"
    pod["metadata"]["annotations"] = annotations
    refused = await cluster.apply(pod)
    assert "remove them and resubmit" in refused.err
    made = await cluster.kubectl("create", "-f", "-", stdin=json.dumps(pod), user="extender")
    assert made.code == 0, made.err
    await cluster.event(f"bound-{number}", "MalformedGPUAllocation", message)
    await cluster.pods.until(
        lambda: phase_of(cluster.pod(f"bound-{number}")) == "Failed", "its admission fails"
    )
    assert cluster.pod(f"bound-{number}")["status"]["reason"] == "UnexpectedAdmissionError"
    events = [one for one in cluster.events_of(f"bound-{number}") if one.startswith("MalformedGPUAllocation")]
    assert len(events) == 1, "agent and scheduler both saw it"
    assert await cluster.devices("single") == {}


async def test_pods_bound_by_another_scheduler_never_take_what_is_reserved_for_ours(
    cluster: World,
) -> None:
    """They request as much as ours, on the same GPU, at the moment when it is bound."""
    theirs = [gpu_pod(f"theirs-{number}", 7) for number in range(6)]
    for pod in theirs:
        pod["spec"]["schedulerName"] = "another"
    await cluster.create(*theirs)
    ours = [gpu_pod(f"ours-{number}", 7, node="single") for number in range(2)]
    their_names = [pod["metadata"]["name"] for pod in theirs]
    await asyncio.gather(
        *(cluster.bind_by_hand(name, "single") for name in their_names), cluster.create(*ours)
    )
    await cluster.run_all("ours-0", "ours-1")
    for name in their_names:
        await cluster.pods.until(
            lambda name=name: phase_of(cluster.pod(name)) == "Failed", f"{name} is refused"
        )
        assert cluster.pod(name)["status"]["reason"] == "UnexpectedAdmissionError"
    assert set(await cluster.devices("single")) == {("default/ours-0", "main"), ("default/ours-1", "main")}


@pytest.mark.parametrize(
    "command",
    [(*GPUSHARE, "scheduler", "--listen", "127.0.0.1:0"), (*GPUSHARE, "node-agent", "--node", "n"), INSPECT],
    ids=["scheduler", "node-agent", "inspect"],
)
async def test_a_broken_kubeconfig_is_reported_in_one_line(tmp_path: Path, command: tuple[str, ...]) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text("clusters: [")
    ran = await run(*command, "--kubeconfig", str(file))
    assert ran.code == (1 if command is INSPECT else 2)
    assert str(file) in ran.err
    assert len(ran.err.strip().splitlines()) == 1, ran.err


async def test_a_node_agent_reports_an_unreachable_api_server_and_retries(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(UNREACHABLE)
    # Sockets have short paths: the kernel allows 107 bytes.
    sockets = Path(tempfile.mkdtemp(prefix="gsn"))
    process = await asyncio.create_subprocess_exec(
        *GPUSHARE,
        "node-agent",
        "--node",
        "n",
        "--kubelet-dir",
        str(sockets),
        "--kubeconfig",
        str(file),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    assert process.stderr is not None
    lines: list[str] = []
    try:
        async with asyncio.timeout(60):
            while sum("check that it runs and that its address is right" in line for line in lines) < 3:
                line = (await process.stderr.readline()).decode()
                assert line, f"it ended: {lines}"
                lines.append(line)
        os.kill(process.pid, signal.SIGTERM)
        async with asyncio.timeout(30):
            rest = (await process.stderr.read()).decode()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        shutil.rmtree(sockets)
    assert "http://127.0.0.1:1" in "".join(lines)
    assert "Traceback" not in "".join(lines) + rest
