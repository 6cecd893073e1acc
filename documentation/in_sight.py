"""Whether a reader can type a page from top to bottom: what tests do hidden from the reader is read from the comments.

Hidden commands may wait and read; those that create or change something must be visible on the page. So must files to be
saved, values of words in capitals, samples, and how to start the playground.
"""

import re
from collections.abc import Iterator
from typing import Final

from documentation.blocks import Block, read_page

#: Hidden commands that a reader does not need, or replaces: page, start of the command, why.
EXCEPTIONS: Final = (
    ("docs/guide/topology.md", "diff near.yaml", "holds the block against the manifest that it shows"),
    ("docs/guide/right-sizing.md", "printf 'scrape_configs", "a Prometheus that the reader has"),
    ("docs/guide/right-sizing.md", "timeout 120 sh -c", "waits for that Prometheus, and notes its address"),
    ("docs/guide/right-sizing.md", "kubectl create namespace monitoring", "a Prometheus in the reader's cluster"),
    ("docs/developer/placement.md", "mkdir $PLAYGROUND/lists", "traces that the reader has"),
    ("docs/guide/isolation.md", "--isolation driver", "the chart's value, which the page sets; a playground has none"),
    ("docs/guide/isolation.md", "nodes=t4-r615=t4-r615:core_mem", "a node with that driver, which the reader has"),
)  # fmt: skip
#: Files that blocks show and readers need not save: page, name, why.
SHOWN: Final = (("docs/guide/topology.md", "near.yaml", "the example's manifest"),)

_WAITS: Final = re.compile(r"kubectl( -n \S+)? (wait|get|rollout status)( [^&|;]*)?")
_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
_FENCED: Final = re.compile(r"^( *)(`{3,}).*?^\1\2`*\s*$", re.DOTALL | re.MULTILINE)
#: Lines above a block in which the text says what it is.
_NEAR: Final = 6


def unsaid(name: str, text: str) -> list[str]:
    """What a reader of the page cannot know or do, as texts with page and line."""
    page = read_page(name, text)
    seen = _COMMENT.sub("", text)
    said = _FENCED.sub("", seen)
    found = [
        f"{name}: playground: {word}: no text says that the playground is to be started so"
        for word in page.playground
        if not _is_said(word, seen) and not _excepted(name, word)
    ]
    for block in page.blocks:
        found += [
            f"{name}:{block.line}: {what}" for what in _of_block(name, block, _above(text, block), said)
        ]
    return found


def _of_block(name: str, block: Block, above: str, said: str) -> Iterator[str]:
    for command in (*block.first, block.beside, block.agents):
        if command and not _WAITS.fullmatch(command) and not _excepted(name, command):
            yield f"hidden: {command}: write it into a block, or it has to be one of EXCEPTIONS"
    is_shown = (name, block.file) in [(page, file) for page, file, _ in SHOWN]
    saved = re.search(rf"\b([Ss]ave|this as)\b.*`{re.escape(block.file)}`", above, re.DOTALL)
    if block.file and not is_shown and not saved:
        yield f"the block is {block.file}: say before it: Save this as `{block.file}`"
    if block.sample and "sample" not in above.lower():
        yield "the output is a sample's: say so before it"
    if block.is_for_playground:
        for word, value in block.words:
            used = any(re.search(rf"(?<![\w$]){word}(?![\w=])", line) for line in block.content)
            if used and "$" not in value and f"`{value}`" not in said:
                yield f"{word} is {value} in the playground: say so in the text, between backticks"


def _is_said(word: str, seen: str) -> bool:
    name, _, value = word.partition("=")
    return word in seen if name.isupper() else f"--{name} {value}" in seen


def _excepted(name: str, command: str) -> bool:
    return any(page == name and command.startswith(begin) for page, begin, _ in EXCEPTIONS)


def _above(text: str, block: Block) -> str:
    """The text above a block: comments and blank lines do not count."""
    lines = [
        line
        for line in text.splitlines()[: block.line - 1]
        if line.strip() and not line.strip().startswith("<!--")
    ]
    return "\n".join(lines[-_NEAR:])
