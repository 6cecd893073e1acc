"""The Grafana dashboard has the form that Grafana 10 to 13 read without guessing; other tests run its queries on a real Prometheus."""

import itertools
import json
import re
from typing import Any, Final

import pytest

from tests.integration.whole.world import CHECKOUT

DASHBOARD: Final = json.loads((CHECKOUT / "charts/ack-ai-installer/files/dashboard.json").read_text())
PANELS: Final[list[dict[str, Any]]] = [one for one in DASHBOARD["panels"] if one["type"] != "row"]
#: Grafana's ids of the units used here; Grafana shows an unknown one as a suffix.
UNITS: Final = {"short", "percentunit", "bytes", "s", "celsius", "watt", "ops"}
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
each_panel = pytest.mark.parametrize("panel", PANELS, ids=lambda one: str(one["title"]))


def test_the_version_is_that_of_the_oldest_supported_grafana() -> None:
    # Newer versions migrate an older schema; older versions do not read a newer one.
    assert DASHBOARD["schemaVersion"] == 38
    assert {one["pluginVersion"] for one in PANELS} == {"10.0.0"}


def test_the_data_source_is_chosen_in_one_place() -> None:
    first, *others = DASHBOARD["templating"]["list"]
    assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus")
    for one in others:
        assert one["datasource"] == SOURCE
        assert one["refresh"] == 2, "values are queried again when the time range changes"
        assert one["definition"] == one["query"]["query"]
        assert (one["multi"], one["includeAll"], one["current"]["value"]) == (True, True, ["$__all"])


@each_panel
def test_a_panel_has_a_description_and_a_unit(panel: dict[str, Any]) -> None:
    defaults, options = panel["fieldConfig"]["defaults"], panel["options"]
    assert panel["description"].endswith(".")
    assert defaults["unit"] in UNITS
    assert panel["datasource"] == SOURCE
    if panel["type"] == "stat":
        assert options["reduceOptions"] == {"calcs": ["lastNotNull"], "fields": "", "values": False}
        assert defaults["thresholds"]["steps"][0]["value"] is None
    else:
        assert panel["type"] == "timeseries"
        assert options["legend"] == {
            "calcs": [],
            "displayMode": "list",
            "placement": "bottom",
            "showLegend": True,
        }
        assert options["tooltip"] == {"mode": "multi", "sort": "desc"}


@each_panel
def test_a_panels_queries_have_distinct_ids_and_follow_the_scrape_interval(
    panel: dict[str, Any],
) -> None:
    targets = panel["targets"]
    assert [one["refId"] for one in targets] == [chr(ord("A") + at) for at in range(len(targets))]
    for one in targets:
        assert one["datasource"] == SOURCE
        assert set(re.findall(r"\[(.*?)\]", one["expr"])) <= {"$__rate_interval"}
        if panel["type"] == "stat":
            assert (one["instant"], one["range"]) == (True, False)
        else:
            assert one["legendFormat"]


def test_panels_do_not_overlap_and_stay_within_the_grid() -> None:
    positions = [one["gridPos"] for one in DASHBOARD["panels"]]
    assert len({one["id"] for one in DASHBOARD["panels"]}) == len(positions)
    assert all(one["x"] + one["w"] <= 24 for one in positions)
    for one, other in itertools.combinations(positions, 2):
        horizontal = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        vertical = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert horizontal or vertical, (one, other)
