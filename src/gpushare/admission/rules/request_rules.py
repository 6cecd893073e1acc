"""Validation of a pod's or template's GPU requests (spec §2). Pure.

The chart says the same in CEL, as ValidatingAdmissionPolicies of the same names with the same sentences, for clusters
that have them; ``tests/admission_cases.py`` holds both to one table.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpushare.admission.review.admission_review import Refusal, Verdict
from gpushare.admission.rules import memory_limit_rules, unit_rules
from gpushare.api import names
from gpushare.api.errors import InvalidQuantity
from gpushare.api.objects import Container, Pod
from gpushare.api.quantity import MAX_AMOUNT, parse_quantity
from gpushare.api.request import choice_formats
from gpushare.api.request.unit_conversion import CONVERTED_RESOURCES, Counting

#: Names of policies; see ``Refusal.policy``.
REQUESTS: Final = "gpushare-requests"
RECORDED: Final = "gpushare-records"
#: Annotations that record a pod's allocation, in the order in which messages name them.
RECORDS: Final = (
    names.ANN_SHARE,
    names.ANN_ALSO,
    names.ANN_RETRY,
    names.ANN_ALLOCATION,
    names.ANN_ASSIGNED,
    names.ANN_ASSUME_TIME,
    names.ANN_CORE,
    names.ANN_MEM_INDEX,
    names.ANN_MEM_POD,
    names.ANN_MEM_DEVICE,
    names.ANN_MEM_ASSIGNED,
    names.ANN_MEM_ASSUME_TIME,
)
#: Labels that are validated together with the requests.
_JUDGED: Final = (
    names.LABEL_POD_GPU_COUNT,
    names.LABEL_POD_PLACEMENT,
    names.LABEL_POD_APART,
    names.LABEL_POD_COMPUTE_CLASS,
)
_OURS: Final = (names.GPU_MEM, names.GPU_CORE, names.GPU_COUNT, names.GPU_WHOLE, *CONVERTED_RESOURCES)
_DEFAULT_SCHEDULER: Final = ("", "default-scheduler")
_COUNT: Final = re.compile(r"[1-9][0-9]{0,3}")
#: Paths in a container that the node agent mounts for isolation (docs/developer/isolation.md), in any spelling; ``..`` may
#: lead anywhere. A volume there would hide the mount.
_OVER_ISOLATION: Final = re.compile(
    r"(^|/)\.\.(/|$)"
    r"|^(/|\./)*(var/+(\./+)*)?run/+(\./+)*gpushare(/|$)"
    r"|^(/|\./)*etc/+(\./+)*ld\.so\.preload(/|$)"
    r"|(^|/)lib(cuda|nvidia-ml)\.so[^/]*(/\.?)*$"
)


_PLAIN: Final = Counting()
#: On mirror pods, which kubelets create; but any user may write it.
_MIRROR: Final = "kubernetes.io/config.mirror"
_KUBELETS: Final = "system:node:"


@dataclass(frozen=True, slots=True)
class _Asking:
    """A container's GPU requests: the texts as written, and their values."""

    name: str
    texts: Mapping[str, str]
    memory: bool
    """Whether it requests memory, in any unit."""
    units: float
    """Requested memory in units, if requested in units."""
    core: float
    whole: float
    claims: bool
    """Whether it uses a ResourceClaim, of whichever device class, or kube-scheduler makes one for it."""
    early: bool
    """Whether it is an init container."""
    over_isolation: tuple[str, ...]
    """Mount paths that would hide isolation's mounts."""

    def __str__(self) -> str:
        return f"container {self.name}"


