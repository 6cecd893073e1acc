"""Runs under several policies side by side: a table for people, and the same for programs."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from gpushare.inspect.tabwriter import aligned
from gpushare.simulate.engine.simulation import Result
from gpushare.simulate.output.amounts import gib, percent


def comparison_table(results: Sequence[Result]) -> str:
    """A row for each policy; then why pods are pending, with the policies of which that is true."""
    rows = [["POLICY", "PLACED", "PENDING", "GPU MEMORY ALLOCATED", "GPUS IN USE"]]
    policies_by_reason: dict[tuple[str, int, str], list[str]] = {}
    for result in results:
        name, last = result.settings.policy_name, result.curve[-1]
        pending = result.waiting
        in_use, gpus = _gpus(result)
        rows.append(
            [
                name,
                str(len(result.fates) - len(pending)),
                str(len(pending)),
                f"{gib(last.allocated_mib)}/{gib(last.total_mib)} GiB ({percent(last.allocated_mib, last.total_mib)}%)",
                f"{in_use}/{gpus}",
            ]
        )
        for (workload, why), count in Counter((fate.workload, fate.why) for fate in pending).items():
            policies_by_reason.setdefault((workload, count, why), []).append(name)
    text = "\n".join(aligned(rows)) + "\n"
    if not policies_by_reason:
        return text
    reasons = [["PENDING", "PODS", "POLICIES", "WHY"]]
    for (workload, count, why), names in policies_by_reason.items():
        reasons.append([workload, str(count), "all" if len(names) == len(results) else ", ".join(names), why])
    return text + "\n" + "\n".join(aligned(reasons)) + "\n"


def compared_policies(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The same for programs; the schema is in docs/guide/simulate.md."""
    documents = []
    for result in results:
        in_use, gpus = _gpus(result)
        documents.append(
            {
                "policy": result.settings.policy_name,
                "placed": len(result.fates) - len(result.waiting),
                "pending": [{"pod": fate.pod, "why": fate.why} for fate in result.waiting],
                "allocatedMiB": result.curve[-1].allocated_mib,
                "totalMiB": result.curve[-1].total_mib,
                "gpusInUse": in_use,
                "gpus": gpus,
            }
        )
    return documents


def _gpus(result: Result) -> tuple[int, int]:
    """GPUs that pods hold something of, and all."""
    gpus = [gpu for node in result.nodes for gpu in node.gpus]
    return sum(bool(gpu.pods) for gpu in gpus), len(gpus)
