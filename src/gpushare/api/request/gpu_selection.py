"""Which GPUs a pod may have: its annotations by model, architecture, memory and UUID.

A property that is not known (the node has another agent, or an earlier version of ours) satisfies no annotation about it, neither
a requirement nor an exclusion.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from gpushare.api import names
from gpushare.api.node.device import Device
from gpushare.api.request.choice_formats import FORMATS, mib_of_size, problem


class GpuSelection(msgspec.Struct, frozen=True):
    """What a pod's annotations say; empty or 0: no such annotation. Compared by value, so that pods with equal selections share caches."""

    models: tuple[str, ...] = ()
    models_excluded: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    architectures_excluded: tuple[str, ...] = ()
    min_mib: int = 0
    max_mib: int = 0
    uuids: tuple[str, ...] = ()
    uuids_excluded: tuple[str, ...] = ()

    def allows(self, gpu: Device) -> bool:
        """Whether the pod may have this GPU."""
        return not self.kind_rule(gpu) and not self.uuid_rule(gpu.uuid)

    def written(self) -> list[str]:
        """The annotations, as in a manifest: ``gpushare.dev/gpu-model: A10,L4``."""
        lists = {
            names.ANN_GPU_MODEL: self.models,
            names.ANN_GPU_MODEL_EXCLUDE: self.models_excluded,
            names.ANN_GPU_ARCHITECTURE: self.architectures,
            names.ANN_GPU_ARCHITECTURE_EXCLUDE: self.architectures_excluded,
            names.ANN_GPU_MEMORY_MIN: (_written(self.min_mib),) if self.min_mib else (),
            names.ANN_GPU_MEMORY_MAX: (_written(self.max_mib),) if self.max_mib else (),
            names.ANN_GPU_UUID: self.uuids,
            names.ANN_GPU_UUID_EXCLUDE: self.uuids_excluded,
        }
        return [f"{name}: {','.join(values)}" for name, values in lists.items() if values]

    def kind_rule(self, gpu: Device) -> int:
        """The position in ``RULES`` of the first one that excludes all GPUs with these properties; 0 if none does."""
        return next((number for number in _KIND_RULES if RULES[number].excludes(self, gpu)), 0)

    def uuid_rule(self, uuid: str) -> int:
        """The position in ``RULES`` of the one that excludes the GPU by its UUID; 0 if none does."""
        if self.uuids and uuid not in self.uuids:
            return UUID
        return UUID_EXCLUDE if uuid in self.uuids_excluded else 0


class Rule(NamedTuple):
    """A way in which a selection excludes GPUs, and how reasons say it of all GPUs of a node, of one and of several."""

    annotation: str
    excludes: Callable[[GpuSelection, Device], bool]
    texts: Callable[[GpuSelection], tuple[str, str, str]]


def _is_model(model: str, wanted: tuple[str, ...]) -> bool:
    words = _words(model)
    return any(_words(name) in words for name in wanted)


@lru_cache(maxsize=1024)
def _words(model: str) -> str:
    """The words of a model's name: ``A10`` is one of ``NVIDIA A10``, but not of ``NVIDIA A100-PCIE-40GB``."""
    return f" {' '.join(re.findall('[a-z0-9]+', model.lower()))} "


def _either(values: tuple[str, ...]) -> str:
    return " or ".join(values)


def _written(mib: int) -> str:
    return f"{mib >> 10}Gi" if mib % 1024 == 0 else f"{mib}Mi"


def _size(mib: int) -> str:
    return f"{mib >> 10} GiB" if mib % 1024 == 0 else f"{mib} MiB"


