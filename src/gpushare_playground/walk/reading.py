"""Parsing the output of commands: JSON, tables, and allocations from our own annotation."""

import json
import re
from typing import Any

from gpushare.api import names
from gpushare_playground.walk.narration import Story


async def read_json(story: Story, command: str, *, first: bool = False) -> Any:
    """The JSON output of a command; ``first``: only the first item of a list."""
    read = json.loads(await story.type(command, shown=False) or "{}")
    return read["items"][0] if first else read


def shares(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod's shares, from our own annotation."""
    written = pod["metadata"].get("annotations", {}).get(names.ANN_SHARE, '{"gpus":[]}')
    gpus: list[dict[str, Any]] = json.loads(written)["gpus"]
    return gpus


def held_mib(pod: dict[str, Any]) -> list[int]:
    """The same in MiB, GPU by GPU."""
    return [share["mib"] for share in shares(pod)]


def row(table: str, node: str) -> str:
    """The table's row of ``node``, empty if it has none."""
    match = re.search(rf"^{re.escape(node)}\s.*$", table, re.MULTILINE)
    return match.group() if match else ""
