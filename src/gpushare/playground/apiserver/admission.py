"""The product's rules on pods, as in-process admission.

On a real cluster they are a MutatingAdmissionPolicy and a ValidatingAdmissionPolicy of the chart; here
two functions play the role of these policies, with the same wording. A rule sees the pod with its
defaults set. Other rules can be put beside them: a list of mutating and a list of validating functions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpushare.model import names
from gpushare.model.errors import InvalidQuantity
from gpushare.model.quantity import parse_amount
from gpushare.playground.apiserver.errors import ApiError, Object
from gpushare.playground.apiserver.resources import Resource

DEFAULT_SCHEDULER: Final = "default-scheduler"
CORE_POLICY: Final = "gpushare-core-percentage"
_CORE_STEP: Final = 5
_CORE_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Review:
    """What an admission function is asked about: the object about to be created, and its namespace's labels."""

    resource: Resource
    namespace_labels: dict[str, str]
    obj: Object
    user: str


Mutating = Callable[[Review], None]
"""Changes ``review.obj`` in place."""
Validating = Callable[[Review], None]
"""Raises ``ApiError`` to refuse."""


def _containers(pod: Object) -> list[Object]:
    spec = pod.get("spec") or {}
    return [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]


def _limits(container: Object) -> Object:
    limits: Object = (container.get("resources") or {}).get("limits") or {}
    return limits


def name_scheduler(review: Review) -> None:
    """Point a pod that asks for GPU memory or compute and names no scheduler to ours (opt-out by namespace label).

    Compute alone is never granted, but only our scheduler says so.
    """
    if review.resource.storage != "pods":
        return
    if review.namespace_labels.get(names.LABEL_ADMISSION) == "disabled":
        return
    spec = review.obj["spec"]
    if spec.get("schedulerName", DEFAULT_SCHEDULER) != DEFAULT_SCHEDULER:
        return
    ours = {names.GPU_MEM, names.GPU_CORE}
    if any(ours & _limits(container).keys() for container in _containers(review.obj)):
        spec["schedulerName"] = names.SCHEDULER_NAME


def _good_core(asked: str) -> bool:
    try:
        percent = parse_amount(asked)
    except InvalidQuantity:
        return False
    return _CORE_STEP <= percent <= _CORE_MAX and percent % _CORE_STEP == 0


def check_core_percentage(review: Review) -> None:
    """Refuse a compute share that is no multiple of 5 from 5 to 100. Raises ``ApiError`` 422."""
    if review.resource.storage != "pods":
        return
    bad = [
        f"container {container.get('name', '')} asks for {_limits(container)[names.GPU_CORE]}"
        for container in _containers(review.obj)
        if names.GPU_CORE in _limits(container) and not _good_core(_limits(container)[names.GPU_CORE])
    ]
    if not bad:
        return
    why = (
        f"ValidatingAdmissionPolicy '{CORE_POLICY}' with binding '{CORE_POLICY}' denied request: "
        f"{names.GPU_CORE} must be a multiple of {_CORE_STEP} from {_CORE_STEP} to {_CORE_MAX}: {', '.join(bad)}"
    )
    name = review.obj["metadata"].get("name", "")
    raise ApiError(
        422,
        "Invalid",
        f'pods "{name}" is forbidden: {why}',
        {"name": name, "kind": "pods", "causes": [{"message": why}]},
    )


@dataclass(frozen=True, slots=True)
class Admission:
    """The functions asked about every creation: first all that change, then all that judge."""

    mutating: Sequence[Mutating] = field(default=(name_scheduler,))
    validating: Sequence[Validating] = field(default=(check_core_percentage,))

    def mutate(self, review: Review) -> None:
        """Let every mutating function change the object."""
        for function in self.mutating:
            function(review)

    def validate(self, review: Review) -> None:
        """Let every validating function refuse the object. Raises ``ApiError``."""
        for function in self.validating:
            function(review)
