"""The test cluster itself: as real as one machine allows, and it leaves nothing behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.assigned import commands_typed_by
from tests.docs.saying import says
from tests.docs.sentences import sentences_typed_by
from tests.e2e import traces
from tests.e2e.cluster import (
    Cluster,
    NodeRecord,
    NotReached,
    cgroups,
    down,
    driver,
    record,
    up,
    wait_for,
)
from tests.e2e.cluster.kwok import add_kwok_nodes, remove_kwok_nodes
from tests.patience import SLOWNESS, starved_s

IMAGE = "e2e.local/busybox:1"
UP_SECONDS = 60.0 * SLOWNESS
CHECKOUT = Path(__file__).parents[2]
#: Commands that the page has a reader type.
ONE, TWO, BUILD, UP, LOAD, EXEC, DOWN = (
    command.text.replace(".venv/bin/python", sys.executable)
    for command in commands_typed_by(__file__, "docs/developer/test-cluster.md")
)
STAYS_UP = "Ctrl-C ends it"
#: What a sentence has for another version, which the environment sets for the page's blocks.
(OF_VERSION,) = sentences_typed_by(__file__)


def typing(states: Path, k8s: str) -> dict[str, str]:
    """The environment of typed commands: unchanged, except that running clusters of that name are not visible."""
    return {**os.environ, "GPUSHARE_E2E_STATES": str(states), "GPUSHARE_E2E_K8S": k8s, "K8S": k8s}


def typed(text: str, environment: dict[str, str]) -> str:
    """The output of a command that exits by itself, successfully."""
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=CHECKOUT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300 * SLOWNESS,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextlib.contextmanager
def staying_up(text: str, environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command that ends by Ctrl-C; its output goes into ``log``."""
    with log.open("wb") as out:
        # A shell that started the tests in the background may ignore interrupts, and that is inherited.
        typing_it = ["env", "--default-signal=INT", "bash", "-c", text]
        started = subprocess.Popen(
            typing_it, cwd=CHECKOUT, env=environment, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield started
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGINT)
        started.wait(timeout=60 * SLOWNESS)


def pod(
    name: str, node: str, *command: str, labels: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": IMAGE, "command": list(command)}],
            **spec,
        },
    }


def get(cluster: Cluster, path: str, *, of: str, port: int, check: bool = True) -> str:
    """The body of HTTP GET ``path`` from pod ``of``; busybox has no other client that works in a pod."""
    host, _, rest = path.partition("/")
    script = f"printf 'GET /{rest} HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {host} {port}"
    return cluster.kubectl("exec", of, "--", "sh", "-c", script, check=check).stdout.partition("\n\n")[2]


def gone_from(spaces: traces.Spaces) -> None:
    """Killed processes exist until this machine's process 1 has reaped them."""
    with contextlib.suppress(NotReached):
        wait_for("every process to be gone", lambda: not spaces.held(), timeout=20)
    assert spaces.held() == set()


