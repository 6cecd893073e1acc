"""How the cluster benchmark starts its programs: with the chart's configuration, and waits that report why they fail."""

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster.api import Bound
from benchmarks.cluster.chart import adapted
from benchmarks.cluster.processes import Program, file_text, program, until

CHART: dict[str, Any] = {
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": True, "resourceName": "ack-co-scheduler"},
    "clientConnection": {"qps": 100, "burst": 200},
    "percentageOfNodesToScore": 100,
    "profiles": [{"schedulerName": "ack-co-scheduler", "pluginConfig": [{"name": "NodeResourcesFit"}]}],
    "extenders": [
        {
            "urlPrefix": "http://127.0.0.1:9451/gpushare",
            "bindVerb": "bind",
            "preemptVerb": "preempt",
            "weight": 5,
        }
    ],
}
URL = "http://127.0.0.1:1/gpushare"


def configuration(extender: str, *, binds: bool = True) -> dict[str, Any]:
    return adapted(CHART, Path("/kubeconfig"), 0, extender, binds=binds)


def test_the_charts_configuration_is_changed_only_where_necessary() -> None:
    ours = configuration(URL)
    assert {key for key in CHART if ours[key] != CHART[key]} == {
        "leaderElection",
        "clientConnection",
        "percentageOfNodesToScore",
        "extenders",
    }
    assert ours["clientConnection"] == {"qps": 100, "burst": 200, "kubeconfig": "/kubeconfig"}
    assert ours["extenders"] == [CHART["extenders"][0] | {"urlPrefix": URL}]
    assert CHART["extenders"][0]["urlPrefix"] != URL, "the chart's own is unchanged"


def test_without_the_extender_the_rest_is_equal_and_kube_schedulers_binds_are_not_throttled() -> None:
    ours, alone, unbound = configuration(URL), configuration(""), configuration(URL, binds=False)
    assert {key for key in ours if ours[key] != alone[key]} == {"clientConnection", "extenders"}
    assert alone["extenders"] == []
    assert "bindVerb" not in unbound["extenders"][0]
    assert alone["clientConnection"]["qps"] == unbound["clientConnection"]["qps"] == 5000


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.write_text("I was here\n")
    return path


def running(log: Path, python: str) -> Any:
    return program("the-program", [sys.executable, "-c", python], log)


async def never() -> bool:
    return False


async def test_waiting_for_an_exited_program_fails_immediately_with_the_end_of_its_log(log: Path) -> None:
    with running(log, "raise SystemExit('no rights')") as exited:
        with pytest.raises(RuntimeError, match=r"the-program ended with 1; .*(?s:.*)no rights"):
            await until(never, "it is ready", [exited], deadline_s=60.0, every_s=0.01)
        with pytest.raises(RuntimeError, match="the-program ended with 1"):
            await file_text(log.with_name("port"), exited)


async def test_a_timeout_reports_what_was_awaited_why_and_the_end_of_the_log(log: Path) -> None:
    async def hangs() -> bool:
        raise TimeoutError("no answer")

    with running(log, "import signal; signal.pause()") as waiting:
        with pytest.raises(
            TimeoutError, match=r"not within 0 s: it is ready \(TimeoutError: no answer\)"
        ) as caught:
            await until(hangs, "it is ready", [waiting], deadline_s=0.0)
        assert "the log of the-program ends with:\nI was here" in str(caught.value)


async def test_waiting_for_pods_reports_how_many_have_a_node(log: Path) -> None:
    bound = Bound()
    bound.note("one")
    bound.note("one")
    await bound.reaches(1, ())
    no_programs: list[Program] = []
    with pytest.raises(TimeoutError, match="1 of 2 pods have a node"):
        await bound.reaches(2, no_programs, deadline_s=0.0)
    bound.failed = ValueError("gone")
    with pytest.raises(RuntimeError, match="watch of pods ended"):
        await bound.reaches(2, no_programs)
