"""The form of annotations by which a pod's author chooses GPUs and placement policies. Admission checks the same in CEL."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from gpushare.api import names
from gpushare.api.node.device import ARCHITECTURES, Placement


class Format(NamedTuple):
    """What an annotation's value must be: the pattern that it matches, and the same in words."""

    pattern: str
    words: str


def _list_of(entry: str) -> str:
    return f"^ *({entry}) *(, *({entry}) *)*$"


_POLICIES: Final = [placement.value for placement in Placement]
_MODELS: Final = Format(
    _list_of(r"[A-Za-z0-9]([A-Za-z0-9\x20._-]*[A-Za-z0-9])?"),
    "models of GPUs, with commas between them: A10,L4",
)
_ARCHITECTURES: Final = Format(
    _list_of("|".join(ARCHITECTURES)),
    f"architectures of GPUs, with commas between them, of {', '.join(ARCHITECTURES)}",
)
_SIZE: Final = "[1-9][0-9]{0,7}(Mi|Gi)"
_MEMORY: Final = Format(f"^{_SIZE}$", "the memory of a GPU in Mi or Gi: 24Gi")
_OF_CONTAINER: Final = f"[a-z0-9]([-a-z0-9]*[a-z0-9])?={_SIZE}"
_MEMORY_LIMIT: Final = Format(
    f"^({_SIZE}|{_OF_CONTAINER}(, *{_OF_CONTAINER})*)$",
    "memory in Mi or Gi, of each container or by the container names: 20Gi, or main=20Gi,side=4Gi",
)
_UUIDS: Final = Format(
    _list_of("(GPU|MIG)-[0-9A-Za-z-]+"), "UUIDs of GPUs, with commas between them: GPU-…,GPU-…"
)
_POLICY: Final = Format(f"^({'|'.join(_POLICIES)})$", f"{', '.join(_POLICIES[:-1])} or {_POLICIES[-1]}")
#: Characters of a value: parsing it must not delay other pods.
MOST_CHARACTERS: Final = 4096
#: By annotation. Admission checks the same in CEL.
FORMATS: Final[Mapping[str, Format]] = {
    names.ANN_GPU_MODEL: _MODELS,
    names.ANN_GPU_MODEL_EXCLUDE: _MODELS,
    names.ANN_GPU_ARCHITECTURE: _ARCHITECTURES,
    names.ANN_GPU_ARCHITECTURE_EXCLUDE: _ARCHITECTURES,
    names.ANN_GPU_MEMORY_MIN: _MEMORY,
    names.ANN_GPU_MEMORY_MAX: _MEMORY,
    names.ANN_GPU_MEMORY_LIMIT: _MEMORY_LIMIT,
    names.ANN_GPU_UUID: _UUIDS,
    names.ANN_GPU_UUID_EXCLUDE: _UUIDS,
    names.ANN_GPU_PLACEMENT: _POLICY,
    names.ANN_NODE_PLACEMENT: _POLICY,
}
_PATTERNS: Final = {name: re.compile(form.pattern, re.ASCII) for name, form in FORMATS.items()}


def problem(annotations: Mapping[str, str]) -> str:
    """What is wrong with the annotations of ``FORMATS``; empty if nothing is."""
    chosen = {name: annotations[name] for name in FORMATS if name in annotations}
    for name, text in chosen.items():
        if len(text) > MOST_CHARACTERS:
            return (
                f"annotation {name} has {len(text)} characters, the maximum is {MOST_CHARACTERS}: shorten it"
            )
    for name, text in chosen.items():
        if _PATTERNS[name].fullmatch(text) is None:
            return f"annotation {name} must be {FORMATS[name].words}: it is '{text}'; correct it, or remove the annotation"
    least, most = (
        mib_of_size(annotations.get(name)) for name in (names.ANN_GPU_MEMORY_MIN, names.ANN_GPU_MEMORY_MAX)
    )
    if 0 < most < least:
        return (
            f"annotation {names.ANN_GPU_MEMORY_MIN}={annotations[names.ANN_GPU_MEMORY_MIN]} is above "
            f"{names.ANN_GPU_MEMORY_MAX}={annotations[names.ANN_GPU_MEMORY_MAX]}, so that every GPU is excluded; correct one of them"
        )
    return ""


def mib_of_size(text: str | None) -> int:
    """MiB of a valid amount such as ``24Gi``; 0 for ``None``."""
    if text is None:
        return 0
    return int(text[:-2]) << (10 if text.endswith("Gi") else 0)
