"""Victims that make a pod's quotas admit it, on any node: enough, evictable together, and none needlessly."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.ledger.preemption import quota_relief as room
from gpushare.ledger.preemption.quota_relief import relief
from gpushare.ledger.preemption.victims import Rank
from gpushare.ledger.quota.accounting import Charge
from gpushare.ledger.quota.reclaim import Claim
from tests.unit.ledger.test_quota_books import CPU, MEM, books_of, family, mem, tree_of
from tests.unit.ledger.test_quota_claim import claim_of, two


def ranked(**priorities: int) -> "dict[str, Rank]":
    return {uid: Rank(priority, made) for made, (uid, priority) in enumerate(priorities.items())}


def test_the_borrower_of_lowest_priority_is_evicted() -> None:
    books = books_of(two(), p=mem("x", 4), q=mem("z", 4), r=mem("z", 4), s=mem("z", 4))
    claim = claim_of(books, "x", 4)
    assert relief(claim, ranked(q=2, r=1, s=3).get) == ("r",)
    assert relief(claim, ranked(q=2, s=2).get) == ("s",), "of equals the newest"
    assert relief(claim, ranked(p=0, q=2).get) == ("p",), "one of its own quota, where its priority is lower"
    assert relief(claim, ranked(q=2, r=1).get, ended=["s"]) == (), "it is evicted already"


def test_no_pod_is_evicted_for_a_sum_that_no_evictions_bring_below_the_max() -> None:
    books = books_of(two(), q=mem("z", 6), r=mem("z", 6), s=mem("x", 4))
    claim = claim_of(books, "x", 4)
    assert relief(claim, ranked().get) is None
    # Either would take b below its 8.
    assert relief(claim, ranked(q=0, r=0).get) is None
    leaving = {"s": Rank(0, leaving=True)}
    assert relief(claim, leaving.get) is None


def test_where_no_max_is_exceeded_no_pod_is_evicted() -> None:
    assert relief(claim_of(books_of(two()), "x", 4), ranked().get) == ()


def test_unneeded_victims_stay() -> None:
    # 4 too much: the small one has the lowest priority, and the large one is needed in any case.
    books = books_of(two(), p=mem("x", 4), q=mem("z", 1), r=mem("z", 3), s=mem("z", 8))
    assert relief(claim_of(books, "x", 3), ranked(q=0, r=5).get) == ("r",)


def test_one_quota_after_the_other_is_relieved() -> None:
    # a1 (max 8) is full, and so is the root above it.
    books = books_of(family(), p=mem("x", 4), p2=mem("x", 4), q=mem("z", 8))
    claim = claim_of(books, "x", 4)
    assert claim.passed(()) is not None
    assert relief(claim, ranked(p=0, p2=1).get) == ("p",)


def test_no_more_pods_than_allowed_are_evicted_for_one() -> None:
    few = {f"u{number}": mem("z", 1) for number in range(room.MAX_VICTIMS + 2)}
    tree = {
        "name": "root",
        "min": {"aliyun.com/gpu-mem": 200},
        "max": {"aliyun.com/gpu-mem": len(few)},
        "children": [
            {"name": "a", "namespaces": ["x"], "min": {"aliyun.com/gpu-mem": 100}},
            {"name": "b", "namespaces": ["z"]},
        ],
    }
    tree["min"] = {"aliyun.com/gpu-mem": len(few)}
    tree["children"][0]["min"] = {"aliyun.com/gpu-mem": len(few)}  # type: ignore[index]
    books = books_of(tree_of(tree), **few)
    ranks = ranked(**dict.fromkeys(few, 0))
    assert relief(claim_of(books, "x", len(few)), ranks.get) is None
    assert len(relief(claim_of(books, "x", 3), ranks.get) or ()) == 3


def test_with_too_many_candidates_no_search_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    books = books_of(two(), p=mem("x", 4), q=mem("z", 4), r=mem("z", 4), s=mem("z", 4))
    monkeypatch.setattr(room, "MOST_LOOKED_AT", 3)
    assert relief(claim_of(books, "x", 4), ranked(q=2, r=1).get) is None


def test_pods_are_evicted_only_for_what_they_request_however_many_have_lower_priority() -> None:
    plain = {f"u{number}": Charge("z", {CPU: 1000}, on_gpus=False) for number in range(room.MAX_VICTIMS + 2)}
    leaves = [
        {"name": "a", "namespaces": ["x"], "min": {MEM: 8, CPU: 2}},
        {"name": "b", "namespaces": ["z"]},
    ]
    most = {MEM: 8, CPU: len(plain)}
    tree = tree_of({"name": "root", "min": most, "max": most, "children": leaves})
    books = books_of(tree, p=mem("z", 4), q=mem("z", 4), **plain)
    claim = Claim(books, "new", "x", {MEM: 4000, CPU: 1000})
    ranks = ranked(**dict.fromkeys(plain, 0), p=7, q=8)
    assert relief(claim, ranks.get) == ("p", f"u{len(plain) - 1}")
    of_memory = Claim(books, "new", "x", {MEM: 4000})
    assert relief(of_memory, ranked(**dict.fromkeys(plain, 0)).get) is None


def test_a_sum_of_cpus_is_relieved_by_the_fewest_pods_without_a_gpu_that_suffice() -> None:
    leaves = [{"name": "a", "namespaces": ["x"], "min": {MEM: 8, CPU: 4}}, {"name": "b", "namespaces": ["z"]}]
    tree = tree_of({"name": "root", "min": {MEM: 8, CPU: 8}, "max": {CPU: 8}, "children": leaves})
    sizes = {"p": 1, "q": 3, "r": 4}
    charges = {uid: Charge("z", {CPU: 1000 * size}, on_gpus=False) for uid, size in sizes.items()}
    claim = Claim(books_of(tree, **charges), "new", "x", {MEM: 1000, CPU: 3000})
    assert relief(claim, ranked(p=0, q=0, r=5).get) == ("q",)
    assert relief(claim, ranked(p=0, r=5).get) == ("r",)


PODS = st.lists(st.tuples(st.sampled_from(("x", "y", "z")), st.integers(1, 5), st.integers(0, 3)), max_size=7)


@settings(max_examples=300, deadline=None)
@given(pods=PODS, namespace=st.sampled_from(("x", "y", "z")), units=st.integers(1, 8))
def test_victims_are_sufficient_allowed_and_needed(
    pods: list[tuple[str, int, int]], namespace: str, units: int
) -> None:
    books = books_of(family())
    ranks: dict[str, Rank] = {}
    for number, (space, amount, priority) in enumerate(pods):
        books.charge(f"u{number}", mem(space, amount))
        ranks[f"u{number}"] = Rank(priority, number)
    claim = claim_of(books, namespace, units)

    def rank(uid: str) -> Rank | None:
        return ranks[uid] if claim.may_evict(uid, lesser=ranks[uid].priority < 2) else None

    found = relief(claim, rank)

    if found is None:
        # No single evictable pod would be enough either.
        assert not any(claim.enough([uid]) for uid in ranks if rank(uid) is not None)
        return
    assert claim.enough(found)
    assert claim.together(found, ()) is not None
    assert all(rank(uid) is not None for uid in found)
    for fewer in combinations(found, len(found) - 1) if found else ():
        assert not claim.enough(fewer)
