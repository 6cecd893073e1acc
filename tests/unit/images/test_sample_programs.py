"""The samples' programs on the stand-in driver, as in a container that nothing limits."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare_playground import gpus
from gpushare_playground.images import programs
from tests.unit.fakegpu import building as fakegpu


def ran(program: str, *options: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
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
    ended = ran("memory", "--piece_mib=1024", env=t4)
    assert ended.returncode == 0, ended.stderr
    figures = re.search(r"reports (\d+) MiB, (\d+) MiB of them free", ended.stdout)
    assert figures
    assert f"taken: {int(figures[2]) // 1024 * 1024} MiB in pieces of 1024 MiB" in ended.stdout
    assert "CUDA_ERROR_OUT_OF_MEMORY (out of memory)" in ended.stdout
    enough = ran("memory", "--most_mib=512", env=t4)
    assert enough.stdout.endswith("taken: 512 MiB in pieces of 256 MiB\nnothing was refused\n")


def test_copies_are_counted(t4: dict[str, str]) -> None:
    ended = ran("bandwidth", "--rounds=2", "--round_s=0.1", "--size_mib=1", env=t4)
    assert ended.returncode == 0, ended.stderr
    rates = re.findall(r"^round \d: (\S+) copies/s of 1 MiB", ended.stdout, re.MULTILINE)
    assert len(rates) == 2
    assert min(map(float, rates)) > 0


@pytest.mark.parametrize(
    ("program", "options"), [("mnist", ["--max_steps=20"]), ("benchmark", ["--num_batches=20"])]
)
def test_trainings_work_on_the_gpu(program: str, options: list[str], t4: dict[str, str]) -> None:
    ended = ran(program, *options, "--pause_s=0", env=t4)
    assert ended.returncode == 0, ended.stderr
    assert "works on the GPU, and holds 64 MiB of it" in ended.stdout


def test_usage_shows_memory_and_busy_processes(t4: dict[str, str]) -> None:
    path = Path(programs.__file__).with_name("bandwidth.py")
    with subprocess.Popen(
        [sys.executable, path, "--round_s=0.1"], env=t4, stdout=subprocess.PIPE, text=True
    ) as works:
        try:
            assert works.stdout is not None
            while "copies/s" not in works.stdout.readline():
                assert works.poll() is None
            done = ran("usage", "--times=2", "--every_s=0.1", env=t4)
        finally:
            works.kill()
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert re.fullmatch(r"GPU 0: +\d+ MiB of 15360 MiB, busy +\d+%", lines[0])
    assert re.fullmatch(rf"  process {works.pid}: +258 MiB, busy +\d+%", lines[1])


def test_without_a_driver_they_say_so(t4: dict[str, str], tmp_path: Path) -> None:
    # Found before one that the machine may have.
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (tmp_path / name).touch()
    nothing = t4 | {"LD_LIBRARY_PATH": str(tmp_path)}
    usage, memory = ran("usage", env=nothing), ran("memory", env=nothing)
    assert (usage.returncode, memory.returncode) == (1, 1)
    assert usage.stderr.startswith("gpu-usage: NVML says: ")
    assert memory.stderr == "take-memory: this container has no CUDA driver (libcuda.so.1)\n"
    training = ran("mnist", "--max_steps=1", env=nothing)
    assert training.returncode == 0
    assert "works without a GPU: this container has no CUDA driver" in training.stdout


def pytorch(program: str, env: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """The program, where the module ``torch`` is the image's."""
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


def test_what_stands_for_pytorch_takes_memory_until_the_driver_has_no_more(
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
    ended = pytorch(taking, t4, tmp_path)
    assert ended.returncode == 0, ended.stderr
    free, held, places, size, total, *refused = ended.stdout.split()
    assert free == held == places
    assert int(size) == 1 << 30
    words = " ".join(refused)
    assert words.startswith(
        f"CUDA out of memory. Tried to allocate 1024 MiB. GPU 0 has a total capacity of {total} MiB of which "
    )


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("torch.nn", "torch.nn: this is a stand-in for PyTorch"),
        (
            "torch.empty(1, dtype=torch.uint8, device='cpu')",
            "torch.uint8 on cpu: this stand-in for PyTorch has",
        ),
    ],
)
def test_what_it_does_not_stand_for_is_refused_by_name(
    asked: str, says: str, t4: dict[str, str], tmp_path: Path
) -> None:
    ended = pytorch(f"import torch\n{asked}", t4, tmp_path)
    assert ended.returncode == 1
    assert says in ended.stderr


def test_without_a_gpu_it_says_what_pytorch_says(tmp_path: Path) -> None:
    ended = pytorch(
        "import torch\ntorch.cuda.mem_get_info()",
        {"PYTHONPATH": str(Path(programs.__file__).parents[4])},
        tmp_path,
    )
    assert ended.returncode == 1
    assert "RuntimeError: No CUDA GPUs are available: this container has no CUDA driver" in ended.stderr
