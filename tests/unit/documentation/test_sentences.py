"""Commands in the pages' sentences and tables: each is typed in one place, in a form that matches its text."""

import re

import pytest

from documentation.__main__ import PROJECT
from pipelines import ci
from tests.docs.doings import IN_A_PLAYGROUND, IN_THE_CHECKOUT, Doing
from tests.docs.harmless import ENDS, chosen, is_harmless
from tests.docs.places import STEPS
from tests.docs.saying import says
from tests.docs.sentences import BY_ANOTHER, asks, found, sentences_typed_by, summary, where_typed

DOINGS = (*IN_A_PLAYGROUND, *IN_THE_CHECKOUT)


def test_every_command_is_typed_by_a_test() -> None:
    first = {one.text: one for one in reversed(found())}
    assert not [
        f"{first[text].where}: `{text}`: type it (tests/docs/doings.py), or name the file that types it (tests/docs/sentences.py)"
        for text, typed in where_typed().items()
        if typed is None
    ]


def test_entries_of_the_tables_are_in_a_page_and_in_one_table() -> None:
    tables = [*(doing.text for doing in DOINGS), *BY_ANOTHER]
    assert sorted(tables) == sorted(set(tables))
    assert not [text for text in tables if text not in where_typed()]
    assert not [text for text in tables if is_harmless(text)]


def test_other_expected_exit_codes_belong_to_commands_that_are_typed() -> None:
    assert ENDS.keys() <= {one.text for one in chosen(found())}


@pytest.mark.parametrize("doing", DOINGS, ids=lambda doing: doing.text)
def test_what_is_typed_for_a_command_matches_its_text(doing: Doing) -> None:
    assert says(doing.text, doing.typed or doing.text)


@pytest.mark.parametrize("path", dict.fromkeys(BY_ANOTHER.values()))
def test_a_file_that_types_a_command_requests_it(path: str) -> None:
    source = (PROJECT / path).read_text()
    if path == STEPS:
        assert {text for text, by in BY_ANOTHER.items() if by == STEPS} <= {step.command for step in ci.STEPS}
    else:
        assert asks(source), f"{path} does not call sentences_typed_by(__file__)"
        assert sentences_typed_by(str(PROJECT / path))


def test_requesting_sentences_without_having_any_fails() -> None:
    with pytest.raises(AssertionError, match=r"test_sentences\.py: BY_ANOTHER in .* has no command for it"):
        sentences_typed_by(__file__)


def test_the_summary_counts_all_commands() -> None:
    (line,) = summary()
    assert line.startswith(
        f"{len(found())} commands in sentences and tables, {len(where_typed())} different ones: "
    )
    here, elsewhere = (int(re.findall(rf"(\d+) {word}", line)[0]) for word in ("typed here", "elsewhere"))
    assert here + elsewhere == len(where_typed())


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("kubectl describe", "kubectl describe pod large | grep x"),
        ("kubectl logs", "kubectl -n kube-system logs deploy/x"),
        ("kubectl annotate node NODE a-", "kubectl annotate node cgpu-t4 a-     # back"),
        ("kubectl apply -f 1.yaml", "kubectl apply -f examples/1.yaml && kubectl wait x"),
        ("helm upgrade … --set KEY=VALUE", "helm upgrade a charts/a -n x --set b.c=d"),
        ("kubectl label node … …=… --overwrite", "kubectl label node a b=c --overwrite"),
        ("kubectl get --raw '…'", "kubectl get --raw '/api/v1/nodes'"),
        ("curl -b jar …/proxy/api?name=NODE", "curl -b jar http://localhost:1/api?name=a"),
        ("make bench ARGS=claims", 'make bench ARGS="claims --quick"'),
        ("make gpu-check PYTHON=/path/to/python3", "make gpu-check PYTHON=$HERE DRIVER=fakegpu"),
    ],
)
def test_placeholders_match_concrete_words(text: str, typed: str) -> None:
    assert says(text, typed)


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("kubectl describe", "kubectl get pods"),
        ("kubectl describe pod", "kubectl describe"),
        ("kubectl -n a logs", "kubectl -n b logs"),
        ("kubectl annotate node NODE a-", "kubectl annotate node cgpu-t4 b-"),
        ("kubectl apply -f 1.yaml", "kubectl apply -f other/1.yaml"),
        ("helm upgrade … --set KEY=VALUE", "helm upgrade a charts/a -n x"),
        ("make bench ARGS=claims", "make bench ARGS=claims-and-more"),
        ("make test", "make tests"),
        ("kubectl get pods", "kubectl get 'pods"),
    ],
)
def test_other_words_do_not_match(text: str, typed: str) -> None:
    assert not says(text, typed)


def test_a_test_requests_the_sentences_of_its_own_file() -> None:
    assert asks("x = [sentences_typed_by(__file__)]")
    assert not asks("sentences_typed_by('tests/other.py')")
