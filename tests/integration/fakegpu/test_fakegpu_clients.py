"""Third-party programs run on the fake driver and show the described GPUs."""

import csv
import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare_playground import gpus
from tests.unit.fakegpu.building import build, environment, system_program

NODES = {name: gpus.preset(name, "n1") for name in gpus.PRESETS}
MIXED = NODES["mixed"]
PID = os.getpid()


@pytest.fixture(autouse=True)
def _built() -> None:
    build("programs")


def described(tmp_path: Path, node: gpus.GpuNode) -> Path:
    path = tmp_path / "node.gpus"
    gpus.write(path, node)
    return path


def busy(node: gpus.GpuNode) -> gpus.GpuNode:
    """The node with this test's process on its first GPU, which is hot and has had memory errors."""
    process = gpus.Process(PID, 1234, name="trainer")
    first = replace(
        node.gpus[0], processes=(process,), utilization_percent=(87, 12), temperature_c=71, ecc_uncorrected=3
    )
    return replace(node, gpus=(first, *node.gpus[1:]))


def run(arguments: list[str], node: Path, *, code: int = 0, **variables: str) -> str:
    """A program's output; its stderr must be empty."""
    result = subprocess.run(
        arguments,
        env=environment(node, **variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == code, result.stdout + result.stderr
    assert result.stderr == ""
    return result.stdout


def ours(name: str) -> str:
    """A program of the packages that the tests are installed with."""
    return str(Path(sys.executable).with_name(name))


# --- nvidia-smi ---------------------------------------------------------------------------------


def smi(node: Path, *arguments: str, code: int = 0, **variables: str) -> str:
    return run([system_program("nvidia-smi"), *arguments], node, code=code, **variables)


@pytest.mark.parametrize("name", NODES)
def test_nvidia_smi_lists_every_preset(name: str, tmp_path: Path) -> None:
    expected = [f"GPU {at}: {gpu.model} (UUID: {gpu.uuid})" for at, gpu in enumerate(NODES[name].gpus)]
    listed = smi(described(tmp_path, NODES[name]), "-L").splitlines()
    assert [line for line in listed if not line.startswith("  MIG ")] == expected


def test_nvidia_smi_shows_its_table_with_memory_use_and_processes(tmp_path: Path) -> None:
    table = smi(described(tmp_path, busy(MIXED)))
    assert re.search(r"Driver Version: 580\.95\.05 +CUDA Version: 13\.0", table)
    rows = re.findall(r"\| +(\d) +(.+?) +On +\| (\S+) Off \| +(\d+) \|\n\|(.+?)\|(.+?)\|(.+?)\|", table)
    assert [(row[0], row[1], row[2]) for row in rows] == [
        (str(at), gpu.model, gpu.pci) for at, gpu in enumerate(MIXED.gpus)
    ]
    assert [row[5].strip() for row in rows] == [
        "1234MiB / 15360MiB",
        "0MiB / 15360MiB",
        "0MiB / 81920MiB",
        "0MiB / 81920MiB",
    ]
    assert rows[0][3] == "3"
    assert rows[0][4].split() == ["N/A", "71C", "P0", "9W", "/", "70W"]
    assert rows[0][6].split() == ["87%", "Default"]
    assert re.search(rf"\| +0 +N/A +N/A +{PID} +C +trainer +1234MiB \|", table)
    assert "No running processes" not in table


def test_nvidia_smi_answers_queries_as_csv(tmp_path: Path) -> None:
    fields = "index,name,uuid,pci.bus_id,memory.total,memory.used,memory.free,utilization.gpu,temperature.gpu,compute_cap"
    path = described(tmp_path, busy(MIXED))
    listed = list(
        csv.reader(
            io.StringIO(smi(path, f"--query-gpu={fields}", "--format=csv,noheader,nounits")),
            skipinitialspace=True,
        )
    )
    expected = []
    for at, gpu in enumerate(busy(MIXED).gpus):
        used_mib = sum(process.used_mib for process in gpu.processes)
        memory = (gpu.total_mib, used_mib, gpu.total_mib - used_mib)
        assert gpu.utilization_percent is not None
        row = (
            at,
            gpu.model,
            gpu.uuid,
            gpu.pci,
            *memory,
            gpu.utilization_percent[0],
            gpu.temperature_c,
            gpu.compute,
        )
        expected.append([str(value) for value in row])
    assert listed == expected
    apps = smi(path, "--query-compute-apps=pid,name,used_memory,gpu_uuid", "--format=csv,noheader")
    assert apps == f"{PID}, trainer, 1234 MiB, {MIXED.gpus[0].uuid}\n"


def test_nvidia_smi_shows_everything_about_each_gpu(tmp_path: Path) -> None:
    report = smi(described(tmp_path, busy(MIXED)), "-q")
    assert re.findall(r"GPU UUID +: (\S+)", report) == [gpu.uuid for gpu in MIXED.gpus]
    assert re.findall(r"Product Name +: (.+)", report) == [gpu.model for gpu in MIXED.gpus]
    assert re.findall(r"Product Architecture +: (.+)", report) == ["Turing", "Turing", "Ampere", "Ampere"]
    assert re.findall(r"FB Memory Usage\n +Total +: (\d+) MiB", report) == [
        "15360",
        "15360",
        "81920",
        "81920",
    ]
    assert re.findall(r"Serial Number +: (\d+)", report) == [gpu.serial for gpu in MIXED.gpus]
    assert re.findall(r"GPU Slowdown Temp +: (\d+) C", report) == ["93", "93", "89", "89"]
    assert f"Process ID                        : {PID}" in report
    assert re.findall(r"Function Not Found|Unknown Error|ERR!", report) == []
    only = smi(described(tmp_path, busy(MIXED)), "-q", "-i", MIXED.gpus[3].uuid, "-d", "MEMORY")
    assert re.findall(r"^GPU (\S+)", only, re.MULTILINE) == [MIXED.gpus[3].pci]


def matrix(text: str) -> list[list[str]]:
    return [re.split(r"\t+", line.strip()) for line in text.splitlines() if line.startswith("GPU")]


def test_nvidia_smi_draws_the_topology(tmp_path: Path) -> None:
    rows = matrix(smi(described(tmp_path, MIXED), "topo", "-m"))
    assert [[cell.strip() for cell in row[1:]] for row in rows] == [
        ["X", "PHB", "SYS", "SYS", "0-15", "0", "N/A"],
        ["PHB", "X", "SYS", "SYS", "0-15", "0", "N/A"],
        ["SYS", "SYS", "X", "NV12", "16-31", "1", "N/A"],
        ["SYS", "SYS", "NV12", "X", "16-31", "1", "N/A"],
    ]


def test_nvidia_smi_draws_switched_and_direct_links(tmp_path: Path) -> None:
    switched = matrix(smi(described(tmp_path, NODES["dgx-h200"]), "topo", "-m"))
    assert [sum(cell.strip() == "NV18" for cell in row) for row in switched] == [7] * 8
    assert [row[-2].strip() for row in switched] == ["0"] * 4 + ["1"] * 4
    direct = matrix(smi(described(tmp_path, NODES["core-mem-4"]), "topo", "-m"))
    assert [cell.strip() for cell in direct[0][1:5]] == ["X", "NV1", "NV1", "NV2"]
    links = smi(described(tmp_path, NODES["core-mem-4"]), "nvlink", "--status", "-i", "0")
    assert len(re.findall(r"Link \d: 25\.781 GB/s", links)) == 4


def test_nvidia_smi_draws_two_islands(tmp_path: Path) -> None:
    rows = matrix(smi(described(tmp_path, NODES["two-islands"]), "topo", "-m"))
    near = [[cell.strip() for cell in row[1:9]] for row in rows]
    assert near[0] == ["X", "NV4", "NV4", "NV4", "SYS", "SYS", "SYS", "SYS"]
    assert near[7] == near[0][::-1]


def test_nvidia_smi_sees_only_what_a_container_sees(tmp_path: Path) -> None:
    path = described(tmp_path, MIXED)
    chosen = MIXED.gpus[2]
    assert (
        smi(path, "-L", FAKEGPU_VISIBLE_DEVICES=chosen.uuid)
        == f"GPU 0: {chosen.model} (UUID: {chosen.uuid})\n"
    )
    assert "No devices" in smi(path, "-L", FAKEGPU_VISIBLE_DEVICES="none")


def test_nvidia_smi_reports_faults(tmp_path: Path) -> None:
    lost = replace(MIXED, gpus=(replace(MIXED.gpus[0], fault="lost"), *MIXED.gpus[1:]))
    program = system_program("nvidia-smi")
    for node, text in (
        (lost, "GPU is lost"),
        (replace(MIXED, fault="driver-not-loaded"), "couldn't communicate with the NVIDIA driver"),
        (replace(MIXED, fault="version-mismatch"), "version mismatch"),
    ):
        result = subprocess.run(
            [program],
            env=environment(described(tmp_path, node)),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert text in result.stdout + result.stderr
        assert result.returncode != 0


# --- Python's clients ---------------------------------------------------------------------------


def test_nvidia_ml_py_finds_the_library_by_itself(tmp_path: Path) -> None:
    program = (
        "import pynvml; pynvml.nvmlInit(); handles = map(pynvml.nvmlDeviceGetHandleByIndex,"
        " range(pynvml.nvmlDeviceGetCount())); print(*map(pynvml.nvmlDeviceGetUUID, handles)); pynvml.nvmlShutdown()"
    )
    output = run([sys.executable, "-c", program], described(tmp_path, MIXED))
    assert output.split() == [gpu.uuid for gpu in MIXED.gpus]


def test_gpustat_shows_the_gpus_and_who_uses_them(tmp_path: Path) -> None:
    stat = json.loads(run([ours("gpustat"), "--json"], described(tmp_path, busy(MIXED))))
    assert stat["driver_version"] == "580.95.05"
    assert [(gpu["uuid"], gpu["name"], gpu["memory.total"]) for gpu in stat["gpus"]] == [
        (gpu.uuid, gpu.model, gpu.total_mib) for gpu in MIXED.gpus
    ]
    first = stat["gpus"][0]
    assert (first["memory.used"], first["utilization.gpu"], first["temperature.gpu"]) == (1234, 87, 71)
    assert [(process["pid"], process["gpu_memory_usage"]) for process in first["processes"]] == [(PID, 1234)]
    assert "Tesla T4" in run([ours("gpustat"), "-a", "--no-color"], described(tmp_path, busy(MIXED)))


def test_nvitop_shows_the_gpus_and_who_uses_them(tmp_path: Path) -> None:
    output = run([ours("nvitop"), "-1"], described(tmp_path, busy(MIXED)))
    assert "Driver Version: 580.95.05" in output
    for at, gpu in enumerate(MIXED.gpus):
        assert re.search(
            rf"│ +{at} +{re.escape(gpu.model.removeprefix('NVIDIA '))} +On │ {gpu.pci} Off", output
        )
    assert "1234MiB / 15360MiB" in output
    assert re.search(rf"│ +0 +{PID} .* 1234MiB", output)
    assert re.search(r"│ N/A +71C +P0 +9W / 70W", output)


# --- nvtop --------------------------------------------------------------------------------------


@contextmanager
def on_a_terminal(arguments: list[str], node: Path) -> Iterator[int]:
    """Runs a program on a terminal of its own; returns the terminal's other end."""
    ours_end, its_end = pty.openpty()
    program = subprocess.Popen(
        arguments,
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
        env=environment(node),
        start_new_session=True,
    )
    os.close(its_end)
    try:
        yield ours_end
    finally:
        program.kill()
        program.wait(10)
        os.close(ours_end)


def shown_until(terminal: int, texts: list[str], deadline_s: float) -> str:
    """The program's drawing, once it contains all texts."""
    drawn = ""
    ends_at = time.monotonic() + deadline_s
    while not all(text in drawn for text in texts):
        ready, _, _ = select.select([terminal], [], [], max(0.0, ends_at - time.monotonic()))
        assert ready, f"not shown within {deadline_s} s: {texts}; drawn last: {drawn[-500:]!r}"
        drawn += os.read(terminal, 1 << 16).decode(errors="replace")
    return drawn


def test_nvtop_draws_the_gpus_and_who_uses_them(tmp_path: Path) -> None:
    path = described(tmp_path, busy(MIXED))
    with on_a_terminal([system_program("nvtop")], path) as terminal:
        texts = ["[Tesla T4]", "[NVIDIA A100-SXM4-80GB]", "87%", "1.205Gi/15.000Gi", f" {PID} ", "1234MiB"]
        shown_until(terminal, texts, deadline_s=30)
