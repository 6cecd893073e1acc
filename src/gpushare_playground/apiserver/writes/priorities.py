"""Pod priority: the class that a pod names, resolved to a number when the pod is created."""

from typing import Final

from gpushare_playground.apiserver import errors
from gpushare_playground.apiserver.errors import Object
from gpushare_playground.apiserver.store import Store

STORAGE: Final = "priorityclasses.scheduling.k8s.io"
SYSTEM_CLASSES: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def admit_priority(store: Store, pod: Object) -> None:
    """Set ``priority`` and ``preemptionPolicy`` from the named (or the global default) class.

    Raises ``ApiError`` 403 for a class that does not exist, or for a number or policy that differs from the class's.
    """
    spec = pod["spec"]
    name = spec.get("priorityClassName")
    if name:
        record = store.get(STORAGE, "", name)
        if record is None:
            reason = f"no PriorityClass with name {name} was found"
            raise errors.forbidden("pods", "", pod["metadata"].get("name", ""), reason)
        chosen = record.obj
    else:
        defaults = [one.obj for one in store.items(STORAGE) if one.obj.get("globalDefault")]
        chosen = min(defaults, key=lambda one: one.get("value", 0), default={})
        if chosen:
            spec["priorityClassName"] = chosen["metadata"]["name"]
    priority = chosen.get("value", 0)
    if "priority" in spec and spec["priority"] != priority:
        reason = (
            f"the integer value of priority ({spec['priority']}) must not be provided in pod spec;"
            f" priority admission controller computed {priority} from the given PriorityClass name"
        )
        raise errors.forbidden("pods", "", pod["metadata"].get("name", ""), reason)
    spec["priority"] = priority
    policy = chosen.get("preemptionPolicy", "PreemptLowerPriority")
    if spec.setdefault("preemptionPolicy", policy) != policy:
        reason = (
            f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be provided in pod spec;"
            f" priority admission controller computed {policy} from the given PriorityClass name"
        )
        raise errors.forbidden("pods", "", pod["metadata"].get("name", ""), reason)
