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
        ("ack-co-scheduler", 9452): [SCRAPERS],
        ("ack-co-scheduler", 9454): [API_SERVERS],
        ("ack-co-scheduler", 9455): [API_SERVERS],
        ("ack-co-scheduler", 10259): [SCRAPERS],
        ("gpushare-dashboard", 9452): [SCRAPERS],
        ("gpushare-dashboard", 9453): None,
        ("gpushare-dashboard", 9454): [API_SERVERS],
    }
    assert _let_in(rendered(helm, INSTALLER, "1.28.3", *KNOWN)) == {
        ("gpushare-device-plugin", 9452): [API_SERVERS, SCRAPERS],
        ("gpushare-device-plugin", 9454): [API_SERVERS],
        ("gpushare-device-plugin", 9455): [API_SERVERS],
        ("gpushare-admission", 9443): [API_SERVERS],
        ("gpushare-admission", 9454): [API_SERVERS],
        ("gpushare-admission", 9452): [SCRAPERS],
    }
    # What is read through API servers would not be read any more.
    assert _let_in(rendered(helm, INSTALLER, "1.28.3", KNOWN[1])) == {
        ("gpushare-device-plugin", 9452): None,
        ("gpushare-device-plugin", 9454): None,
        ("gpushare-device-plugin", 9455): None,
        ("gpushare-admission", 9443): None,
        ("gpushare-admission", 9454): None,
        ("gpushare-admission", 9452): [SCRAPERS],
    }


def test_every_port_of_a_pod_is_in_its_policy_and_the_page_of_decisions_is_not_where_prometheus_reads(
    helm: Commands,
) -> None:
    page = ("dashboard.enabled=true", "dashboard.tokenSecret=page")
    docs = rendered(helm, SCHEDULER, "1.36.3", *page) + rendered(helm, INSTALLER, "1.28.3")
    let_in: dict[str, set[int]] = {}
    for name, port in _let_in(docs):
        let_in.setdefault(name, set()).add(port)
    pods = {
        doc["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"]: doc["spec"]["template"]
        for doc in docs
        if doc["kind"] in ("Deployment", "DaemonSet")
    }
    named = {
        name: {
            port["name"]: port["containerPort"]
            for container in pod["spec"]["containers"]
            for port in container.get("ports", ())
        }
        for name, pod in pods.items()
    }
    assert {name: set(ports.values()) for name, ports in named.items() if ports} == let_in
    scraped = {name: pods[name]["metadata"]["annotations"]["prometheus.io/port"] for name in let_in}
    assert scraped == {name: str(named[name]["health"]) for name in let_in}
    (service,) = (
        doc for doc in docs if doc["kind"] == "Service" and doc["metadata"]["name"] == "ack-co-scheduler"
    )
    assert [(port["name"], port["targetPort"]) for port in service["spec"]["ports"]] == [
        ("health", "decisions")
    ]
    # Through the API server's proxy the kubectl plugin asks the first port of a node agent's pod for use.
    assert next(iter(named["gpushare-device-plugin"])) == "usage"
