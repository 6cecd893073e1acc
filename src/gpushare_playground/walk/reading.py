"""What commands print, read: JSON, tables, and who holds what by our own annotation."""

import json
import re
from typing import Any

from gpushare.api import names
from gpushare_playground.walk.narration import Story


async def read_json(story: Story, command: str, *, first: bool = False) -> Any:
    """What a command prints; ``first``: of a list only that."""
    read = json.loads(await story.type(command, shown=False) or "{}")
    return read["items"][0] if first else read


def shares(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """What the pod holds, from our own annotation."""
    written = pod["metadata"].get("annotations", {}).get(names.ANN_SHARE, '{"gpus":[]}')
    found: list[dict[str, Any]] = json.loads(written)["gpus"]
    return found


def held_mib(pod: dict[str, Any]) -> list[int]:
    """The same in MiB, GPU by GPU."""
    return [share["mib"] for share in shares(pod)]


def row(table: str, node: str) -> str:
    """The table's row of ``node``, empty when there is none."""
    match = re.search(rf"^{re.escape(node)}\s.*$", table, re.MULTILINE)
    return match.group() if match else ""
