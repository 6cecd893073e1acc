"""How ``make gpu-check`` judges its measurements."""

import ast
import subprocess
from pathlib import Path

import pytest

from benchmarks import gpu_check
from benchmarks.gpu_check.building import COMPILER, PROGRAMS
from benchmarks.gpu_check.compute import Load, about, plan
from benchmarks.gpu_check.driver import NoDriver, found, is_fake, loaded, plain
from benchmarks.gpu_check.facts import compared, mib
from benchmarks.gpu_check.machine import uuid_of
from benchmarks.gpu_check.report import Verdict
from benchmarks.gpu_check.running import Outcome
from benchmarks.gpu_check.suite import judged
from benchmarks.gpu_check.symbols import coverage

MIB = 1 << 20


def verdict(driver: tuple[int, int], charged: tuple[int, int], name: str = "2 MiB") -> Verdict:
    bare = {name: {"name": name, "taken": driver[0], "kept": driver[1]}}
    held = {name: {"name": name, "taken": charged[0], "kept": charged[1]}}
    (row,) = compared(bare, held)
    return row.verdict


def test_the_charge_must_be_at_least_what_the_driver_allocates() -> None:
    assert verdict((2 * MIB, 0), (2 * MIB, 0)) is Verdict.HELD
    assert verdict((2 * MIB, 0), (4 * MIB, 0)) is Verdict.HELD
    assert verdict((4 * MIB, 0), (2 * MIB, 0)) is Verdict.FAILED


def test_freed_memory_may_stay_charged_only_while_the_driver_keeps_it() -> None:
    assert verdict((2 * MIB, 0), (2 * MIB, 2 * MIB)) is Verdict.FAILED
    assert verdict((32 * MIB, 32 * MIB), (32 * MIB, 32 * MIB)) is Verdict.HELD


def test_memory_counted_after_its_allocation_is_measured_and_not_judged() -> None:
    assert verdict((64 * MIB, 0), (0, 0), "module with 64 MiB of variables") is Verdict.MEASURED


def test_a_call_that_fails_only_in_the_container_is_a_failure() -> None:
    (row,) = compared({"1 B": {"taken": 0, "kept": 0}}, {"1 B": {"error": "cuMemAlloc_v2: 2"}})
    assert (row.verdict, row.got) == (Verdict.FAILED, "cuMemAlloc_v2: 2")
    (row,) = compared({"1 B": {"taken": 0, "kept": 0}}, {})
    assert row.verdict is Verdict.FAILED


def test_a_call_missing_from_the_driver_is_not_run() -> None:
    (row,) = compared({"array": {"error": "cuArray3DCreate_v2: 801"}}, {})
    assert row.verdict is Verdict.NOT_RUN


def test_sizes_are_printed_in_readable_units() -> None:
    assert [mib(1), mib(2 * MIB), mib(MIB + 1), mib(0)] == ["1 B", "2 MiB", "1.000000954 MiB", "0 MiB"]


def test_functions_are_classified_as_limited_passed_on_or_new() -> None:
    there = frozenset({"cuInit", "cuMemAlloc_v2", "cuNewThing", "_init", "cudbgApiInit"})
    classified = coverage(there, frozenset({"cuMemAlloc_v2", "cuGone"}), frozenset({"cuInit"}), "cu[A-Z]")
    assert classified.limited == {"cuMemAlloc_v2"}
    assert classified.passed_on == {"cuInit"}
    assert classified.new == {"cuNewThing"}


def test_a_load_has_the_gpu_time_of_its_unit() -> None:
    assert Load("kernels:50000").unit_ns == 50_000
    assert Load("graphs:50000:20").unit_ns == 1_000_000
    assert Load("copies:16777216").unit_ns is None
    assert about([Load("graphs:50000:20", 30), Load("kernels:1000000", 70, streams=4)]) == (
        "30%: graphs of 20 kernels of 0.05 ms; 70%: kernels of 1 ms in 4 streams"
    )