@pytest.fixture
def pods(cluster: Cluster) -> Iterator[Cluster]:
    """A web server that serves on the first node, a client on every node, a Service in front of the server."""
    first = cluster.nodes[0].name
    serve = (
        "mkdir /www && echo from-$HOSTNAME >/www/index.html && echo serving && exec httpd -f -p 8080 -h /www"
    )
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "bed-web"},
        "spec": {"selector": {"app": "bed-web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    web = pod("bed-web", first, "sh", "-c", serve, labels={"app": "bed-web"})
    # Without it the pod is Ready before its shell has printed and served anything.
    web["spec"]["containers"][0]["startupProbe"] = {
        "httpGet": {"path": "/index.html", "port": 8080},
        "periodSeconds": 1,
        "timeoutSeconds": 5,
        "failureThreshold": 60,
    }
    clients = [f"bed-client-{i}" for i in range(len(cluster.nodes))]
    cluster.apply(
        service,
        web,
        *(pod(name, node.name, "sleep", "100000") for name, node in zip(clients, cluster.nodes, strict=True)),
    )
    cluster.kubectl("wait", "--for=condition=Ready", "pod", "bed-web", *clients, "--timeout=60s")
    yield cluster
    cluster.kubectl("delete", "pod,service", "bed-web", "--ignore-not-found")
    cluster.kubectl("delete", "pod", *clients)


def test_nodes_have_the_requested_version(cluster: Cluster) -> None:
    nodes = cluster.get("/api/v1/nodes")["items"]
    real = [n for n in nodes if n["metadata"]["labels"].get("type") != "kwok"]
    assert sorted(n["metadata"]["name"] for n in real) == sorted(n.name for n in cluster.nodes)
    assert {n["status"]["nodeInfo"]["kubeletVersion"].split(".")[1] for n in real} == {
        str(cluster.version[1])
    }
    assert all(n["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://2.") for n in real)


def test_pods_reach_each_other_on_every_node_and_by_service(pods: Cluster) -> None:
    address = json.loads(pods.kubectl("get", "pod", "bed-web", "-o", "json").stdout)["status"]["podIP"]
    service = json.loads(pods.kubectl("get", "service", "bed-web", "-o", "json").stdout)["spec"]["clusterIP"]
    for i in range(len(pods.nodes)):
        client = f"bed-client-{i}"
        assert get(pods, f"{address}/index.html", of=client, port=8080) == "from-bed-web\n"
        # Controllers and kube-proxy may learn that a pod is Ready later than we do.
        wait_for(
            f"the Service to lead from {client} to its pod",
            lambda of=client: get(pods, f"{service}/index.html", of=of, port=80, check=False),
        )
        assert get(pods, f"{service}/index.html", of=client, port=80) == "from-bed-web\n"
        # The API server, where every pod looks for it; this is its response to clients without TLS.
        answer = get(pods, f"{pods.plan.api_service}/version", of=client, port=443)
        assert answer == "Client sent an HTTP request to an HTTPS server.\n"


def test_logs_exec_and_proxy_work_through_the_api_server(pods: Cluster) -> None:
    assert pods.kubectl("logs", "bed-web").stdout == "serving\n"
    assert pods.kubectl("exec", "bed-web", "--", "cat", "/www/index.html").stdout == "from-bed-web\n"
    for way in ("services/bed-web:80", "pods/bed-web:8080"):
        path = f"/api/v1/namespaces/default/{way}/proxy/index.html"
        wait_for(
            f"{way} to be known",
            lambda at=path: pods.kubectl("get", "--raw", at, check=False).returncode == 0,
        )
        assert pods.kubectl("get", "--raw", path).stdout == "from-bed-web\n"


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.nightly), signal.SIGKILL])
def test_components_restart_and_containers_keep_running(pods: Cluster, number: signal.Signals) -> None:
    def containers() -> dict[str, str]:
        items = pods.get("/api/v1/namespaces/default/pods")["items"]
        mine = [p for p in items if p["metadata"]["name"].startswith("bed-")]
        return {p["metadata"]["name"]: p["status"]["containerStatuses"][0]["containerID"] for p in mine}

    before = containers()
    for component in ("kubelet", "containerd", "kube-proxy", "etcd", "kube-apiserver"):
        pods.restart(component, signal=number)
        pods.wait_ready()
    for component in ("kube-controller-manager", "kube-scheduler"):
        pods.restart(component, signal=number)
    unnamed = pod("bed-late", "", "sleep", "100000")
    del unnamed["spec"]["nodeName"]
    pods.apply(unnamed)
    pods.kubectl("wait", "--for=condition=Ready", "pod", "bed-late", "--timeout=60s")
    assert {name: found for name, found in containers().items() if name in before} == before
    pods.kubectl("delete", "pod", "bed-late")


def test_a_stopped_component_is_stopped(cluster: Cluster) -> None:
    node = cluster.nodes[-1].name
    cluster.stop("kube-proxy", node)
    assert cluster.process("kube-proxy", node) is None
    with pytest.raises(RuntimeError, match="does not run"):
        cluster.stop("kube-proxy", node)
    started = cluster.start("kube-proxy", node)
    assert cluster.process("kube-proxy", node) == started
    with pytest.raises(RuntimeError, match="runs already"):
        cluster.start("kube-proxy", node)


def test_every_request_is_in_the_audit_log(cluster: Cluster) -> None:
    cluster.kubectl("get", "--raw", "/api/v1/namespaces/audit-me/secrets", check=False)

    def logged() -> list[dict[str, Any]]:
        # An incomplete last line may be half written.
        lines = cluster.audit_log.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines if "audit-me" in line]

    found = wait_for("the audit event", logged, timeout=10)[-1]
    assert (found["verb"], found["user"]["username"], found["level"]) == (
        "list",
        "kubernetes-admin",
        "Metadata",
    )