def judge(pod: Pod, counting: Counting = _PLAIN, *, may_have_node: bool = False) -> Verdict:
    """The first rule that ``pod`` violates (policies report one, too); empty if none.

    ``counting`` is how requests in MiB or percent are converted to units. ``may_have_node``: it exists already, is
    created by one of those who write records, or is a mirror pod.
    """
    asking = list(_asking(pod))
    labels = pod.metadata.labels or {}
    if text := carried(pod.metadata.annotations):
        return Verdict([Refusal(RECORDED, text)])
    if text := unit_rules.problem({one.name: one.texts for one in asking}, counting):
        return Verdict([Refusal(REQUESTS, text, invalid=True)])
    for rule in _RULES:
        if text := rule(asking, labels):
            return Verdict([Refusal(REQUESTS, text, invalid=True)])
    if asking and (text := choice_formats.problem(pod.metadata.annotations or {})):
        return Verdict([Refusal(REQUESTS, text, invalid=True)])
    limit = (pod.metadata.annotations or {}).get(names.ANN_GPU_MEMORY_LIMIT)
    sharing = {one.name: one.texts for one in asking if one.memory}
    if sharing and limit and (text := memory_limit_rules.problem(limit, sharing, labels, counting)):
        return Verdict([Refusal(REQUESTS, text, invalid=True)])
    if not may_have_node and (text := _bound_by_hand(pod)):
        return Verdict([Refusal(REQUESTS, text, invalid=True)])
    return Verdict()


def is_mirror(pod: Pod, user: str) -> bool:
    """Whether ``pod``, created by ``user``, is a kubelet's mirror of a static pod."""
    return user.startswith(_KUBELETS) and _MIRROR in (pod.metadata.annotations or {})


def carried(annotations: Mapping[str, str] | None) -> str:
    """The message for a pod or binding submitted with allocation annotations; empty if there are none."""
    found = [name for name in RECORDS if name in (annotations or {})]
    if not found:
        return ""
    return (
        f"annotations that only gpushare itself writes: {', '.join(found)}; remove them and resubmit "
        "(manifests exported from a cluster contain them)"
    )


def judged_alike(pod: Pod, before: Pod) -> bool:
    """Whether ``pod`` needs no validation because ``before`` had the same requests.

    What was taken by an older version, or before the rules came, can be scaled, labelled and cleared away.
    """
    return (
        pod.spec == before.spec
        and all(
            (pod.metadata.labels or {}).get(label) == (before.metadata.labels or {}).get(label)
            for label in _JUDGED
        )
        and all(
            (pod.metadata.annotations or {}).get(name) == (before.metadata.annotations or {}).get(name)
            for name in (*RECORDS, *choice_formats.FORMATS)
        )
    )


def pointing(pod: Pod, scheduler: str = names.SCHEDULER_NAME) -> list[dict[str, Any]]:
    """The JSON patch that sets our scheduler's name; empty if the pod keeps the one it names."""
    labels = pod.metadata.labels or {}
    if (
        labels.get(names.LABEL_ADMISSION) == "disabled"
        or pod.spec.node_name
        or pod.spec.scheduler_name not in _DEFAULT_SCHEDULER
        or not asks_for_gpu(pod)
    ):
        return []
    return [{"op": "add", "path": "/spec/schedulerName", "value": scheduler}]


def asks_for_gpu(pod: Pod) -> bool:
    """Whether a container requests a share of a GPU, or a whole one."""
    return any(one.memory or one.core > 0 or one.whole > 0 for one in _asking(pod))


def _asking(pod: Pod) -> Iterator[_Asking]:
    apps = len(pod.spec.containers)
    for at, container in enumerate((*pod.spec.containers, *(pod.spec.init_containers or ()))):
        texts = _texts(container)
        claims = _uses_claim(container)
        if texts or claims:
            units, core, whole = (
                _number(texts.get(one)) for one in (names.GPU_MEM, names.GPU_CORE, names.GPU_WHOLE)
            )
            memory = units > 0 or any(one in texts for one in CONVERTED_RESOURCES)
            mounts = [one.mount_path for one in container.volume_mounts or ()]
            over = tuple(path for path in mounts if _OVER_ISOLATION.search(path))
            yield _Asking(container.name, texts, memory, units, core, whole, claims, at >= apps, over)


