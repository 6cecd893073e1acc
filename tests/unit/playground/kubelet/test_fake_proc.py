"""Which container a process belongs to, and what a node agent reads about it."""

import subprocess
import sys
from pathlib import Path

from gpushare.nodeagent.isolation.watchdog.cgroups import Owner, owner
from gpushare_playground.kubelet.runtime.cgroups import cgroup_line as cgroup_of
from gpushare_playground.kubelet.runtime.containers import Attempt
from gpushare_playground.kubelet.runtime.fake_proc import FakeProc, belonging, parents

UID = "0b1e7c52-93c4-4ff6-8a0d-2f6f4f1f9f10"


def test_descendants_belong_to_the_container_and_other_processes_to_none():
    tree = {1: 0, 10: 1, 11: 10, 12: 11, 20: 1, 21: 20, 30: 1, 31: 30, 40: 999}
    assert belonging({10: "a", 20: "b"}, tree) == {10: "a", 11: "a", 12: "a", 20: "b", 21: "b"}


def test_a_command_next_to_a_program_may_belong_to_another_container_than_its_parent():
    assert belonging({10: "a", 11: "b"}, {10: 1, 11: 10, 12: 11, 13: 10}) == {
        10: "a",
        11: "b",
        12: "b",
        13: "a",
    }


def test_process_ids_that_are_reused_while_they_are_read_do_no_harm():
    assert belonging({3: "a"}, {1: 2, 2: 1, 3: 4, 4: 3}) == {3: "a", 4: "a"}
    assert belonging({5: "a"}, {}) == {}


def test_the_node_agent_finds_pod_and_container(tmp_path):
    attempt = Attempt(tmp_path / UID / "main" / "0", 0)
    assert owner(cgroup_of(UID, attempt.container_id)) == Owner(UID, attempt.container_id)
    restarted = Attempt(tmp_path / UID / "main" / "1", 1)
    assert restarted.container_id != attempt.container_id


def test_files_come_and_go_with_processes(tmp_path):
    proc = FakeProc(tmp_path / "proc")
    (tmp_path / "proc" / "4711").mkdir(parents=True)
    waiting = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", waiting], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()
        proc.write({program.pid: "whose\n"})
        [child] = [pid for pid, parent in parents().items() if parent == program.pid]
        seen = {path.name: (path / "cgroup").read_text() for path in (tmp_path / "proc").iterdir()}
        assert seen == {str(program.pid): "whose\n", str(child): "whose\n"}
        named = (tmp_path / "proc" / str(child) / "comm").read_text()
        assert named == (Path("/proc") / str(child) / "comm").read_text()
        proc.write({program.pid: "another's\n"})
        assert (tmp_path / "proc" / str(child) / "cgroup").read_text() == "another's\n"
        program.communicate(b"\n")
    proc.write({})
    assert list((tmp_path / "proc").iterdir()) == []
