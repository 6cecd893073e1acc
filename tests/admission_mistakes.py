"""Pods of the admission table that are admitted with a warning: likely mistakes, and similar names that are correct."""

from gpushare.api import names
from tests.admission_words import CORE, COUNT, MEM, MEMORY, OURS, PERCENT, WHOLE, PodCase, box

GANG, LEAST = names.LABEL_GANG_NAME, names.LABEL_GANG_LEAST
LABEL, ANNOTATION = names.LABEL_ADMISSION, names.ANN_DEFRAGMENTATION
_MEMORY = f"{MEM} in units, or {MEMORY} such as 6Gi"
_CLASS = names.LABEL_POD_COMPUTE_CLASS
_OURS = f"there are labels {names.LABEL_POD_APART}, {_CLASS} and {LABEL}, and annotation {ANNOTATION}"
_AS_RESOURCES = "memory and compute are resources: write them in the limits of a container"
_IS_LABEL = "it is a label: write it under labels"
_IN_LIMITS = "it is a resource: write it in the limits of a container"
_OF_NODES = "it looks like a label of nodes: to select nodes, write it under nodeSelector"


def unknown_words(*requests: tuple[str, str, str]) -> str:
    """The warning about unknown resources, of ``(container, resource, what is meant)``."""
    found = ", ".join(
        f"container {name} asks for {resource} (write {meant})" for name, resource, meant in requests
    )
    return f"unknown resources, which no node offers, so the pod stays pending: {found}"


def large_words(*requests: tuple[str, str]) -> str:
    """The warning about more units than a GPU can have, of ``(container, amount)``."""
    found = ", ".join(f"container {name} asks for {amount}" for name, amount in requests)
    return (
        f"{MEM} is a number of units of 1GiB, without Mi or Gi, and no GPU has that many: {found}; "
        f"write the number of units, or {MEMORY} such as 6144Mi or 6Gi"
    )


def nothing_words(*containers: str) -> str:
    """The warning about zero units."""
    found = ", ".join(f"container {name}" for name in containers)
    return (
        f"{MEM}: 0 requests nothing: no share of a GPU is allocated, and no limit is enforced: {found}; "
        "write the number of units, or leave it out"
    )


def context_words(*requests: tuple[str, str]) -> str:
    """The warning about less than a context takes, of ``(container, RESOURCE: AMOUNT)``, in units of 128 MiB."""
    found = ", ".join(f"container {name} asks for {amount}" for name, amount in requests)
    return (
        f"the request may be too small for a CUDA context, which takes several hundred MiB (518 on an H200): {found}; "
        f"a program limited to that may not start: request {MEM} 5 or more, in units of 128MiB"
    )


def replacing_words(*containers: tuple[str, str]) -> str:
    """The text about variables that replace those of the node, of ``(container, variables)``."""
    found = ", ".join(f"container {name} sets {variables}" for name, variables in containers)
    return (
        f"variables under env override those that the node sets to assign the GPU share: {found}; remove them"
    )


def unmet_words(*keys: str) -> str:
    """The warning about a nodeSelector that no node meets, of ``KEY=VALUE (write …)``."""
    return f"nodeSelector names labels that no node can have: {', '.join(keys)}"


def _selecting(key: str, value: str, unmet: str = "") -> PodCase:
    spec = {"nodeSelector": {key: value}}
    return PodCase(
        f"selects-{key}-{value}", (box(),), spec=spec, warns=(unmet_words(unmet),) if unmet else ()
    )


def _wanting(name: str, affinity: dict[str, object], *unmet: str) -> PodCase:
    spec = {"affinity": {"nodeAffinity": affinity}}
    words = f"node affinity names labels that no node can have: {', '.join(unmet)}"
    return PodCase(f"wants-{name}", (box(),), spec=spec, warns=(words,) if unmet else ())


def _required(*terms: list[dict[str, object]]) -> dict[str, object]:
    found = [{"matchExpressions": expressions} for expressions in terms]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": found}}


