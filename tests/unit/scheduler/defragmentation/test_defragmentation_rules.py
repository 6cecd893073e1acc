"""No pod is moved to a place that its successor's policy or quota forbids; and the place counts there."""

from typing import Any

import msgspec
import pytest

from gpushare.api import names
from gpushare.api.crd.resource_policy import decode_policy, policy_pod_of
from gpushare.api.objects import decode_pod
from gpushare.scheduler.plugins.defragmentation.plugin import RESERVED_S
from tests.unit.scheduler.defragmentation.moving import INTERVAL_S, Moving
from tests.unit.scheduler.elastic_quota.test_quotas import tree
from tests.unit.scheduler.resource_policy.policy_samples import written

A, B = {"nodeSelector": {"pool": "a"}}, {"nodeSelector": {"pool": "b"}}


async def governed(*units: dict[str, Any], **spec: Any) -> Moving:
    """Two pods of 10 on ``n`` of pool a and room on ``m`` of pool b, all by a policy; ``wide`` waits for ``n`` without one."""
    moving = Moving()
    for node, pool in (("n", "a"), ("m", "b")):
        moving.policies.census.set_node(node, {"pool": pool})
    moving.policies.upsert_policy(decode_policy(written(*units, **spec)))
    moving.policies.unread.clear()
    moving.node("n", 16, 16)
    moving.node("m", 16)
    for name in ("a", "b"):
        await moving.bound(name, 10, "n", owner=f"rs-{name}", labels={"app": "x"})
        policy_sees(moving, name)
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")
    return moving


def policy_sees(moving: Moving, name: str) -> None:
    raw = msgspec.json.encode(moving.api.pods[f"default/{name}"])
    moving.policies.upsert_pod(policy_pod_of(decode_pod(raw)))


@pytest.mark.parametrize(
    "units",
    [
        (A,),
        ({**A, "max": 9}, B),
        ({**A, "max": 2}, {**B, "max": 0}),
    ],
    ids=["the node is in no unit", "an earlier unit comes first", "the unit is full"],
)
async def test_no_pod_is_moved_to_a_node_that_its_policy_forbids(units: tuple[dict[str, Any], ...]) -> None:
    moving = await governed(*units, whenTryNextUnits={"policy": "ExceedMax"})
    await moving.look(INTERVAL_S)
    assert not moving.api.evicted
    assert not moving.ledger.nominations.node_of("uid-wide")


async def test_no_pod_is_moved_before_the_pods_of_its_policy_are_read() -> None:
    moving = await governed(A, B)
    moving.policies.unread.add("default")
    await moving.look(INTERVAL_S)
    assert not moving.api.evicted


async def test_a_place_in_a_policys_unit_counts_until_it_is_taken_or_released() -> None:
    moving = await governed({**A, "max": 2}, {**B, "max": 1})
    (book,) = moving.policies.census.books()
    await moving.look(INTERVAL_S)
    assert moving.api.evicted == ["a"]
    assert [one.unit for one in book.booked.values()] == [1]
    await moving.look(RESERVED_S + 1)
    assert not book.booked

    moving = await governed({**A, "max": 2}, {**B, "max": 1})
    (book,) = moving.policies.census.books()
    await moving.look(INTERVAL_S)
    moving.see("a")
    moving.end("a")
    moving.made("a2", 10, "rs-a", labels={"app": "x"})
    assert not book.booked
    policy_sees(moving, "a2")
    assert book.unit_for(moving.policies.census.pod("uid-a2"), "m") == 1  # type: ignore[arg-type]


async def test_a_pod_without_a_policy_moves_where_others_have_one() -> None:
    moving = await governed(A, selector={"app": "y"})
    await moving.look(INTERVAL_S)
    assert moving.api.evicted == ["a"]


def quota_of(units: int) -> dict[str, Any]:
    leaf = {
        "name": "team",
        "namespaces": ["default"],
        "min": {names.GPU_MEM: 1},
        "max": {names.GPU_MEM: units},
    }
    whole = {names.GPU_MEM: 99}
    return {"name": "root", "min": whole, "max": whole, "children": [leaf]}


