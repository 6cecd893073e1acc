"""How much memory containers may use of their GPU while it is free: the annotation ``gpushare.dev/gpu-memory-limit``.

``20Gi`` is for each container that requests GPU memory, ``main=20Gi,side=4Gi`` by name. The request stays what the scheduler counts.
"""

from collections.abc import Collection, Iterable, Mapping

from gpushare.api import names
from gpushare.api.request.choice_formats import mib_of_size, problem


def limit_texts(text: str, containers: Iterable[str]) -> dict[str, str]:
    """Limits by container, of the annotation's valid ``text``; ``containers``: those that request GPU memory."""
    if "=" not in text:
        return dict.fromkeys(containers, text)
    return dict(entry.strip().split("=") for entry in text.split(","))


def bound_memory_limits(annotations: Mapping[str, str], containers: Collection[str]) -> dict[str, int]:
    """The limits of a bound pod in MiB; empty without the annotation, and if it is invalid, as it can only have become after its binding."""
    text = annotations.get(names.ANN_GPU_MEMORY_LIMIT)
    if text is None or problem({names.ANN_GPU_MEMORY_LIMIT: text}):
        return {}
    limits = limit_texts(text, containers)
    return {name: mib_of_size(limits[name]) for name in containers if name in limits}
