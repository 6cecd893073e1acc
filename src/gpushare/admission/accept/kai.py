"""Requests of KAI Scheduler: the annotations ``gpu-fraction``, ``gpu-memory`` and those beside them, for one container of a pod.

Semantics: ``docs/gpu-sharing/README.md`` and the admission of kai-scheduler/KAI-Scheduler. Amounts are of each GPU. Queues
(label ``kai.scheduler/queue``) are not read.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from gpushare.admission.accept.product import Product, Share, Translation, Untranslatable
from gpushare.api.objects import Pod
from gpushare.api.request.request import listed_containers
from gpushare.api.request.unit_conversion import MOST_MIB

FRACTION: Final = "gpu-fraction"
MEMORY: Final = "gpu-memory"
DEVICES: Final = "gpu-fraction-num-devices"
CONTAINER: Final = "gpu-fraction-container-name"
_ACCEPTED: Final = (FRACTION, MEMORY, DEVICES, CONTAINER)
#: Annotations that begin so ask KAI for a share, in ways that gpushare partly has not.
FAMILIES: Final = ("gpu-fraction", "gpu-memory", "gpu-sm-", "nvidia.com/container.")
_MPS: Final = "mps"
_GPU: Final = "nvidia.com/gpu"
_DECIMAL: Final = re.compile(r"[0-9]{0,3}(\.[0-9]{1,20})?", re.ASCII)
_WHOLE: Final = re.compile(r"[1-9][0-9]{0,7}", re.ASCII)
_MOST_GPUS: Final = 9999


def _read(pod: Pod) -> Translation | None:
    annotations = pod.metadata.annotations or {}
    if not any(name.startswith(FAMILIES) for name in annotations):
        return None
    unknown = sorted(name for name in annotations if name.startswith(FAMILIES) and name not in _ACCEPTED)
    if annotations.get(_MPS) == "true":
        unknown.append(_MPS)
    if unknown:
        raise Untranslatable(
            f"no equivalent in gpushare for annotation {', '.join(unknown)}; remove it from the manifest"
        )
    if (FRACTION in annotations) == (MEMORY in annotations):
        raise Untranslatable(
            f"a share requires exactly one of the annotations {FRACTION} and {MEMORY}: the pod has {_present(annotations)}"
        )
    gpus = _whole(annotations, DEVICES, _MOST_GPUS, "") if DEVICES in annotations else 1
    if MEMORY in annotations:
        share = Share(mib=_whole(annotations, MEMORY, MOST_MIB, " of MiB"))
    else:
        share = Share(memory_percent=_percent(annotations[FRACTION]))
    return Translation({_container(pod, annotations): share}, gpus, replaced=frozenset(_ACCEPTED))


def _present(annotations: Mapping[str, str]) -> str:
    return " and ".join(name for name in _ACCEPTED if name in annotations)


def _whole(annotations: Mapping[str, str], name: str, most: int, unit: str) -> int:
    text = annotations[name]
    if _WHOLE.fullmatch(text) is None or int(text) > most:
        raise Untranslatable(
            f"annotation {name} must be a whole number{unit} from 1 to {most}: it is '{text}'; correct it"
        )
    return int(text)


def _percent(text: str) -> int:
    """Whole percent, rounded down as percent of memory always is, so that pods that fill a GPU together still fit."""
    percent = int(Decimal(text) * 100) if text and _DECIMAL.fullmatch(text) else 0
    if not 1 <= percent < 100:
        raise Untranslatable(
            f"annotation {FRACTION} must be a decimal number from 0.01 to below 1: it is '{text}'; correct it"
        )
    return percent


def _container(pod: Pod, annotations: Mapping[str, str]) -> str:
    """The name of the container that gets the share: the first, unless an annotation names another."""
    listed = {container.name: container for _, container, _ in listed_containers(pod)}
    name = annotations.get(CONTAINER) or next((container.name for container in pod.spec.containers), "")
    if name not in listed:
        raise Untranslatable(
            f"annotation {CONTAINER} names no container of the pod: it is '{name}'; correct it"
        )
    whole = [
        one.name
        for one in listed.values()
        if one.resources is not None and _GPU in (one.resources.limits or {})
    ]
    if whole:
        raise Untranslatable(
            f"{_GPU} and annotation {_present(annotations)} exclude each other: container {', container '.join(whole)} requests {_GPU}; "
            "remove one of them"
        )
    return name


KAI: Final = Product("kai", "kai-scheduler", f"annotation {FRACTION}", _read)
