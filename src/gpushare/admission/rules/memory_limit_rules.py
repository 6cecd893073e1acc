"""Validation of ``gpushare.dev/gpu-memory-limit`` against what the containers request. Pure.

The chart says the same in CEL (``templates/admission/_rules.tpl``), word for word.
"""

from collections.abc import Mapping
from typing import Final

from gpushare.admission.rules.unit_rules import Texts
from gpushare.api import names
from gpushare.api.errors import InvalidQuantity
from gpushare.api.quantity import parse_quantity
from gpushare.api.request.choice_formats import mib_of_size
from gpushare.api.request.memory_limit import limit_texts
from gpushare.api.request.unit_conversion import Counting, mib_of

_ANNOTATION: Final = names.ANN_GPU_MEMORY_LIMIT
#: Labels with which a container may have more than one GPU, or all of one.
_EXCLUDED: Final = (names.LABEL_POD_GPU_COUNT, names.LABEL_POD_PLACEMENT)


def problem(text: str, asking: Mapping[str, Texts], labels: Mapping[str, str], counting: Counting) -> str:
    """The first violated rule; empty if none.

    ``text``: the annotation's value, of a valid form; ``asking``: the requests of the containers that request GPU memory, by name.
    """
    excluded = [f"{label}={labels[label]}" for label in _EXCLUDED if labels.get(label, "1") != "1"]
    if excluded:
        return (
            f"annotation {_ANNOTATION} is for containers with a share of one GPU, and excludes label {', '.join(excluded)}: "
            "remove one of them"
        )
    limits = limit_texts(text, asking)
    strangers = [f"container {name}" for name in limits if name not in asking]
    if strangers:
        return f"annotation {_ANNOTATION} names containers that do not request GPU memory: {', '.join(strangers)}; correct it"
    low = [
        f"container {name} requests {requested_mib}Mi and may use {limit}"
        for name, limit in limits.items()
        if mib_of_size(limit) < (requested_mib := _requested_mib(asking[name], counting))
    ]
    if not low:
        return ""
    return (
        f"annotation {_ANNOTATION} is below the request: {', '.join(low)}; raise it, or remove the annotation"
    )


def _requested_mib(texts: Texts, counting: Counting) -> int:
    """The request in whole units; 0 if it is invalid, which other rules report, or in percent, which is compared once it is converted."""
    if names.GPU_MEMORY in texts:
        return counting.units_of_mib(mib_of(texts[names.GPU_MEMORY]) or 0) * counting.unit.mib
    try:
        return int(parse_quantity(texts.get(names.GPU_MEM, "0"))) * counting.unit.mib
    except InvalidQuantity:
        return 0
