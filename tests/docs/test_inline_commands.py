"""Commands of sentences and tables that only look are typed into a playground, in which a pod runs and another waits."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from documentation.blocks import Block, Page
from documentation.inline import Inline, inline_commands
from documentation.navigation import in_order
from tests.docs.harmless import ENDS, block_of, chosen
from tests.docs.playgrounds import Playground, Wanted, playground
from tests.docs.typist import PROJECT

_ALL_S: Final = 180
_ENOUGH: Final = 3
#: The property that says how many there are, and how many are typed.
COUNTED: Final = "inline commands"


def _pod(name: str, units: int) -> dict[str, Any]:
    main = {
        "name": "main",
        "image": "busybox",
        "command": ["sleep", "3600"],
        "resources": {"limits": {"aliyun.com/gpu-mem": units}},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [main]}}


async def _begin(there: Playground, page: Page) -> None:
    """A pod that runs, one that waits for more than a GPU has, and a file of options."""
    pods = {"apiVersion": "v1", "kind": "List", "items": [_pod("runs", 3), _pod("large", 40)]}
    (there.folder / "pods.json").write_text(json.dumps(pods))
    (there.folder / "gpushare.yaml").write_text("scheduler:\n  log-level: info\n")
    ready = ("$ kubectl apply -f pods.json", "$ kubectl wait --for=condition=Ready pod/runs --timeout=60s")
    wrong = await there.follow(page, Block(0, "console", ready))
    assert not wrong, "\n\n".join(wrong)


def _found() -> list[Inline]:
    """All of the pages' but names of programs alone."""
    names = [*(f"docs/{path}" for path in in_order(PROJECT / "docs")), "README.md", "examples/README.md"]
    found = (one for name in names for one in inline_commands(name, (PROJECT / name).read_text()))
    return [one for one in found if not one.is_named_alone]


def test_every_other_end_that_is_right_is_that_of_a_command_that_is_typed() -> None:
    assert ENDS.keys() <= {one.text for one in chosen(_found())}


@pytest.mark.timeout(_ALL_S + 60)
@pytest.mark.asyncio
async def test_what_only_looks_is_typed_as_it_stands_in_a_sentence_or_a_table(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    found = _found()
    typed = chosen(found)
    different = len({one.text for one in found})
    record_property(
        COUNTED,
        f"{len(found)} commands in sentences and tables, {different} different ones: {len(typed)} typed here, "
        f"{different - len(typed)} held to what would understand them (tests/unit/documentation)",
    )
    wrong: list[str] = []
    async with asyncio.timeout(_ALL_S), playground(Wanted(), tmp_path / "docs") as there:
        await _begin(there, Page("the beginning", ()))
        for one in typed:
            wrong += await there.follow(Page(one.page, ()), block_of(one))
            if len(wrong) >= _ENOUGH:
                break
    assert not wrong, "\n\n".join(wrong)
