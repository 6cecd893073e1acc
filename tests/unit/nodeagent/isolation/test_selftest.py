"""The verdict of a self-test of the isolation libraries, and when it is repeated."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpushare.kube.clock import SYSTEM_CLOCK
from gpushare.nodeagent.isolation.selftest import selftest
from gpushare.nodeagent.isolation.selftest.selftest import Answers, Ended, SelfTests, Verdict, compare_runs
from gpushare.nodeagent.isolation.storage.libraries import Release

A, B = "GPU-a", "GPU-b"
GIB = 1 << 30
BARE = Ended(Answers(init=0, version=12040, totals={A: 16 * GIB, B: 16 * GIB}, nvml={A: 16 * GIB}))
LIMITED = {A: 64 << 20, B: 64 << 20}
OURS = Ended(Answers(init=0, version=12040, totals=LIMITED, nvml=LIMITED))


def answering(of: Ended, **answers: Any) -> Ended:
    values = {name: getattr(of.answers, name) for name in Answers.__struct_fields__}
    return Ended(Answers(**(values | answers)))


def test_libraries_with_correct_answers_pass() -> None:
    assert compare_runs(BARE, OURS, [A, B]) == Verdict("passed")


@pytest.mark.parametrize(
    ("ours", "why"),
    [
        (Ended(Answers(), "the test program was killed by signal 11"), "was killed by signal 11"),
        (Ended(Answers(unloadable="undefined symbol: x")), "undefined symbol: x"),
        (answering(OURS, init=803), "cuInit returns 803 with the libraries, and 0 without them"),
        (answering(OURS, version=0), "a function that is unknown to the libraries is not found"),
        (answering(OURS, reached=False), "cuGetProcAddress bypasses the libraries"),
        (answering(OURS, totals={A: 16 * GIB, B: 64 << 20}), f"CUDA reports {16 * GIB} bytes for GPU {A}"),
        (answering(OURS, totals={A: 64 << 20}), f"CUDA reports -1 bytes for GPU {B}"),
        (answering(OURS, nvml={A: -1, B: 64 << 20}), f"NVML reports -1 bytes for GPU {A}"),
        # The right to mount was not needed: these find their files by the environment.
        (answering(OURS, denied="no right to mount", init=999), "cuInit returns 999"),
    ],
)
def test_libraries_that_break_a_working_driver_are_broken(ours: Ended, why: str) -> None:
    verdict = compare_runs(BARE, ours, [A, B])
    assert verdict.outcome == "failed"
    assert why in verdict.why


@pytest.mark.parametrize(
    ("bare", "ours", "why"),
    [
        (Ended(Answers(unloadable="invalid ELF header")), OURS, "invalid ELF header"),
        (Ended(Answers(), "ended with exit code 1"), OURS, "exit code 1"),
        (
            answering(BARE, init=100),
            answering(OURS, init=100),
            "cuInit also returns 100 without the libraries",
        ),
        (BARE, Ended(Answers(denied="no right to mount (x)", unloadable="y")), "no right to mount (x)"),
    ],
)
def test_a_failure_that_also_happens_without_them_is_no_verdict(bare: Ended, ours: Ended, why: str) -> None:
    verdict = compare_runs(bare, ours, [A])
    assert verdict.outcome == "skipped"
    assert why in verdict.why


def test_gpus_that_cuda_does_not_show_to_the_agent_are_not_tested() -> None:
    assert compare_runs(BARE, OURS, [A, "GPU-another"]).outcome == "passed"


class Scripted:
    """Stands in for the tested program."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.verdicts: list[Verdict] = []
        self.tries = 0
        self.files: dict[str, Path] | None = {"libcuda.so.1": folder / "libcuda.so.535"}
        (folder / "libcuda.so.535").touch()
        self.now_s = 1000.0
        monkeypatch.setattr(selftest, "try_libraries", self.tried)

    async def tried(self, *_: object) -> Verdict:
        self.tries += 1
        return self.verdicts.pop(0)

    def monotonic(self) -> float:
        return self.now_s


@dataclasses.dataclass
class Tried:
    trials: SelfTests
    script: Scripted

    async def verdict(self, name: str = "one", gpus: Sequence[str] = (A,)) -> Verdict:
        return await self.trials.verdict(Release(name, Path("/lib")), gpus)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tried:
    script = Scripted(monkeypatch, tmp_path)
    trials = SelfTests(tmp_path, clock=SYSTEM_CLOCK, files=lambda _: script.files)
    monkeypatch.setattr(trials, "_clock", script)
    return Tried(trials, script)


async def test_after_a_pass_it_is_repeated_only_if_something_changed(node: Tried) -> None:
    script = node.script
    script.verdicts = [Verdict("passed")] * 4
    await node.verdict()
    script.now_s += 1e6
    assert (await node.verdict()).outcome == "passed"
    assert script.tries == 1
    await node.verdict("two")
    await node.verdict("two", (A, B))
    assert script.files is not None
    script.files["libcuda.so.1"].unlink()  # the driver is upgraded
    await node.verdict("two", (A, B))
    assert script.tries == 4


async def test_a_transient_failure_is_no_broken_library(node: Tried) -> None:
    node.script.verdicts = [Verdict("failed", "it took too long"), Verdict("passed")]
    assert (await node.verdict()).outcome == "passed"


async def test_after_a_failure_it_is_repeated_later(node: Tried) -> None:
    script = node.script
    script.verdicts = [
        Verdict("failed", "x"),
        Verdict("failed", "x"),
        Verdict("skipped", "y"),
        Verdict("passed"),
    ]
    assert await node.verdict() == Verdict("failed", "x")
    assert await node.verdict() == Verdict("failed", "x")
    assert script.tries == 2
    script.now_s += selftest.AGAIN_S
    assert (await node.verdict()).outcome == "skipped"
    script.now_s += 2 * selftest.AGAIN_S
    assert (await node.verdict()).outcome == "passed"


async def test_without_gpus_or_a_driver_nothing_is_tested(node: Tried) -> None:
    assert (await node.verdict(gpus=())).why == "there is no GPU to test them on"
    node.script.files = None
    assert "the driver's libraries are not found below" in (await node.verdict()).why
    assert not node.script.tries
