"""Pods that ask alike have the places that were decided for all of them, each once."""

from collections.abc import Sequence

from gpushare.nodeagent.allocate.identical_pods import Standing, exchanges, left_to
from tests.unit.nodeagent.claiming import APP, claim, node_of, request

NODE = node_of(15_360, 15_360, 15_360, 15_360)


def place(*indices: int) -> frozenset[str]:
    return frozenset(NODE.devices[index].uuid for index in indices)


def standing(
    name: str, decided: int | Sequence[int], actual: int | Sequence[int] | None, units: int = 3
) -> Standing:
    def of(where: int | Sequence[int]) -> frozenset[str]:
        return place(where) if isinstance(where, int) else place(*where)

    several = 1 if isinstance(decided, int) else len(decided)
    made = claim(NODE, name, decided, request((APP, units), gpus=several))
    return Standing(made, of(decided), None if actual is None else of(actual))


def found(*standings: Standing) -> list[tuple[str, frozenset[str]]]:
    return [(one.waiting.pod.name, one.place) for one in exchanges(standings)]


def test_what_is_left_is_what_was_decided_and_nobody_has() -> None:
    twins = [standing("a", 0, 1), standing("b", 1, None), standing("c", 2, 2)]
    assert left_to(twins) == {place(0): 1, place(1): 0, place(2): 0}


def test_where_more_came_than_were_decided_fewer_than_none_are_left() -> None:
    assert left_to([standing("a", 0, 1)])[place(1)] == -1


def test_a_pod_whose_place_a_twin_has_gets_the_place_that_the_twin_has_left() -> None:
    assert found(standing("waits", 1, None), standing("served", 0, 1)) == [("waits", place(0))]


def test_several_gpus_are_one_place() -> None:
    assert found(standing("waits", (2, 3), None), standing("served", (0, 1), (2, 3))) == [
        ("waits", place(0, 1))
    ]


def test_pods_that_ask_otherwise_do_not_change_places() -> None:
    assert found(standing("waits", 1, None, units=4), standing("served", 0, 1)) == []


def test_who_is_where_it_was_decided_has_nobodys_place() -> None:
    assert found(standing("waits", 1, None), standing("served", 1, 1), standing("other", 0, 0)) == []


def test_a_pod_that_is_served_itself_needs_no_other_place() -> None:
    assert found(standing("one", 0, 1), standing("other", 1, 0)) == []
