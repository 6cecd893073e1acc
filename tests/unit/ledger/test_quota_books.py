"""Charges to quotas: never above a max, consistent sums, and the same when rebuilt."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.api.crd.elastic_quota_tree import QuotaTree, quota_tree_of
from gpushare.ledger.quota.accounting import Charge, QuotaBooks

MEM, CPU = "aliyun.com/gpu-mem", "cpu"


def tree_of(root: dict[str, Any]) -> QuotaTree:
    return quota_tree_of(json.dumps(root).encode())


def family() -> QuotaTree:
    """root 20 = a 8..12 (a1 4..8, a2 4) + b 8..16; only a1 has a CPU limit."""
    a1 = {"name": "a1", "namespaces": ["x"], "min": {MEM: 4}, "max": {MEM: 8, CPU: 1}}
    a2 = {"name": "a2", "namespaces": ["y", "y2"], "min": {MEM: 4}}
    a = {"name": "a", "min": {MEM: 8}, "max": {MEM: 12}, "children": [a1, a2]}
    b = {"name": "b", "namespaces": ["z"], "min": {MEM: 8}, "max": {MEM: 16}}
    return tree_of({"name": "root", "min": {MEM: 20}, "max": {MEM: 20}, "children": [a, b]})


def books_of(tree: QuotaTree, **charges: Charge) -> QuotaBooks:
    books = QuotaBooks()
    books.set_tree(tree)
    for uid, charge in charges.items():
        books.charge(uid, charge)
    return books


def mem(namespace: str, units: int, **more: bool) -> Charge:
    return Charge(namespace, {MEM: units * 1000}, **more)


def test_without_a_tree_nothing_is_charged_and_no_pod_refused() -> None:
    books = QuotaBooks()
    books.charge("p", mem("x", 5))
    assert books.charged("p") is None
    assert books.refusal("p", "x", {MEM: 10**9}) == ""
    assert (books.leaf("x"), books.usage()) == (None, [])


def test_a_namespace_without_a_quota_is_not_counted() -> None:
    books = books_of(family(), p=mem("elsewhere", 100))
    assert books.charged("p") is None
    assert books.refusal("q", "elsewhere", {MEM: 10**9}) == ""


def test_pods_without_a_quota_and_terminating_pods_are_listed() -> None:
    books = books_of(family(), p=mem("elsewhere", 1), q=mem("x", 1, leaving=True), r=mem("x", 1))
    assert (books.of_no_quota(), books.terminating()) == ({"p"}, {"q"})
    books.charge("q", None)
    books.charge("p", mem("x", 1))
    books.charge("r", mem("x", 1, leaving=True))
    assert (books.of_no_quota(), books.terminating()) == (set(), {"r"})
    books.set_tree(family())
    assert (books.of_no_quota(), books.terminating()) == (set(), set())


def test_the_refusal_names_the_quota_and_its_amounts() -> None:
    books = books_of(family(), p=mem("x", 6))
    assert books.refusal("q", "x", {MEM: 2000}) == ""
    assert (
        books.refusal("q", "x", {MEM: 3000})
        == f"elastic quota root/a/a1: 6 of 8 {MEM} used (max), 3 requested"
    )
    books.charge("r", mem("y", 5))
    assert books.refusal("q", "y2", {MEM: 2000}).startswith("elastic quota root/a: 11 of 12")
    books.charge("s", mem("z", 9))
    assert books.refusal("q", "y", {MEM: 1000}).startswith("elastic quota root: 20 of 20")


def test_a_pod_that_requests_no_exhausted_resource_is_admitted() -> None:
    books = books_of(family(), p=mem("x", 100))
    assert books.refusal("q", "x", {CPU: 1000, MEM: 0}) == ""
    assert "1 cpu used (max), 1500m requested" in books.refusal("q", "x", {CPU: 1500}).replace("0 of ", "")


def test_a_pods_own_charge_does_not_count_against_it() -> None:
    books = books_of(family(), p=mem("x", 8), q=mem("z", 1))
    assert books.refusal("p", "x", {MEM: 8000}) == ""
    assert books.refusal("q", "x", {MEM: 1000}) != ""


def test_terminating_pods_still_count() -> None:
    books = books_of(family(), p=mem("x", 3), q=mem("x", 4, leaving=True))
    assert (books.held(2, MEM), books.staying(2, MEM), books.staying(0, MEM, but="p")) == (7000, 3000, 0)


def test_usage_counts_only_bound_pods() -> None:
    books = books_of(family(), p=mem("x", 3), q=mem("x", 4, bound=False))
    found = {one.name: one for one in books.usage()}
    assert found["a"].used == {MEM: 3000, CPU: 0}
    assert found["b"].used == {MEM: 0, CPU: 0}
    assert found["a2"].namespaces == ("y", "y2")
    assert books.charged_to(2) == {"p", "q"}


def test_another_tree_starts_from_zero() -> None:
    books = books_of(family(), p=mem("x", 3))
    books.set_tree(family())
    assert books.held(0, MEM) == 0


@st.composite
def trees(draw: st.DrawFn) -> QuotaTree:
    """Trees of up to three levels with consistent sums and some limits."""
    count = draw(st.integers(1, 3))
    namespaces = iter(f"ns{number}" for number in range(20))

    def node(name: str, level: int) -> dict[str, Any]:
        children = (
            [node(f"{name}{number}", level + 1) for number in range(draw(st.integers(0, count)))]
            if level < 3
            else []
        )
        least = sum(child["min"][MEM] for child in children) + draw(st.integers(0, 3))
        most = {MEM: least + draw(st.integers(0, 6))} if draw(st.booleans()) else {}
        made: dict[str, Any] = {"name": name, "min": {MEM: least}, "max": most, "children": children}
        return made if children else {**made, "namespaces": [next(namespaces)]}

    return tree_of(node("r", 1))


@settings(deadline=None)
@given(trees(), st.data())
def test_no_max_is_exceeded_and_sums_agree_with_a_naive_count(tree: QuotaTree, data: st.DataObject) -> None:
    books = QuotaBooks()
    books.set_tree(tree)
    naive: dict[str, Charge] = {}

    def sum_of(place: int, but: str = "") -> int:
        """By definition: the amounts of all pods whose namespace is somewhere below."""
        return sum(
            one.amounts[MEM]
            for uid, one in naive.items()
            if uid != but and place in tree.path(tree.leaf_of[one.namespace])
        )

    for _ in range(data.draw(st.integers(0, 15))):
        uid = f"p{data.draw(st.integers(0, 5))}"
        if uid in naive and data.draw(st.booleans()):
            del naive[uid]
            books.charge(uid, None)
            continue
        namespace = data.draw(st.sampled_from(sorted(tree.leaf_of)))
        amount = 1000 * data.draw(st.integers(0, 5))
        refusal = books.refusal(uid, namespace, {MEM: amount})
        exceeded = [
            place
            for place in tree.path(tree.leaf_of[namespace])
            if amount
            and MEM in tree.quotas[place].max
            and sum_of(place, uid) + amount > tree.quotas[place].max[MEM]
        ]
        assert bool(refusal) == bool(exceeded)
        if not refusal:
            naive[uid] = Charge(
                namespace, {MEM: amount}, data.draw(st.booleans()), bound=data.draw(st.booleans())
            )
            books.charge(uid, naive[uid])
    fresh = QuotaBooks()
    fresh.set_tree(tree)
    for uid, charge in reversed(naive.items()):
        fresh.charge(uid, charge)
    assert fresh.usage() == books.usage()
    for place, quota in enumerate(tree.quotas):
        assert books.held(place, MEM) == fresh.held(place, MEM) == sum_of(place)
        assert books.staying(place, MEM) == sum(
            one.amounts[MEM]
            for one in naive.values()
            if not one.leaving and place in tree.path(tree.leaf_of[one.namespace])
        )
        # A request for nothing never exceeds a limit.
        assert sum_of(place) <= quota.max.get(MEM, sum_of(place))