def _preferred(*terms: list[dict[str, object]]) -> dict[str, object]:
    found = [{"weight": 1, "preference": {"matchExpressions": expressions}} for expressions in terms]
    return {"preferredDuringSchedulingIgnoredDuringExecution": found}


def _one(key: str, operator: str, *values: str) -> dict[str, object]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def _scheduled(name: str, *, near: bool = True) -> PodCase:
    warning = (
        f"schedulerName {name} is similar to {OURS}, but gpushare ignores it: write {OURS}, or leave it out"
    )
    spec = {"schedulerName": name}
    return PodCase(
        f"scheduler-{name}", (box(mem="3"),), spec=spec, scheduler=name, warns=(warning,) if near else ()
    )


_KEYS = "write ack.node.gpu.schedule, ack.node.gpu.placement or ack.node.gpu.max-pod"
_PLACEMENTS = "write binpack, spread or fragmentation"
_MODES = "write default, share, cgpu, core_mem, mps, topology or dra"


def unread_words(*keys: tuple[str, str]) -> str:
    """The warning about unknown labels and annotations, of ``(label KEY, what to do)``."""
    return f"unknown labels or annotations of a pod: {', '.join(f'{key} ({advice})' for key, advice in keys)}"


def opting_words(value: str) -> str:
    return (
        f"label {LABEL} keeps the pod's scheduler if it is 'disabled', and has no effect otherwise: it is '{value}'; "
        "write disabled, or remove the label"
    )


WISH_WORDS = (
    f"annotation {ANNOTATION} is neither 'true' nor 'false', so the pod is never moved; "
    "write one of them, or remove it"
)


def placed_words(label: str) -> str:
    return (
        f"changes that have no effect on a pod that already has a node: label {label}; "
        "change the pod's template and recreate the pod"
    )


ALONE_WORDS = (
    f"label {LEAST} has no effect without label {GANG}, the gang's name: the pod is scheduled by itself"
)


def gang_words(gang: str, least: str) -> str:
    return (
        f"label {GANG}={gang} needs {LEAST} as well, the number of pods that must run together, from 1 to 100000: "
        f"it is '{least}'; set both on every pod"
    )


def _gang(name: str, labels: dict[str, str], *warns: str) -> PodCase:
    return PodCase(f"gang-{name}", (box(mem="1"),), labels=labels, scheduler=OURS, warns=warns)


def _labelled(key: str, advice: str) -> PodCase:
    return PodCase(
        f"label-{key}", (box(),), labels={key: "x"}, warns=(unread_words((f"label {key}", advice)),)
    )


def _annotated(key: str, advice: str) -> PodCase:
    warns = (unread_words((f"annotation {key}", advice)),)
    return PodCase(f"annotation-{key}", (box(),), annotations={key: "x"}, warns=warns)


