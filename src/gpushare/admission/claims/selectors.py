"""A pod's choice of GPUs as CEL selectors over the devices of our ResourceSlices (``nodeagent/dra/slices.py``). Pure.

A property that is not known satisfies no selector, as in ``api.request.gpu_selection``.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

from gpushare.api.request.gpu_selection import selection_of

_ATTRIBUTES: Final = 'device.attributes["gpushare.dev"]'
_MEMORY: Final = 'device.capacity["gpushare.dev"].memory'
#: MIG instances have a profile.
NO_INSTANCE: Final = f'!("profile" in {_ATTRIBUTES})'


def selectors(annotations: Mapping[str, str]) -> list[str]:
    """CEL expressions that all hold of the GPUs that the pod's annotations allow; the annotations are valid."""
    return list(_selectors(annotations))


def at_least(mib: int) -> str:
    """CEL: whether a GPU has that much memory."""
    return f'{_MEMORY}.compareTo(quantity("{mib}Mi")) >= 0'


def _selectors(annotations: Mapping[str, str]) -> Iterator[str]:
    selection = selection_of(annotations)
    if selection is None:
        return
    if selection.models:
        yield _known("productName", _is_model(selection.models))
    if selection.models_excluded:
        yield _known("productName", f"!{_is_model(selection.models_excluded)}")
    if selection.architectures:
        yield _known("architecture", _is_architecture(selection.architectures))
    if selection.architectures_excluded:
        yield _known("architecture", f"!({_is_architecture(selection.architectures_excluded)})")
    if selection.min_mib:
        yield at_least(selection.min_mib)
    if selection.max_mib:
        yield f'{_MEMORY}.compareTo(quantity("{selection.max_mib}Mi")) <= 0'
    if selection.uuids:
        yield _known("uuid", f"{_ATTRIBUTES}.uuid in {_listed(selection.uuids)}")
    if selection.uuids_excluded:
        yield _known("uuid", f"!({_ATTRIBUTES}.uuid in {_listed(selection.uuids_excluded)})")


def _known(attribute: str, condition: str) -> str:
    return f'"{attribute}" in {_ATTRIBUTES} && {condition}'


def _is_model(models: tuple[str, ...]) -> str:
    """Models are given by words of their name: ``A10`` is ``NVIDIA A10``, but not ``NVIDIA A100-PCIE-40GB``."""
    names = "|".join("[^a-z0-9]+".join(re.findall("[a-z0-9]+", model.lower())) for model in models)
    return f'{_ATTRIBUTES}.productName.lowerAscii().matches("(^|[^a-z0-9])({names})([^a-z0-9]|$)")'


def _is_architecture(architectures: tuple[str, ...]) -> str:
    names = tuple(architecture.replace("-", " ") for architecture in architectures)
    return f"{_ATTRIBUTES}.architecture.lowerAscii() in {_listed(names)}"


def _listed(values: tuple[str, ...]) -> str:
    return json.dumps(values)
