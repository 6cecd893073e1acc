"""Rights granted by Roles, and to which account: missing ones are named."""

from collections.abc import Callable
from typing import Any

import pytest

from gpushare.doctor.cluster.facts import ClusterFacts, Json, name_of
from gpushare.doctor.cluster.registry import CHECKS
from gpushare.doctor.findings import Finding, examine
from tests.unit.doctor.healthy_cluster import sound
from tests.unit.doctor.test_webhook_checks import with_webhook

LEASE = "kube-system/ack-co-scheduler"
QUOTAS = "kube-system/ack-co-scheduler:elastic-quotas"


def changed(field: str, name: str, change: Callable[[Json], Any], facts: ClusterFacts) -> list[Finding]:
    (one,) = [one for one in getattr(facts, field) if name_of(one) == name]
    change(one)
    return [one for one in examine(facts, CHECKS) if one.state != "ok"]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (LEASE, lambda one: one["rules"][0]["verbs"].remove("update"), "update leases"),
        (LEASE, lambda one: one["rules"][0].update(resourceNames=["another"]), "get leases"),
        (QUOTAS, lambda one: one["rules"].pop(), "patch elasticquotatrees/status"),
    ],
)  # fmt: skip
def test_a_role_that_allows_too_little_is_a_fault(
    name: str, change: Callable[[Json], Any], message: str
) -> None:
    (found,) = changed("own_roles", name, change, sound())
    assert (found.check, found.state, found.subject) == ("process-rights", "fault", f"role {name}")
    assert message in found.message


def test_a_missing_role_is_a_fault() -> None:
    facts = sound()
    remaining = [one for one in facts.own_roles if name_of(one) != QUOTAS]  # type: ignore[union-attr]
    (found,) = [one for one in examine(sound(own_roles=remaining), CHECKS) if one.state != "ok"]
    assert (found.state, found.subject, found.message) == ("fault", f"role {QUOTAS}", "it is not there")


@pytest.mark.parametrize(
    ("field", "name", "subject"),
    [
        ("bindings", "ack-co-scheduler", "clusterrolebinding ack-co-scheduler"),
        ("bindings", "ack-co-scheduler:kube-scheduler", "clusterrolebinding ack-co-scheduler:kube-scheduler"),
        ("bindings", "gpushare-device-plugin", "clusterrolebinding gpushare-device-plugin"),
        ("own_bindings", LEASE, f"rolebinding {LEASE}"),
    ],
)
def test_a_binding_to_an_account_of_another_namespace_is_a_fault(field: str, name: str, subject: str) -> None:
    (found,) = changed(field, name, lambda one: one["subjects"][0].update(namespace="old"), sound())
    assert (found.check, found.state, found.subject) == ("process-rights", "fault", subject)
    account = name.partition("/")[2] or name.partition(":")[0]
    assert (
        f"it binds serviceaccount old/{account}, but our pods use serviceaccount kube-system/{account}"
        == (found.message)
    )


@pytest.mark.parametrize(
    "subject",
    [
        {"kind": "Group", "name": "system:serviceaccounts:kube-system"},
        {"kind": "User", "name": "system:serviceaccount:kube-system:ack-co-scheduler"},
    ],
)
def test_an_account_may_be_bound_by_its_group_or_its_name(subject: Json) -> None:
    assert changed("own_bindings", LEASE, lambda one: one.update(subjects=[subject]), sound()) == []


def test_a_webhook_that_may_not_store_its_certificates_is_a_fault() -> None:
    name = "kube-system/gpushare-admission"
    (found,) = changed("own_roles", name, lambda one: one["rules"].pop(0), with_webhook(2, True))
    assert (found.state, found.subject) == ("fault", f"role {name}")
    assert "get secrets, patch secrets" in found.message