@pytest.mark.parametrize("quick", [True, False])
def test_no_gpu_is_promised_more_than_once(quick: bool) -> None:
    for loads, wanted in plan(quick):
        assert sum(load.percent or 0 for load in loads) <= 100
        assert wanted is None or (len(wanted) == len(loads) and sum(wanted) <= 100)


def test_uuids_are_written_as_nvml_does() -> None:
    assert uuid_of("5c1f3f6e0d6b4c2a9a570b8f2f1d7e11") == "GPU-5c1f3f6e-0d6b-4c2a-9a57-0b8f2f1d7e11"


def test_the_fake_driver_is_recognized_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"\x7fELF" + b"NVIDIA" * 100)
    (tmp_path / "other").write_bytes(b"\x7fELF" + b"x" * 5000 + b"FAKEGPU_NODE\0")
    assert not is_fake(tmp_path / "real")
    assert is_fake(tmp_path / "other")


def test_our_variables_are_removed_from_the_measured_environment() -> None:
    ours = {"GPUSHARE_RUN": "x", "FAKEGPU_NODE": "x", "LD_PRELOAD": "x"}
    assert plain(ours | {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1"}) == {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "1",
    }


def test_a_missing_driver_is_reported_with_the_searched_paths(
    tmp_path: Path,
) -> None:
    environment = {"PATH": "/usr/bin:/bin"}
    if loaded("libcuda.so.1", environment):
        pytest.skip("this machine has a driver")
    with pytest.raises(NoDriver, match=r"libcuda\.so\.1.*not found") as refused:
        found(environment, [str(tmp_path / "no*")])
    assert str(tmp_path / "no*") in str(refused.value)


def test_the_check_needs_nothing_newer_than_python_3_10() -> None:
    for path in Path(gpu_check.__file__).parent.glob("*.py"):
        ast.parse(path.read_text(), feature_version=(3, 10))


PYTEST = """
tests/integration/isolation/test_a.py::test_one PASSED                     [ 25%]
tests/integration/isolation/test_a.py::test_kinds[plain] FAILED            [ 50%]
tests/integration/isolation/test_a.py::test_kinds[from pool] SKIPPED (it is about the stand-in) [ 75%]
tests/integration/isolation/test_a.py::test_two SKIPPED (it is about the stand-in) [100%]
=========================== short test summary info ============================
FAILED tests/integration/isolation/test_a.py::test_kinds[plain] - AssertionError: 2
"""


def test_the_output_of_pytest_becomes_rows() -> None:
    rows = list(judged(Outcome(1, PYTEST, "", 5.0)))
    assert [(row.name, row.got, row.verdict) for row in rows] == [
        ("test_kinds[plain]", "AssertionError: 2", Verdict.FAILED),
        ("2 tests", "it is about the stand-in", Verdict.NOT_RUN),
        ("tests", "1 passed", Verdict.HELD),
    ]


def test_tests_without_time_left_are_reported() -> None:
    *_, last = judged(Outcome(None, PYTEST.partition("====")[0], "", 110.0))
    assert (last.verdict, last.name) == (Verdict.NOT_RUN, "the rest of the tests")
    assert "1 had passed" in last.got


@pytest.mark.parametrize("status", [None, -11, 2, 4])
def test_tests_that_never_began_are_a_failure(status: int | None) -> None:
    (last,) = judged(Outcome(status, "", "", 110.0))
    assert last.verdict is Verdict.FAILED


def test_a_file_that_cannot_be_read_is_a_failure() -> None:
    out = "ERROR tests/integration/isolation/test_a.py - ModuleNotFoundError: No module named 'x'\n"
    names = [(row.name, row.verdict) for row in judged(Outcome(1, out, "", 1.0))]
    assert names == [("test_a.py", Verdict.FAILED), ("tests", Verdict.FAILED)]


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_compile_without_warnings(program: str, tmp_path: Path) -> None:
    compiled = subprocess.run(
        [*COMPILER, "-Werror", "-o", tmp_path / program, PROGRAMS[program] / f"{program}.c", "-ldl"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (compiled.returncode, compiled.stderr) == (0, "")
