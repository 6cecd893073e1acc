"""A reader can type a page from top to bottom: it hides no step and no setting."""

import pytest

from documentation.__main__ import DOCS, PROJECT
from documentation.blocks import read_page
from documentation.in_sight import EXCEPTIONS, SHOWN, unsaid
from documentation.navigation import in_order

#: Records of measurements and decisions, not for readers to type.
_RECORDS = ("docs/measurements/", "docs/decisions/")
PAGES = [
    name
    for name in (*(f"docs/{one}" for one in in_order(DOCS)), "README.md", "examples/README.md")
    if not name.startswith(_RECORDS)
]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_hides_nothing_that_its_reader_has_to_do(name: str) -> None:
    assert unsaid(name, (PROJECT / name).read_text()) == []


def test_each_exception_is_needed() -> None:
    for name, begin, _ in EXCEPTIONS:
        page = read_page(name, (PROJECT / name).read_text())
        hidden = [one for block in page.blocks for one in (*block.first, block.beside, block.agents)]
        assert any(one.startswith(begin) for one in (*hidden, *page.playground)), f"{name}: {begin}"
    for name, file, _ in SHOWN:
        assert file in [block.file for block in read_page(name, (PROJECT / name).read_text()).blocks]


BLOCK = "```console\n$ kubectl get pods\n```\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"<!-- first: kubectl run a --image=busybox -->\n{BLOCK}", "p.md:2: hidden: kubectl run a"),
        (f"<!-- first: kubectl get pods && kubectl delete pod a -->\n{BLOCK}", "hidden: kubectl get pods &&"),
        (f"<!-- first: printf x > broken.yaml -->\n{BLOCK}", "hidden: printf x"),
        (f"<!-- beside: serve -->\n{BLOCK}", "hidden: serve"),
        (f"<!-- agents: --isolation none -->\n{BLOCK}", "hidden: --isolation none"),
        (f"<!-- playground: nodes=a=t4:share -->\n{BLOCK}", "p.md: playground: nodes=a=t4:share"),
        (f"<!-- playground: unit=128MiB -->\n{BLOCK}", "p.md: playground: unit=128MiB"),
        (f"<!-- playground: GPUSHARE_MOVES=1 -->\n{BLOCK}", "p.md: playground: GPUSHARE_MOVES=1"),
        ("A pod:\n\n<!-- file: a.yaml -->\n```yaml\na: 1\n```\n", "Save this as `a.yaml`"),
        (f"<!-- sample: one node -->\n{BLOCK}", "is a sample's"),
        ("<!-- with: NODE=n1 -->\n```console\n$ kubectl get node NODE\n```\n", "NODE is n1"),
    ],
)
def test_what_a_reader_cannot_know_is_reported(text: str, message: str) -> None:
    [found] = unsaid("p.md", text)
    assert message in found


def test_stated_settings_are_not_reported() -> None:
    assert (
        unsaid(
            "p.md",
            "<!-- playground: unit=128MiB GPUSHARE_MOVES=1 -->\n"
            '`GPUSHARE_MOVES=1 make run ARGS="--no-walk --unit 128MiB"`. `NODE` is `n1`.\n\nSave this as `a.yaml`:\n\n'
            "<!-- file: a.yaml -->\n```yaml\na: 1\n```\n\n<!-- with: NODE=n1 -->\n"
            "<!-- first: kubectl -n x wait --for=delete pod/a -->\n```console\n$ kubectl get node NODE\n```\n"
            "A sample:\n\n<!-- sample: one node -->\n```console\n$ kubectl get pods\n```\n",
        )
        == []
    )
