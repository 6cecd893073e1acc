"""Alerts fire when they should, and metrics are well-formed, checked with promtool."""

import re
from pathlib import Path

import yaml

from gpushare.admission.metrics import Metrics as AdmissionMetrics
from gpushare.nodeagent.observability import dcgm_exporter, gpu_metrics
from gpushare.nodeagent.observability.metrics import Metrics as AgentMetrics
from gpushare.nodeagent.observability.snapshot import Families, Page
from gpushare.scheduler.observability.metrics import Metrics as SchedulerMetrics
from tests.integration.whole.prometheus import RULES, promtool
from tests.integration.whole.world import CHECKOUT

REFERENCE = CHECKOUT / "docs" / "reference" / "metrics.md"
GUIDE = CHECKOUT / "docs" / "guide" / "metrics.md"
CASES = Path(__file__).with_name("alerts.yaml")


def test_the_rules_are_well_formed() -> None:
    code, output = promtool("check", "rules", *map(str, RULES))
    assert (code, len(RULES)) == (0, 2), output


def test_alerts_fire_exactly_when_they_should(tmp_path: Path) -> None:
    cases = yaml.safe_load(CASES.read_text())
    defined = {
        rule["alert"]
        for path in RULES
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    }
    firing = {
        one["alertname"]
        for case in cases["tests"]
        for one in case["alert_rule_test"]
        if one.get("exp_alerts")
    }
    assert firing == defined, "every alert has a case in which it fires"
    silent = {
        one["alertname"]
        for case in cases["tests"]
        for one in case["alert_rule_test"]
        if not one.get("exp_alerts")
    }
    assert silent == defined, "every alert has a case in which it does not"
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump({**cases, "rule_files": [str(one) for one in RULES]}))
    code, output = promtool("test", "rules", str(tmp_path / "cases.yaml"))
    assert code == 0, output


def test_all_served_metrics_are_in_the_reference() -> None:
    reference = set(re.findall(r"^\| `(\w+)` \|", REFERENCE.read_text(), re.MULTILINE))
    for metrics in (SchedulerMetrics(), AdmissionMetrics()):
        text = metrics.render().decode()
        declared = set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))
        assert declared
        assert declared <= reference


def test_all_of_our_metrics_are_well_formed() -> None:
    agent = AgentMetrics()
    agent.allocations.add("aliyun.com/gpu-mem")
    agent.allocate_seconds.observe("aliyun.com/gpu-mem", 0.01)
    pages = {
        "node agent": agent.exposition().decode() + exported(gpu_metrics.FAMILIES),
        "scheduler": SchedulerMetrics().render().decode(),
        "webhook": AdmissionMetrics().render().decode(),
    }
    for part, text in pages.items():
        assert promtool("check", "metrics", stdin=text) == (0, ""), part


def test_metrics_under_the_names_of_dcgm_violate_only_the_rules_that_dcgm_violates() -> None:
    code, output = promtool("check", "metrics", stdin=exported(dcgm_exporter.FAMILIES))
    assert code == 3
    known = (
        r"DCGM_\w+ (label names should be written in 'snake_case' not 'camelCase'"
        r"|counter metrics should have \"_total\" suffix|metric name should not include type 'counter')"
    )
    assert [line for line in output.splitlines() if line and not re.fullmatch(known, line)] == []


def test_every_metric_under_a_dcgm_name_has_one_of_our_own() -> None:
    rows = re.findall(r"^\| (`DCGM_.*?) \| (.*?) \|", GUIDE.read_text(), re.MULTILINE)
    theirs = [name for row, _ in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(theirs) == sorted(dcgm_exporter.FAMILIES)
    for row, ours in rows:
        named = re.findall(r"`(gpushare_\w+)`", ours)
        assert named, row
        assert set(named) <= gpu_metrics.FAMILIES.keys()


def exported(families: Families) -> str:
    """A sample of each family of an exporter."""
    page = Page(families)
    for name, (_, _, labels) in families.items():
        page.set(name, tuple(f'a "{one}" \\ value' for one in labels), 1.5)
    return "".join(f"{line}\n" for line in page.lines())
