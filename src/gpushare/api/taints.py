"""Taints of nodes, and the tolerations of pods that cover them."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

#: Effects that keep new pods from a node.
SHUTTING: Final = ("NoSchedule", "NoExecute")
#: The taint of a node that is cordoned: Kubernetes writes it beside ``spec.unschedulable``, and it goes with the cordon.
OF_CORDONS: Final = "node.kubernetes.io/unschedulable"


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
        """Whether a pod with it may be put beside ``taint``; an operator that is not known covers nothing."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        if self.operator in ("", "Equal"):
            return bool(self.key) and self.value == taint.value
        return self.operator == "Exists"


def read_taints(written: Iterable[Any] | None) -> tuple[Taint, ...]:
    """``spec.taints`` of a node; what is no taint is left out."""
    return tuple(
        Taint(*_texts(one, "key", "value", "effect")) for one in written or () if isinstance(one, dict)
    )


def read_tolerations(written: Iterable[Any] | None) -> tuple[Toleration, ...]:
    """``spec.tolerations`` of a pod; what is no toleration is left out."""
    fields = ("key", "operator", "value", "effect")
    return tuple(Toleration(*_texts(one, *fields)) for one in written or () if isinstance(one, dict))


def _texts(one: dict[str, Any], *fields: str) -> list[str]:
    return [str(one.get(field) or "") for field in fields]