async def test_the_place_of_a_moved_pod_is_charged_to_its_quota(moving: Moving) -> None:
    moving.node("m", 16)
    moving.quotas.upsert(tree(quota_of(36)))
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")
    await moving.look(INTERVAL_S)
    assert moving.api.evicted == ["a"]
    moving.see("a")
    moving.end("a")
    # Of 36 the other has 10, 12 are reserved for the pending pod and 10 for the successor.
    moving.made("thief", 5, "")
    assert "32 of 36" in moving.quotas.refusal("uid-thief")
    moving.quotas.upsert(tree(quota_of(35), generation=2))
    assert "32 of 35" in moving.quotas.refusal("uid-thief"), "another tree forgets no place"
    moving.made("a2", 10)
    assert moving.quotas.refusal("uid-a2") == ""
    await moving.look(RESERVED_S + 1)
    assert moving.quotas.refusal("uid-thief") == ""


async def test_no_pod_is_moved_that_its_quota_would_not_admit_again(moving: Moving) -> None:
    moving.node("m", 16)
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")
    moving.quotas.upsert(tree(quota_of(19)))
    # The pending pod is in a namespace without a quota: it alone may be helped.
    record = moving.view.waiting["uid-wide"]
    moving.view.waiting["uid-wide"] = msgspec.structs.replace(record, pod="free/wide")
    moving.api.pods["free/wide"] = moving.api.pods["default/wide"]
    await moving.look(INTERVAL_S)
    assert not moving.api.evicted


async def test_a_pod_whose_owner_has_just_forbidden_it_is_not_moved() -> None:
    """Its watch has not shown that yet; it is read before it moves."""
    moving = Moving()
    moving.node("n", 16, 16)
    moving.node("m", 16)
    for name in ("a", "b"):
        await moving.bound(name, 10, "n", owner=f"rs-{name}")
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")
    for name in ("a", "b"):
        moving.api.pods[f"default/{name}"]["metadata"]["annotations"][names.ANN_DEFRAGMENTATION] = "false"
    await moving.look(INTERVAL_S)
    assert not moving.api.evicted
    del moving.api.pods["default/b"]["metadata"]["annotations"][names.ANN_DEFRAGMENTATION]
    await moving.look(INTERVAL_S)
    assert moving.api.evicted == ["b"]


async def test_no_pod_is_moved_for_one_that_ends_while_the_move_is_recorded(
    moving: Moving,
) -> None:
    moving.node("m", 16)
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")
    moving.api.before.append(lambda: moving.view.remove_pod(moving.view.waiting["uid-wide"]))
    await moving.look(INTERVAL_S)
    assert [name for name, _ in moving.api.annotated] == ["wide"]
    assert not moving.api.evicted
    assert not moving.mover._reservations
    assert not moving.mover._places


async def test_the_second_stays_if_the_pod_gets_another_node_once_the_first_has_gone() -> None:
    moving = Moving()
    moving.node("n", 16, 16)
    moving.node("m", 16)
    for name in ("a", "b"):
        await moving.bound(name, 6, "n")
    await moving.bound("c", 6, "n", owner="")
    moving.made("wide", 14, "")
    assert not moving.ask("wide", "n")

    def bound_elsewhere() -> None:
        moving.api.pods["default/wide"]["spec"]["nodeName"] = "m"
        moving.see("wide")

    # The note, then the eviction of the first one.
    moving.api.before += [lambda: None, bound_elsewhere]
    await moving.look(INTERVAL_S)
    assert moving.api.evicted == ["a"]
    assert [place.key for place in moving.mover._places] == ["moved:uid-a"]


@pytest.mark.no_cover  # would take several times as long; other tests cover the same lines
async def test_with_very_many_repeated_refusals_pods_still_move_for_long_waiting_ones(
    moving: Moving,
) -> None:
    moving.node("m", 16)
    pods = [f"wide-{number}" for number in range(300)]
    for name in pods:
        moving.made(name, 12, "")
    for _ in range(int(INTERVAL_S / 20) + 1):
        for name in pods:
            assert not moving.ask(name, "n")
        await moving.look(19.0)
    assert moving.api.evicted == ["a"]
