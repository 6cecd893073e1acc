"""Pods that ask alike share the places that were decided for them: each of these is given once. Pure.

``Allocate`` names no pod, so such pods, twins, may be served for each other. What is decided for all of them together is kept
all the same: the next is served where one of them was decided and none is, and where one has the place of another that waits,
that one is decided for the place that the first has left. So no other pod's place is ever touched, however full a GPU is.

A *place* is the set of GPUs (UUIDs) of a pod.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gpushare.nodeagent.allocate.pod_allocations import Claim


class Standing(NamedTuple):
    """Where a pod was decided, and where it is: ``None`` while it waits."""

    claim: Claim
    decided: frozenset[str]
    actual: frozenset[str] | None


class Exchange(NamedTuple):
    """``waiting`` is to be decided for ``place``, which its twin ``stranger`` has left for that of ``waiting``."""

    waiting: Claim
    place: frozenset[str]
    stranger: str


def left_to(twins: Iterable[Standing]) -> Counter[frozenset[str]]:
    """The places that were decided for ``twins``, less those that they have; fewer than none where more came."""
    left: Counter[frozenset[str]] = Counter()
    for one in twins:
        left[one.decided] += 1
        if one.actual is not None:
            left[one.actual] -= 1
    return left


def exchanges(standings: Iterable[Standing]) -> Iterator[Exchange]:
    """For each pod that is where another that waits was decided: what that one may have instead."""
    twins: dict[object, list[Standing]] = {}
    for one in standings:
        twins.setdefault(one.claim.likeness, []).append(one)
    for alike in twins.values():
        for stranger in alike:
            if stranger.actual is None or stranger.actual == stranger.decided:
                continue
            for one in alike:
                if one.actual is None and one.decided == stranger.actual:
                    yield Exchange(one.claim, stranger.decided, stranger.claim.uid)


def heirs(standings: Iterable[Standing]) -> dict[str, str]:
    """For pods that wait, whose twin is where they were decided: by whose decision they go instead, each by another's (UIDs)."""
    found: dict[str, str] = {}
    for waiting, _, stranger in exchanges(standings):
        if waiting.uid not in found and stranger not in found.values():
            found[waiting.uid] = stranger
    return found


def goes_by(claim: Claim, twin: Claim, served: Mapping[str, frozenset[str]]) -> bool:
    """Whether the places of those containers of ``claim`` that are ``served`` (by name) are what was decided for the twin's."""
    pairs = zip(claim.request.containers, twin.request.containers, strict=True)
    return all(served[one.name] == twin.place(their) for one, their in pairs if one.name in served)
