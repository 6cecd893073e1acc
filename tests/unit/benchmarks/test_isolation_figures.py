"""How the isolation benchmark judges figures, against promises and a peer's figures, and how it stores them."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.isolation.cases import Case, Figures, outcome, row, rows, standing
from benchmarks.isolation.compute import share_case
from benchmarks.isolation.cost import paired
from benchmarks.isolation.lateness import Lateness
from benchmarks.isolation.peer import Peer
from benchmarks.isolation.running import Ended, line, manner, run
from benchmarks.isolation.table import Part, Row, markdown, read, store

A_PEER = Peer("other", (("LIMIT", "{memory_mib}m"),))


def a_case(measure: Callable[[Peer | None], Figures], *, level: float = 0.0, ours_only: bool = False) -> Case:
    return Case(
        "x",
        [100.0],
        "ns",
        "at most",
        measure,
        lambda got: got[0],
        lambda got: got[0] <= 100,
        level,
        ours_only,
    )


def crash(_peer: Peer | None) -> Figures:
    raise Ended("ended by SIGSEGV")


def test_hami_core_is_described_by_the_folder_of_its_library(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"libvgpu\.so, which is not a file; build it first"):
        Peer.hami_core(tmp_path)
    library = tmp_path / "libvgpu.so"
    library.touch()
    environment = Peer.hami_core(tmp_path).environment(Path("/c"), memory_mib=2048, percent=30)
    assert environment["LD_PRELOAD"] == environment["CUDA_REDIRECT"] == str(library)
    assert (environment["CUDA_DEVICE_MEMORY_LIMIT"], environment["CUDA_DEVICE_SM_LIMIT"]) == ("2048m", "30")
    assert environment["CUDA_DEVICE_MEMORY_SHARED_CACHE"] == "/c/cache"


def test_a_peers_environment_gets_each_containers_limits() -> None:
    peer = Peer.parse("other:LIMIT={memory_mib}m SHARE={percent} CACHE='{folder}/a cache'")
    assert peer.name == "other"
    assert peer.environment(Path("/c"), memory_mib=2048, percent=30) == {
        "LIMIT": "2048m",
        "SHARE": "30",
        "CACHE": "/c/a cache",
    }
    assert peer.environment(Path("/c"), memory_mib=1, percent=None)["SHARE"] == "100"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("LD_PRELOAD=/x.so", "no name"),
        ("other:", "assignments"),
        ("other:LIMIT", "assignments"),
        ("other:LIMIT={cores}", "known are {memory_mib}, {percent}, {folder}"),
        ("other:LD_PRELOAD=/no/such/libvgpu.so", "not a file; build it first"),
    ],
)
def test_a_peer_that_could_not_be_measured_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Peer.parse(text)


def test_the_side_nearer_to_the_target_is_ahead() -> None:
    case = share_case("two", [30, 70], lambda _: [30, 70])
    assert standing(case, [29, 70], [36, 64]) == "ahead"
    assert standing(case, [36, 64], [29, 70]) == "behind"
    assert standing(case, [29.5, 70], [30, 70.4]) == "level"


def test_a_row_reports_how_a_program_ended_and_is_missed_if_it_was_ours() -> None:
    one = row(a_case(crash), "ended by SIGSEGV", [5.0])
    assert (one.got, one.good, one.standing) == ("ended by SIGSEGV", False, "behind")
    other = row(a_case(crash), [5.0], "ended by SIGSEGV")
    assert (other.good, other.standing) == (True, "ahead")
    assert row(a_case(crash), "hung", "hung").standing == "level"


def test_each_case_is_measured_on_both_in_order() -> None:
    cases = [
        a_case(lambda peer, base=base: [base + (50.0 if peer else 0.0)])  # type: ignore[misc]
        for base in (1.0, 2.0, 300.0)
    ]
    got = list(rows([*cases, a_case(crash)], A_PEER, parallel=2))
    assert [(one.got, one.peer, one.good, one.standing) for one in got] == [
        ([1.0], [51.0], True, "ahead"),
        ([2.0], [52.0], True, "ahead"),
        ([300.0], [350.0], False, "ahead"),
        ("ended by SIGSEGV", "ended by SIGSEGV", False, "level"),
    ]
    assert [one.peer for one in rows(cases, None)] == [None] * 3


def test_cases_only_for_ours_are_not_run_on_a_peer() -> None:
    assert outcome(a_case(lambda _: [1.0], ours_only=True), A_PEER) == "has none"


def test_disturbed_batches_do_not_count() -> None:
    bare, limited = iter([10.0, 500.0, 11.0, 9.0]), iter([15.0, 506.0, 2000.0, 16.0])
    assert paired(4, lambda: next(bare), lambda: next(limited)) == [6.0, 10.0]


def test_parts_are_stored_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "figures" / "isolation.json"
    one = Row("a", [1.0], [1.23456], "ns", True, "at most", "ended by SIGSEGV", "ahead")
    store(path, {"cost": Part("m", "other", [one])})
    store(path, {"memory": Part("n", None, [Row("b", [], "hung", "MiB", False, "")])})
    stored = read(path)
    assert list(stored) == ["cost", "memory"]
    assert stored["cost"].rows[0].got == [1.235]
    assert stored["cost"].rows[0].peer == "ended by SIGSEGV"
    store(path, {"cost": Part("m", None, [])})
    assert (list(read(path)["cost"].rows), list(read(path)["memory"].rows)) == ([], stored["memory"].rows)


def test_figures_in_another_format_are_discarded(tmp_path: Path) -> None:
    path = tmp_path / "isolation.json"
    path.write_text('{"machine": "m", "rows": []}')
    store(path, {"cost": Part("m", None, [])})
    assert list(read(path)) == ["cost"]


def test_tables_have_a_column_for_a_measured_peer() -> None:
    rows_of_cost = [
        Row("a call", [100.0], [12.0, 200.0], "ns", True, "at most; bare", [80.0, 200.0], "ahead"),
        Row("a start", [1.2], [2.5, 100.0], "", False, "times", [1.1, 100.0], "behind"),
    ]
    text = markdown({"cost": Part("m", "other", rows_of_cost), "memory": Part("n", None, [])})
    assert "|  | promised | gpushare | other |\n|---|---|---|---|\n" in text
    assert "| a call | 100 at most; bare | 12.0 200.0 ns | 80.0 200.0 |" in text
    assert "**missed**" in text
    assert "(ours is behind)" in text
    assert "|  | promised | gpushare |\n|---|---|---|\n" in text


def test_how_a_program_ended_is_described_by_name() -> None:
    assert manner(-signal.SIGSEGV) == "ended by SIGSEGV"
    assert manner(3) == "ended with 3"
    program = [sys.executable, "-c", "print('ready', flush=True); import os; os.abort()"]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    assert line(process) == "ready"
    with pytest.raises(Ended, match="ended by SIGABRT"):
        line(process)
    assert process.stdout
    process.stdout.close()


def test_a_hanging_program_is_killed_with_its_children() -> None:
    forks = "import os, signal; os.fork(); signal.pause()"
    with pytest.raises(Ended, match=r"did not end in 0\.5 s"):
        run([sys.executable, "-c", forks], {}, 0.5)


def test_late_timers_of_a_machine_are_reported() -> None:
    lateness = Lateness()
    lateness.note(0.001)
    assert lateness.worst_s == 0.001
    lateness.note(2.5)
    assert lateness.summary().endswith("by 2500 ms at worst")
