"""``--trace``: a list of pods in openb's form, replayed by one policy or by all."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from gpushare.inspect.columns import aligned
from gpushare.model.device import Placement
from gpushare.simulate.errors import SimulateError
from gpushare.simulate.openb import (
    MILLI,
    TraceError,
    arrivals,
    node_list,
    pod_lists,
    read_nodes,
    read_pods,
)
from gpushare.simulate.replay import Outcome, replay

API_VERSION: Final = "gpushare.dev/trace-replay/v1"
#: Of the list that is taken where none is named.
USUAL: Final = "default"


class Replayed(NamedTuple):
    """What came of a list by each policy; ``pods`` have arrived on ``gpus`` GPUs of ``nodes`` nodes."""

    name: str
    nodes: int
    gpus: int
    pods: int
    outcomes: dict[Placement, Outcome]


def replayed(
    folder: Path,
    name: str | None,
    policies: Sequence[Placement],
    ratio: float,
    seed: int,
    progress: Callable[[int, int], None],
) -> Replayed:
    """Replay a list of ``folder``; raises ``SimulateError``."""
    if not folder.is_dir():
        raise SimulateError(f"--trace {folder}", "there is no such folder")
    try:
        nodes = read_nodes(node_list(folder))
        lists = pod_lists(folder)
        chosen = name or (USUAL if USUAL in lists or len(lists) != 1 else next(iter(lists)))
        if chosen not in lists:
            raise SimulateError(f"--list {chosen}", f"there are {', '.join(lists) or 'no lists of pods'}")
        pods = read_pods(lists[chosen])
    except TraceError as error:
        raise SimulateError("", str(error)) from None
    gpus = sum(node.gpus for node in nodes)
    if not gpus or not any(pod.gpus for pod in pods):
        raise SimulateError(f"--trace {folder}", f"no node, or no pod of {chosen}, has a GPU")
    arriving = arrivals(pods, gpus * MILLI, ratio, seed)
    outcomes = {}
    for number, policy in enumerate(policies):
        outcomes[policy] = replay(
            nodes,
            arriving,
            policy,
            seed,
            lambda done, of, number=number: progress(number * of + done, len(policies) * of),  # type: ignore[misc]
        )
    return Replayed(chosen, len(nodes), gpus, len(arriving), outcomes)


def table(found: Replayed) -> str:
    """A row for each policy."""
    lines = [["POLICY", "GPUS GIVEN", "PODS DROPPED"]]
    lines += [
        [policy.value, f"{outcome.percent:.2f}%", str(outcome.dropped)]
        for policy, outcome in found.outcomes.items()
    ]
    head = f"{found.name}: {found.pods} pods on {found.gpus} GPUs of {found.nodes} nodes\n\n"
    return head + "\n".join(aligned(lines)) + "\n"


def structured(found: Replayed) -> dict[str, Any]:
    """The same for programs."""
    return {
        "apiVersion": API_VERSION,
        "list": found.name,
        "nodes": found.nodes,
        "gpus": found.gpus,
        "pods": found.pods,
        "policies": [
            {
                "policy": policy.value,
                "givenPercent": round(outcome.percent, 4),
                "dropped": outcome.dropped,
                "curve": [
                    {"askedPercent": round(asked, 3), "givenPercent": round(given, 3)}
                    for asked, given in outcome.curve
                ],
            }
            for policy, outcome in found.outcomes.items()
        ],
    }
