"""The table of pods on GPUs: unknown use, order, and how it fits a screen."""

from typing import Any

import pytest

from gpushare.inspect.color import Paint
from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.inspect.sources.live_usage import RealUse, Use
from gpushare.inspect.views.pod_table import Row, table
from gpushare.inspect.views.pods import Rows, _rows, pods
from tests.unit.inspect.clusters import device, node, placed, seen
from tests.unit.inspect.test_views import PLAIN, both, options

SOME = [
    Row(
        "default",
        f"inference-server-of-the-team-7c9f8d6b5-{end}",
        "u",
        "node-1",
        0,
        "g",
        3072,
        2000.0,
        30,
        12.0,
    )
    for end in ("abcde", "vwxyz")
]
SOME[1] = SOME[1]._replace(node="a-node-with-a-name-that-is-long", used_mib=None)
FIGURES = [["3072", "2000", "30", "12"], ["3072", "-", "30", "12"]]


def test_a_mig_instance_is_named_by_its_gpu_and_slice() -> None:
    row = Row("default", "a", "u", "n1", 20, "MIG-a", 4096, 100.0, 0, None)
    assert table([row], Paint())[1].split()[:5] == ["default", "a", "n1", "0/4", "4096"]


@pytest.mark.parametrize(
    ("healthy", "looked", "used"), [(True, {"n"}, 0.0), (False, {"n"}, None), (True, set(), None)]
)
def test_usage_is_unknown_if_neither_gpu_nor_agent_reports_it(
    healthy: bool, looked: set[str], used: float | None
) -> None:
    gpu = device(0, healthy=healthy, reason="" if healthy else "GPU is lost")
    found = seen([node("n", "10.0.0.1", [gpu])], [placed("web", "n", gpu, 4)])
    (row,) = _rows(found, RealUse({}, {}, frozenset(looked)), None)
    assert (row.used_mib, row.used_core_percent) == (used, used)


def test_structured_top_is_one_document_sorted_by_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = device(0)
    there = seen([node("n", "10.0.0.1", [gpu])], [placed(name, "n", gpu, 4) for name in ("a", "b", "c")])
    used = {("default/b", gpu.uuid): Use(700.0, 5.0), ("default/c", gpu.uuid): Use(900.0, 1.0)}
    found = Rows(_rows(there, RealUse(used, {}, frozenset()), None), ("warning: of a not known",))
    monkeypatch.setattr("gpushare.inspect.views.pods.rows", lambda *_: found)

    def render(*words: str) -> Any:
        return both(lambda form: pods(Kubectl(), options(*words, "-o", form), PLAIN))

    document = render("--top")
    assert (document["kind"], document["warnings"]) == ("Pods", ["of a not known"])
    assert [(one["name"], one["usedMiB"]) for one in document["pods"]] == [
        ("c", 900.0),
        ("b", 700.0),
        ("a", None),
    ]
    assert [one["name"] for one in render("--pods")["pods"]] == ["a", "b", "c"]
    assert options("--top", "-w", "-o", "json").watch


class Terminal:
    def isatty(self) -> bool:
        return True


def test_usage_above_the_allocation_is_red() -> None:
    row = Row("default", "a", "u", "n1", 0, "GPU-0", 100, 200.0, 0, None)
    lines = table([row, row._replace(used_mib=50.0)], Paint(Terminal()))  # type: ignore[arg-type]
    assert lines[1].startswith("\x1b[31m")
    assert not lines[2].startswith("\x1b")


@pytest.mark.parametrize(
    ("used_mib", "used_core_percent", "red"),
    [(116.0, 40.0, False), (116.5, 0.0, True), (0.0, 40.5, True), (None, None, False), (0.0, 31.0, False)],
)
def test_use_within_the_tolerance_of_the_watchdog_is_not_red(
    used_mib: float | None, used_core_percent: float | None, red: bool
) -> None:
    row = Row("default", "a", "u", "n1", 0, "GPU-0", 100, used_mib, 30, used_core_percent)
    _, line = table([row], Paint(Terminal()))  # type: ignore[arg-type]
    assert line.startswith("\x1b[31m") is red


@pytest.mark.parametrize("width", [200, 100, 80])
def test_a_narrow_screen_shortens_the_longest_names_and_shows_every_figure(width: int) -> None:
    shown = table(SOME, PLAIN, width)
    assert max(map(len, shown)) <= width
    assert [line.split()[-4:] for line in shown[1:]] == FIGURES
    names = [line.split()[1] for line in shown[1:]]
    # The end of the names distinguishes pods of one owner.
    assert [name[-4:] for name in names] == ["bcde", "wxyz"]
    assert all(name.startswith("infe") for name in names)
    assert table([], PLAIN, width) == table([], PLAIN)


@pytest.mark.parametrize(
    ("width", "heading"),
    [
        (78, "NAMESPACE NAME NODE GPU ALLOC(MiB) USED(MiB) ALLOC(%) USED(%)"),
        (77, "NAMESPACE NAME NODE GPU ALLOC USED ALLOC% USED%"),
        (60, "NAME NODE GPU ALLOC USED ALLOC% USED%"),
        (40, "NAME ALLOC USED ALLOC% USED%"),
        (32, "NAME ALLOC USED USED%"),
        (24, "NAME USED USED%"),
    ],
)
def test_a_narrower_screen_drops_the_least_important_columns(width: int, heading: str) -> None:
    shown = table(SOME, PLAIN, width)
    assert max(map(len, shown)) <= width
    assert shown[0].split() == heading.split()
    first, second = (line.split() for line in shown[1:])
    of = {"ALLOC": 0, "USED": 1, "ALLOC%": 2, "USED%": 3}
    shown_columns = [
        of[one.replace("(MiB)", "").replace("(%)", "%")]
        for one in shown[0].split()
        if one[:4] in ("ALLO", "USED")
    ]
    assert first[-len(shown_columns) :] == [FIGURES[0][at] for at in shown_columns]
    assert second[-len(shown_columns) :] == [FIGURES[1][at] for at in shown_columns]
    # The space of a dropped column is used for the names.
    assert all(len(line[shown[0].split().index("NAME")]) >= 9 for line in (first, second))


def test_a_screen_shows_which_container_has_which_gpu_if_there_is_room() -> None:
    some = [SOME[0]._replace(containers=("actor",)), SOME[1]._replace(containers=("learner-of-all", "log"))]
    for width in (200, 100, 80):
        head, first, second = table(some, PLAIN, width)
        assert max(map(len, (head, first, second))) <= width
        assert (head.split()[-1], first.split()[-1], second[-3:]) == ("CONTAINERS", "actor", "log")
    assert table(some, PLAIN, 60) == table(SOME, PLAIN, 60)


def test_a_screen_too_narrow_for_anything_cuts_lines_which_keep_their_colour() -> None:
    lines = table([SOME[0]._replace(used_mib=5000.0)], Paint(Terminal()), 12)  # type: ignore[arg-type]
    assert [(line[:4], line[-4:]) for line in lines] == [("\x1b[1m", "\x1b[0m"), ("\x1b[31", "\x1b[0m")]
