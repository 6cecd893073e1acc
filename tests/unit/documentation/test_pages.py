"""Checks of every page that type nothing."""

from pathlib import Path

import pytest

from documentation.__main__ import DOCS, PROJECT
from documentation.blocks import STAGES, looks_typed, read_page
from documentation.navigation import in_order
from documentation.site import contents, settings, stage
from pipelines import ci

#: Records of measurements and decisions, not for readers to type.
_RECORDS = ("measurements/", "decisions/")


@pytest.mark.parametrize("name", [name for name in in_order(DOCS) if not name.startswith(_RECORDS)])
def test_commands_are_in_blocks_that_the_test_types(name: str) -> None:
    page = read_page(name, (DOCS / name).read_text())
    unmarked = [block.line for block in page.blocks if looks_typed(block)]
    assert not unmarked, f"docs/{name}: commands in lines {unmarked}; write ```console, and $ before each"
    for block in page.blocks:
        if block.is_typed:
            assert page.commands(block)


ALL = [*(f"docs/{name}" for name in in_order(DOCS)), "README.md", "examples/README.md"]


def test_blocks_marked_as_steps_of_ci_are_steps() -> None:
    steps = [step.command for step in ci.STEPS]
    for name in ALL:
        page = read_page(name, (PROJECT / name).read_text())
        for block in (one for one in page.blocks if one.step):
            assert block.step in steps, f"{name}:{block.line}: '{block.step}' is no step of pipelines/ci.py"
            for command in page.commands(block):
                target = " ".join(command.text.split()[:2])
                assert any(step == target or step.startswith(f"{target} ") for step in steps), (
                    f"{name}:{command.line}: '{target}' is no step of pipelines/ci.py"
                )


def test_every_stage_of_a_real_cluster_has_a_block() -> None:
    pages = [read_page(name, (PROJECT / name).read_text()) for name in ALL]
    assert {block.stage for page in pages for block in page.blocks if block.stage} == set(STAGES)


def test_the_site_does_not_show_the_marks(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a.md").write_text(
        "# A\n\n<!-- goes on until: up -->\n<!-- needs: fish -->\n```console\n$ x\n```\n<!-- another remark -->\n"
    )
    assert stage(docs, tmp_path / "staged") == 1
    assert (
        tmp_path / "staged" / "a.md"
    ).read_text() == "# A\n\n```console\n$ x\n```\n<!-- another remark -->\n"


def test_settings_name_every_page_in_order_and_no_fonts_of_another_host() -> None:
    import tomllib

    read = tomllib.loads(settings([("A", [('One "1"', "one.md")]), ("B", [("Zwei …", "b/two.md")])]))[
        "project"
    ]
    assert read["nav"] == [{"A": [{'One "1"': "one.md"}]}, {"B": [{"Zwei …": "b/two.md"}]}]
    assert read["theme"]["font"] is False
    scripts = [one["path"] for one in read["extra"]["polyfills"]]
    # Has the name of the script that the plugin would otherwise load from another host.
    assert ["iframe-worker" in one and "//" not in one for one in scripts] == [True]


def test_folders_of_records_have_a_list_of_their_pages() -> None:
    assert contents("Decisions", [("One", "decisions/1.md")]) == "# Decisions\n\n* [One](1.md)\n"
