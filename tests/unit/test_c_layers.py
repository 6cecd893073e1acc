"""Dependencies between C sources are acyclic: includes in both trees, and calls in isolation."""

import re
import subprocess
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.building import ROOT
from tests.unit.isolation.building import build


def calls(objects: Path, sources: Path) -> dict[str, set[str]]:
    """``folder/source`` → the sources whose symbols it needs. Objects without a source are skipped."""
    defined: dict[str, str] = {}
    needed: dict[str, set[str]] = {}
    for file in sorted(objects.rglob("*.o")):
        source = str(file.relative_to(objects).with_suffix(""))
        if not (sources / f"{source}.c").exists():
            continue
        needed[source] = set()
        listing = subprocess.run(["nm", "--format=posix", file], capture_output=True, text=True, check=True)
        for name, kind, *_ in map(str.split, listing.stdout.splitlines()):
            if kind == "U":
                needed[source].add(name)
            elif kind.isupper():
                defined[name] = source
    return {
        source: {defined[name] for name in names & defined.keys()} - {source}
        for source, names in needed.items()
    }


def includes(sources: Path) -> dict[str, set[str]]:
    """``folder/name`` of a header and its source → the names of the headers that either includes."""
    graph: dict[str, set[str]] = {}
    for file in [*sources.rglob("*.h"), *sources.rglob("*.c")]:
        name = str(file.relative_to(sources).with_suffix(""))
        found = re.findall(r'^#include "([^"]+)\.h"', file.read_text(), re.MULTILINE)
        graph.setdefault(name, set()).update(set(found) - {name})
    return graph


def by_folder(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    folders: dict[str, set[str]] = {}
    for source, called in graph.items():
        folder = str(Path(source).parent)
        folders.setdefault(folder, set()).update({str(Path(one).parent) for one in called} - {folder})
    return folders


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """One cycle, if there is any."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("tree", ["isolation", "fakegpu"])
def test_includes_have_no_cycles(tree: str) -> None:
    graph = includes(ROOT / tree)
    assert len(graph) > 50
    assert cycle(graph) == []


@pytest.mark.parametrize("part", ["open/cuda", "open/nvml", "arbiter"])
def test_calls_between_sources_and_folders_of_isolation_have_no_cycles(part: str) -> None:
    graph = calls(build("all") / "objects" / part, ROOT / "isolation")
    assert len(graph) > 5
    assert cycle(graph) == []
    assert cycle(by_folder(graph)) == []
