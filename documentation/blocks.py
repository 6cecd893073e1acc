"""The commands that a page asks the reader to type, read from its Markdown.

A fenced block ``console`` holds lines that begin with ``$ `` (typed), and lines without (the output). Comments before a
block, which the site does not show, say how to run it:

``<!-- real cluster: STAGE -->``  typed on a cluster with helm and kubelets instead, when it is at that stage (``STAGES``)
``<!-- needs: PROGRAM -->``    typed where that program is installed, or (a path from the checkout's root) that folder is there
``<!-- sample: NAME -->``      typed next to a kubectl that shows a sample cluster
``<!-- typed by: PATH, HOW -->``  another test types it: ``PATH`` asks for it by ``tests.docs.assigned``; HOW, for people, may be left out
``<!-- step of CI: WHAT -->``  make targets that take minutes: CI runs them, a test holds that it does; WHAT says more
``<!-- agents: --isolation driver -->``  node agents are started with this before the block, as the chart's value would
``<!-- ends with: 2 -->``      the exit code of the block's last command
``<!-- goes on until: TEXT -->``  its last command ends by Ctrl-C only: it is interrupted when TEXT has come out
``<!-- beside: COMMAND -->``     runs unseen from before the block to the page's end (a server that the reader has)
``<!-- first: COMMAND -->``      typed before the block, unseen (several are typed in order)
``<!-- varies: TEXT | TEXT -->``  words of the output that are only an example
``<!-- shortened by: WORDS -->``  appended to each of its commands, which take minutes without; listed at the end
``<!-- file: NAME -->``        the block is a file of that name, next to which the commands run
``<!-- with: NODE=cgpu-t4 -->``  the value of a word in capitals, from here to the page's end

and one for the whole page, anywhere in it: ``<!-- playground: nodes=NAME=PRESET:MODE,… unit=128MiB GPUSHARE_…=… -->``, the last a variable of its environment.

Hidden commands must not be needed by the reader: ``in_sight.py``.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from documentation.expecting import ANYTHING

#: Comments before blocks; the site does not show them.
MARKS: Final = (
    *("real cluster", "needs", "sample", "step of CI", "ends with", "goes on until"),
    *("typed by", "agents", "beside", "first", "varies", "shortened by", "file", "with", "playground"),
)
#: Engines of other projects that run next to the charts on a real cluster.
ENGINES: Final = ("argo", "jobset", "kuberay", "kueue", "leaderworkerset", "trainer")
#: Stages of a real cluster, in order: nothing installed; charts installed; also an engine; charts removed; nodes cleaned up.
STAGES: Final = ("install", "installed", *ENGINES, "remove", "removed")
#: Marks of blocks that are typed into a playground.
_HERE: Final = ("needs", "sample", "beside", "shortened by")
_MARK: Final = re.compile(rf"^\s*<!--\s*({'|'.join(MARKS)}):\s*(.*?)\s*-->\s*$")
_FENCE: Final = re.compile(r"^( *)(`{3,}|~{3,})\s*([\w-]*)\s*$")
PROMPT: Final = "$ "


class BadPage(Exception):
    """A page whose marks or blocks cannot be read; the text names page and line."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command as typed (possibly several lines), its location, and the expected output."""

    line: int
    text: str
    expected: tuple[str, ...] = ()
    code: int | None = None
    """The exit code, if the page's mark has one."""
    until: str = ""
    """The output after which it is interrupted, if it does not end by itself."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its first line's number, its language, contents and marks."""

    line: int
    language: str
    content: tuple[str, ...]
    file: str = ""
    first: tuple[str, ...] = ()
    words: tuple[tuple[str, str], ...] = ()
    """Values of words in capitals from here on."""
    stage: str = ""
    """One of ``STAGES`` of a real cluster; empty for blocks that are not typed there."""
    needs: str = ""
    sample: str = ""
    step: str = ""
    """The text of the mark ``step of CI``."""
    code: int | None = None
    until: str = ""
    typed_by: str = ""
    """The path, from the checkout's root, of the test that types it; empty where none is named."""
    how: str = ""
    """How that is done, by the mark."""
    agents: str = ""
    """Arguments with which node agents are started."""
    beside: str = ""
    varies: tuple[str, ...] = ()
    """Words of the output that may differ."""
    shortened: str = ""
    """Appended to each command."""

    @property
    def is_typed(self) -> bool:
        """Whether it holds commands for a reader to type."""
        return self.language == "console"

    @property
    def is_for_playground(self) -> bool:
        """Whether its commands are typed into a playground."""
        return self.is_typed and not (self.stage or self.step or self.typed_by)


@dataclass(frozen=True, slots=True)
class Page:
    """A page's blocks in order, and the playground that they need (words of the mark; empty: the default)."""

    name: str
    blocks: tuple[Block, ...]
    playground: tuple[str, ...] = ()

    def commands(self, block: Block) -> tuple[Command, ...]:
        """The commands of a block; raises ``BadPage``."""
        return tuple(_commands(self.name, block))