#: Position 0 stands for a GPU that the pod may have.
RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "",
        lambda selection, gpu: False,
        lambda selection: ("", "", ""),
    ),
    Rule(
        names.ANN_GPU_MODEL,
        lambda selection, gpu: bool(selection.models) and not _is_model(gpu.model, selection.models),
        lambda selection: (
            f"no GPU is {_either(selection.models)}",
            f"is not {_either(selection.models)}",
            f"are not {_either(selection.models)}",
        ),
    ),
    Rule(
        names.ANN_GPU_MODEL_EXCLUDE,
        lambda selection, gpu: bool(selection.models_excluded) and not gpu.model,
        lambda selection: ("every GPU is of unknown model", "is of unknown model", "are of unknown model"),
    ),
    Rule(
        names.ANN_GPU_MODEL_EXCLUDE,
        lambda selection, gpu: _is_model(gpu.model, selection.models_excluded),
        lambda selection: (
            f"every GPU is {_either(selection.models_excluded)}",
            f"is {_either(selection.models_excluded)}",
            f"are {_either(selection.models_excluded)}",
        ),
    ),
    Rule(
        names.ANN_GPU_ARCHITECTURE,
        lambda selection, gpu: (
            bool(selection.architectures) and gpu.architecture not in selection.architectures
        ),
        lambda selection: (
            f"no GPU is {_either(selection.architectures)}",
            f"is not {_either(selection.architectures)}",
            f"are not {_either(selection.architectures)}",
        ),
    ),
    Rule(
        names.ANN_GPU_ARCHITECTURE_EXCLUDE,
        lambda selection, gpu: bool(selection.architectures_excluded) and not gpu.architecture,
        lambda selection: (
            "every GPU is of unknown architecture",
            "is of unknown architecture",
            "are of unknown architecture",
        ),
    ),
    Rule(
        names.ANN_GPU_ARCHITECTURE_EXCLUDE,
        lambda selection, gpu: gpu.architecture in selection.architectures_excluded,
        lambda selection: (
            f"every GPU is {_either(selection.architectures_excluded)}",
            f"is {_either(selection.architectures_excluded)}",
            f"are {_either(selection.architectures_excluded)}",
        ),
    ),
    Rule(
        names.ANN_GPU_MEMORY_MIN,
        lambda selection, gpu: gpu.total_mib < selection.min_mib,
        lambda selection: (
            f"every GPU has less than {_size(selection.min_mib)}",
            f"has less than {_size(selection.min_mib)}",
            f"have less than {_size(selection.min_mib)}",
        ),
    ),
    Rule(
        names.ANN_GPU_MEMORY_MAX,
        lambda selection, gpu: 0 < selection.max_mib < gpu.total_mib,
        lambda selection: (
            f"every GPU has more than {_size(selection.max_mib)}",
            f"has more than {_size(selection.max_mib)}",
            f"have more than {_size(selection.max_mib)}",
        ),
    ),
    Rule(
        names.ANN_GPU_UUID,
        lambda selection, gpu: selection.uuid_rule(gpu.uuid) == UUID,
        lambda selection: (
            "no GPU is one of those listed",
            "is not one of those listed",
            "are not among those listed",
        ),
    ),
    Rule(
        names.ANN_GPU_UUID_EXCLUDE,
        lambda selection, gpu: selection.uuid_rule(gpu.uuid) == UUID_EXCLUDE,
        lambda selection: ("every GPU is excluded", "is excluded", "are excluded"),
    ),
)
UUID: Final[int] = len(RULES) - 2
UUID_EXCLUDE: Final[int] = len(RULES) - 1
_KIND_RULES: Final = range(1, UUID)


def selection_of(annotations: Mapping[str, str]) -> GpuSelection | None:
    """The selection in a pod's annotations, which are valid (``choice_formats.problem``); ``None`` if they have none."""
    selection = GpuSelection(
        models=_listed(annotations, names.ANN_GPU_MODEL),
        models_excluded=_listed(annotations, names.ANN_GPU_MODEL_EXCLUDE),
        architectures=_listed(annotations, names.ANN_GPU_ARCHITECTURE),
        architectures_excluded=_listed(annotations, names.ANN_GPU_ARCHITECTURE_EXCLUDE),
        min_mib=mib_of_size(annotations.get(names.ANN_GPU_MEMORY_MIN)),
        max_mib=mib_of_size(annotations.get(names.ANN_GPU_MEMORY_MAX)),
        uuids=_listed(annotations, names.ANN_GPU_UUID),
        uuids_excluded=_listed(annotations, names.ANN_GPU_UUID_EXCLUDE),
    )
    return None if selection == _ANY else selection


def bound_selection(annotations: Mapping[str, str] | None) -> GpuSelection | None:
    """As ``selection_of``, for a bound pod: invalid annotations, which it got after its binding, do not count."""
    if not annotations or FORMATS.keys().isdisjoint(annotations) or problem(annotations):
        return None
    return selection_of(annotations)


def _listed(annotations: Mapping[str, str], name: str) -> tuple[str, ...]:
    text = annotations.get(name)
    return () if text is None else tuple(entry.strip() for entry in text.split(","))


_ANY: Final = GpuSelection()