def _uses_claim(container: Container) -> bool:
    resources = container.resources
    if resources is None:
        return False
    extended = (
        one == names.GPU_SHARE or one.startswith(names.DEVICE_CLASS_PREFIX) for one in resources.limits or {}
    )
    return bool(resources.claims) or any(extended)


def _texts(container: Container) -> dict[str, str]:
    resources = container.resources
    if resources is None:
        return {}
    asked = {**(resources.requests or {}), **(resources.limits or {})}
    return {one: str(asked[one]) for one in _OURS if one in asked}


def _number(text: str | None) -> float:
    """NaN if ``text`` is not a quantity, which the API server rejects itself."""
    if text is None:
        return 0
    try:
        value = parse_quantity(text)
    except InvalidQuantity:
        return float("nan")
    return int(value) if value.denominator == 1 else float(value)


def _core_percentage(asking: list[_Asking], labels: Mapping[str, str]) -> str:
    wrong = [
        f"{one} requests {one.texts[names.GPU_CORE]}"
        for one in asking
        if names.GPU_CORE in one.texts and not (5 <= one.core <= 100 and one.core % 5 == 0)
    ]
    return f"{names.GPU_CORE} must be a multiple of 5 from 5 to 100: {', '.join(wrong)}" if wrong else ""


def _core_needs_memory(asking: list[_Asking], labels: Mapping[str, str]) -> str:
    lonely = [str(one) for one in asking if one.core > 0 and not one.memory]
    if not lonely:
        return ""
    return f"{names.GPU_CORE} requires {names.GPU_MEM} in the same container: add {names.GPU_MEM} to the limits of {', '.join(lonely)}"


def _equal_kinds(asking: list[_Asking], labels: Mapping[str, str]) -> str:
    both = [str(one) for one in asking if one.memory and one.core > 0]
    alone = [str(one) for one in asking if one.memory and not one.core > 0]
    if not both or not alone:
        return ""
    return (
        f"either all GPU containers of a pod request {names.GPU_CORE} or none does: with it {', '.join(both)}, "
        f"without it {', '.join(alone)}; add it to all of them, or to none"
    )


def _whole_or_share(asking: list[_Asking], labels: Mapping[str, str]) -> str:
    whole = [str(one) for one in asking if one.whole > 0]
    shared = [str(one) for one in asking if one.memory or one.core > 0]
    if not whole or not shared:
        return ""
    return (
        f"{names.GPU_WHOLE} cannot be combined with {names.GPU_MEM}, because no node offers both: whole GPUs for "
        f"{', '.join(whole)}, a share for {', '.join(shared)}; use the same one in all containers"
    )


def _count_is_a_label(asking: list[_Asking], labels: Mapping[str, str]) -> str:
    wrong = [str(one) for one in asking if names.GPU_COUNT in one.texts]
    if not wrong:
        return ""
    return (
        f"{names.GPU_COUNT} cannot be requested by containers: remove it from the limits of {', '.join(wrong)}, "
        "and set the pod's label of that name to spread a pod over GPUs"
    )


def _gpu_count(asking: list[_Asking], labels: Mapping[str, str]) -> str:
    count = labels.get(names.LABEL_POD_GPU_COUNT)
    if count is None or not _shares(asking):
        return ""
    label = names.LABEL_POD_GPU_COUNT
    if _COUNT.fullmatch(count) is None:
        return (
            f"label {label} must be a whole number from 1 to 9999, without leading zeros: it is '{count}'; "
            "write the number of GPUs, or remove the label"
        )
    if count == "1":
        return ""
    computing = [str(one) for one in asking if one.core > 0]
    if computing:
        return (
            f"label {label}={count} and {names.GPU_CORE} exclude each other: remove the label, "
            f"or {names.GPU_CORE} from {', '.join(computing)}"
        )
    uneven = [
        f"{one} asks for {one.texts[names.GPU_MEM]}"
        for one in asking
        if one.units > MAX_AMOUNT or (one.units > 0 and one.units % int(count))
    ]
    if not uneven:
        return ""
    return (
        f"label {label}={count} spreads {names.GPU_MEM} over {count} GPUs equally, in whole units: {', '.join(uneven)}; "
        f"use a multiple of {count}, or change the label"
    )


