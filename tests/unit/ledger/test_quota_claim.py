"""Victims of a pending pod for its quota: borrowers while it is within its min, and no guarantee is broken."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.api.crd.elastic_quota_tree import QuotaTree
from gpushare.ledger import Ledger
from gpushare.ledger.preemption.victims import Rank
from gpushare.ledger.quota.accounting import Charge, QuotaBooks
from gpushare.ledger.quota.reclaim import Claim, NoRule
from tests.unit.ledger.ledger_samples import asks, node
from tests.unit.ledger.test_quota_books import CPU, MEM, books_of, family, mem, tree_of


def claim_of(books: QuotaBooks, namespace: str, units: int) -> Claim:
    return Claim(books, "waits", namespace, {MEM: units * 1000})


def two(most: int = 16) -> QuotaTree:
    """root 16 = a 8..most (namespace x) + b 8..16 (namespace z)."""
    a = {"name": "a", "namespaces": ["x"], "min": {MEM: 8}, "max": {MEM: most}}
    b = {"name": "b", "namespaces": ["z"], "min": {MEM: 8}, "max": {MEM: 16}}
    return tree_of({"name": "root", "min": {MEM: 16}, "max": {MEM: 16}, "children": [a, b]})


def test_within_its_min_it_may_evict_borrowers_of_any_priority() -> None:
    books = books_of(two(), p=mem("z", 4), q=mem("z", 8))
    assert claim_of(books, "x", 8).may_evict("p", lesser=False)
    assert not claim_of(books, "x", 9).may_evict("p", lesser=True)
    # q alone would take b from 12 to 4, below its 8.
    assert not claim_of(books, "x", 8).may_evict("q", lesser=True)


def test_within_one_quota_priorities_decide() -> None:
    books = books_of(two(), p=mem("x", 4))
    claim = claim_of(books, "x", 4)
    assert claim.may_evict("p", lesser=True)
    assert not claim.may_evict("p", lesser=False)
    assert claim.reason("p") == ""


def test_pods_without_a_quota_follow_priorities_and_spare_guarantees() -> None:
    books = books_of(two(), p=mem("z", 8), q=mem("x", 8), r=mem("x", 4))
    claim = claim_of(books, "elsewhere", 4)
    assert claim.may_evict("unknown", lesser=True)
    assert not claim.may_evict("unknown", lesser=False)
    assert not claim.may_evict("p", lesser=True)
    assert claim.may_evict("r", lesser=True)
    assert not claim.may_evict("r", lesser=False)
    assert (claim.short, claim.reason("r")) == (False, "")
    assert claim_of(books, "x", 4).reason("unknown") == ""


def test_a_quota_without_a_min_has_nothing_to_reclaim() -> None:
    a = {"name": "a", "namespaces": ["x"]}
    books = books_of(tree_of({"name": "root", "children": [a, {"name": "b", "namespaces": ["z"]}]}))
    books.charge("p", mem("z", 4))
    assert not claim_of(books, "x", 1).may_evict("p", lesser=True)


def test_in_a_tree_the_group_keeps_its_min_and_siblings_borrow_from_each_other_first() -> None:
    # a1 (4..8) and a2 (4) are guaranteed 8 together: what a1 has of that is borrowed from its sibling, not from b.
    books = books_of(family(), p=mem("x", 8))
    assert not claim_of(books, "z", 4).may_evict("p", lesser=True)
    books.charge("p2", mem("x", 4))
    assert claim_of(books, "z", 4).may_evict("p2", lesser=True)
    books.charge("p2", None)
    books.charge("p", mem("x", 4))
    books.charge("p3", mem("x", 4))
    assert claim_of(books, "y", 4).may_evict("p3", lesser=False)
    assert not claim_of(books, "y", 5).may_evict("p3", lesser=False)


def test_a_group_above_its_min_reclaims_only_within_itself() -> None:
    books = books_of(family(), p=mem("x", 4), p2=mem("x", 6), q=mem("z", 8), q2=mem("z", 2))
    claim = claim_of(books, "y", 2)
    assert claim.may_evict("p2", lesser=False)
    assert not claim.may_evict("q2", lesser=True), "a uses 10 of its min of 8, so it cannot reclaim from b"


def test_terminating_pods_count_as_gone_and_may_always_be_evicted() -> None:
    books = books_of(two(), p=mem("z", 4, leaving=True), q=mem("z", 4), r=mem("z", 4))
    claim = claim_of(books, "x", 4)
    assert claim.may_evict("p", lesser=False)
    assert claim.is_terminating("p")
    assert not claim.is_terminating("q")
    assert not claim.may_evict("q", lesser=False), "b stays at 8, its min"
    assert claim.together(["p"], ["q", "p"]) == ["p"]


def test_no_more_is_evicted_together_than_the_quota_had_borrowed() -> None:
    books = books_of(two(), p=mem("z", 4), q=mem("z", 4), r=mem("z", 4), s=mem("x", 2))
    claim = claim_of(books, "x", 4)
    assert claim.together([], ["p", "q", "r", "s", "unknown"]) == ["p", "s", "unknown"]
    assert claim.together(["r"], ["p", "q"]) == []
    assert claim.together(["p", "q"], []) is None
    assert claim.together(["s", "r"], ["p"]) == []


def test_a_min_of_another_resource_protects_too() -> None:
    b = {"name": "b", "namespaces": ["z"], "min": {CPU: 2}}
    a = {"name": "a", "namespaces": ["x"], "min": {MEM: 8}}
    books = books_of(tree_of({"name": "root", "min": {MEM: 8, CPU: 2}, "children": [a, b]}))
    books.charge("p", Charge("z", {MEM: 4000, CPU: 1000}))
    books.charge("q", Charge("z", {MEM: 4000}))
    assert not claim_of(books, "x", 4).may_evict("p", lesser=True)
    assert claim_of(books, "x", 4).may_evict("q", lesser=True)
    books.charge("r", Charge("x", {MEM: 1000}))
    claim = Claim(books, "waits", "z", {MEM: 1000, CPU: 1000})
    assert not claim.may_evict("r", lesser=True), "a min of CPU does not reclaim GPU memory"


def test_at_the_max_pods_of_the_quota_relieve_it_and_borrowers_relieve_a_shared_parent() -> None:
    books = books_of(two(most=8), p=mem("x", 4), q=mem("x", 4))
    claim = claim_of(books, "x", 4)
    assert claim.short
    (quota, root) = books.tree.path(books.tree.leaf_of["x"]) if books.tree else ()
    assert claim.passed(()) == quota, "the lowest first"
    assert sorted(claim.relieving(quota)) == ["p", "q"]
    assert claim.enough({"p", "unknown"})
    assert claim.passed({"p", "unknown"}) is None
    assert not claim.enough(())
    shared = books_of(two(), p=mem("x", 4), q=mem("z", 12))
    claim = claim_of(shared, "x", 4)
    assert claim.short
    assert claim.passed(()) == root
    assert sorted(claim.relieving(root)) == ["p", "q"]
    assert sorted(claim_of(shared, "x", 8).relieving(root)) == ["p"], (
        "beyond its min it cannot reclaim from b"
    )


def test_a_limit_of_an_unrequested_resource_does_not_matter() -> None:
    books = books_of(family(), p=Charge("x", {CPU: 5000}))
    assert not claim_of(books, "x", 4).short


def test_a_claim_reflects_the_books_at_the_time_of_the_call() -> None:
    ledger, books = Ledger(), books_of(two())
    ledger.set_node(node("n1", 32768))
    allocate(ledger, books, "p", "z", 6)
    allocate(ledger, books, "q", "z", 6)
    claim = claim_of(books, "x", 4)
    assert not claim.may_evict("p", lesser=False), "without p, z has 6 of its min of 8"
    allocate(ledger, books, "r", "z", 2)
    assert claim.may_evict("p", lesser=False)
    assert claim.together((), ["p", "q"]) == ["p"]
    allocate(ledger, books, "s", "x", 5)
    assert not claim.may_evict("p", lesser=False), "x would exceed its min"


def test_no_rule_allows_all() -> None:
    assert NoRule().together((), ["p"]) == ["p"]
    assert NoRule().enough(())


@given(
    st.lists(
        st.tuples(st.sampled_from(["x", "y", "z", "elsewhere"]), st.integers(0, 8), st.booleans()), max_size=8
    ),
    st.sampled_from(["x", "y", "z", "elsewhere"]),
    st.integers(1, 8),
)
def test_a_claim_reaches_exactly_the_pods_that_it_may_evict(
    pods: list[tuple[str, int, bool]], namespace: str, units: int
) -> None:
    charges = {
        f"p{number}": mem(where, amount, leaving=leaving)
        for number, (where, amount, leaving) in enumerate(pods)
    }
    claim = claim_of(books_of(family(), **charges), namespace, units)
    found = claim.reach(2 * len(pods))
    assert found is not None
    lesser, others = map(set, found)
    for uid, charge in charges.items():
        if charge.namespace == "elsewhere" and charge.leaving:
            continue  # uncounted pods, and those that terminate anyway
        assert (uid in others) is claim.may_evict(uid, lesser=False)
        assert (uid in lesser | others) is claim.may_evict(uid, lesser=True)


def test_a_claim_that_reaches_too_many_pods_does_not_list_them() -> None:
    books = books_of(two(), p=mem("z", 4), q=mem("z", 4), r=mem("elsewhere", 1), s=mem("z", 8, leaving=True))
    assert claim_of(books, "x", 8).reach(4) is None
    assert claim_of(books, "x", 8).reach(5) is not None
    assert claim_of(books, "x", 9).reach(2) is not None, "beyond its min no pods of b are considered"


# --- with GPU memory ------------------------------------------------------------------------------


def allocate(ledger: Ledger, books: QuotaBooks, uid: str, namespace: str, units: int, on: str = "n1") -> None:
    ledger.reserve(uid, f"{namespace}/{uid}", asks(units), on)
    books.charge(uid, mem(namespace, units))


def rank_of(claim: Claim, priorities: dict[str, int], own: int = 0):  # type: ignore[no-untyped-def]
    def rank(uid: str) -> Rank | None:
        priority = priorities.get(uid, 0)
        return Rank(priority) if claim.may_evict(uid, lesser=priority < own) else None

    return rank


def test_a_larger_pod_is_evicted_where_not_all_of_lower_priority_may_be() -> None:
    ledger, books = Ledger(), books_of(two())
    ledger.set_node(node("n1", 16384))
    allocate(ledger, books, "small", "z", 4)
    allocate(ledger, books, "large", "z", 8)
    allocate(ledger, books, "other", "z", 4)
    claim = claim_of(books, "x", 8)
    priorities = {"small": 0, "large": 5, "other": 9}
    plan = ledger.evictions.plan(asks(8), ["n1"], rank_of(claim, priorities), rule=claim)
    assert plan is not None
    # small and other would suffice too, but are two; large alone leaves b its 8.
    assert plan.victims in (("large",), ("other", "small"))
    assert claim.together((), plan.victims) == list(plan.victims)


def test_a_large_pod_is_evicted_where_lower_priorities_would_use_up_what_is_allowed() -> None:
    ledger, books = Ledger(), books_of(two())
    ledger.set_node(node("n1", 16384))
    allocate(ledger, books, "small", "z", 1)
    allocate(ledger, books, "large", "z", 8)
    allocate(ledger, books, "rest", "z", 7)
    claim = claim_of(books, "x", 8)
    plan = ledger.evictions.plan(
        asks(8), ["n1"], rank_of(claim, {"small": 0, "large": 5, "rest": 9}), rule=claim
    )
    assert plan is not None
    assert plan.victims in (("large",), ("rest", "small"))


def test_a_large_pod_is_evicted_where_lower_priorities_alone_would_not_suffice() -> None:
    ledger, books = Ledger(), books_of(two())
    for name in ("n1", "n2"):
        ledger.set_node(node(name, 16384))
    allocate(ledger, books, "small", "z", 1)
    allocate(ledger, books, "large", "z", 8)
    allocate(ledger, books, "other", "elsewhere", 7)
    allocate(ledger, books, "far", "z", 7, "n2")
    claim = claim_of(books, "x", 8)
    plan = ledger.evictions.plan(asks(8), ["n1"], rank_of(claim, {"small": 0, "large": 5}), rule=claim)
    assert plan is not None
    assert plan.victims == ("large",), "without small, b has 15 and cannot spare large"


def test_no_pod_is_evicted_where_the_evictable_ones_free_too_little() -> None:
    ledger, books = Ledger(), books_of(two())
    ledger.set_node(node("n1", 16384))
    allocate(ledger, books, "p", "z", 6)
    allocate(ledger, books, "q", "z", 6)
    allocate(ledger, books, "r", "z", 4)
    claim = claim_of(books, "x", 8)
    plan = ledger.evictions.plan(asks(8), ["n1"], rank_of(claim, {}), rule=claim)
    assert plan is None, "p or q with r would take b to 6"
    assert ledger.evictions.plan(asks(8), ["n1"], rank_of(claim, {}), forced=["p", "q"], rule=claim) is None


def test_at_its_max_a_pod_evicts_a_lower_priority_of_its_quota_although_gpus_are_free() -> None:
    ledger, books = Ledger(), books_of(two(most=8))
    ledger.set_node(node("n1", 16384, 16384))
    allocate(ledger, books, "p", "x", 4)
    allocate(ledger, books, "q", "x", 4)
    claim = claim_of(books, "x", 4)
    plan = ledger.evictions.plan(asks(4), ["n1"], rank_of(claim, {"q": 3}, own=9), rule=claim)
    assert plan is not None
    assert plan.victims == ("p",)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(st.sampled_from("xzy"), st.integers(1, 8), st.integers(0, 3)), max_size=8),
    st.sampled_from("xzy"),
    st.integers(1, 8),
    st.integers(0, 3),
)
def test_no_plan_breaks_a_guarantee_and_each_frees_enough(
    pods: list[tuple[str, int, int]], namespace: str, units: int, own: int
) -> None:
    ledger, books = Ledger(), books_of(two())
    ledger.set_node(node("n1", 16384, 8192))
    priorities: dict[str, int] = {}
    namespaces: dict[str, str] = {}
    for number, (where, amount, priority) in enumerate(pods):
        uid = f"p{number}"
        if ledger.filter(asks(amount), ["n1"]).fits and not books.refusal(uid, where, {MEM: 1000 * amount}):
            allocate(ledger, books, uid, where, amount)
            priorities[uid], namespaces[uid] = priority, where
    claim = claim_of(books, namespace, units)
    before = {place: books.held(place, MEM) for place in range(3)}
    plan = ledger.evictions.plan(asks(units), ["n1"], rank_of(claim, priorities, own), rule=claim)
    if plan is None:
        return
    leaf = books.leaf(namespace)
    within = leaf is not None and before[leaf] + units * 1000 <= 8000
    for uid in plan.victims:
        same = namespaces[uid] == namespace
        assert priorities[uid] < own if same or namespace == "y" or namespaces[uid] == "y" else within
        ledger.release(uid)
        books.charge(uid, None)
    for place in (1, 2):
        # Victims of its own quota may be any: the pending pod takes their place.
        if place != leaf:
            assert books.held(place, MEM) >= min(before[place], 8000)
    assert books.refusal("waits", namespace, {MEM: units * 1000}) == ""
    assert ledger.filter(asks(units), ["n1"]).fits
