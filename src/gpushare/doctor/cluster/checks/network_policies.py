"""NetworkPolicies that block all traffic to the webhook. The addresses of API servers are unknown, so nothing else can be checked."""

from collections.abc import Collection, Iterator
from typing import Final

from gpushare.doctor.cluster.facts import ClusterFacts, Json, at, name_of
from gpushare.doctor.findings import Result, Unread, warning

_PORT: Final = "reviews"


def shut_webhook(facts: ClusterFacts, effect: str) -> Iterator[Result]:
    """Whether the policies of its namespace allow traffic from anywhere to the webhook's port; ``effect``: the consequence if not."""
    if isinstance(facts.network_policies, Unread) or isinstance(facts.webhook_deployments, Unread):
        return
    for deployment in facts.webhook_deployments:
        labels = at(deployment, "spec", "template", "metadata", "labels") or {}
        port = _port(deployment)
        selecting = [
            policy
            for policy in facts.network_policies
            if at(policy, "metadata", "namespace") == at(deployment, "metadata", "namespace")
            and _selects(at(policy, "spec", "podSelector") or {}, labels)
            # Without a type a policy is about ingress.
            and "Ingress" in (at(policy, "spec", "policyTypes") or ("Ingress",))
        ]
        if port is None or not selecting or any(_opens(policy, port) for policy in selecting):
            continue
        listed = ", ".join(sorted(map(name_of, selecting)))
        yield warning(
            f"deployment {name_of(deployment)}",
            f"no NetworkPolicy of its pods ({listed}) allows ingress to port {port}, on which API servers call the webhook; "
            f"if the network enforces them: {effect}",
            f"allow TCP port {port}, as the chart's own NetworkPolicy does (value `networkPolicy.enabled`), or delete the one that blocks it",
        )


def _port(deployment: Json) -> int | None:
    for container in at(deployment, "spec", "template", "spec", "containers") or ():
        for port in container.get("ports") or ():
            if port.get("name") == _PORT:
                return int(port["containerPort"])
    return None


def _opens(policy: Json, port: int) -> bool:
    """Whether it allows traffic to the port from anywhere; policies are additive."""
    return any(
        not rule.get("ports") or any(_covers(entry, port) for entry in rule["ports"])
        for rule in at(policy, "spec", "ingress") or ()
    )


def _covers(entry: Json, port: int) -> bool:
    first = entry.get("port")
    if entry.get("protocol", "TCP") != "TCP":
        return False
    if not isinstance(first, int):
        return first in (None, _PORT)
    return first <= port <= int(entry.get("endPort", first))


def _selects(selector: Json, labels: Json) -> bool:
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _holds(expression, labels) for expression in selector.get("matchExpressions") or ()
    )


def _holds(expression: Json, labels: Json) -> bool:
    key, values = expression.get("key"), expression.get("values") or ()
    present: Collection[str] = (labels[key],) if key in labels else ()
    match expression.get("operator"):
        case "In":
            return any(value in values for value in present)
        case "NotIn":
            return not any(value in values for value in present)
        case "Exists":
            return bool(present)
        case "DoesNotExist":
            return not present
    return False
