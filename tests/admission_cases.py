"""One table of what admission admits and rejects, the same for policies, webhook and playground.

``PODS`` are pods, also put into templates by ``workloads``; ``admission_writes`` continues with writes of different
users on pods, bindings and nodes. ``says`` is our complete message (the API server prepends some words), or,
if ``by`` is ``kubernetes``, a part of the API server's own message, before our admission is called.
``warns`` are the warnings of an accepted or rejected object. ``units`` are the stored pod's units, if it requested MiB or percent, counted with ``COUNTING``.
If several rules are broken, the first in this order answers: MiB, percent, one way, card, less than a unit, compute's value, compute without memory, kinds, whole
beside share, count as resource, the label for several GPUs (value, compute, parts), placement, the label for a GPU each, compute class, volumes, annotations that choose GPUs, node.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from gpushare.api import names
from tests.admission_apart import APART
from tests.admission_memory_amounts import MEMORY_AMOUNTS
from tests.admission_mistakes import MISTAKES, large_words
from tests.admission_words import (
    CLAIM,
    COUNT,
    MEM,
    OURS,
    PLACED,
    RECORDS,
    SCRATCH,
    JsonObject,
    PodCase,
    box,
    carried_words,
    choice_words,
    class_words,
    core_words,
    count_words,
    hiding_words,
    kinds_words,
    lonely_words,
    node_words,
    placement_words,
    resource_words,
    spread_core_words,
    uneven_words,
    whole_words,
)

#: Values of annotations that are accepted, and rejected.
CHOSEN: Mapping[str, tuple[str, ...]] = {
    names.ANN_GPU_MODEL: ("A10", "NVIDIA A100-SXM4-80GB, Tesla T4"),
    names.ANN_GPU_MODEL_EXCLUDE: ("T4,P4",),
    names.ANN_GPU_ARCHITECTURE: ("ampere, ada-lovelace",),
    names.ANN_GPU_ARCHITECTURE_EXCLUDE: ("kepler",),
    names.ANN_GPU_MEMORY_MIN: ("24Gi",),
    names.ANN_GPU_MEMORY_MAX: ("16160Mi",),
    names.ANN_GPU_MEMORY_LIMIT: ("20Gi", "c=1024Mi"),
    names.ANN_GPU_UUID: ("GPU-1a2b-3c,MIG-4d",),
    names.ANN_GPU_UUID_EXCLUDE: ("GPU-1",),
    names.ANN_GPU_PLACEMENT: ("spread",),
    names.ANN_NODE_PLACEMENT: ("fragmentation",),
}
WRONGLY_CHOSEN: Mapping[str, tuple[str, ...]] = {
    names.ANN_GPU_MODEL: ("", "A10,,L4", "A10;L4"),
    names.ANN_GPU_MODEL_EXCLUDE: ("-",),
    names.ANN_GPU_ARCHITECTURE: ("Ampere",),
    names.ANN_GPU_ARCHITECTURE_EXCLUDE: ("ada",),
    names.ANN_GPU_MEMORY_MIN: ("24", "24GB"),
    names.ANN_GPU_MEMORY_MAX: ("0Gi",),
    names.ANN_GPU_MEMORY_LIMIT: ("20", "c=20G", "c=20Gi,", "C=20Gi", "c 20Gi"),
    names.ANN_GPU_UUID: ("0",),
    names.ANN_GPU_UUID_EXCLUDE: ("GPU-1 GPU-2",),
    names.ANN_GPU_PLACEMENT: ("Binpack",),
    names.ANN_NODE_PLACEMENT: ("pack",),
}

PODS: tuple[PodCase, ...] = (
    *MEMORY_AMOUNTS,
    *MISTAKES,
    *APART,
    # --- accepted
    PodCase("nothing-of-ours", (box(cpu="1"),)),
    PodCase("no-resources", ({"name": "c", "image": "busybox"},)),
    PodCase("memory", (box(mem="3"),), scheduler=OURS),
    PodCase("memory-in-another-notation", (box(mem="1k"),), scheduler=OURS),
    PodCase("memory-beyond-all", (box(mem="1e30"),), scheduler=OURS, warns=(large_words(("c", "1e30")),)),
    PodCase("memory-and-compute", (box(mem="2", core="30"),), scheduler=OURS),
    PodCase("compute-5", (box(mem="1", core="5"),), scheduler=OURS),
    PodCase("compute-100", (box(mem="1", core="100"),), scheduler=OURS),
    PodCase("compute-in-another-notation", (box(mem="1", core="1e2"),), scheduler=OURS),
    PodCase("requests-beside-limits", (box(mem="3", requests={"mem": "3"}),), scheduler=OURS),
    PodCase("one-of-two-containers", (box("web", cpu="1"), box("c", mem="3")), scheduler=OURS),
    PodCase(
        "two-containers-alike", (box("a", mem="1", core="5"), box("b", mem="2", core="10")), scheduler=OURS
    ),
    PodCase("init-container", (box("web"),), (box("i", mem="3"),), scheduler=OURS),
    PodCase("sidecar", (box("web"),), (box("s", mem="3", sidecar=True),), scheduler=OURS),
    PodCase(
        "sidecar-and-app-alike", (box("c", mem="1"),), (box("s", mem="3", sidecar=True),), scheduler=OURS
    ),
    PodCase("whole-gpu", (box(whole="1"),), scheduler=OURS),
    PodCase("whole-gpu-and-no-memory", (box(whole="1", mem="0"),), scheduler=OURS),
    PodCase("no-whole-gpu", (box(whole="0"),)),
    PodCase("names-our-scheduler", (box(mem="3"),), spec={"schedulerName": OURS}, scheduler=OURS),
    PodCase("names-another-scheduler", (box(mem="3"),), spec={"schedulerName": "other"}, scheduler="other"),
    PodCase("opted-out-pod", (box(mem="3"),), labels={names.LABEL_ADMISSION: "disabled"}),
    PodCase("opted-out-namespace", (box(mem="3"),), namespace_labels={names.LABEL_ADMISSION: "disabled"}),
    PodCase("has-a-node-without-gpu", (box(cpu="1"),), spec={"nodeName": "n1"}),
    PodCase("gpu-count-1", (box(mem="3"),), labels={COUNT: "1"}, scheduler=OURS),
    PodCase("gpu-count-1-with-compute", (box(mem="3", core="5"),), labels={COUNT: "1"}, scheduler=OURS),
    PodCase("gpu-count-without-gpu", (box(cpu="1"),), labels={COUNT: "two"}),
    PodCase("placement-without-gpu", (box(cpu="1"),), labels={names.LABEL_POD_PLACEMENT: "spread"}),
    PodCase(
        "class-latency",
        (box(mem="2", core="30"),),
        labels={names.LABEL_POD_COMPUTE_CLASS: "latency"},
        scheduler=OURS,
    ),
    PodCase(
        "class-batch-without-compute",
        (box(mem="2"),),
        labels={names.LABEL_POD_COMPUTE_CLASS: "batch"},
        scheduler=OURS,
    ),
    PodCase("class-without-gpu", (box(cpu="1"),), labels={names.LABEL_POD_COMPUTE_CLASS: "fast"}),
    PodCase(
        "class-of-whole-gpus",
        (box(whole="1"),),
        labels={names.LABEL_POD_COMPUTE_CLASS: "fast"},
        scheduler=OURS,
    ),
    PodCase(
        "mounts-elsewhere",
        (box(mem="3", mounts=("/run", "/run/gpushare-data", "/etc/ld.so.conf.d", "/data/run/gpushare")),),
        spec=SCRATCH,
        scheduler=OURS,
    ),
    PodCase("mounts-without-gpu", (box(cpu="1", mounts=("/run/gpushare",)),), spec=SCRATCH),
    PodCase("other-annotations", (box(mem="3"),), annotations={"example.com/note": "x"}, scheduler=OURS),
    PodCase("gpu-count-2", (box(mem="4"),), labels={COUNT: "2"}, scheduler=OURS),
    PodCase(
        "gpu-count-2-in-all-containers",
        (box("a", mem="4"), box("b", mem="2"), box("web", cpu="1")),
        (box("i", mem="6"), box("s", mem="2", sidecar=True)),
        labels={COUNT: "2"},
        scheduler=OURS,
    ),
    PodCase("whole-device", (box(mem="4"),), labels=PLACED, scheduler=OURS),
    PodCase("whole-device-with-compute", (box(mem="4", core="30"),), labels=PLACED, scheduler=OURS),
    PodCase("whole-devices", (box(mem="4"),), labels={COUNT: "2", **PLACED}, scheduler=OURS),
    # --- choice of GPUs and placement
    *(
        PodCase(
            f"{name.partition('/')[2]}-{number}", (box(mem="1"),), annotations={name: value}, scheduler=OURS
        )
        for name, values in CHOSEN.items()
        for number, value in enumerate(values)
    ),
    *(
        PodCase(
            f"wrong-{name.partition('/')[2]}-{number}",
            (box(mem="1"),),
            annotations={name: value},
            says=choice_words(name, value),
        )
        for name, values in WRONGLY_CHOSEN.items()
        for number, value in enumerate(values)
    ),
    PodCase("choice-without-gpu", (box(cpu="1"),), annotations={names.ANN_GPU_MEMORY_MIN: "24"}),
    PodCase(
        "choice-of-whole-gpus",
        (box(whole="1"),),
        annotations={names.ANN_GPU_MODEL: "A10;L4"},
        says=choice_words(names.ANN_GPU_MODEL, "A10;L4"),
    ),
    PodCase(
        "choice-too-long",
        (box(mem="1"),),
        annotations={names.ANN_GPU_MODEL: "A" * 4097},
        says="annotation gpushare.dev/gpu-model has 4097 characters, the maximum is 4096: shorten it",
    ),
    PodCase(
        "memory-bounds",
        (box(mem="1"),),
        annotations={names.ANN_GPU_MEMORY_MIN: "16384Mi", names.ANN_GPU_MEMORY_MAX: "16Gi"},
        scheduler=OURS,
    ),
    PodCase(
        "memory-bounds-crossed",
        (box(mem="1"),),
        annotations={names.ANN_GPU_MEMORY_MIN: "24Gi", names.ANN_GPU_MEMORY_MAX: "16Gi"},
        says="annotation gpushare.dev/gpu-memory-min=24Gi is above gpushare.dev/gpu-memory-max=16Gi, so that every GPU is excluded; correct one of them",
    ),
    PodCase(
        "memory-limit-by-container",
        (box("a", mem="2"), box("b", mem="3"), box("web", cpu="1")),
        annotations={names.ANN_GPU_MEMORY_LIMIT: "b=3Gi, a=2048Mi"},
        scheduler=OURS,
    ),
    PodCase(
        "memory-limit-of-a-container-without-gpu",
        (box("a", mem="2"), box("web", cpu="1")),
        annotations={names.ANN_GPU_MEMORY_LIMIT: "a=3Gi,web=3Gi,other=1Gi"},
        says="annotation gpushare.dev/gpu-memory-limit names containers that do not request GPU memory: container web, container other; "
        "correct it",
    ),
    PodCase(
        "memory-limit-below-the-request",
        (box("a", mem="2"), box("b", mem="4")),
        annotations={names.ANN_GPU_MEMORY_LIMIT: "3Gi"},
        says="annotation gpushare.dev/gpu-memory-limit is below the request: container b requests 4096Mi and may use 3Gi; "
        "raise it, or remove the annotation",
    ),
    PodCase(
        "memory-limit-on-several-gpus",
        (box(mem="4"),),
        labels={COUNT: "2"},
        annotations={names.ANN_GPU_MEMORY_LIMIT: "8Gi"},
        says="annotation gpushare.dev/gpu-memory-limit is for containers with a share of one GPU, and excludes label "
        "aliyun.com/gpu-count=2: remove one of them",
    ),
    # Requests in MiB are counted in whole units.
    PodCase(
        "memory-limit-below-the-request-in-mib",
        (box("a", memory="2Gi"), box("b", memory="6145Mi")),
        annotations={names.ANN_GPU_MEMORY_LIMIT: "6145Mi"},
        says="annotation gpushare.dev/gpu-memory-limit is below the request: container b requests 7168Mi and may "
        "use 6145Mi; raise it, or remove the annotation",
    ),
    PodCase("memory-limit-without-gpu", (box(cpu="1"),), annotations={names.ANN_GPU_MEMORY_LIMIT: "8Gi"}),
    # --- compute
    PodCase("compute-7", (box(mem="1", core="7"),), says=core_words(("c", "7"))),
    PodCase("compute-0", (box(mem="1", core="0"),), says=core_words(("c", "0"))),
    PodCase("compute-105", (box(mem="1", core="105"),), says=core_words(("c", "105"))),
    PodCase("compute-3", (box(mem="1", core="3"),), says=core_words(("c", "3"))),
    PodCase(
        "compute-7-in-init", (box("c", mem="1"),), (box("i", mem="1", core="7"),), says=core_words(("i", "7"))
    ),
    PodCase(
        "compute-7-in-sidecar",
        (box("c"),),
        (box("s", mem="1", core="7", sidecar=True),),
        says=core_words(("s", "7")),
    ),
    PodCase(
        "compute-wrong-twice",
        (box("a", mem="1", core="7"), box("b", mem="1", core="10"), box("d", mem="1", core="200")),
        says=core_words(("a", "7"), ("d", "200")),
    ),
    PodCase("compute-huge", (box(mem="1", core="5E"),), says=core_words(("c", "5E"))),
    PodCase(
        "compute-wrong-though-opted-out",
        (box(mem="1", core="7"),),
        labels={names.LABEL_ADMISSION: "disabled"},
        says=core_words(("c", "7")),
    ),
    PodCase("compute-alone", (box(core="30"),), says=lonely_words("container c")),
    PodCase("compute-with-no-memory", (box(mem="0", core="30"),), says=lonely_words("container c")),
    PodCase(
        "compute-alone-beside-memory",
        (box("a", mem="3"), box("b", core="30")),
        says=lonely_words("container b"),
    ),
    PodCase(
        "compute-alone-twice",
        (box("a", core="30"),),
        (box("i", core="30"),),
        says=lonely_words("container a, container i"),
    ),
    # --- kinds
    PodCase(
        "kinds-differ",
        (box("a", mem="1", core="30"), box("b", mem="1")),
        says=kinds_words("container a", "container b"),
    ),
    PodCase(
        "kinds-differ-in-init",
        (box("a", mem="1"),),
        (box("i", mem="1", core="30"),),
        says=kinds_words("container i", "container a"),
    ),
    PodCase(
        "kinds-differ-in-sidecar",
        (box("a", mem="1", core="30"), box("b")),
        (box("s", mem="1", sidecar=True),),
        says=kinds_words("container a", "container s"),
    ),
    PodCase("whole-beside-share", (box(whole="1", mem="1"),), says=whole_words("container c", "container c")),
    PodCase(
        "whole-beside-share-of-another",
        (box("a", whole="1"), box("b", mem="1")),
        says=whole_words("container a", "container b"),
    ),
    PodCase("gpu-count-as-resource", (box(mem="2", count="1"),), says=resource_words("container c")),
    # --- labels
    PodCase("gpu-count-0", (box(mem="2"),), labels={COUNT: "0"}, says=count_words("0")),
    PodCase("gpu-count-word", (box(mem="2"),), labels={COUNT: "two"}, says=count_words("two")),
    PodCase("gpu-count-empty", (box(mem="2"),), labels={COUNT: ""}, says=count_words("")),
    PodCase("gpu-count-fraction", (box(mem="2"),), labels={COUNT: "1.5"}, says=count_words("1.5")),
    PodCase("gpu-count-leading-zero", (box(mem="2"),), labels={COUNT: "02"}, says=count_words("02")),
    PodCase(
        "gpu-count-huge",
        (box(mem="2"),),
        labels={COUNT: "99999999999999999999"},
        says=count_words("99999999999999999999"),
    ),
    PodCase(
        "gpu-count-uneven",
        (box(mem="4"),),
        labels={COUNT: "3"},
        says=uneven_words("3", "container c asks for 4"),
    ),
    PodCase(
        "gpu-count-above-memory",
        (box(mem="2"),),
        labels={COUNT: "4"},
        says=uneven_words("4", "container c asks for 2"),
    ),
    PodCase(
        "gpu-count-uneven-in-one",
        (box("a", mem="4"), box("b", mem="3")),
        (box("i", mem="5"),),
        labels={COUNT: "2"},
        says=uneven_words("2", "container b asks for 3, container i asks for 5"),
    ),
    PodCase(
        "gpu-count-with-compute",
        (box(mem="4", core="30"),),
        labels={COUNT: "2"},
        says=spread_core_words("2", "container c"),
    ),
    PodCase(
        "placement-unknown",
        (box(mem="4"),),
        labels={names.LABEL_POD_PLACEMENT: "spread"},
        says=placement_words("spread"),
    ),
    PodCase(
        "placement-empty", (box(mem="4"),), labels={names.LABEL_POD_PLACEMENT: ""}, says=placement_words("")
    ),
    *(
        PodCase(
            f"class-{value or 'empty'}",
            (box(mem="2", core="30"),),
            labels={names.LABEL_POD_COMPUTE_CLASS: value},
            says=class_words(value),
        )
        for value in ("fast", "Latency", "")
    ),
    # --- volumes
    *(
        PodCase(
            f"mounts-{path}", (box(mem="3", mounts=(path,)),), spec=SCRATCH, says=hiding_words(("c", path))
        )
        for path in (
            "/run/gpushare",
            "run/gpushare/limits",
            "/var/run/gpushare/",
            "//run/.//gpushare/driver",
            "/data/../run/gpushare",
            "/etc/ld.so.preload",
            "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
            "/usr/lib/x86_64-linux-gnu/libcuda.so.1/.",
            "/usr/lib/x86_64-linux-gnu/.//libcuda.so.1//././/",
            "/etc/ld.so.preload/.",
            "/usr/lib64/libnvidia-ml.so.535.261.03",
        )
    ),
    PodCase(
        "mounts-over-isolation-twice",
        (box("a", mem="1", mounts=("/run/gpushare", "/data", "/etc/ld.so.preload")), box("b")),
        (box("i", mem="1", mounts=("/run/gpushare/usage",)),),
        spec=SCRATCH,
        says=hiding_words(("a", "/run/gpushare, /etc/ld.so.preload"), ("i", "/run/gpushare/usage")),
    ),
    PodCase(
        "claims-mount-elsewhere",
        (box(claims=("gpu",), mounts=("/data",)), box("b", mounts=("/run/gpushare",))),
        spec=SCRATCH | CLAIM,
    ),
    PodCase(
        "claims-mount-over-isolation",
        (box("a", claims=("gpu",), mounts=("/run/gpushare",)), box("b")),
        (box("i", claims=("gpu",), mounts=("/etc/ld.so.preload",)),),
        spec=SCRATCH | CLAIM,
        says=hiding_words(("a", "/run/gpushare"), ("i", "/etc/ld.so.preload")),
    ),
    PodCase("shares-by-extended-resource", (box(**{names.GPU_SHARE: "1"}),)),
    PodCase(
        "extended-resources-mount-over-isolation",
        (
            box("a", mounts=("/run/gpushare",), **{names.GPU_SHARE: "1"}),
            box("b", mounts=("/run/gpushare",), **{f"{names.DEVICE_CLASS_PREFIX}gpushare.dev": "1"}),
        ),
        spec=SCRATCH,
        says=hiding_words(("a", "/run/gpushare"), ("b", "/run/gpushare")),
    ),
    # --- nodes
    PodCase("has-a-node", (box(mem="3"),), spec={"nodeName": "n1"}, says=node_words("n1")),
    PodCase(
        "has-a-node-and-memory-in-init",
        (box(cpu="1"),),
        (box("i", mem="3"),),
        spec={"nodeName": "n1"},
        says=node_words("n1"),
    ),
    PodCase(
        "has-a-node-and-calls-itself-a-mirror",
        (box(mem="3"),),
        annotations={"kubernetes.io/config.mirror": "x"},
        spec={"nodeName": "n1"},
        says=node_words("n1"),
    ),
    PodCase("has-a-node-and-whole-gpus", (box(whole="1"),), spec={"nodeName": "n1"}, says=node_words("n1")),
    PodCase(
        "has-a-node-though-opted-out",
        (box(mem="3"),),
        labels={names.LABEL_ADMISSION: "disabled"},
        spec={"nodeName": "n1"},
        says=node_words("n1"),
    ),
    # --- annotations
    *(
        PodCase(f"carries-{name}", (box(cpu="1"),), annotations={name: "x"}, says=carried_words(name))
        for name in RECORDS
    ),
    PodCase(
        "exported-from-a-cluster",
        (box(mem="3"),),
        annotations={names.ANN_MEM_INDEX: "0", names.ANN_SHARE: "{}", "note": "x"},
        says=carried_words(names.ANN_SHARE, names.ANN_MEM_INDEX),
    ),
    # --- rejected by Kubernetes itself
    PodCase("memory-fraction", (box(mem="500m"),), says="must be an integer", by="kubernetes"),
    PodCase("compute-fraction", (box(mem="1", core="500m"),), says="must be an integer", by="kubernetes"),
    PodCase("memory-negative", (box(mem="-1"),), says="must be greater than or equal to 0", by="kubernetes"),
    PodCase(
        "requests-without-limits",
        (box(requests={"mem": "3"}),),
        says="Limit must be set for non overcommitable resources",
        by="kubernetes",
    ),
    PodCase(
        "requests-other-than-limits",
        (box(mem="3", requests={"mem": "2"}),),
        says=f"must be equal to {MEM} limit",
        by="kubernetes",
    ),
    PodCase(
        "for-the-whole-pod",
        (box(),),
        spec={"resources": {"limits": {MEM: "3"}}},
        says="spec.resources.limits",
        by="kubernetes",
    ),
)


def pod(case: PodCase, name: str, namespace: str = "default") -> JsonObject:
    """The pod of ``case`` as a user would submit it."""
    template = _template(case)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, **template["metadata"]},
        "spec": template["spec"],
    }


def _template(case: PodCase, **spec: Any) -> JsonObject:
    made: JsonObject = {
        "metadata": {"labels": {"app": "x", **case.labels}, "annotations": dict(case.annotations)},
        "spec": {"containers": list(case.containers), **case.spec, **spec},
    }
    if case.init:
        made["spec"]["initContainers"] = list(case.init)
    return copy.deepcopy(made)


#: Kinds with a pod template, each with its API version and resource.
WORKLOADS: Mapping[str, tuple[str, str]] = {
    "Deployment": ("apps/v1", "deployments"),
    "ReplicaSet": ("apps/v1", "replicasets"),
    "StatefulSet": ("apps/v1", "statefulsets"),
    "DaemonSet": ("apps/v1", "daemonsets"),
    "Job": ("batch/v1", "jobs"),
    "CronJob": ("batch/v1", "cronjobs"),
    "ReplicationController": ("v1", "replicationcontrollers"),
    "PodTemplate": ("v1", "podtemplates"),
}


def workload(kind: str, case: PodCase, name: str, namespace: str = "default") -> JsonObject:
    """An object of ``kind`` (one of ``WORKLOADS``) whose template is the pod of ``case``."""
    made: JsonObject = {
        "apiVersion": WORKLOADS[kind][0],
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
    }
    selector = {"matchLabels": {"app": "x"}}
    if kind == "PodTemplate":
        made["template"] = _template(case)
    elif kind == "ReplicationController":
        made["spec"] = {"replicas": 0, "selector": {"app": "x"}, "template": _template(case)}
    elif kind in {"Job", "CronJob"}:
        job = {"template": _template(case, restartPolicy="Never"), "suspend": True}
        schedule = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": job}}
        made["spec"] = job if kind == "Job" else schedule
    else:
        made["spec"] = {"selector": selector, "template": _template(case)}
        if kind != "DaemonSet":
            made["spec"]["replicas"] = 0
        if kind == "StatefulSet":
            made["spec"]["serviceName"] = "x"
    return made


def workloads(case: PodCase, name: str) -> Iterator[JsonObject]:
    """The template of ``case`` in an object of every kind with a template."""
    for kind in WORKLOADS:
        yield workload(kind, case, name)
