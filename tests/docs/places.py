"""Where blocks of the pages are typed, and their counts at the end of a run."""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from documentation.blocks import ENGINES, STAGES, Block

#: Blocks for a real cluster, by their stage; most by the same test.
ON_A_CLUSTER: Final = dict.fromkeys(STAGES, "tests/e2e/product/test_departure.py") | {
    "removed": "tests/e2e/product/test_removal.py",
    **{engine: f"tests/e2e/engines/test_{engine}.py" for engine in ENGINES},
}
STEPS: Final = "pipelines/ci.py"
#: Tests that run together with the one that types pages.
OURS: Final = "tests/docs/"


class Place(StrEnum):
    """Where a block is typed."""

    HERE = "here"
    ELSEWHERE = "elsewhere"
    NOWHERE = "nowhere"


#: Place, typed by (a path; empty for a playground, or nothing), and a note for people.
Where = tuple[str, str, str]


def place_of(block: Block) -> Where:
    """Where a block is typed, according to its marks."""
    if block.stage:
        by = ON_A_CLUSTER[block.stage]
        return Place.ELSEWHERE, by, f"on a real cluster: {by} (make e2e)"
    if block.step:
        return Place.ELSEWHERE, STEPS, f"a step of CI: {block.step}"
    if block.typed_by:
        how = f", {block.how}" if block.how else ""
        place = Place.HERE if block.typed_by.startswith(OURS) else Place.ELSEWHERE
        return place, block.typed_by, f"typed by {block.typed_by}{how}"
    if block.shortened:
        return Place.HERE, "", f"typed with {block.shortened} behind it, as it takes minutes without"
    return Place.HERE, "", ""


def counted(blocks: Iterable[tuple[str, str]]) -> str:
    """A line for people: how many blocks there are, and where they are typed, from their ``(Place, path)``."""
    places = Counter(blocks)
    of = {place: sum(count for (one, _), count in places.items() if one == place) for place in Place}
    where = [
        f"{path}: {count}"
        for (place, path), count in sorted(places.items(), key=lambda item: (-item[1], item[0]))
        if place == Place.ELSEWHERE
    ]
    listed = f" ({', '.join(where)})" if where else ""
    return (
        f"{places.total()} blocks: {of[Place.HERE]} typed here, {of[Place.ELSEWHERE]} elsewhere{listed}, "
        f"{of[Place.NOWHERE]} nowhere"
    )
