"""Whether what is advised to a pod that its quotas refuse is true."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.unit.scheduler.suggestion_truth import Judge

PATHS = {"root": "root", "leaf": "root/leaf"}
NO_ROOM = "; and room, which none of these nodes has now"


def of_quota(judge: "Judge", passed: Sequence[tuple[str, int]], suggestion: str) -> str:
    """Which form the advice has to a pod that would bring some quotas (name, and max in units) above their max."""
    if "quota" in judge.kinds.values():
        return of_whole(judge, suggestion)
    form, told = _told(judge, passed)
    if not any(judge.takes(node) for node in judge.asked):
        form, told = f"{form}, and room", told + NO_ROOM
    assert suggestion == told
    return form


def of_whole(judge: "Judge", suggestion: str) -> str:
    """The same of a pod that would bring them there by GPUs that it would be given whole, on every node that has it or might."""
    refusing = [node for node, kind in judge.kinds.items() if kind == "quota"]
    roomy = [node for node in refusing if judge.has_room(node)]
    units = {node: judge.scene.whole_units(judge.request, node) for node in roomy or refusing}
    least = min(units.values())
    passed = judge.scene.passed(judge.name, least)
    form, told = _told(judge, passed)
    if form == "quota, ends" and least > min(most for _, most in passed):
        form, which = "quota, smaller", _which(passed)
        named = [
            node for node, its in units.items() if its == least and f" of node {node} counts " in suggestion
        ]
        assert named, suggestion
        node = named[0]
        told = (
            f"a larger max of {which}, or a node with smaller GPUs: what it would be given whole of node {node} counts "
            f"{least} units, which is more than that alone"
        )
    if not roomy:
        form, told = f"{form}, and room", told + NO_ROOM
    assert suggestion == told
    return f"whole {form}"


def _told(judge: "Judge", passed: Sequence[tuple[str, int]]) -> tuple[str, str]:
    which = _which(passed)
    if judge.scene.asked_units(judge.name) > min(most for _, most in passed):
        return "quota, less", f"ask for less, or a larger max of {which}: it asks for more than that alone"
    return (
        "quota, ends",
        f"pods of {which} that end, or a larger max of {'each' if len(passed) > 1 else 'it'}",
    )


def _which(passed: Sequence[tuple[str, int]]) -> str:
    return (
        f"elastic quota{'s' if len(passed) > 1 else ''} {' and '.join(PATHS[quota] for quota, _ in passed)}"
    )
