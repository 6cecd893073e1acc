"""Commands in a page's sentences and tables."""

from documentation.inline import inline_commands

PAGE = """\
# `kubectl get pods`, a heading

Type `make test`, or `GPUSHARE_SOAK=1 make
  test`, and not `made up` nor `helmet`; ``a message says `gpushare doctor` ``.

```console
$ echo `kubectl get nodes`
```

    ````text
    ```
    `make bench`
    ````

| a | b |
|---|---|
| `helm list` | `kubectl get pods \\| grep x` |
| a lone ` in a cell | here `curl -s URL` |
"""


def found(page: str, text: str) -> list[tuple[int, str]]:
    return [(one.line, one.text) for one in inline_commands(page, text)]


def test_commands_are_found_in_sentences_headings_and_tables_and_not_in_blocks() -> None:
    assert found("docs/p.md", PAGE) == [
        (1, "kubectl get pods"),
        (3, "make test"),
        (3, "GPUSHARE_SOAK=1 make test"),
        (17, "helm list"),
        (17, "kubectl get pods | grep x"),
    ]


def test_a_table_row_with_a_lone_backtick_hides_no_other_row() -> None:
    rows = "| a lone ` here | |\n|---|---|\n| `make test` | |\n"
    assert (3, "make test") in found("docs/p.md", rows)


def test_first_cells_of_troubleshooting_are_messages_and_may_contain_commands() -> None:
    table = "| `kubectl could not read …` ``… type `make fakegpu` `` | why | `kubectl get nodes` |\n"
    assert found("docs/troubleshooting/p.md", table) == [(1, "make fakegpu"), (1, "kubectl get nodes")]
    assert found("docs/troubleshooting/index.md", "| `kubectl get pods` | |\n") == [(1, "kubectl get pods")]


def test_a_command_has_its_location_and_whether_it_is_only_a_name() -> None:
    name, command = inline_commands("docs/p.md", "`kubectl` and\n`kubectl get pods`\n")
    assert (name.is_named_alone, command.is_named_alone) == (True, False)
    assert command.where == "docs/p.md:2"