MISTAKES: tuple[PodCase, ...] = (
    # --- unknown resources
    *(
        PodCase(f"asks-{name}", (box(**{name: "3"}),), warns=(unknown_words(("c", name, meant)),))
        for name, meant in (
            ("aliyun.com/gpu-memory", _MEMORY),
            ("aliyun.com/gpumem", _MEMORY),
            ("aliyun.com/gpu_mem", _MEMORY),
            ("aliyun.com/GPU-mem", _MEMORY),
            ("aliyun.com/cgpu-mem", _MEMORY),
            ("aliyun.com/gpu-mem.percentage", PERCENT),
            ("alyun.com/gpu-mem", _MEMORY),
            ("aliyun.cn/gpu-mem", _MEMORY),
            ("aliyun/gpu-mem", _MEMORY),
            ("gpushare.dev/gpu-mem", _MEMORY),
            ("gpushare.dev/memory", _MEMORY),
            ("gpu-share.dev/gpu-memory", _MEMORY),
            ("gpushare.dev/gpu-memory-percentage", PERCENT),
            ("aliyun.com/gpu-core", CORE),
            ("aliyun.com/gpu-core-percentage", CORE),
            ("gpushare.dev/gpu-core.percentage", CORE),
            ("aliyun.com/gpu.count", f"{WHOLE}, or the pod's label {COUNT}"),
            ("aliyun.com/gpus", f"{MEM} for a share, or {WHOLE} for a whole one"),
            ("aliyun.com/pgu", f"{MEM} for a share, or {WHOLE} for a whole one"),
        )
    ),
    PodCase(
        "asks-wrongly-in-several-containers",
        (box("a", mem="1"), box("b", **{"aliyun.com/gpu-core": "30"})),
        (box("i", **{"aliyun.com/gpu-memory": "3"}),),
        scheduler=OURS,
        warns=(unknown_words(("b", "aliyun.com/gpu-core", CORE), ("i", "aliyun.com/gpu-memory", _MEMORY)),),
    ),
    *(
        PodCase(f"asks-others-{name}", (box(**{name: "3"}),))
        for name in (
            "nvidia.com/gpu",
            "nvidia.com/gpumem",
            "aliyun.com/ppu",
            "aliyun.com/rdma",
            "alibabacloud.com/gpu-core",
            "koordinator.sh/gpu-memory",
            "volcano.sh/gpu-memory",
            "tencent.com/vcuda-memory",
            "elasticgpu.io/gpu-memory",
        )
    ),
    # --- amounts
    PodCase("asks-4Gi", (box(mem="4Gi"),), scheduler=OURS, warns=(large_words(("c", "4Gi")),)),
    PodCase("asks-mib-as-units", (box(mem="8192"),), scheduler=OURS, warns=(large_words(("c", "8192")),)),
    PodCase("asks-1-TiB", (box(mem="1024"),), scheduler=OURS),
    PodCase("asks-1-TiB-and-a-unit", (box(mem="1025"),), scheduler=OURS, warns=(large_words(("c", "1025")),)),
    PodCase("asks-4-TiB-of-four", (box(mem="4096"),), labels={COUNT: "4"}, scheduler=OURS),
    PodCase(
        "asks-8-TiB-of-four",
        (box(mem="8192"),),
        labels={COUNT: "4"},
        scheduler=OURS,
        warns=(large_words(("c", "8192")),),
    ),
    PodCase(
        "asks-mib-as-units-in-init",
        (box("a", mem="3"), box("b", mem="4Ki")),
        (box("i", mem="6144"),),
        scheduler=OURS,
        warns=(large_words(("b", "4Ki"), ("i", "6144")),),
    ),
    PodCase("asks-0", (box(mem="0"),), warns=(nothing_words("c"),)),
    PodCase("asks-0Mi", (box(mem="0Mi"),), warns=(nothing_words("c"),)),
    PodCase(
        "asks-0-beside-others",
        (box("a", mem="3"), box("b", mem="0"), box("d")),
        (box("i", mem="0", whole="0"),),
        scheduler=OURS,
        warns=(nothing_words("b", "i"),),
    ),
    # --- variables
    PodCase(
        "env-of-the-node",
        (
            box("a", mem="3", env=("NVIDIA_VISIBLE_DEVICES", "MODE", "CUDA_MPS_PIPE_DIRECTORY")),
            box("b", mem="3"),
        ),
        (box("i", mem="3", env=("NVIDIA_VISIBLE_DEVICES",)),),
        scheduler=OURS,
        warns=(
            replacing_words(
                ("a", "NVIDIA_VISIBLE_DEVICES and CUDA_MPS_PIPE_DIRECTORY"), ("i", "NVIDIA_VISIBLE_DEVICES")
            ),
        ),
    ),
    PodCase(
        "env-of-the-node-without-a-gpu",
        (box("a", mem="3", env=("CUDA_VISIBLE_DEVICES",)), box("monitor", env=("NVIDIA_VISIBLE_DEVICES",))),
        scheduler=OURS,
    ),
    # --- gangs
    _gang("complete", {GANG: "train", LEAST: "100000"}),
    _gang("with-zeros", {GANG: "train", LEAST: "007"}),
    _gang("without-a-name", {GANG: ""}),
    _gang("of-words", {GANG: "train", LEAST: "two"}, gang_words("train", "two")),
    _gang("of-none", {GANG: "train", LEAST: "0"}, gang_words("train", "0")),
    _gang("too-large", {GANG: "train", LEAST: "100001"}, gang_words("train", "100001")),
    _gang("without-a-number", {GANG: "train"}, gang_words("train", "")),
    _gang("number-alone", {LEAST: "2"}, ALONE_WORDS),
    _gang("number-without-a-gang", {GANG: "", LEAST: "two"}, ALONE_WORDS),
    PodCase(
        "gang-slip-in-init",
        (box("a"),),
        (box("i", mem="1"),),
        labels={LEAST: "2"},
        scheduler=OURS,
        warns=(ALONE_WORDS,),
    ),
    PodCase("gang-of-others", (box(**{"nvidia.com/gpu": "1"}),), labels={GANG: "train", LEAST: "two"}),
    # --- labels and annotations
    *(
        _labelled(one, f"write label {LABEL}")
        for one in (
            "gpushare.dev/admision",
            "gpushare.dev/adimssion",
            "gpu-share.dev/admission",
            "gpushare.io/admission",
        )
    ),
    *(
        _labelled(one, f"write label {names.LABEL_POD_APART}")
        for one in (
            "gpushare.dev/gpu-per-containers",
            "gpushare.dev/gpu-pre-container",
            "gpsuhare.dev/gpu-per-container",
        )
    ),
    *(
        _labelled(one, f"write label {_CLASS}")
        for one in (
            "gpushare.dev/compute-clas",
            "gpushare.dev/computeclass",
            "gpushare.dev/latency",
            "gpu-share.dev/compute-class",
        )
    ),
    _labelled("gpushare.dev/gpu-count", f"write label {COUNT}"),
    _labelled("gpushare.dev/placement", f"write label {names.LABEL_POD_PLACEMENT}"),
    _labelled("gpushare.dev/gpu-mem", _AS_RESOURCES),
    _labelled("gpushare.dev/foo", _OURS),
    _annotated("gpushare.dev/note", _OURS),
    _annotated(names.ANN_DEVICES + "-old", _OURS),
    _labelled("gpushare.dev/max-pods-per-node", "it belongs on nodes"),
    _labelled(ANNOTATION, "it is an annotation: write it under annotations"),
    _labelled(names.ANN_GANG_BY, "it is an annotation: write it under annotations"),
    _labelled(MEM, _IN_LIMITS),
    _labelled(MEMORY, _IN_LIMITS),
    _labelled("ack.node.gpu.schedule", _OF_NODES),
    _labelled("ack.gpushare.placment", "write label ack.gpushare.placement"),
    _labelled("ack.gpu-share.placement", "write label ack.gpushare.placement"),
    _labelled("aliyun.com/gpu_count", "write label aliyun.com/gpu-count"),
    _labelled("aliyun.com/gpu-num", "write label aliyun.com/gpu-count"),
    _labelled("aliyun.com/gpu-cuont", "write label aliyun.com/gpu-count"),
    _labelled("aliyun.com/gup-count", "write label aliyun.com/gpu-count"),
    _labelled("alyun.com/gpu-count", "write label aliyun.com/gpu-count"),
    _labelled("ack.gpuhsare.placement", "write label ack.gpushare.placement"),
    _labelled("akc.gpushare.placement", "write label ack.gpushare.placement"),
    _annotated("gpushare.dev/defragmentaton", f"write annotation {ANNOTATION}"),
    _annotated("gpushare.dev/cordoned-gpus", "it belongs on nodes"),
    _annotated(LABEL, _IS_LABEL),
    _annotated(COUNT, _IS_LABEL),
    _annotated(names.LABEL_POD_PLACEMENT, _IS_LABEL),
    _annotated(names.LABEL_POD_APART, _IS_LABEL),
    _annotated(_CLASS, _IS_LABEL),
    _annotated("ack.node.gpu.placement", _OF_NODES),
    _annotated(CORE, _IN_LIMITS),
    PodCase(
        "unknown-label-and-annotation",
        (box(mem="3"),),
        labels={"ack.node.gpu.schedule": "share"},
        annotations={COUNT: "2"},
        scheduler=OURS,
        warns=(unread_words(("label ack.node.gpu.schedule", _OF_NODES), (f"annotation {COUNT}", _IS_LABEL)),),
    ),
    PodCase(
        "keys-of-others",
        (box(mem="3"),),
        labels={
            "aliyun.com/gpu-type": "x",
            "aliyun.accelerator/nvidia_name": "x",
            "gpushare": "true",
            "gpushare.com/team": "x",
            "gputopology.alibabacloud.com/group": "x",
            "ack.aliyun.com": "x",
            "pod-group.scheduling.sigs.k8s.io/name": "x",
            "pod-group.scheduling.sigs.k8s.io/min-available": "1",
        },
        annotations={"k8s.aliyun.com/eci-ntp-server": "x", "gpushare.alibabacloud.com/x": "x"},
        scheduler=OURS,
    ),
    PodCase(
        "opt-out-misspelt",
        (box(mem="3"),),
        labels={LABEL: "off"},
        scheduler=OURS,
        warns=(opting_words("off"),),
    ),
    PodCase("opted-in", (box(mem="3"),), labels={LABEL: "enabled"}, scheduler=OURS),
    PodCase("may-be-moved", (box(mem="3"),), annotations={ANNOTATION: "true"}, scheduler=OURS),
    PodCase(
        "in-one-of-several-gangs",
        (box(mem="3"),),
        labels={GANG: "g", LEAST: "2"},
        annotations={names.ANN_GANG_BY: "batch.kubernetes.io/job-name"},
        scheduler=OURS,
    ),
    PodCase("may-not-be-moved", (box(mem="3"),), annotations={ANNOTATION: "false"}, scheduler=OURS),
    PodCase(
        "may-be-moved-perhaps",
        (box(mem="3"),),
        annotations={ANNOTATION: "no\nway"},
        scheduler=OURS,
        warns=(WISH_WORDS,),
    ),
    # --- nodes and schedulers
    _selecting(names.LABEL_MODE, "core-mem", "ack.node.gpu.schedule=core-mem (write core_mem)"),
    *(
        _selecting(names.LABEL_MODE, value, f"ack.node.gpu.schedule={value} (write {meant})")
        for value, meant in (
            ("cGPU", "cgpu"),
            ("CoreMem", "core_mem"),
            ("Topology", "topology"),
            ("cgpuu", _MODES.removeprefix("write ")),
        )
    ),
    _selecting(names.LABEL_PLACEMENT, "bin-pack", "ack.node.gpu.placement=bin-pack (write binpack)"),
    _selecting(names.LABEL_MODE, "core_mem"),
    _selecting(names.LABEL_MODE, "default"),
    _selecting(
        names.LABEL_PLACEMENT,
        "spred",
        "ack.node.gpu.placement=spred (write binpack, spread or fragmentation)",
    ),
    _selecting(names.LABEL_MAX_PODS, "4"),
    _selecting(
        "ack.node.gpu.shedule",
        "share",
        "ack.node.gpu.shedule (write ack.node.gpu.schedule, ack.node.gpu.placement or ack.node.gpu.max-pod)",
    ),
    _selecting("kubernetes.io/arch", "core-mem"),
    _wanting(
        "mode",
        _required([_one(names.LABEL_MODE, "In", "core-mem")]),
        "ack.node.gpu.schedule=core-mem (write core_mem)",
    ),
    _wanting(
        "one-of-many",
        _required([_one("zone", "In", "a"), _one(names.LABEL_MODE, "In", "share", "cgpus", "mpss")]),
        f"ack.node.gpu.schedule=cgpus ({_MODES})",
        f"ack.node.gpu.schedule=mpss ({_MODES})",
    ),
    _wanting(
        "not-mode",
        _required([_one(names.LABEL_MODE, "NotIn", "core-mem")]),
        "ack.node.gpu.schedule=core-mem (write core_mem)",
    ),
    _wanting(
        "key",
        _required([_one("zone", "Exists")], [_one("ack.node.gpu.shedule", "Exists")]),
        f"ack.node.gpu.shedule ({_KEYS})",
    ),
    _wanting(
        "preference",
        _preferred([_one(names.LABEL_PLACEMENT, "In", "spred")]),
        f"ack.node.gpu.placement=spred ({_PLACEMENTS})",
    ),
    _wanting(
        "everywhere",
        _required([_one("ack.node.gpu.x", "In", "y")])
        | _preferred([_one("zone", "In", "b")], [_one(names.LABEL_MODE, "In", "x")]),
        f"ack.node.gpu.x ({_KEYS})",
        f"ack.node.gpu.schedule=x ({_MODES})",
    ),
    _wanting(
        "what-there-is",
        _required([_one(names.LABEL_MODE, "In", "cgpu"), _one(names.LABEL_MAX_PODS, "Gt", "3")]),
    ),
    _wanting(
        "preferably-what-there-is",
        _preferred([_one(names.LABEL_MODE, "Exists"), _one("zone", "In", "core-mem")]),
    ),
    _wanting(
        "by-name",
        {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchFields": [_one("metadata.name", "In", "n1")]}]
            }
        },
    ),
    *(
        _scheduled(name)
        for name in (
            "ack-co-schedulr",
            "ack-co-sheduler",
            "ack-scheduler",
            "ack_co_scheduler",
            "ACK-co-scheduler",
            "co-scheduler",
            "coscheduler",
            "gpushare",
            "gpushare-scheduler",
        )
    ),
    *(
        _scheduled(name, near=False)
        for name in ("other", "volcano", "koord-scheduler", "gpu-scheduler", "binpack-scheduler", "ack-scale")
    ),
    PodCase(
        "scheduler-of-no-gpu", (box(),), spec={"schedulerName": "ack-scheduler"}, scheduler="ack-scheduler"
    ),
    PodCase(
        "mistakes-of-all-kinds",
        (box("a", mem="4Gi"), box("b", **{"aliyun.com/gpu-memory": "3"})),
        labels={LABEL: "no", "ack.node.gpu.schedule": "share"},
        annotations={ANNOTATION: "maybe"},
        scheduler=OURS,
        warns=(
            unknown_words(("b", "aliyun.com/gpu-memory", _MEMORY)),
            large_words(("a", "4Gi")),
            unread_words(("label ack.node.gpu.schedule", _OF_NODES)),
            opting_words("no"),
            WISH_WORDS,
        ),
    ),
)


