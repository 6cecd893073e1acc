"""NetworkPolicies that let nobody reach the webhook. Who API servers are in a network is not known, so nothing else can be said of them."""

from collections.abc import Collection, Iterator
from typing import Final

from gpushare.doctor.cluster.facts import ClusterFacts, Json, at, name_of
from gpushare.doctor.findings import Result, Unread, warning

_PORT: Final = "reviews"


def shut_webhook(facts: ClusterFacts, effect: str) -> Iterator[Result]:
    """Whether the policies of its namespace let traffic from anywhere to the port at which the webhook is called; ``effect``: else what comes."""
    if isinstance(facts.network_policies, Unread) or isinstance(facts.webhook_deployments, Unread):
        return
    for deployment in facts.webhook_deployments:
        labels = at(deployment, "spec", "template", "metadata", "labels") or {}
        port = _port(deployment)
        about = [
            one
            for one in facts.network_policies
            if at(one, "metadata", "namespace") == at(deployment, "metadata", "namespace")
            and _selects(at(one, "spec", "podSelector") or {}, labels)
            # Where no type is named it is about what comes in.
            and "Ingress" in (at(one, "spec", "policyTypes") or ("Ingress",))
        ]
        if port is None or not about or any(_opens(one, port) for one in about):
            continue
        listed = ", ".join(sorted(map(name_of, about)))
        yield warning(
            f"deployment {name_of(deployment)}",
            f"no NetworkPolicy that is about its pods ({listed}) lets anybody reach port {port}, where API servers call the webhook; "
            f"where the network goes by them: {effect}",
            f"let TCP port {port} in, as the chart's own NetworkPolicy does (value `networkPolicy.enabled`), or take away the one that shuts it",
        )


def _port(deployment: Json) -> int | None:
    for container in at(deployment, "spec", "template", "spec", "containers") or ():
        for port in container.get("ports") or ():
            if port.get("name") == _PORT:
                return int(port["containerPort"])
    return None


def _opens(policy: Json, port: int) -> bool:
    """Whether it lets anybody at all reach the port; policies add up."""
    return any(
        not rule.get("ports") or any(_is(one, port) for one in rule["ports"])
        for rule in at(policy, "spec", "ingress") or ()
    )


def _is(said: Json, port: int) -> bool:
    first = said.get("port")
    if said.get("protocol", "TCP") != "TCP":
        return False
    if not isinstance(first, int):
        return first in (None, _PORT)
    return first <= port <= int(said.get("endPort", first))


def _selects(selector: Json, labels: Json) -> bool:
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _holds(one, labels) for one in selector.get("matchExpressions") or ()
    )


def _holds(one: Json, labels: Json) -> bool:
    key, values = one.get("key"), one.get("values") or ()
    there: Collection[str] = (labels[key],) if key in labels else ()
    match one.get("operator"):
        case "In":
            return any(value in values for value in there)
        case "NotIn":
            return not any(value in values for value in there)
        case "Exists":
            return bool(there)
        case "DoesNotExist":
            return not there
    return False
