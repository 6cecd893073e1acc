"""Misspellings of our resources, labels and annotations. No I/O.

The chart implements the same in CEL (``templates/admission/_mistakes.tpl``), which has no edit distance. So misspellings are detected by
patterns that RE2 and Python both support.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from gpushare.api import names
from gpushare.api.node.other_plugins import is_of_other_plugin
from gpushare.api.request.choice_formats import FORMATS
from gpushare.api.request.unit_conversion import CONVERTED_RESOURCES

#: Resources that containers may request; ``aliyun.com/gpu-count`` is handled separately.
_RESOURCES: Final = (
    names.GPU_MEM,
    names.GPU_CORE,
    names.GPU_WHOLE,
    names.GPU_COUNT,
    names.GPU_SHARE,
    *CONVERTED_RESOURCES,
)
_LIKE_RESOURCES: Final = re.compile(
    r"(?i)^(gpushare\.dev/|((al[iy]|ail)[a-z]*n(\.[a-z]+)*|(gpu|gup|pgu)-?share[a-z.-]*|gpsuhare\.dev)/[cv]?(gpu|gup|pgu))"
)
#: Labels of pods, first those set by users; components set the others.
_LABELS: Final = (
    names.LABEL_ADMISSION,
    names.LABEL_POD_GPU_COUNT,
    names.LABEL_POD_PLACEMENT,
    names.LABEL_POD_APART,
    names.LABEL_POD_COMPUTE_CLASS,
    names.LABEL_STANDS_FOR,
)
#: Annotations of pods that users set.
_OF_USERS: Final = (names.ANN_DEFRAGMENTATION, names.ANN_GANG_BY, *FORMATS)
_ANNOTATIONS: Final = (
    *_OF_USERS,
    names.ANN_SHARE,
    names.ANN_ALSO,
    names.ANN_RETRY,
    names.ANN_REQUESTED,
    names.ANN_ROOM_MADE,
    names.ANN_STANDS_FOR,
    names.ANN_COST_WRITTEN,
    names.ANN_UNIT_LABELS,
    names.ANN_REFUSED_SINCE,
    "gpushare.dev/config-checksum",  # set by the chart on the scheduler's pods
)
#: Matches any unknown key in our domain; keys with part of one of our names in a misspelt domain of ours; and misspelt labels of pods in
#: other domains: one letter too many, too few or wrong, or two swapped.
_LIKE_KEYS: Final = re.compile(
    r"(?i)^(gpushare\.dev/|(gpu|gup|pgu)-?(sh?are?s?|hsare|sahre|shrae|shaer)\.(d[ev]{1,2}|io|org)/.*(adm|dmi|frag|gpu|mem|core|cordon|pod|mode|place|sched|clas)|gpsuhare\.dev/|(ack|akc|cak)\.(node\.gpu|(gpu|gup|pgu)[-.]?(sh?are?s?|hsare|sahre|shrae|shaer)|gpsuhare)\.|aliyun\.com/gpu(-mem|-core\.percentage)$|(al[iy]|ail)[a-z]*n(\.[a-z]+)*/(gpu|gup|pgu)s?[-_.]?(count[a-z]?|[a-z]?c?ount|c[a-z]?o?unt|co[a-z]?u?nt|cou[a-z]?n?t|coun[a-z]?t?|ocunt|cuont|conut|coutn|num|number)$)"
)
_ON_NODES: Final = (
    names.LABEL_MAX_NODE_PODS,
    names.LABEL_DESCRIBED,
    names.LABEL_AGENT_PORT,
    names.ANN_CORDONED,
    names.ANN_DEVICES,
    names.ANN_ISOLATION,
)


def is_unknown(resource: str) -> bool:
    """Whether ``resource`` looks like a misspelling of one of ours."""
    return resource not in _RESOURCES and _LIKE_RESOURCES.search(resource) is not None


def unoffered(
    requests: Iterable[tuple[str, str]], offered: Collection[str] | None
) -> Iterator[tuple[str, str]]:
    """Requests under wrong names, as (``container c asks for …, which no node offers``, correction).

    ``requests``: pairs of container and resource. ``offered``: resources of the nodes; ``None`` if unknown, then only misspellings count.
    """
    for container, resource in requests:
        if resource == names.GPU_COUNT:
            wrong = True  # nodes have it in their capacity, but only for tools that read it
        elif is_unknown(resource):
            wrong = resource not in (offered or ())
        else:
            wrong = offered is not None and is_of_other_plugin(resource) and resource not in offered
        if wrong:
            yield (
                f"container {container} asks for {resource}, which no node offers to pods",
                f"write {meant(resource)}",
            )


def meant(resource: str) -> str:
    """The correct resource for a misspelt one, or for one of another device plugin."""
    if re.search("(?i)mem.*(percent|ratio)", resource):
        return names.GPU_MEMORY_PERCENT
    if re.search("(?i)mem", resource):
        return f"{names.GPU_MEM} in units, or {names.GPU_MEMORY} such as 6Gi"
    if re.search("(?i)core|percent|comput", resource):
        return names.GPU_CORE
    if re.search("(?i)count|num", resource):
        return f"{names.GPU_WHOLE}, or the pod's label {names.LABEL_POD_GPU_COUNT}"
    return f"{names.GPU_MEM} for a share, or {names.GPU_WHOLE} for a whole one"


def is_no_label(key: str) -> bool:
    """Whether a pod's label ``key`` looks like a misspelling of one of ours."""
    return key not in _LABELS and _LIKE_KEYS.search(key) is not None


def is_no_annotation(key: str) -> bool:
    """Whether a pod's annotation ``key`` looks like a misspelling of one of ours."""
    return key not in _ANNOTATIONS and _LIKE_KEYS.search(key) is not None


def instead(key: str) -> str:
    """The correction for a label or annotation of a pod that has no effect."""
    if key in (
        names.LABEL_ADMISSION,
        names.LABEL_POD_GPU_COUNT,
        names.LABEL_POD_PLACEMENT,
        names.LABEL_POD_APART,
        names.LABEL_POD_COMPUTE_CLASS,
    ):
        return "it is a label: write it under labels"
    if key in _OF_USERS:
        return "it is an annotation: write it under annotations"
    if key in (names.GPU_MEM, names.GPU_CORE, *CONVERTED_RESOURCES):
        return "it is a resource: write it in the limits of a container"
    if key.startswith("ack.node.gpu."):
        return "it looks like a label of nodes: to select nodes, write it under nodeSelector"
    if key in _ON_NODES:
        return "it belongs on nodes"
    if re.search("(?i)^(ack|akc|cak)|plac", key):
        return f"write label {names.LABEL_POD_PLACEMENT}"
    if re.search("(?i)^a|gpus?[-_.]?(count|num)", key):
        return f"write label {names.LABEL_POD_GPU_COUNT}"
    if re.search("(?i)gpu.?per|contain", key):
        return f"write label {names.LABEL_POD_APART}"
    if re.search("(?i)adm|dmi|ssion", key):
        return f"write label {names.LABEL_ADMISSION}"
    if re.search("(?i)cla|clsas|ss$|latenc", key):
        return f"write label {names.LABEL_POD_COMPUTE_CLASS}"
    if re.search("(?i)frag", key):
        return f"write annotation {names.ANN_DEFRAGMENTATION}"
    if re.search("(?i)mem|core", key):
        return "memory and compute are resources: write them in the limits of a container"
    return (
        f"there are labels {names.LABEL_POD_APART}, {names.LABEL_POD_COMPUTE_CLASS} and {names.LABEL_ADMISSION}, "
        f"and annotation {names.ANN_DEFRAGMENTATION}"
    )
