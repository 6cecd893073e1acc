"""Sources that the charts' NetworkPolicies admit, where values name API servers and scrapers."""

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
    """Sources admitted to each port of each policy except dashboards; ``None``: everybody."""
    return {
        (doc["metadata"]["name"], port["port"]): None
        if "from" not in rule
        else [one for one in rule["from"] if "gpushare-dashboard" not in str(one)]
        for doc in docs
        if doc["kind"] == "NetworkPolicy"
        for rule in doc["spec"]["ingress"]
        for port in rule["ports"]
    }


def test_ports_are_open_only_to_known_clients(helm: Commands) -> None:
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
    # What is read through API servers could not be read any more.
    assert _let_in(rendered(helm, INSTALLER, "1.28.3", KNOWN[1])) == {
        ("gpushare-device-plugin", 9452): None,
        ("gpushare-device-plugin", 9454): None,
        ("gpushare-device-plugin", 9455): None,
        ("gpushare-admission", 9443): None,
        ("gpushare-admission", 9454): None,
        ("gpushare-admission", 9452): [SCRAPERS],
    }


def test_every_port_is_in_its_policy_and_decisions_are_not_on_the_metrics_port(
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
    pod_ports = {
        name: {
            port["name"]: port["containerPort"]
            for container in pod["spec"]["containers"]
            for port in container.get("ports", ())
        }
        for name, pod in pods.items()
    }
    assert {name: set(ports.values()) for name, ports in pod_ports.items() if ports} == let_in
    scraped = {name: pods[name]["metadata"]["annotations"]["prometheus.io/port"] for name in let_in}
    assert scraped == {name: str(pod_ports[name]["health"]) for name in let_in}
    (service,) = (
        doc for doc in docs if doc["kind"] == "Service" and doc["metadata"]["name"] == "ack-co-scheduler"
    )
    assert [(port["name"], port["targetPort"]) for port in service["spec"]["ports"]] == [
        ("health", "decisions")
    ]
    # Through the API server's proxy the kubectl plugin reads usage from the first port of a node agent's pod.
    assert next(iter(pod_ports["gpushare-device-plugin"])) == "usage"