#: In a cluster with units of 128 MiB: in units of 1 GiB no share is so small.
SMALL: tuple[PodCase, ...] = (
    PodCase("small-4", (box(mem="4"),), scheduler=OURS, warns=(context_words(("c", f"{MEM}: 4")),)),
    PodCase("small-enough", (box(mem="5"),), scheduler=OURS),
    PodCase(
        "small-of-four",
        (box("a", mem="16"), box("b", mem="20")),
        (box("i", mem="4"),),
        labels={COUNT: "4"},
        scheduler=OURS,
        warns=(context_words(("a", f"{MEM}: 16"), ("i", f"{MEM}: 4")),),
    ),
    PodCase(
        "small-but-whole",
        (box(mem="1"),),
        labels={names.LABEL_POD_PLACEMENT: names.POD_PLACEMENT_WHOLE_DEVICE},
        scheduler=OURS,
    ),
)
#: As ``SMALL``, for templates, in which admission does not convert MiB before it warns.
SMALL_MIB: tuple[PodCase, ...] = (
    PodCase("small-512Mi", (box(memory="512Mi"),), warns=(context_words(("c", f"{MEMORY}: 512Mi")),)),
    PodCase("small-rounded-up", (box(memory="513Mi"),)),
    PodCase("small-6Gi", (box(memory="6Gi"),)),
)
