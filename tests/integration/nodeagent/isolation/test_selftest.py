"""The isolation libraries, and broken ones, tested on the fake driver as a node agent tests them."""

import asyncio
import errno
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpushare.nodeagent.isolation.selftest import selftest
from gpushare.nodeagent.isolation.storage.libraries import Release, deliver
from gpushare_playground.gpus import preset, write
from tests.unit.fakegpu import building as fakegpu
from tests.unit.isolation.building import BUILT, OPEN, build

#: Without permission to mount, the shipped libraries cannot be tested.
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The fake driver with its GPUs, whose UUIDs are returned."""
    described = preset("v100-16160", "n")
    path = tmp_path / "node.gpus"
    write(path, described)
    for name, value in fakegpu.environment(path).items():
        if name.startswith("FAKEGPU_"):
            monkeypatch.setenv(name, value)
    return [one.uuid for one in described.gpus]


def driver() -> dict[str, Path]:
    fakegpu.build("library")
    return {name: fakegpu.BUILT / name for name in ("libcuda.so.1", "libnvidia-ml.so.1")}


@pytest.mark.parametrize(
    "folder", [pytest.param(BUILT, marks=ROOT, id="shipped"), pytest.param(OPEN, id="open")]
)
async def test_our_libraries_hold_on_the_fake_driver(node: list[str], tmp_path: Path, folder: Path) -> None:
    build("libraries")
    release = deliver(folder, tmp_path / "lib")
    assert await selftest.try_libraries(release, driver(), node) == selftest.Verdict("passed")


def broken(folder: Path, source: str) -> Release:
    """A release whose libcuda.so.1 is built from ``source``."""
    build("libraries")
    release = deliver(OPEN, folder / "lib")
    made = folder / "libcuda.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-x", "c", "-o", made, "-"],
        input=source,
        text=True,
        check=True,
    )
    made.replace(release.folder / "libcuda.so.1")
    return release


def short_selftest_timeout(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program with the libraries times out; the one without them has as long as ever."""
    run, patience_s = selftest._run, selftest.TRIAL_S

    async def hasty(way: str, *more: Any) -> selftest.Ended:
        monkeypatch.setattr(selftest, "TRIAL_S", 0.5 if way == "ours" else patience_s)
        return await run(way, *more)

    return hasty


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("int cuInit(unsigned f) { return *(volatile int *)0 + (int)f; }", "was killed by signal 11"),
        (
            "int cuInit(unsigned f) { return 803 + (int)f; } int cuDriverGetVersion(int *v) { return *v = 0; }",
            "803",
        ),
        ("int other;", "ended with exit code 1"),
        ("#include <unistd.h>\nint cuInit(unsigned f) { pause(); return (int)f; }", "did not finish within"),
    ],
    ids=["crashes", "refuses", "lacks", "hangs"],
)
async def test_a_broken_library_is_detected(
    node: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, why: str
) -> None:
    if "pause" in source:
        monkeypatch.setattr(selftest, "_run", short_selftest_timeout(monkeypatch))
    verdict = await selftest.try_libraries(broken(tmp_path, source), driver(), node)
    assert verdict.outcome == "failed", verdict
    assert why in verdict.why


async def test_a_driver_that_fails_by_itself_is_not_blamed_on_our_libraries(
    node: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build("libraries")
    monkeypatch.setenv("FAKEGPU_NODE", str(tmp_path / "no-such-file"))
    verdict = await selftest.try_libraries(deliver(OPEN, tmp_path / "lib"), driver(), node)
    assert verdict.outcome == "skipped"
    assert "cuInit also returns" in verdict.why


async def test_a_cancelled_selftest_ends_even_if_its_folder_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def waiting(mode: str, *more: Any) -> selftest.Ended:
        if mode == "ours":
            begun.set()
            await asyncio.Event().wait()
        return selftest.Ended(selftest.Answers())

    def not_empty(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    monkeypatch.setattr(selftest, "_run", waiting)
    monkeypatch.setattr("os.rmdir", not_empty)
    task = asyncio.create_task(selftest.try_libraries(Release("r", tmp_path), driver(), ["GPU-1"]))
    async with asyncio.timeout(10):
        await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