def test_the_driver_is_installed_and_removed_while_the_node_runs(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    installed = driver.install(node)
    assert node.run("nvidia-smi", "-L").stdout.count("UUID: GPU-") == installed.gpus
    listed = node.run("nvidia-ctk", "cdi", "list").stdout
    assert "nvidia.com/gpu=0" in listed
    output = node.ctr(
        "run", "--rm", "--device", "nvidia.com/gpu=all", IMAGE, "bed-gpus", "ls", "/dev", "/etc/fakegpu"
    ).split()
    assert {"nvidia0", "nvidiactl", "node.conf"} <= set(output)

    driver.remove(node)
    assert node.run("nvidia-smi", "-L", check=False).returncode != 0
    assert not node.run("sh", "-c", "ls /dev/nvidia* /var/run/cdi/*.yaml", check=False).stdout
    driver.install(node)
    assert node.run("nvidia-smi", "-L").stdout.count("UUID: GPU-") == installed.gpus


def test_simulated_nodes_run_pods(cluster: Cluster) -> None:
    added = add_kwok_nodes(cluster, 3, prefix="bed-kwok", tainted=True)
    try:
        node = cluster.get(f"/api/v1/nodes/{added[0]}")
        assert node["status"]["allocatable"]["aliyun.com/gpu-mem"] == "128"
        cluster.apply(pod("bed-simulated", added[0], "none"))
        cluster.kubectl("wait", "--for=condition=Ready", "pod", "bed-simulated", "--timeout=30s")
        cluster.kubectl("delete", "pod", "bed-simulated", "--timeout=30s")
    finally:
        remove_kwok_nodes(cluster)


def test_a_second_cluster_next_to_it_is_removed_without_a_trace(
    cluster: Cluster, binaries: Path, k8s: str, states: Path
) -> None:
    state, environment = states / "mine", typing(states, k8s)
    before, there = traces.look(), traces.other_clusters(None, state)
    start = time.monotonic() - starved_s()
    output = typed(UP, environment)
    took = time.monotonic() - starved_s() - start
    second = Cluster(state)
    try:
        assert output == f"export KUBECONFIG={second.kubeconfig}\nexport PATH={second.bin}:$PATH\n"
        spaces = traces.Spaces.of(second)
        others = there | traces.other_clusters(second.plan.slot, state)
        assert second.plan != cluster.plan
        typed(LOAD, environment)
        assert "docker.io/gpushare/gpushare:" in second.nodes[0].ctr("images", "ls", "-q")
        assert typed(EXEC, environment).startswith("GPU 0: Tesla V100")
        second.apply(pod("alone", second.nodes[0].name, "sleep", "100000"))
        second.kubectl("wait", "--for=condition=Ready", "pod", "alone", "--timeout=60s")
        assert "alone" not in cluster.kubectl("get", "pods", "-o", "name").stdout
        assert traces.look().since(before, of_others=others), "a cluster that leaves no trace while it is up"
    finally:
        typed(DOWN, environment)
    assert took < UP_SECONDS
    after = traces.look()
    others |= traces.other_clusters(second.plan.slot, state)
    assert after.since(before, of_others=others) == set()
    assert after.gone_since(before, of_others=others) == set()
    gone_from(spaces)
    assert not down(state)
    cluster.wait_ready(timeout=10)


def test_the_programs_are_built_and_their_folder_is_printed(k8s: str, states: Path, binaries: Path) -> None:
    assert typed(BUILD, typing(states, k8s)).strip() == str(binaries)


def test_clusters_stay_up_side_by_side_until_they_are_interrupted(
    k8s: str, states: Path, binaries: Path, tmp_path: Path
) -> None:
    environment, logs = typing(states, k8s), (tmp_path / "one", tmp_path / "two")
    command = f"{ONE.partition('#')[0].rstrip()} K8S={k8s}"
    assert says(OF_VERSION.text, command)
    with staying_up(command, environment, logs[0]) as one, staying_up(TWO, environment, logs[1]) as two:

        def are_up() -> bool:
            assert {one.poll(), two.poll()} == {None}, [log.read_text() for log in logs]
            return all(STAYS_UP in log.read_text() for log in logs)

        wait_for("both to be up", are_up, timeout=180)
        nodes = {name: Cluster(states / name).get("/api/v1/nodes")["items"] for name in ("default", "two")}
        modes = {
            name: [node["metadata"]["labels"].get("ack.node.gpu.schedule") for node in of]
            for name, of in nodes.items()
        }
        assert modes["default"] == [None]
        assert sorted(modes["two"]) == ["cgpu", "share"]
    assert not [name for name in ("default", "two") if (states / name).exists()]


# On every pull, clusters are taken down by those who brought them up.
@pytest.mark.nightly
def test_leftovers_of_a_killed_supervisor_are_taken_down(k8s: str, states: Path, binaries: Path) -> None:
    state = states / "orphan"
    before = traces.look()
    command = [sys.executable, "-m", "tests.e2e.cluster", "up", "--k8s", k8s, "--state", str(state)]
    maker = subprocess.Popen([*command, "--binaries", str(binaries)], cwd=CHECKOUT, stderr=subprocess.DEVNULL)
    try:
        # In the middle: components run, nodes are not Ready.
        wait_for(
            "its API server to be started",
            lambda: (state / "processes" / "kube-apiserver").exists(),
        )
    finally:
        maker.kill()
        maker.wait()
    orphan = Cluster(state)
    others = traces.other_clusters(orphan.plan.slot, state)
    spaces = traces.Spaces.of(orphan)
    assert cgroups.processes(record.group(state))
    assert down(state)
    after = traces.look()
    others |= traces.other_clusters(orphan.plan.slot, state)
    assert after.since(before, of_others=others) == set()
    gone_from(spaces)


def test_a_cluster_that_cannot_start_reports_it_and_leaves_nothing(
    k8s: str, states: Path, binaries: Path
) -> None:
    state = states / "broken"
    broken = states / "broken-programs"
    broken.mkdir()
    for program in binaries.iterdir():
        (broken / program.name).symlink_to("/bin/false") if program.name == "etcd" else (
            broken / program.name
        ).hardlink_to(program)
    before = traces.look()
    with pytest.raises((RuntimeError, OSError), match="etcd"):
        up(state, broken, k8s=k8s, nodes=[NodeRecord("n", 0, None)])
    assert not state.exists()
    left = {line for line in traces.look().since(before) if "failed-logs" not in line}
    assert not [line for line in left if "broken" in line]
