"""What a page asks a reader to type, and how it is marked."""

import pytest

from documentation.blocks import BadPage, fill, looks_typed, read_page

PAGE = """\
# A page

<!-- playground: nodes=a=t4:share unit=128MiB -->
<!-- with: NODE=a -->
<!-- file: pod.yaml -->
```yaml
kind: Pod
```

<!-- first: kubectl create namespace x -->
```console
$ kubectl apply -f pod.yaml
pod/x created
$ kubectl run y --overrides='{"spec":
    {}}'
$ kubectl get \\
    pods      # a comment
…
```

<!-- not run: needs a GPU -->
```console
$ nvidia-smi
```
"""


def test_blocks_have_their_commands_and_what_is_to_come_out() -> None:
    page = read_page("p.md", PAGE)
    manifest, typed, other = page.blocks
    assert page.playground == ("nodes=a=t4:share", "unit=128MiB")
    assert (manifest.file, manifest.content, manifest.is_typed) == ("pod.yaml", ("kind: Pod",), False)
    assert typed.first == ("kubectl create namespace x",)
    assert other.not_run == "needs a GPU"
    first, second, third = page.commands(typed)
    assert (first.line, first.text, first.expected) == (12, "kubectl apply -f pod.yaml", ("pod/x created",))
    assert second.text == "kubectl run y --overrides='{\"spec\":\n    {}}'"
    assert third.text.endswith("# a comment")
    assert third.expected == ("…",)


def test_marks_hold_for_the_next_block_alone_and_words_to_the_end_of_the_page() -> None:
    _, typed, other = read_page("p.md", PAGE).blocks
    assert (typed.not_run, typed.file) == ("", "")
    assert (other.first, other.words) == ((), (("NODE", "a"),))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```console\n$ a\n", "is not closed"),
        ("<!-- not run: x -->\ntext\n", "stands before text"),
        ("<!-- first: x -->\n", "stands before no block"),
        ("<!-- not run: -->\n", "says nothing"),
        ("<!-- with: node=a -->\n", "not of the form WORD=value"),
    ],
)
def test_a_page_that_cannot_be_read_says_where(text: str, says: str) -> None:
    with pytest.raises(BadPage, match=rf"^p\.md.*{says}"):
        read_page("p.md", text)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("came out", "begins with a line"),
        ("", "begins with a line"),
        ("$ echo 'x", "does not end"),
        ("$ echo \\", "does not end"),
    ],
)
def test_a_block_that_cannot_be_typed_says_where(content: str, says: str) -> None:
    page = read_page("p.md", f"```console\n{content}\n```\n")
    with pytest.raises(BadPage, match=rf"^p\.md:\d+: .*{says}"):
        page.commands(page.blocks[0])


def test_a_console_block_that_is_empty_is_refused() -> None:
    page = read_page("p.md", "```console\n```\n")
    with pytest.raises(BadPage, match=r"^p\.md:1: a console block without a command"):
        page.commands(page.blocks[0])


def test_words_in_capitals_are_filled_in_where_they_stand_alone() -> None:
    words = (("NODE", "n1"), ("FOLDER", "$STATE\\x"))
    assert fill("kubectl get node NODE $NODE NODE_NAME NODE=1 FOLDER/NODE.conf", words) == (
        "kubectl get node n1 $NODE NODE_NAME NODE=1 $STATE\\x/n1.conf"
    )


@pytest.mark.parametrize(
    ("language", "line", "typed"),
    [("", "$ x", True), ("sh", "kubectl get pods", True), ("", "NAME  AGE", False), ("text", "$ x", False)],
)
def test_a_block_that_holds_commands_unmarked_is_found(language: str, line: str, typed: bool) -> None:
    [block] = read_page("p.md", f"```{language}\n\n{line}\n```\n").blocks
    assert looks_typed(block) is typed
