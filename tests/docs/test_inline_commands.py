"""Commands of sentences and tables are typed: into a playground in which a pod runs and another waits, and in the checkout."""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from documentation.blocks import Block, Page, fill, read_page
from tests.docs.doings import IN_A_PLAYGROUND, IN_THE_CHECKOUT, Doing
from tests.docs.harmless import block_of, chosen
from tests.docs.playgrounds import Playground, Wanted, playground
from tests.docs.sentences import found, summary
from tests.docs.typist import PROJECT, Typist

#: A bound for a busy machine; otherwise the two tests take one and one and a half minutes.
_ALL_S: Final = 1800
_ENOUGH: Final = 3
#: The property with their number, and where they are typed.
COUNTED: Final = "inline commands"
_FIRST: Final = {one.text: one for one in reversed(found())}


def _pod(name: str, *command: str, units: int = 0, cpu: str = "") -> dict[str, Any]:
    resources = {"aliyun.com/gpu-mem": units} if units else {}
    main = {
        "name": "main",
        "image": "busybox",
        "command": command or ("sleep", "3600"),
        "resources": {"limits": resources, "requests": {"cpu": cpu} if cpu else {}},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [main]}}


def _web() -> dict[str, Any]:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": _pod("web")["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}


def _node() -> str:
    """The manifest of a node on the page about placement."""
    name = "docs/guide/placement.md"
    page = read_page(name, (PROJECT / name).read_text())
    (block,) = (one for one in page.blocks if one.language == "yaml" and "kind: Node" in one.content)
    return fill("\n".join(block.content), block.words)


async def _begin(there: Playground) -> None:
    """A pod that runs, one that waits for more than a GPU has, a Deployment, and files."""
    pods = [
        _pod("runs", units=3),
        _pod("large", units=40),
        _pod("resized", cpu="100m"),
        _web(),
    ]
    listed = {"apiVersion": "v1", "kind": "List", "items": pods}
    (there.folder / "pods.json").write_text(json.dumps(listed))
    (there.folder / "gpushare.yaml").write_text("scheduler:\n  log-level: info\n")
    (there.folder / "node.yaml").write_text(_node())
    ready = ("$ kubectl apply -f pods.json", "$ kubectl wait --for=condition=Ready pod/runs --timeout=60s")
    wrong = await there.follow(Page("the beginning", ()), Block(0, "console", ready))
    assert not wrong, "\n\n".join(wrong)


def _of(doing: Doing) -> tuple[Page, Block]:
    one = _FIRST[doing.text]
    return Page(one.page, ()), doing.block(one.line)


@pytest.mark.timeout(_ALL_S + 60)
@pytest.mark.xdist_group("sentences")
@pytest.mark.asyncio
async def test_commands_of_sentences_and_tables_work_in_a_playground(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    for line in summary():
        record_property(COUNTED, line)
    home = tmp_path / "home"
    home.mkdir()
    more = {"HOME": str(home), "TOKEN": "of-a-reader-who-may-look"}
    wrong: list[str] = []
    async with asyncio.timeout(_ALL_S), playground(Wanted(), tmp_path / "docs") as there:
        await _begin(there)
        blocks = [(Page(one.page, ()), block_of(one)) for one in chosen(found())]
        for page, block in (*blocks, *map(_of, IN_A_PLAYGROUND)):
            wrong += await there.follow(page, block, more)
            if len(wrong) >= _ENOUGH:
                break
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.timeout(_ALL_S + 60)
@pytest.mark.xdist_group("sentences, in the checkout")
@pytest.mark.asyncio
async def test_commands_of_sentences_and_tables_work_in_the_checkout(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (PROJECT / "src", PROJECT))),
        "PYTHON_HERE": sys.executable,
        "OUT": str(tmp_path / "out"),
        "NO_COLOR": "1",
    }
    typist = Typist(environment, tmp_path, command_s=_ALL_S / 3)
    wrong: list[str] = []
    async with asyncio.timeout(_ALL_S):
        for page, block in map(_of, IN_THE_CHECKOUT):
            wrong += await typist.follow(page, block)
            if len(wrong) >= _ENOUGH:
                break
    assert not wrong, "\n\n".join(wrong)
