"""What counts in which unit, and that no unit is ever above its caps."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.api import names
from gpushare.api.crd.resource_policy import PolicyPod
from gpushare.scheduler.plugins.resource_policy.model.policy_index import Census
from gpushare.scheduler.plugins.resource_policy.model.unit_selection import choose
from tests.unit.scheduler.resource_policy.policy_samples import book_of, census, pod, policy

COST = names.ANN_DELETION_COST
MARK = names.ANN_COST_WRITTEN


def next_unit(made: Census, one: PolicyPod, nodes: str = "a1 a2 b1 b2 c1") -> int | None:
    """The unit for a pod that every node would take; its place is reserved."""
    book = book_of(made)
    group = book.group_of(one)
    assert not isinstance(group, str)
    masks = list(book.masks(one, made.nodes.places(nodes.split())))
    found = choose(book.policy, book.standings(one, group, masks), 0.0).unit
    if found is not None:
        book.book(one, found)
    return found


def test_a_pod_that_is_offered_again_does_not_count_twice() -> None:
    made = census(policy({"max": 1}, {}))
    assert [next_unit(made, pod("p")) for _ in range(3)] == [0, 0, 0]
    assert next_unit(made, pod("q")) == 1


def test_a_promise_ends_when_the_pod_is_seen_bound_and_the_pod_counts_until_it_is_gone() -> None:
    made = census(policy({"max": 1}, {}))
    assert next_unit(made, pod("p")) == 0
    made.set_pod(pod("p"))
    made.set_pod(pod("p", "a1"))
    assert book_of(made).booked == {}
    assert next_unit(made, pod("q")) == 1
    made.remove_pod("uid-p")
    made.remove_pod("uid-p")
    assert next_unit(made, pod("q")) == 0
    assert made.pod("uid-p") is None


def test_resources_are_counted_in_addition_to_pods() -> None:
    made = census(policy({"maxResources": {"cpu": "3", "memory": "1Gi"}}, {}))
    big = {"cpu": 2000, "memory": 1000}
    assert next_unit(made, pod("p", amounts=big)) == 0
    one = pod("q", amounts=big)
    book = book_of(made)
    assert book.full(one, (), 0) == "its pods request 2 of at most 3 cpu, this one 2"
    assert next_unit(made, one) == 1
    assert next_unit(made, pod("r", amounts={"cpu": 1000})) == 0
    made.set_pod(pod("p", "a1", amounts=big))
    assert next_unit(made, pod("s", amounts={"cpu": 1})) == 1


def test_each_group_has_the_max_for_itself_and_a_pod_without_the_key_is_refused() -> None:
    made = census(policy({"max": 1}, {}, matchLabelKeys=["hash"]))
    assert next_unit(made, pod("p", labels={"hash": "1"})) == 0
    assert next_unit(made, pod("q", labels={"hash": "1"})) == 1
    assert next_unit(made, pod("r", labels={"hash": "2"})) == 0
    book = book_of(made)
    assert "label hash, which this pod does not have" in str(book.group_of(pod("s")))
    assert book.unit_for(pod("s"), "a1") is None
    made.set_pod(pod("t", "a1"))
    assert book.pods_in() == [0, 0]


def test_a_pod_without_a_scheduling_time_is_previous_if_it_was_created_before() -> None:
    made = census(policy({"max": 1}, {}, ignorePreviousPod=True))
    before, after = 1_000_000.0, 2_000_000_000.0
    made.set_pod(pod("old", "a1", scheduled=before))
    made.set_pod(pod("older", "a1", created=before))
    assert book_of(made).pods_in() == [2, 0]
    assert next_unit(made, pod("p")) == 0
    made.set_pod(pod("p", "a1", scheduled=after, created=before))
    assert next_unit(made, pod("q")) == 1


@pytest.mark.parametrize(("ignored", "unit"), [(True, 0), (False, 1)])
def test_terminating_pods_count_only_if_the_policy_requires_it(ignored: bool, unit: int) -> None:
    made = census(policy({"max": 1}, {}, ignoreTerminatingPod=ignored))
    made.set_pod(pod("p", "a1", leaving=True))
    one = pod("q")
    book = book_of(made)
    masks = list(book.masks(one, made.nodes.places(("a1", "b1"))))
    assert [unit_state.leaving for unit_state in book.standings(one, (), masks)] == [1, 0]
    assert next_unit(made, one) == unit


def test_only_pods_with_the_labels_set_by_the_unit_count() -> None:
    made = census(policy({"max": 1, "podLabels": {"tier": "1"}, "podAnnotations": {"note": "x"}}, {}))
    made.set_pod(pod("a", "a1"))
    made.set_pod(pod("b", "a1", labels={"tier": "1"}))
    assert next_unit(made, pod("c")) == 0
    made.set_pod(pod("d", "a1", labels={"tier": "1"}, annotations={"note": "x"}))
    assert book_of(made).pods_in() == [1, 0]


def test_units_over_the_same_nodes_are_distinguished_by_the_labels_they_put_on_pods() -> None:
    same = {"nodeSelector": {"pool": "a"}}
    made = census(
        policy({**same, "max": 1, "podLabels": {"tier": "1"}}, {**same, "podLabels": {"tier": "2"}})
    )
    assert [next_unit(made, pod(name)) for name in "pq"] == [0, 1]
    # A label that another unit has set on the pod before is not its own.
    other = pod("r", labels={"tier": "1"}, annotations={names.ANN_UNIT_LABELS: "tier"})
    assert next_unit(made, other) == 1


def test_a_unit_gets_no_node_on_which_its_pods_would_count_in_an_earlier_one() -> None:
    same = {"nodeSelector": {"pool": "a"}}
    made = census(policy({**same, "max": 1}, {**same, "max": 5}, {}))
    assert [next_unit(made, pod(name)) for name in "pqr"] == [0, 2, 2]


def test_virtual_nodes_are_units_of_their_own() -> None:
    made = census(policy({"nodeSelector": {}}, {"resource": "eci", "nodeSelector": {}}))
    made.set_node("v1", {"type": "virtual-kubelet"})
    assert next_unit(made, pod("p"), "v1") == 1
    assert next_unit(made, pod("q"), "b1 v1") == 0


def test_nodes_come_go_and_change_and_the_pods_on_them_with_them() -> None:
    made = census(policy({"max": 1}, {}))
    made.set_pod(pod("p", "a9"))
    made.set_pod(pod("q", "n1"))
    assert book_of(made).pods_in() == [0, 0]
    made.set_node("a9", {"pool": "a"})
    made.set_node("a9", {"pool": "a"})
    assert book_of(made).pods_in() == [1, 0]
    made.set_node("a9", {"pool": "b"})
    assert book_of(made).pods_in() == [0, 1]
    made.remove_node("a9")
    made.remove_node("a9")
    assert book_of(made).pods_in() == [0, 0]
    for number in range(100):
        made.set_node(f"x{number}", {"pool": "a"})
    assert len(made.nodes) == 105
    assert next_unit(made, pod("r"), "x99") == 0


def test_of_several_policies_the_oldest_decides_and_the_next_when_it_goes() -> None:
    old = policy({}, name="old", made="2026-01-01T00:00:00Z")
    new = policy({}, {}, name="new", made="2026-02-01T00:00:00Z")
    made = census(new, old)
    made.set_pod(pod("p", "a1"))
    assert book_of(made).policy.name == "old"
    made.remove_policy("default/old")
    made.remove_policy("default/old")
    made.remove_policy("nowhere/old")
    assert book_of(made).policy.name == "new"
    assert book_of(made).pods_in() == [1, 0]
    assert made.namespaces == {"default"}
    assert [one.policy.name for one in made.books()] == ["new"]
    made.remove_policy("default/new")
    assert made.book_for("default", {"app": "x"}) is None
    assert not made.namespaces
    made.set_pod(pod("q", "a1"))
    assert made.pod("uid-q") is None
    assert list(made.pods_of("default")) == []


def test_an_unchanged_policy_changes_nothing_and_a_changed_one_keeps_pending_places() -> None:
    made = census(policy({"max": 1}, {}))
    made.set_pod(pod("p"))
    made.set_pod(pod("q"))
    book_of(made).book(pod("p"), 0, "a1")
    book_of(made).book(pod("q"), 1)
    book_of(made).book(pod("unseen"), 1, "b1")
    assert not made.set_policy(policy({"max": 1}, {}))
    assert made.set_policy(msgspec.structs.replace(policy({"max": 1}, {}), generation=2))
    assert list(book_of(made).booked) == ["uid-p"]
    assert next_unit(made, pod("r")) == 1
    # A policy in which there is no place for it any more.
    changed = msgspec.structs.replace(policy({"max": 0}, {}), generation=3)
    assert made.set_policy(changed)
    assert book_of(made).booked == {}


def test_a_pod_that_changes_its_labels_or_its_node_counts_where_it_is_now() -> None:
    made = census(policy({}, {}))
    made.set_pod(pod("p", "a1"))
    made.set_pod(pod("p", "b1"))
    assert book_of(made).pods_in() == [0, 1]
    made.set_pod(pod("p", "b1", labels={"app": "other"}))
    assert book_of(made).pods_in() == [0, 0]


def test_pods_of_later_units_are_cheaper_to_delete_and_a_users_cost_stays() -> None:
    made = census(policy({}, {}))
    for name, node in (("first", "a1"), ("second", "b1"), ("nowhere", "c1"), ("waits", "")):
        made.set_pod(pod(name, node))
    made.set_pod(pod("theirs", "a1", annotations={COST: "7"}))
    made.set_pod(pod("changed", "a1", annotations={COST: "7", MARK: "100"}))
    made.set_pod(pod("right", "b1", annotations={COST: "100", MARK: "100"}))
    assert made.costly == {"uid-first", "uid-second"}
    assert made.cost_changes("uid-first") == {COST: "200", MARK: "200"}
    assert made.cost_changes("uid-second") == {COST: "100", MARK: "100"}
    assert made.cost_changes("uid-unknown") == {}
    made.set_pod(pod("first", "a1", annotations={COST: "200", MARK: "200"}))
    assert made.costly == {"uid-second"}
    made.set_pod(pod("right", "c1", annotations={COST: "100", MARK: "100"}))
    assert made.cost_changes("uid-right") == {COST: None, MARK: None}


UNITS = st.lists(
    st.fixed_dictionaries(
        {"nodeSelector": st.sampled_from([{"pool": "a"}, {"pool": "b"}, {}])},
        optional={
            "max": st.integers(0, 3),
            "maxResources": st.just({"cpu": "2"}),
            "podLabels": st.sampled_from([{"t": "1"}, {"t": "2"}]),
        },
    ),
    min_size=1,
    max_size=4,
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "bind", "see", "end", "ask", "bind"]),
        st.integers(0, 7),
        st.sampled_from("ab"),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(units=UNITS, steps=STEPS)
def test_no_unit_is_ever_above_its_caps(
    units: list[dict[str, Any]], steps: list[tuple[str, int, str]]
) -> None:
    rules = policy(*units)
    made = census(rules, nodes="a1 b1")
    book = book_of(made)
    bound: dict[int, PolicyPod] = {}
    for step, number, letter in steps:
        one = pod(f"p{number}", labels={"group": letter}, amounts={"cpu": 900})
        if step == "ask" and number not in bound:
            next_unit(made, one, "a1 b1")
        elif step == "bind" and number not in bound:
            unit = book.unit_for(one, f"{letter}1")
            if unit is not None:
                book.book(one, unit, f"{letter}1")
                labels = {**one.labels, **rules.units[unit].pod_labels}
                bound[number] = pod(f"p{number}", f"{letter}1", labels=labels, amounts=one.amounts)
        elif step == "see" and number in bound:
            made.set_pod(bound[number])
        elif step == "end" and number in bound:
            made.set_pod(bound[number])
            made.remove_pod(bound.pop(number).uid)
        held = [0] * len(units)
        for there in bound.values():
            carries = [
                unit.has_node({"pool": there.node[0]}) and unit.is_carried(there.labels, {})
                for unit in rules.units
            ]
            held[carries.index(True)] += 1
        for count, unit in zip(held, rules.units, strict=True):
            assert unit.most_pods is None or count <= unit.most_pods
            assert unit.most is None or count * 900 <= unit.most["cpu"]
