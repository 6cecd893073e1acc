"""Whom the charts' NetworkPolicies let in, where values say who API servers are and who scrapes."""

from typing import Any

from tests.e2e.asking import Commands
from tests.e2e.charts.rendering import INSTALLER, SCHEDULER, rendered

KNOWN = (
    "networkPolicy.apiServers[0]=10.0.0.0/28",
    "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.team=x",
)
API_SERVERS, SCRAPERS = (
    {"ipBlock": {"cidr": "10.0.0.0/28"}},
    {"namespaceSelector": {"matchLabels": {"team": "x"}}},
)


def _let_in(docs: list[dict[str, Any]]) -> dict[tuple[str, int], list[Any] | None]:
    """Whom each port of each policy lets in but dashboards; ``None``: everybody."""
    return {
        (doc["metadata"]["name"], port["port"]): None
        if "from" not in rule
        else [one for one in rule["from"] if "gpushare-dashboard" not in str(one)]
        for doc in docs
        if doc["kind"] == "NetworkPolicy"
        for rule in doc["spec"]["ingress"]
        for port in rule["ports"]
    }


def test_ports_are_open_to_those_alone_who_need_them_where_these_are_known(helm: Commands) -> None:
    page = ("dashboard.enabled=true", "dashboard.tokenSecret=page")
    assert _let_in(rendered(helm, SCHEDULER, "1.36.3", *page, *KNOWN)) == {
        ("ack-co-scheduler", 9452): [API_SERVERS, SCRAPERS],
        ("ack-co-scheduler", 10259): [SCRAPERS],
        ("gpushare-dashboard", 9453): None,
    }
    assert _let_in(rendered(helm, INSTALLER, "1.28.3", *KNOWN)) == {
        ("gpushare-device-plugin", 9452): [API_SERVERS, SCRAPERS],
        ("gpushare-admission", 9443): [API_SERVERS],
        ("gpushare-admission", 9452): [SCRAPERS],
    }
    # What is read through API servers would not be read any more.
    assert _let_in(rendered(helm, INSTALLER, "1.28.3", KNOWN[1])) == {
        ("gpushare-device-plugin", 9452): None,
        ("gpushare-admission", 9443): None,
        ("gpushare-admission", 9452): [SCRAPERS],
    }