def _placement(asking: list[_Asking], labels: Mapping[str, str]) -> str:
    value = labels.get(names.LABEL_POD_PLACEMENT)
    if value in (None, names.POD_PLACEMENT_WHOLE_DEVICE) or not _shares(asking):
        return ""
    return (
        f"label {names.LABEL_POD_PLACEMENT} accepts only the value {names.POD_PLACEMENT_WHOLE_DEVICE}: it is '{value}'; "
        "correct it, or remove the label"
    )


def _compute_class(asking: list[_Asking], labels: Mapping[str, str]) -> str:
    label = names.LABEL_POD_COMPUTE_CLASS
    value = labels.get(label)
    if value is None or value in names.COMPUTE_CLASSES or not _shares(asking):
        return ""
    return (
        f"label {label} must be '{names.COMPUTE_LATENCY}' or '{names.COMPUTE_BATCH}': it is '{value}'; "
        "correct it, or remove the label"
    )


def _apart(asking: list[_Asking], labels: Mapping[str, str]) -> str:
    label = names.LABEL_POD_APART
    value = labels.get(label, "false")
    if value == "false" or not _shares(asking):
        return ""
    if value != "true":
        return f"label {label} must be 'true' or 'false': it is '{value}'; correct it, or remove the label"
    beside = [
        f"{one}={labels[one]}"
        for one in (names.LABEL_POD_GPU_COUNT, names.LABEL_POD_PLACEMENT)
        if labels.get(one, "1") != "1"
    ]
    if beside:
        return (
            f"label {label}=true gives each container its own GPU and cannot be combined with label {', '.join(beside)}: "
            "remove one of them"
        )
    early = [str(one) for one in asking if one.memory and one.early]
    if early:
        return (
            f"label {label}=true does not support init containers with GPU requests: {', '.join(early)}; "
            "request GPUs only in regular containers, or remove the label"
        )
    # MiB and percentage requests are compared by the scheduler, after conversion to units.
    in_units = [one for one in asking if one.units > 0]
    if len({one.units for one in in_units}) <= 1 and len({one.core for one in asking if one.memory}) <= 1:
        return ""
    amounts = ", ".join(_amounts(one) for one in asking if one.memory)
    return (
        f"label {label}=true requires the same request in every GPU container: {amounts}; "
        "use equal requests, or remove the label"
    )


def _amounts(one: _Asking) -> str:
    asked = next(
        text for name, text in one.texts.items() if name == names.GPU_MEM or name in CONVERTED_RESOURCES
    )
    core = f" and {one.texts[names.GPU_CORE]}%" if one.core > 0 else ""
    return f"{one} asks for {asked}{core}"


def _nothing_over_isolation(asking: list[_Asking], labels: Mapping[str, str]) -> str:
    hiding = [
        f"{one} mounts {', '.join(one.over_isolation)}"
        for one in asking
        if (one.memory or one.claims) and one.over_isolation
    ]
    if not hiding:
        return ""
    return f"volumes would hide the isolation files: {'; '.join(hiding)}; use other mount paths"


def _bound_by_hand(pod: Pod) -> str:
    if not pod.spec.node_name or not asks_for_gpu(pod):
        return ""
    return (
        f"spec.nodeName is {pod.spec.node_name}: no scheduler would allocate a GPU to the pod; "
        "remove it, and select nodes with nodeSelector or affinity"
    )


def _shares(asking: list[_Asking]) -> bool:
    return any(one.memory for one in asking)


_RULES: Final[tuple[Callable[[list[_Asking], Mapping[str, str]], str], ...]] = (
    _core_percentage,
    _core_needs_memory,
    _equal_kinds,
    _whole_or_share,
    _count_is_a_label,
    _gpu_count,
    _placement,
    _apart,
    _compute_class,
    _nothing_over_isolation,
)
