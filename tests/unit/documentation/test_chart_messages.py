"""Messages of the charts' refusals and policies, as users read them."""

from pathlib import Path

import pytest

from documentation.chart_messages import from_charts, of_expression


def test_messages_of_a_charts_refusals_and_policies_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "c" / "templates"
    folder.mkdir(parents=True)
    (folder / "x.yaml").write_text(
        '{{- fail (printf "value %s: write %d of 10%%" .a .b) }}\n'
        "  messageExpression: >-\n"
        "    'label x is \\'' + variables.count + '\\': ' + 'write a number'\n"
        "  - message: a quota has no {{ .name }} of its own\n"
    )
    assert [one.template for one in from_charts(tmp_path)] == [
        "value …: write … of 10%",
        "label x is '…': write a number",
        "a quota has no … of its own",
    ]


@pytest.mark.parametrize(
    ("expression", "messages"),
    [
        ("'it may not ' + request.operation + ' ' + variables.what", ["it may not … …"]),
        ("'label x is \\'' + labels['a + b'] + '\\'; mend it'", ["label x is '…'; mend it"]),
        (
            "'it asks wrongly: ' + wrong.map(c, 'container ' + c.name + ' asks for ' + string(c.limits['a/b'])).join(', ')",
            ["it asks wrongly: …", "container … asks for …"],
        ),
        (
            "'the pod of ' + name + (node == '' ? ' on no node' : ' on node ' + node)",
            ["the pod of ……", " on no node"],
        ),
        ("…", []),
    ],
    ids=[
        "ends with what is filled in",
        "quotes and indices",
        "a text within",
        "one of two texts",
        "a template",
    ],
)
def test_the_texts_of_an_expression_are_its_messages(expression: str, messages: list[str]) -> None:
    assert of_expression(expression) == messages
