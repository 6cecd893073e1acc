"""PyTorch in a container: reported memory, failing allocations, and equal results."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

from benchmarks.gpu_check.building import HERE
from benchmarks.gpu_check.lab import MIB, Lab, Share, Unanswered
from benchmarks.gpu_check.report import Row, measured, not_run, promise

TITLE = "PyTorch"

ROOM_MIB = 4096
PERCENT = 30
TOLERANCE = 5.0
IN_PARTS = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
STEADY = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
#: Name, scenario, percentage, and additional environment variables.
SCENARIOS: tuple[tuple[str, str, int | None, Mapping[str, str]], ...] = (
    ("mem_get_info and total_memory are the limit", "seen", None, {}),
    ("eager: above the limit torch.cuda.OutOfMemoryError, and the program continues", "eager", None, {}),
    ("the same with expandable segments", "growing", None, IN_PARTS),
    ("CUDA graphs: capture and replay, with 30% of the time", "graphs", PERCENT, {}),
    ("a DataLoader with forked workers and pinned memory", "loading", PERCENT, {}),
)


def importable(lab: Lab) -> str:
    """PyTorch's version; raises ``Unanswered`` if it cannot be used."""
    lines = "import torch; print(torch.__version__, torch.version.cuda or 'without CUDA')"
    ran = lab.run(None, sys.executable, "-c", lines, timeout_s=60)
    if not ran.good:
        missing = "No module named 'torch'" in ran.err
        raise Unanswered("PyTorch is not installed" if missing else f"import torch: {ran.trouble()}")
    if "without CUDA" in ran.out:
        raise Unanswered(f"PyTorch {ran.out.strip()}")
    return ran.out.strip()


def scenario(
    lab: Lab, name: str, limit_mib: int | None, percent: int | None, more: Mapping[str, str]
) -> dict[str, Any]:
    """A scenario's result; limit_mib None: without a limit."""
    container = None if limit_mib is None else lab.container(Share(limit_mib, percent))
    with lab.arbiter() if container and percent else nullcontext():
        outcome = lab.run(
            container,
            sys.executable,
            HERE / "pytorch_scenarios.py",
            name,
            str((limit_mib or 0) * MIB),
            timeout_s=60,
            **more,
        )
    try:
        result: dict[str, Any] = json.loads(outcome.out.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        raise Unanswered(outcome.trouble()) from None
    if not outcome.good:
        raise Unanswered(f"printed {result['got']}, then {outcome.trouble()}")
    return result


def of_training(lab: Lab, limit_mib: int) -> Row:
    """The same digest with and without a limit."""
    name = f"a training loop, with a limit ({PERCENT}% of the time) and without"
    promised = "learns, with bit-identical results"
    try:
        free = scenario(lab, "training", None, None, STEADY)
        held = scenario(lab, "training", limit_mib, PERCENT, STEADY)
    except Unanswered as error:
        return promise(name, promised, error, False)
    same = free["digest"] == held["digest"]
    return promise(
        name, promised, f"{held['got']}; without: {free['got']}", same and held["good"] and free["good"]
    )


def of_rates(lab: Lab, limit_mib: int) -> Row:
    """Its share of the GPU, by its completed work."""
    name, promised = (
        f"matrix products, {PERCENT}%",
        f"{PERCENT} ± {TOLERANCE:g} % of the rate without a limit",
    )
    try:
        free = scenario(lab, "rate", None, None, {})
        held = scenario(lab, "rate", limit_mib, PERCENT, {})
    except Unanswered as error:
        return promise(name, promised, error, False)
    share = 100 * held["per_s"] / free["per_s"]
    got = f"{share:.1f} % ({held['got']}; without: {free['got']})"
    return promise(name, promised, got, abs(share - PERCENT) <= TOLERANCE)


def rows(lab: Lab) -> Iterator[Row]:
    """Each scenario in a separate process: a crash becomes a row."""
    try:
        version = importable(lab)
    except Unanswered as error:
        yield not_run("PyTorch", str(error))
        return
    yield measured("PyTorch, its CUDA", version)
    limit_mib = min(lab.room_mib(ROOM_MIB), lab.total_mib * 3 // 4 // 2 * 2)
    yield measured("the limit of what follows, MiB", limit_mib)
    for name, key, percent, more in SCENARIOS:
        try:
            result = scenario(lab, key, limit_mib, percent, more)
        except Unanswered as error:
            yield promise(name, "holds", error, False)
            continue
        yield promise(name, "holds", result["got"], result["good"])
    yield of_training(lab, limit_mib)
    yield of_rates(lab, limit_mib)
