"""How findings are shown."""

from gpushare.doctor.findings import Finding, exit_code
from gpushare.doctor.report import as_json, as_table


def test_a_table_shows_the_worst_with_what_to_do_and_json_all() -> None:
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
    told = as_json(findings, "x")
    assert (told["worst"], told["target"], len(told["findings"])) == ("fault", "x", 4)
    assert as_json([], "x")["worst"] == "ok"
    assert exit_code([]) == 0


def test_a_command_stays_on_one_line_of_the_table() -> None:
    command = f"`kubectl -n kube-system describe {'pods ' * 15}-l x`"
    finding = Finding("c", "fault", "node n1", "says", f"{'word ' * 20}{command} {'word ' * 20}")
    assert [line for line in as_table([finding], "x").splitlines() if command in line]
