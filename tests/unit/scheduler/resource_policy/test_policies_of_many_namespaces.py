"""If more namespaces have policies than are followed, the others are followed as soon as there is a place for them."""

import msgspec
import pytest

from gpushare.api.crd.resource_policy import ResourcePolicy
from gpushare.scheduler.plugins.resource_policy import watch
from gpushare.scheduler.plugins.resource_policy.plugin import Policies
from gpushare.scheduler.plugins.resource_policy.watch import PolicyWatches
from tests.unit.scheduler.resource_policy.policy_samples import policy
from tests.unit.scheduler.world import TurnedClock


def of(namespace: str, name: str = "p") -> ResourcePolicy:
    return msgspec.structs.replace(policy({}, name=name), namespace=namespace, uid=f"{namespace}/{name}")


@pytest.fixture
def policies() -> Policies:
    return Policies(TurnedClock())


@pytest.fixture
def watches(policies: Policies, monkeypatch: pytest.MonkeyPatch) -> PolicyWatches:
    monkeypatch.setattr(watch, "MOST_NAMESPACES", 1)
    return PolicyWatches(policies, None)  # type: ignore[arg-type]


def test_skipped_policies_are_followed_when_another_namespace_no_longer_has_any(
    policies: Policies, watches: PolicyWatches
) -> None:
    first, others = of("a"), [of("b"), of("b", "q"), of("c")]
    for one in (first, *others):
        watches.upsert(one)
    assert policies.census.namespaces == {"a"}
    watches.remove(first.key, first)
    assert policies.census.namespaces == {"b"}
    assert len(list(policies.census.books())) == 2
    for one in others[:2]:
        watches.remove(one.key, one)
    assert policies.census.namespaces == {"c"}


def test_a_policy_deleted_while_it_is_skipped_is_not_followed(
    policies: Policies, watches: PolicyWatches
) -> None:
    first, passed = of("a"), of("b")
    for one in (first, passed):
        watches.upsert(one)
    watches.remove(passed.key, passed)
    assert policies.census.namespaces == {"a"}
    watches.remove(first.key, first)
    assert not policies.in_use
