"""Blocks typed by a test other than the playground's: the test exists and requests them; how blocks are counted."""

import pytest

from documentation.__main__ import DOCS, PROJECT
from documentation.blocks import Page, read_page
from documentation.navigation import in_order
from tests.docs.assigned import blocks_typed_by, commands_typed_by, pages_asked_for
from tests.docs.places import ON_A_CLUSTER, STEPS, Place, counted, place_of

NAMES = [*(f"docs/{name}" for name in in_order(DOCS)), "README.md", "examples/README.md"]


def pages() -> list[Page]:
    return [read_page(name, (PROJECT / name).read_text()) for name in NAMES]


def test_a_test_that_a_page_names_exists_and_requests_the_pages_commands() -> None:
    named = {(block.typed_by, page.name) for page in pages() for block in page.blocks if block.typed_by}
    for path, page in sorted(named):
        assert (PROJECT / path).is_file(), f"{page}: 'typed by: {path}': there is no such file"
        requested = set(pages_asked_for((PROJECT / path).read_text()))
        assert page in requested, f"{path} does not call commands_typed_by(__file__, {page!r})"


def test_only_blocks_of_commands_are_marked_as_typed_elsewhere() -> None:
    assert [
        f"{page.name}:{block.line}"
        for page in pages()
        for block in page.blocks
        if block.typed_by and not block.is_typed
    ] == []


def test_the_named_places_exist_and_type_each_stage() -> None:
    assert (PROJECT / STEPS).is_file()
    for stage, path in ON_A_CLUSTER.items():
        assert f'pages.type("{stage}")' in (PROJECT / path).read_text()


PAGE = """\
<!-- typed by: tests/a.py, on a stand-in, in part -->
```console
$ a
$ b
```
<!-- typed by: tests/docs/b.py -->
```console
$ c
```
<!-- typed by: tests/a.py -->
```console
$ d
```
```console
$ e
```
<!-- step of CI: make test -->
```console
$ make test
```
<!-- real cluster: install -->
```console
$ helm
```
<!-- shortened by: ARGS=few -->
```console
$ make all
```
"""


def test_a_test_gets_the_blocks_that_name_it_and_no_others() -> None:
    page = read_page("docs/p.md", PAGE)
    found = blocks_typed_by(str(PROJECT / "tests" / "a.py"), page)
    assert [(block.typed_by, block.how) for block in found] == [
        ("tests/a.py", "on a stand-in, in part"),
        ("tests/a.py", ""),
    ]
    assert [command.text for block in found for command in page.commands(block)] == ["a", "b", "d"]
    assert [block.is_for_playground for block in page.blocks] == [False] * 3 + [True] + [False] * 2 + [True]


def test_a_test_that_cites_a_page_which_does_not_name_it_is_reported() -> None:
    with pytest.raises(AssertionError, match=r"docs/index.md: no block has the mark 'typed by: tests/"):
        commands_typed_by(__file__, "docs/index.md")


def test_the_pages_that_a_test_requests_are_read_from_its_source() -> None:
    source = 'x = commands_typed_by(__file__, "docs/a.md")\ncommands_typed_by(other, "docs/b.md")\nf("docs/c.md")\n'
    assert list(pages_asked_for(source)) == ["docs/a.md"]


def test_each_block_is_listed_and_all_are_counted() -> None:
    places = [place_of(block) for block in read_page("docs/p.md", PAGE).blocks]
    assert [description for _, _, description in places] == [
        "typed by tests/a.py, on a stand-in, in part",
        "typed by tests/docs/b.py",
        "typed by tests/a.py",
        "",
        "a step of CI: make test",
        "on a real cluster: tests/e2e/product/test_departure.py (make e2e)",
        "typed with ARGS=few behind it, as it takes minutes without",
    ]
    assert places[3][0] is Place.HERE
    assert counted((place, path) for place, path, _ in places) == (
        "7 blocks: 3 typed here, 4 elsewhere (tests/a.py: 2, pipelines/ci.py: 1, "
        "tests/e2e/product/test_departure.py: 1), 0 nowhere"
    )
    assert counted([("here", "")]) == "1 blocks: 1 typed here, 0 elsewhere, 0 nowhere"