def read_page(name: str, text: str) -> Page:
    """Read a page; raises ``BadPage``."""
    blocks: list[Block] = []
    playground: tuple[str, ...] = ()
    marks: dict[str, str] = {}
    words: list[tuple[str, str]] = []
    first: list[str] = []
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if mark := _MARK.match(line):
            kind, said = mark[1], mark[2]
            if not said:
                raise BadPage(f"{name}:{number}: the mark '{kind}' is empty")
            if kind == "playground":
                playground = tuple(shlex.split(said))
            elif kind == "with":
                words += [_word(f"{name}:{number}", one) for one in shlex.split(said)]
            elif kind == "first":
                first.append(said)
            else:
                marks[kind] = said
        elif fence := _FENCE.match(line):
            content = list(_until_closed(name, number, fence[1], fence[2], lines))
            blocks.append(_block(name, number, fence[3], content, marks, first, words))
            marks, first = {}, []
        elif line.strip() and (marks or first):
            raise BadPage(f"{name}:{number}: a mark precedes text instead of a block")
    if marks or first:
        raise BadPage(f"{name}: a mark at its end precedes no block")
    return Page(name, tuple(blocks), playground)


def _block(
    page: str,
    line: int,
    language: str,
    content: list[str],
    marks: dict[str, str],
    first: list[str],
    words: list[tuple[str, str]],
) -> Block:
    stage, code = marks.get("real cluster", ""), marks.get("ends with")
    if stage and stage not in STAGES:
        raise BadPage(f"{page}:{line}: '{stage}' is no stage of a cluster: {', '.join(STAGES)}")
    if code is not None and not code.isdigit():
        raise BadPage(f"{page}:{line}: '{code}' is no exit code")
    places = [one for one in ("real cluster", "step of CI", "typed by") if one in marks]
    if len(places) > 1:
        raise BadPage(f"{page}:{line}: a block has one place, not {' and '.join(places)}")
    if places and (here := [one for one in _HERE if one in marks]):
        raise BadPage(f"{page}:{line}: '{here[0]}' is for what is typed into a playground, not '{places[0]}'")
    typed_by, _, how = marks.get("typed by", "").partition(", ")
    varies = tuple(text for part in marks.get("varies", "").split("|") if (text := part.strip()))
    if stale := [text for text in varies if not any(ANYTHING in _example(one, (text,)) for one in content)]:
        raise BadPage(f"{page}:{line}: '{stale[0]}' is marked as varying, but is not in the block")
    return Block(
        line,
        language,
        tuple(content),
        marks.get("file", ""),
        tuple(first),
        tuple(words),
        stage,
        marks.get("needs", ""),
        marks.get("sample", ""),
        marks.get("step of CI", ""),
        int(code) if code is not None else None,
        marks.get("goes on until", ""),
        typed_by,
        how,
        marks.get("agents", ""),
        marks.get("beside", ""),
        varies,
        marks.get("shortened by", ""),
    )


def _word(where: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not value or name != name.upper():
        raise BadPage(f"{where}: '{text}' is not of the form WORD=value")
    return name, value


def _until_closed(
    name: str, opened: int, indent: str, fence: str, lines: Iterator[tuple[int, str]]
) -> Iterator[str]:
    for _, line in lines:
        if line.strip().startswith(fence) and not line.strip().strip(fence[0]):
            return
        yield line.removeprefix(indent)
    raise BadPage(f"{name}:{opened}: the block is not closed")


def _commands(page: str, block: Block) -> Iterator[Command]:
    typed, line, expected = "", 0, list[str]()
    behind = f" {block.shortened}" if block.shortened else ""
    for number, text in enumerate(block.content, block.line + 1):
        if typed and not _is_whole(typed):
            typed += "\n" + text
        elif text.startswith(PROMPT):
            if typed:
                yield Command(line, typed + behind, tuple(expected))
            typed, line, expected = text.removeprefix(PROMPT), number, []
        elif typed:
            expected.append(_example(text, block.varies))
        else:
            raise BadPage(f"{page}:{number}: a console block begins with a line '$ …'")
    if not typed:
        raise BadPage(f"{page}:{block.line}: a console block without a command")
    if not _is_whole(typed):
        raise BadPage(f"{page}:{line}: the command does not end")
    # Marks on a block's end apply to its last command.
    yield Command(line, typed + behind, tuple(expected), block.code, block.until)


def _example(line: str, varies: tuple[str, ...]) -> str:
    """A line of the output, with ``…`` for words that are only an example."""
    for text in varies:
        line = re.sub(rf"(?<!\w){re.escape(text)}(?!\w)", ANYTHING, line)
    return line


def _is_whole(typed: str) -> bool:
    """Whether a shell would begin with it, or wait for more."""
    if typed.endswith("\\"):
        return False
    try:
        shlex.split(typed, comments=True)
    except ValueError:
        return False
    return True


def fill(text: str, words: tuple[tuple[str, str], ...]) -> str:
    """``text`` with the values of its words in capitals."""
    for name, value in words:
        text = re.sub(rf"(?<![\w$]){re.escape(name)}(?![\w=])", value.replace("\\", "\\\\"), text)
    return text


def looks_typed(block: Block) -> bool:
    """Whether a block that is not marked as typed contains commands."""
    first = next((line for line in block.content if line.strip()), "")
    return block.language in ("", "sh", "bash", "shell") and bool(
        re.match(r"(\$ |kubectl |helm |make |ctr |gpushare |source )", first)
    )
