"""Whether what is advised to a pod that its quotas refuse is true."""

from collections.abc import Sequence

from tests.unit.scheduler.remedy_truth import NO_ROOM, Judge

PATHS = {"root": "root", "leaf": "root/leaf"}


def of_quota(judge: Judge, name: str, passed: Sequence[tuple[str, int]], remedy: str) -> str:
    """Which form the advice has to pod ``name``, which would bring some quotas (name, and max in units) above their max."""
    many = len(passed) > 1
    which = f"elastic quota{'s' if many else ''} {' and '.join(PATHS[quota] for quota, _ in passed)}"
    form = "quota, ends"
    told = f"pods of {which} that end, or a larger max of {'each' if many else 'it'}"
    if judge.scene.asked_units(name) > min(most for _, most in passed):
        form, told = (
            "quota, less",
            f"ask for less, or a larger max of {which}: it asks for more than that alone",
        )
    if not any(judge.takes(node) for node in judge.asked):
        form, told = f"{form}, and room", told + NO_ROOM
    assert remedy == told
    return form
