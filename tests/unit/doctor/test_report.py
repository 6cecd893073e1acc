"""How findings are shown."""

import sys
from types import SimpleNamespace

import pytest

from gpushare.doctor import __main__ as command
from gpushare.doctor.findings import Finding, exit_code
from gpushare.doctor.report import as_json, as_table


def test_a_table_shows_the_worst_with_what_to_do_and_json_shows_all() -> None:
    findings = [
        Finding("a", "ok", "", "well"),
        Finding("b", "ok", "node n1", "well too"),
        Finding("c", "fault", "node n2", "word " * 40, "do it"),
        Finding("d", "unknown", "you", "not seen"),
    ]
    table = as_table(findings, "cluster x").splitlines()
    assert table[0] == "cluster x"
    assert max(map(len, table)) <= 118
    assert not any("n1" in line for line in table)
    assert any(line.strip() == "→ do it" for line in table)
    assert table[-1] == "2 ok, 1 unknown, 1 fault"
    assert any("n1" in line for line in as_table(findings, "x", everything=True).splitlines())
    document = as_json(findings, "x")
    assert (document["worst"], document["target"], len(document["findings"])) == ("fault", "x", 4)
    assert as_json([], "x")["worst"] == "ok"
    assert exit_code([]) == 0


def test_a_command_stays_on_one_line_of_the_table() -> None:
    command = f"`kubectl -n kube-system describe {'pods ' * 15}-l x`"
    finding = Finding("c", "fault", "node n1", "message", f"{'word ' * 20}{command} {'word ' * 20}")
    assert [line for line in as_table([finding], "x").splitlines() if command in line]


def test_names_with_hyphens_stay_whole_where_lines_are_wrapped() -> None:
    name = "pod-group.scheduling.sigs.k8s.io/min-available"
    for lead in range(40, 100):
        table = as_table([Finding("c", "fault", "", f"{'x' * lead} label {name} is wrong", "do it")], "x")
        assert name in table, lead


def test_without_a_terminal_each_finding_is_one_line_with_what_to_do() -> None:
    findings = [
        Finding("a", "ok", "", "well"),
        Finding("c", "fault", "node n2", "word " * 60 + "end", "do it " * 40),
        Finding("d", "warning", "node n3", "word", ""),
    ]
    _, blank, well, fault, warning, _, counted = as_table(findings, "cluster x", wrapped=False).splitlines()
    assert (blank, counted) == ("", "1 ok, 1 warning, 1 fault")
    assert well == "ok       a  well"
    assert fault.startswith("fault    c  node n2: word word")
    assert fault.endswith("end → " + "do it " * 40)
    assert warning == "warning  d  node n3: word"


def test_the_command_checks_whether_stdout_is_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = [Finding("c", "fault", "node n2", "word " * 60, "do it")]

    async def found(*_: object) -> list[Finding]:
        return findings

    monkeypatch.setattr(command, "of_cluster", found)
    monkeypatch.setattr(command, "load_access", lambda *_: SimpleNamespace(server="s"))
    lines = {}
    for terminal in (False, True):
        monkeypatch.setattr(sys.stdout, "isatty", lambda terminal=terminal: terminal)
        assert command.main([]) == 2
        lines[terminal] = len(capsys.readouterr().out.splitlines())
    assert lines[False] == 5
    assert lines[True] > 6
