"""The samples' programs on the fake driver, as in a container without limits."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare_playground import gpus
from gpushare_playground.images import programs
from tests.unit.fakegpu import building as fakegpu


def run_program(program: str, *options: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    path = Path(programs.__file__).with_name(f"{program}.py")
    return subprocess.run(
        [sys.executable, path, *options],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def t4(tmp_path: Path) -> dict[str, str]:
    fakegpu.build("library")
    gpus.write(tmp_path / "node.gpus", gpus.preset("t4", "n1"))
    return fakegpu.environment(tmp_path / "node.gpus")


def test_memory_is_taken_until_the_driver_has_no_more(t4: dict[str, str]) -> None:
    result = run_program("memory", "--piece_mib=1024", env=t4)
    assert result.returncode == 0, result.stderr
    figures = re.search(r"reports (\d+) MiB, (\d+) MiB of them free", result.stdout)
    assert figures
    assert f"taken: {int(figures[2]) // 1024 * 1024} MiB in pieces of 1024 MiB" in result.stdout
    assert "CUDA_ERROR_OUT_OF_MEMORY (out of memory)" in result.stdout
    enough = run_program("memory", "--most_mib=512", env=t4)
    assert enough.stdout.endswith("taken: 512 MiB in pieces of 256 MiB\nnothing was refused\n")


def test_copies_are_counted(t4: dict[str, str]) -> None:
    result = run_program("bandwidth", "--rounds=2", "--round_s=0.1", "--size_mib=1", env=t4)
    assert result.returncode == 0, result.stderr
    rates = re.findall(r"^round \d: (\S+) copies/s of 1 MiB", result.stdout, re.MULTILINE)
    assert len(rates) == 2
    assert min(map(float, rates)) > 0


@pytest.mark.parametrize(
    ("program", "options"), [("mnist", ["--max_steps=20"]), ("benchmark", ["--num_batches=20"])]
)
def test_trainings_work_on_the_gpu(program: str, options: list[str], t4: dict[str, str]) -> None:
    result = run_program(program, *options, "--pause_s=0", env=t4)
    assert result.returncode == 0, result.stderr
    assert "works on the GPU, and holds 64 MiB of it" in result.stdout


def test_usage_shows_memory_and_busy_processes(t4: dict[str, str]) -> None:
    path = Path(programs.__file__).with_name("bandwidth.py")
    with subprocess.Popen(
        [sys.executable, path, "--round_s=0.1"], env=t4, stdout=subprocess.PIPE, text=True
    ) as worker:
        try:
            assert worker.stdout is not None
            while "copies/s" not in worker.stdout.readline():
                assert worker.poll() is None
            done = run_program("usage", "--times=2", "--every_s=0.1", env=t4)
        finally:
            worker.kill()
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert re.fullmatch(r"GPU 0: +\d+ MiB of 15360 MiB, busy +\d+%", lines[0])
    assert re.fullmatch(rf"  process {worker.pid}: +258 MiB, busy +\d+%", lines[1])


def test_a_missing_driver_is_reported(t4: dict[str, str], tmp_path: Path) -> None:
    # Take precedence over the machine's libraries.
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (tmp_path / name).touch()
    nothing = t4 | {"LD_LIBRARY_PATH": str(tmp_path)}
    usage, memory = run_program("usage", env=nothing), run_program("memory", env=nothing)
    assert (usage.returncode, memory.returncode) == (1, 1)
    assert usage.stderr.startswith("gpu-usage: NVML says: ")
    assert memory.stderr == "take-memory: this container has no CUDA driver (libcuda.so.1)\n"
    training = run_program("mnist", "--max_steps=1", env=nothing)
    assert training.returncode == 0
    assert "works without a GPU: this container has no CUDA driver" in training.stdout


def pytorch(program: str, env: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a program with the image's module ``torch``."""
    source = Path(programs.__file__).with_name("torch.py")
    (folder / "torch.py").symlink_to(source)
    return subprocess.run(
        [sys.executable, "-c", program],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_stand_in_for_pytorch_takes_memory_until_the_driver_has_no_more(
    t4: dict[str, str], tmp_path: Path
) -> None:
    taking = """
import torch
free, total = torch.cuda.mem_get_info()
held = []
try:
    while True:
        held.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
except torch.cuda.OutOfMemoryError as refused:
    print(free >> 30, len(held), len({one.data_ptr() for one in held}), held[0].numel(), total >> 20, refused)
"""
    result = pytorch(taking, t4, tmp_path)
    assert result.returncode == 0, result.stderr
    free, held, places, size, total, *refused = result.stdout.split()
    assert free == held == places
    assert int(size) == 1 << 30
    words = " ".join(refused)
    assert words.startswith(
        f"CUDA out of memory. Tried to allocate 1024 MiB. GPU 0 has a total capacity of {total} MiB of which "
    )


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("torch.nn", "torch.nn: this is a stand-in for PyTorch"),
        (
            "torch.empty(1, dtype=torch.uint8, device='cpu')",
            "torch.uint8 on cpu: this stand-in for PyTorch has",
        ),
    ],
)
def test_unsupported_parts_of_pytorch_are_refused_by_name(
    expression: str, message: str, t4: dict[str, str], tmp_path: Path
) -> None:
    result = pytorch(f"import torch\n{expression}", t4, tmp_path)
    assert result.returncode == 1
    assert message in result.stderr


def test_without_a_gpu_the_error_is_that_of_pytorch(tmp_path: Path) -> None:
    result = pytorch(
        "import torch\ntorch.cuda.mem_get_info()",
        {"PYTHONPATH": str(Path(programs.__file__).parents[4])},
        tmp_path,
    )
    assert result.returncode == 1
    assert "RuntimeError: No CUDA GPUs are available: this container has no CUDA driver" in result.stderr
