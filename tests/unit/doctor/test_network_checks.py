"""NetworkPolicies that block the webhook for everyone; uncertain cases are not reported."""

from typing import Any

import pytest

from gpushare.doctor.cluster.facts import Json
from tests.unit.doctor.test_webhook_checks import PLACE, bad, kinds, with_webhook

NAME = "app.kubernetes.io/name"


def policy(ingress: list[Any], *, selector: Json | None = None, types: list[str] | None = None) -> Json:
    spec: Json = {"podSelector": {} if selector is None else selector, "ingress": ingress}
    if types is not None:
        spec["policyTypes"] = types
    return {"metadata": {"name": "shut", "namespace": "kube-system"}, "spec": spec}


OURS = {"matchLabels": {NAME: "gpushare-admission"}}
SCRAPED = [{"ports": [{"port": 9452, "protocol": "TCP"}]}]


@pytest.mark.parametrize(
    "shutting",
    [
        policy([]),
        policy(SCRAPED, selector=OURS),
        policy([{"ports": [{"port": 9443, "protocol": "UDP"}]}]),
        policy([{"ports": [{"port": 9000, "endPort": 9100}]}]),
        policy([], selector={"matchExpressions": [{"key": NAME, "operator": "In", "values": ["gpushare-admission"]}]}),
        policy([], selector={"matchExpressions": [{"key": "other", "operator": "DoesNotExist"}]}),
    ],
)  # fmt: skip
def test_policies_that_allow_no_ingress_are_reported_with_the_consequence(shutting: Json) -> None:
    (found,) = bad(with_webhook(2, True, network_policies=[shutting]))
    assert (found.check, found.state, found.subject) == ("admission", "warning", f"deployment {PLACE}")
    assert "(kube-system/shut) allows ingress to port 9443" in found.message
    assert "pods that request GPUs are rejected" in found.message


@pytest.mark.parametrize(
    "harmless",
    [
        policy([{}]),
        policy([{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]),
        policy([{"ports": [{"port": "reviews"}]}]),
        policy([{"ports": [{"port": 9000, "endPort": 9500}]}]),
        policy([], types=["Egress"]),
        policy([], selector={"matchLabels": {NAME: "other"}}),
        policy([], selector={"matchExpressions": [{"key": NAME, "operator": "NotIn", "values": ["gpushare-admission"]}]}),
        {**policy([]), "metadata": {"name": "shut", "namespace": "other"}},
    ],
)  # fmt: skip
def test_policies_that_let_some_client_in_or_select_others_are_not_named(harmless: Json) -> None:
    assert bad(with_webhook(2, True, network_policies=[harmless])) == []


def test_policies_add_up() -> None:
    assert bad(with_webhook(2, True, network_policies=[policy([]), *kinds("NetworkPolicy")])) == []
