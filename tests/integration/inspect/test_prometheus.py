"""Advice from a real Prometheus (Debian's): two hours of samples as the node agents' exporter writes them."""

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.inspect.sources.prometheus import PrometheusFailed, figures_of_prometheus
from gpushare_playground.controlplane.ports import free_ports
from tests.integration.inspect.conftest import Run, ScriptedKubectl
from tests.unit.fakegpu.building import system_program
from tests.unit.inspect.clusters import device, node, placed
from tests.unit.inspect.test_advising import as_json

_READY_S = 60.0
_STEP_S = 30
_HOURS = 2
_WHOSE = 'namespace="default",pod="web-0",container="main",node="n",gpu="0",UUID="GPU-1"'
_BURSTY = _WHOSE.replace("web-0", "bursty")


def figures(now_s: int) -> str:
    """Two hours of a container that uses 2 GiB and 20%, and for two minutes 5 GiB and 90%, and of
    one that is idle except for a minute in 25.

    As OpenMetrics.
    """
    memory, compute, throttled, waited_s = [], [], [], 0
    begin_s = now_s - _HOURS * 3600
    for at_s in range(begin_s, now_s, _STEP_S):
        high = 3600 <= at_s - begin_s < 3720
        memory.append(f"gpushare_container_memory_used_bytes{{{_WHOSE}}} {(5 if high else 2) << 30} {at_s}")
        compute.append(f"gpushare_container_compute_used_ratio{{{_WHOSE}}} {0.9 if high else 0.2} {at_s}")
        works = (at_s - begin_s) // 60 % 25 == 7
        waited_s += _STEP_S // 2 if works else 0
        memory.append(f"gpushare_container_memory_used_bytes{{{_BURSTY}}} {1 << 30} {at_s}")
        compute.append(f"gpushare_container_compute_used_ratio{{{_BURSTY}}} {0.8 if works else 0} {at_s}")
        throttled.append(f"gpushare_container_compute_throttled_seconds_total{{{_BURSTY}}} {waited_s} {at_s}")
    return "\n".join(
        [
            "# TYPE gpushare_container_memory_used_bytes gauge",
            *memory,
            "# TYPE gpushare_container_compute_used_ratio gauge",
            *compute,
            "# TYPE gpushare_container_compute_throttled_seconds counter",
            *throttled,
            "# EOF",
            "",
        ]
    )


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server, tool = system_program("prometheus"), system_program("promtool")
    folder: Path = tmp_path_factory.mktemp("prometheus")
    (folder / "figures.txt").write_text(figures(int(time.time()) - 60))
    (folder / "prometheus.yml").write_text("{}\n")
    made = [
        tool,
        "tsdb",
        "create-blocks-from",
        "openmetrics",
        str(folder / "figures.txt"),
        str(folder / "data"),
    ]
    subprocess.run(made, check=True, capture_output=True, timeout=60)
    [port] = free_ports(1)
    command = [
        server,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as running:
        try:
            _until_ready(running, port, folder / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            running.terminate()
            running.wait(_READY_S)


def _until_ready(running: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline_s = time.monotonic() + _READY_S
    while True:
        assert running.poll() is None, log.read_text()
        assert time.monotonic() < deadline_s, log.read_text()
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as connection:
                connection.settimeout(5)
                connection.sendall(b"GET /-/ready HTTP/1.0\r\n\r\n")
                if b" 200 " in connection.recv(64):
                    return
        except OSError:
            continue


def test_peak_quantile_and_history_equal_those_in_prometheus(prometheus: str) -> None:
    _, one = figures_of_prometheus(Kubectl(), prometheus, "3h").used
    assert (one.namespace, one.pod, one.container, one.gpu) == ("default", "web-0", "main", "GPU-1")
    assert (one.peak_mib, one.p95_mib, one.last_mib) == (5120, 2048, 2048)
    assert (one.peak_percent, one.p95_percent) == (90, 20)
    assert 115 * 60 <= one.seen_s <= 126 * 60


def test_compute_and_waiting_cover_the_minutes_with_work(prometheus: str) -> None:
    one, _ = figures_of_prometheus(Kubectl(), prometheus, "3h").used
    assert one.pod == "bursty"
    # In 5 minutes of 120 it computed, and waited for half of them.
    assert (one.peak_percent, one.p95_percent) == (80, 80)
    assert 0.35 <= one.throttled <= 0.65


def test_a_window_rejected_by_prometheus_is_reported_with_its_message(prometheus: str) -> None:
    with pytest.raises(PrometheusFailed, match=r"rejects .* parse error"):
        figures_of_prometheus(Kubectl(), prometheus, "week")


def test_a_server_other_than_prometheus_is_reported(prometheus: str) -> None:
    with pytest.raises(PrometheusFailed, match="answers 404"):
        figures_of_prometheus(Kubectl(), f"{prometheus}/elsewhere", "1h")


def test_the_whole_command_gives_advice_from_it(
    prometheus: str, kubectl: ScriptedKubectl, inspect_cgpu: Run
) -> None:
    gpu = device(0)
    item = as_json(placed("web-0", "n", gpu, 8))
    item["metadata"]["ownerReferences"] = [{"kind": "StatefulSet", "name": "web", "controller": True}]
    described = json.dumps({"items": [as_json(node("n", "10.0.0.1", [gpu]))]})
    kubectl.answer("/api/v1/nodes*", described.replace(gpu.uuid, "GPU-1"))
    kubectl.answer("/api/v1/pods*", json.dumps({"items": [item]}).replace(gpu.uuid, "GPU-1"))
    ran = inspect_cgpu("--recommend", f"--prometheus={prometheus}", "--window=3h", "-o", "json")
    assert ran.returncode == 0, ran.stderr
    (web,) = json.loads(ran.stdout)["workloads"]
    assert (web["kind"], web["name"], web["memory"]["advisedUnits"]) == ("StatefulSet", "web", 6)
