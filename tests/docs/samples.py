"""Clusters that a page shows as samples, told by a program in kubectl's place: ``<!-- sample: NAME -->``."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from gpushare.model.objects import Node, Pod
from tests.integration.inspect.conftest import ScriptedKubectl
from tests.integration.inspect.test_command import listed
from tests.unit.inspect.clusters import first_generation, foreign_node, pod
from tests.unit.inspect.test_documented_examples import two_modes

Seen = tuple[Sequence[Node], Sequence[Pod]]


def _one_node() -> Seen:
    name = "cn-shanghai.192.168.6.104"
    return [foreign_node(name, "192.168.6.104", 1, 15)], [pod("job-x", name, 3, first_generation(0, 3))]


SAMPLES: Final[dict[str, Callable[[], Seen]]] = {"one node": _one_node, "two modes": two_modes}


def kubectl(name: str, folder: Path) -> Path:
    """A program that answers for the sample as kubectl does, written into ``folder``."""
    assert name in SAMPLES, f"no sample is called {name}; there are {', '.join(SAMPLES)}"
    nodes, pods = SAMPLES[name]()
    made = folder / f"sample-{name.replace(' ', '-')}"
    made.mkdir(exist_ok=True)
    program = ScriptedKubectl(made)
    program.answer("/api/v1/nodes", listed(list(nodes)))
    program.answer("'/api/v1/pods?'*", listed(list(pods)))
    return program.path
