"""Taints and tolerations."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

#: Effects that keep new pods off a node.
REPELLING_EFFECTS: Final = ("NoSchedule", "NoExecute")
#: The taint of a cordoned node, which Kubernetes sets and removes together with ``spec.unschedulable``.
CORDON_TAINT: Final = "node.kubernetes.io/unschedulable"


class Taint(msgspec.Struct, gc=False):
    """One of a node's ``taints``."""

    key: str = ""
    value: str = ""
    effect: str = ""


class Toleration(msgspec.Struct, gc=False):
    """One of ``tolerations``."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        """Whether it tolerates ``taint``; an unknown operator tolerates nothing."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        if self.operator in ("", "Equal"):
            return bool(self.key) and self.value == taint.value
        return self.operator == "Exists"


def read_taints(written: Iterable[Any] | None) -> tuple[Taint, ...]:
    """``spec.taints`` of a node; invalid ones are skipped."""
    return tuple(
        Taint(*_texts(taint, "key", "value", "effect")) for taint in written or () if isinstance(taint, dict)
    )


def read_tolerations(written: Iterable[Any] | None) -> tuple[Toleration, ...]:
    """``spec.tolerations`` of a pod; invalid ones are skipped."""
    fields = ("key", "operator", "value", "effect")
    return tuple(
        Toleration(*_texts(toleration, *fields))
        for toleration in written or ()
        if isinstance(toleration, dict)
    )


def _texts(item: dict[str, Any], *fields: str) -> list[str]:
    return [str(item.get(field) or "") for field in fields]
