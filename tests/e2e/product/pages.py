"""The pages' blocks for a real cluster, typed verbatim, in the pages' order: ``<!-- real cluster: STAGE -->``."""

import asyncio
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from documentation.blocks import Block, Command, Page, fill, read_page
from documentation.inline import Inline
from documentation.navigation import in_order
from tests.docs.typist import Typist, Words
from tests.e2e.product.product import CHECKOUT, Product
from tests.patience import SLOWNESS

#: The longest time that a page waits: for the cleanup after kubelets, checked minutes later.
_COMMAND_S: Final = 600.0 * SLOWNESS
#: Time that pods may need to start and stop on a busy machine.
_STATE_S: Final = 90.0 * SLOWNESS
_DOCS: Final = CHECKOUT / "docs"
_NAMES: Final = ("README.md", *(f"docs/{path}" for path in in_order(_DOCS)), "examples/README.md")
#: What can be done only once, though several pages have it.
_ONCE: Final = ("helm install ", "helm uninstall ")

_CTR: Final = """\
#!{python}
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from tests.e2e.cluster import Cluster
node, argv = Cluster(Path({state!r})).node({node!r}), []
for one in sys.argv[1:]:
    if Path(one).is_file():
        node.run("sh", "-c", "cat > /run/archive", input=Path(one).read_bytes())
    argv.append("/run/archive" if Path(one).is_file() else one)
done = node.run("ctr", *argv, check=False, timeout=200)
node.run("rm", "-f", "/run/archive")
sys.stdout.write(done.stdout)
sys.stderr.write(done.stderr)
sys.exit(done.returncode)
"""


def blocks(stage: str) -> Iterator[tuple[Page, Block]]:
    """The blocks of a stage, in the pages' order."""
    for name in _NAMES:
        page = read_page(name, (CHECKOUT / name).read_text())
        yield from ((page, block) for block in page.blocks if block.stage == stage or block.file)


class Pages:
    """Types in a folder with the checkout's examples and charts; ``words`` replace those in capitals."""

    def __init__(self, product: Product, folder: Path, state: Path, node: str) -> None:
        self._folder = folder
        for name in ("examples", "charts", "build"):
            (folder / name).symlink_to(CHECKOUT / name)
        programs = folder / "programs"
        programs.mkdir()
        # It runs on the node, onto which archives that it names are copied.
        ctr = programs / "ctr"
        path = [str(CHECKOUT), str(CHECKOUT / "src")]
        ctr.write_text(_CTR.format(python=sys.executable, path=path, state=str(state), node=node))
        ctr.chmod(0o755)
        environment = {**product.environment_of_commands, "NO_COLOR": "1"}
        environment["PATH"] = f"{programs}:{environment['PATH']}"
        self._typist = Typist(environment, folder, _COMMAND_S, _STATE_S)
        self._words: Words = (("NODE", node),)
        self._done: set[str] = set()

    def type(self, stage: str) -> None:
        """Type the blocks of a stage; raises ``AssertionError`` if the output differs from the page's."""
        wrong = asyncio.run(self._type(stage))
        assert not wrong, "\n\n".join(wrong)

    def say(self, sentences: Iterable[Inline], words: Words) -> None:
        """Type commands of sentences and tables; raises ``AssertionError`` if one fails."""
        for one in sentences:
            command = Command(one.line, one.text)
            wrong = asyncio.run(self._typist.type(Page(one.page, ()), command, (*self._words, *words)))
            assert not wrong, wrong

    async def _type(self, stage: str) -> list[str]:
        wrong: list[str] = []
        typed = 0
        for page, block in blocks(stage):
            if block.file:
                (self._folder / block.file).write_text("\n".join(block.content) + "\n")
            if block.stage != stage:
                continue
            wrong += await self._prepare(page, block)
            for command in page.commands(block):
                if not self._done_before(command, block):
                    print(f"{page.name}: $ {fill(command.text, (*self._words, *block.words))}", flush=True)
                    wrong.append(await self._typist.type(page, command, (*self._words, *block.words)))
                    typed += 1
        assert typed, f"no page has a block for the stage '{stage}'"
        return [one for one in wrong if one]

    async def _prepare(self, page: Page, block: Block) -> list[str]:
        for text in block.first:
            code, out = await self._typist.run(fill(text, (*self._words, *block.words)))
            if code:
                return [f"{page.name}:{block.line}: before it $ {text}\n{out}"]
        return []

    def _done_before(self, command: Command, block: Block) -> bool:
        text = shlex.join(shlex.split(fill(command.text, block.words)))
        if not text.startswith(_ONCE):
            return False
        done_before = text in self._done
        self._done.add(text)
        return done_before
