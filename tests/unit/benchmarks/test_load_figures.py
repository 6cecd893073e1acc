"""What the load test counts as a failure, and against which limits: those of the charts."""

import json
from pathlib import Path

import pytest

from benchmarks.budgets import over_budget, unmeasured
from benchmarks.load import __main__ as load
from benchmarks.load import report
from benchmarks.load.bed import limits_of
from benchmarks.load.clients import Response

PARTS = {"extender": 1024, "webhook": 512, "dashboard": 1024, "agent": 384}
GOOD = Response(0.0, 0.01, "200")
SILENT = Response(0.0, 5.0, "TimeoutError: ")
BUDGETS = json.loads(Path(load.__file__).with_name("budgets.json").read_text())


def row(door: str, *, attacked_s: float = 0.0099, **changes: object) -> report.Row:
    probed = report.Probed([GOOD] * 12, [GOOD] * 12, failures=6)
    defaults = {
        "door": door,
        "part": door.partition("-")[0],
        "kind": "idle",
        "filter_at_rest": [0.001] * 100,
        "filter_attacked": [attacked_s] * 100,
        "review_at_rest": [0.001],
        "review_attacked": [0.001],
        "allocate_at_rest": [0.001],
        "allocate_attacked": [],
        "probes": dict.fromkeys(PARTS, probed),
        "clients": [GOOD],
        "memory_mib": dict.fromkeys(PARTS, 60.0),
    }
    return report.Row(**(defaults | changes))  # type: ignore[arg-type]


def broken(*rows: report.Row) -> list[str]:
    others = [row(door) for door in load.DOORS if door not in {one.door for one in rows}]
    figures = report.figures_of([*rows, *others], PARTS)
    assert unmeasured(figures, BUDGETS) == []
    return over_budget(figures, BUDGETS)


def test_an_idle_run_is_within_every_budget() -> None:
    assert broken() == []


def test_three_failed_probes_make_a_part_unready() -> None:
    probed = report.Probed([GOOD] * 12, [SILENT] * 3 + [GOOD], failures=6)
    [unready] = broken(
        row("agent", probes=dict.fromkeys(PARTS, report.Probed([GOOD], [GOOD], 6)) | {"agent": probed})
    )
    assert unready.startswith("load_probes_failed_in_a_row_agent is 3.000")


def test_slow_filters_silent_servers_and_full_memory_exceed_their_budgets() -> None:
    [slow] = broken(row("agent", attacked_s=0.0105))
    assert slow.startswith("load_filter_p99_ratio_agent is 2.100")
    [silent] = broken(row("webhook-probes", clients=[GOOD, SILENT, Response(0.0, 0.1, "503 ask again")]))
    assert silent.startswith("load_unanswered_webhook-probes is 1.000")
    [full] = broken(row("webhook", memory_mib=dict.fromkeys(PARTS, 60.0) | {"webhook": 600.0}))
    assert full.startswith("load_memory_percent_of_limit_webhook is 117")


@pytest.mark.parametrize(
    ("response", "answered", "good"),
    [
        ("200", True, True),
        ("401 log in first", True, False),
        ("503 not ready", True, False),
        ("500 Internal Server Error", False, False),
        ("ConnectionResetError: peer", False, False),
    ],
)
def test_a_refusal_is_an_answer_but_not_a_good_probe(response: str, *, answered: bool, good: bool) -> None:
    one = Response(0.0, 0.0, response)
    assert (one.answered, one.good) == (answered, good)


def test_only_consecutive_failed_probes_restart_a_container() -> None:
    turns = report.Probed([SILENT] * 5 + [GOOD] + [SILENT] * 3, [], failures=6)
    assert turns.failed_in_a_row == 5
    figures = report.figures_of([row("agent", probes=dict.fromkeys(PARTS, turns))], PARTS)
    assert figures["load_restarts"][0] == 0
    restarted = report.Probed([GOOD] + [SILENT] * 6, [], failures=6)
    figures = report.figures_of(
        [row("agent", probes={**dict.fromkeys(PARTS, turns), "agent": restarted})], PARTS
    )
    assert figures["load_restarts"][0] == 1


def test_limits_are_the_charts_own() -> None:
    extender = limits_of("ack-co-scheduler", ("extender",), "deployment.yaml")
    webhook = limits_of("ack-ai-installer", ("webhook",), "webhook/server.yaml")
    assert (extender.memory_mib, extender.probe_s, extender.failures) == (1024, 5.0, 6)
    assert (webhook.memory_mib, webhook.probe_s, webhook.failures) == (512, 5.0, 6)


def test_no_attack_holds_more_than_4000_connections() -> None:
    assert max(load.ATTACKERS * connections for _, connections in load.KINDS.values()) <= 4000
