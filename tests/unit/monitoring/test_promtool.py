"""Alerts fire when they should, and figures are as Prometheus wants them, by Prometheus' own program."""

import re
import subprocess
from pathlib import Path

import yaml

from gpushare.admission.metrics import Metrics as AdmissionMetrics
from gpushare.nodeagent.exporter import FAMILIES
from gpushare.nodeagent.metrics import Family
from gpushare.nodeagent.metrics import Metrics as AgentMetrics
from tests.integration.whole.prometheus import RULES, program

CASES = Path(__file__).with_name("alerts.yaml")


def promtool(*arguments: str, stdin: str = "") -> tuple[int, str]:
    ended = subprocess.run(
        [program("promtool"), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_the_rules_are_well_formed() -> None:
    code, said = promtool("check", "rules", *map(str, RULES))
    assert (code, len(RULES)) == (0, 2), said


def test_alerts_fire_when_they_should_and_else_not(tmp_path: Path) -> None:
    cases = yaml.safe_load(CASES.read_text())
    written = {
        rule["alert"]
        for path in RULES
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    }
    tried = {
        one["alertname"]
        for case in cases["tests"]
        for one in case["alert_rule_test"]
        if one.get("exp_alerts")
    }
    assert tried == written, "every alert has a case in which it fires"
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump({**cases, "rule_files": [str(one) for one in RULES]}))
    code, said = promtool("test", "rules", str(tmp_path / "cases.yaml"))
    assert code == 0, said


def test_figures_of_ours_are_as_prometheus_wants_them() -> None:
    agent = AgentMetrics()
    agent.allocations.add("aliyun.com/gpu-mem")
    agent.allocate_seconds.observe("aliyun.com/gpu-mem", 0.01)
    for text in (agent.exposition().decode(), exported("gpushare_"), AdmissionMetrics().render().decode()):
        assert promtool("check", "metrics", stdin=text) == (0, "")


def test_figures_under_others_names_differ_from_that_in_their_labels_alone() -> None:
    code, said = promtool("check", "metrics", stdin=exported("DCGM_"))
    assert code == 3
    told = r"DCGM_\w+ label names should be written in 'snake_case' not 'camelCase'"
    assert [line for line in said.splitlines() if line and not re.fullmatch(told, line)] == []


def exported(prefix: str) -> str:
    """A sample of each family of the exporter."""
    lines = []
    for name, (kind, text, labels) in FAMILIES.items():
        if name.startswith(prefix):
            family = Family("counter" if kind == "counter" else "gauge", name, text, *labels)
            family.set(*(f'a "{one}" \\ value' for one in labels), value=1.5)
            lines += family.lines()
    return "".join(f"{line}\n" for line in lines)
