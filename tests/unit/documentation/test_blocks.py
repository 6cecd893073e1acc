"""Commands that a page gives its readers to type, and their marks."""

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

<!-- needs: nvidia-smi -->
```console
$ nvidia-smi
```
"""


def test_blocks_have_their_commands_and_expected_output() -> None:
    page = read_page("p.md", PAGE)
    manifest, typed, other = page.blocks
    assert page.playground == ("nodes=a=t4:share", "unit=128MiB")
    assert (manifest.file, manifest.content, manifest.is_typed) == ("pod.yaml", ("kind: Pod",), False)
    assert typed.first == ("kubectl create namespace x",)
    assert other.needs == "nvidia-smi"
    first, second, third = page.commands(typed)
    assert (first.line, first.text, first.expected) == (12, "kubectl apply -f pod.yaml", ("pod/x created",))
    assert second.text == "kubectl run y --overrides='{\"spec\":\n    {}}'"
    assert third.text.endswith("# a comment")
    assert third.expected == ("…",)


def test_marks_apply_to_the_next_block_only_and_words_to_the_rest_of_the_page() -> None:
    _, typed, other = read_page("p.md", PAGE).blocks
    assert (typed.needs, typed.file) == ("", "")
    assert (other.first, other.words) == ((), (("NODE", "a"),))


def test_a_block_has_its_place_and_its_expected_end() -> None:
    page = read_page(
        "p.md",
        "<!-- real cluster: remove -->\n```console\n$ a\n```\n"
        "<!-- step of CI: make test -->\n```console\n$ make test\n```\n"
        "<!-- needs: nvidia-smi -->\n<!-- sample: one -->\n<!-- agents: --isolation driver -->\n<!-- ends with: 2 -->\n```console\n$ b\n$ c\n```\n"
        "<!-- goes on until: up -->\n```console\n$ d\n$ e\n```\n```yaml\na: 1\n```\n",
    )
    there, step, here, goes_on, manifest = page.blocks
    assert (there.stage, step.step, here.needs, here.sample) == ("remove", "make test", "nvidia-smi", "one")
    assert here.agents == "--isolation driver"
    assert [block.is_for_playground for block in page.blocks] == [False, False, True, True, False]
    assert [(one.text, one.code) for one in page.commands(here)] == [("b", None), ("c", 2)]
    assert [(one.text, one.until) for one in page.commands(goes_on)] == [("d", ""), ("e", "up")]
    assert not manifest.is_typed


def test_varying_text_matches_anything_and_shortening_words_follow_each_command() -> None:
    page = read_page(
        "p.md",
        "<!-- beside: serve -->\n<!-- varies: 35 s | 5% -->\n```console\n$ a\nseen 35 s, 135 seconds, 15% of 5%\n```\n"
        '<!-- needs: ../data -->\n<!-- shortened by: ARGS="--seeds 1" -->\n```console\n$ make a\n$ make b\n```\n',
    )
    example, long = page.blocks
    assert (example.beside, example.varies, long.shortened) == ("serve", ("35 s", "5%"), 'ARGS="--seeds 1"')
    assert [one.expected for one in page.commands(example)] == [("seen …, 135 seconds, 15% of …",)]
    assert [one.text for one in page.commands(long)] == [
        'make a ARGS="--seeds 1"',
        'make b ARGS="--seeds 1"',
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```console\n$ a\n", "is not closed"),
        (
            "<!-- varies: 5 s -->\n```console\n$ a\n15 s\n```\n",
            "'5 s' is marked as varying, but is not in the block",
        ),
        (
            "<!-- step of CI: x -->\n<!-- shortened by: y -->\n```console\n$ a\n```\n",
            "'shortened by' is for what is typed into a playground, not 'step of CI'",
        ),
        ("<!-- needs: x -->\ntext\n", "precedes text"),
        ("<!-- first: x -->\n", "precedes no block"),
        ("<!-- needs: -->\n", "is empty"),
        ("<!-- with: node=a -->\n", "not of the form WORD=value"),
        ("<!-- real cluster: soon -->\n```console\n$ a\n```\n", "'soon' is no stage of a cluster: install,"),
        ("<!-- ends with: two -->\n```console\n$ a\n```\n", "'two' is no exit code"),
        (
            "<!-- step of CI: x -->\n<!-- real cluster: install -->\n```console\n$ a\n```\n",
            "a block has one place, not real cluster and step of CI",
        ),
    ],
)
def test_an_unreadable_page_is_reported_with_its_location(text: str, message: str) -> None:
    with pytest.raises(BadPage, match=rf"^p\.md.*{message}"):
        read_page("p.md", text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("came out", "begins with a line"),
        ("", "begins with a line"),
        ("$ echo 'x", "does not end"),
        ("$ echo \\", "does not end"),
    ],
)
def test_a_block_that_cannot_be_typed_is_reported_with_its_line(content: str, message: str) -> None:
    page = read_page("p.md", f"```console\n{content}\n```\n")
    with pytest.raises(BadPage, match=rf"^p\.md:\d+: .*{message}"):
        page.commands(page.blocks[0])


def test_a_console_block_that_is_empty_is_refused() -> None:
    page = read_page("p.md", "```console\n```\n")
    with pytest.raises(BadPage, match=r"^p\.md:1: a console block without a command"):
        page.commands(page.blocks[0])


def test_placeholders_in_capitals_are_filled_in() -> None:
    words = (("NODE", "n1"), ("FOLDER", "$STATE\\x"))
    assert fill("kubectl get node NODE $NODE NODE_NAME NODE=1 FOLDER/NODE.conf", words) == (
        "kubectl get node n1 $NODE NODE_NAME NODE=1 $STATE\\x/n1.conf"
    )


@pytest.mark.parametrize(
    ("language", "line", "typed"),
    [
        ("", "$ x", True),
        ("sh", "kubectl get pods", True),
        ("", "source <(kubectl completion bash)", True),
        ("", "NAME  AGE", False),
        ("text", "$ x", False),
    ],
)
def test_a_block_with_unmarked_commands_is_found(language: str, line: str, typed: bool) -> None:
    [block] = read_page("p.md", f"```{language}\n\n{line}\n```\n").blocks
    assert looks_typed(block) is typed
