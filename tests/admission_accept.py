"""Requests of HAMi and KAI at admission: how they are translated, and the messages for those without an equivalent. One table, for the webhook
alone and behind a real API server."""

from dataclasses import dataclass, field
from typing import Any

from gpushare.api import names
from gpushare.api.request.unit_conversion import Counting
from tests.admission_words import COUNTING

GPU, MEMORY, PERCENT, CORES = (
    "nvidia.com/gpu",
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
)


@dataclass(frozen=True)
class Case:
    """A pod's limits by container, annotations and further fields; the translated pod (``None``: unchanged), or the message."""

    id: str
    limits: dict[str, dict[str, str]]
    annotations: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    becomes: dict[str, dict[str, str]] | None = None
    count: str | None = None
    chooses: dict[str, str] = field(default_factory=dict)
    says: str = ""
    counting: Counting = COUNTING


def share(units: int, core: int = 0) -> dict[str, str]:
    memory = {names.GPU_MEM: str(units)}
    return {**memory, names.GPU_CORE: str(core)} if core else memory


TRANSLATED = (
    Case("hami-memory", {"c": {GPU: "1", MEMORY: "3000"}}, becomes={"c": share(3)}),
    Case(
        "hami-memory-without-count",
        {"c": {MEMORY: "4096", "cpu": "1"}},
        becomes={"c": {"cpu": "1", **share(4)}},
    ),
    Case("hami-percent", {"c": {GPU: "1", PERCENT: "50"}}, becomes={"c": share(7)}),
    Case("hami-compute", {"c": {GPU: "1", MEMORY: "4096", CORES: "30"}}, becomes={"c": share(4, 30)}),
    Case("hami-compute-0", {"c": {GPU: "1", MEMORY: "4096", CORES: "0"}}, becomes={"c": share(4)}),
    Case(
        "hami-2-gpus-with-memory-each",
        {"c": {GPU: "2", MEMORY: "3000"}},
        becomes={"c": share(6)},
        count="2",
    ),
    Case(
        "hami-2-gpus-with-percent-each", {"c": {GPU: "2", PERCENT: "50"}}, becomes={"c": share(14)}, count="2"
    ),
    Case(
        "hami-several-containers",
        {"a": {GPU: "1", MEMORY: "1024"}, "web": {"cpu": "1"}, "b": {GPU: "1", PERCENT: "20"}},
        becomes={"a": share(1), "web": {"cpu": "1"}, "b": share(3)},
    ),
    Case(
        "hami-model",
        {"c": {GPU: "1", MEMORY: "1024"}},
        {
            "nvidia.com/use-gputype": "A100, NVIDIA-Tesla V100-SXM2-16GB",
            "nvidia.com/nouse-gputype": "1080,P40",
        },
        becomes={"c": share(1)},
        chooses={
            names.ANN_GPU_MODEL: "A100,Tesla V100-SXM2-16GB",
            names.ANN_GPU_MODEL_EXCLUDE: "1080,P40",
        },
    ),
    Case(
        "hami-blank-annotations",
        {"c": {GPU: "1", MEMORY: "1024"}},
        {
            "nvidia.com/use-gputype": "",
            "nvidia.com/nouse-gputype": " , ",
            "nvidia.com/use-gpuuuid": "",
            "hami.io/gpu-scheduler-policy": "",
        },
        becomes={"c": share(1)},
    ),
    Case(
        "hami-sidecar-with-0-gpus",
        {"c": {GPU: "1", MEMORY: "1024"}, "sidecar": {GPU: "0"}},
        becomes={"c": share(1), "sidecar": {GPU: "0"}},
    ),
    Case(
        "hami-uuid",
        {"c": {GPU: "1", MEMORY: "1024"}},
        {
            "nvidia.com/use-gpuuuid": "GPU-1,GPU-2",
            "nvidia.com/nouse-gpuuuid": "GPU-3",
            "example.com/note": "x",
        },
        becomes={"c": share(1)},
        chooses={
            names.ANN_GPU_UUID: "GPU-1,GPU-2",
            names.ANN_GPU_UUID_EXCLUDE: "GPU-3",
            "example.com/note": "x",
        },
    ),
    Case(
        "hami-policies",
        {"c": {GPU: "1", MEMORY: "1024"}},
        {"hami.io/gpu-scheduler-policy": "spread", "hami.io/node-scheduler-policy": "binpack"},
        becomes={"c": share(1)},
        chooses={names.ANN_GPU_PLACEMENT: "spread", names.ANN_NODE_PLACEMENT: "binpack"},
    ),
    Case(
        "hami-scheduler",
        {"c": {GPU: "1", MEMORY: "1024"}},
        spec={"schedulerName": "hami-scheduler"},
        becomes={"c": share(1)},
    ),
    Case(
        "kai-memory",
        {"a": {"cpu": "1"}, "b": {}},
        {"gpu-memory": "2000"},
        becomes={"a": {"cpu": "1", **share(2)}, "b": {}},
    ),
    Case(
        "kai-fraction",
        {"c": {}},
        {"gpu-fraction": "0.5"},
        {"kai.scheduler/queue": "team"},
        {"schedulerName": "kai-scheduler"},
        becomes={"c": share(7)},
    ),
    Case("kai-fraction-of-finer-steps", {"c": {}}, {"gpu-fraction": ".3333"}, becomes={"c": share(4)}),
    Case(
        "kai-2-gpus",
        {"c": {}},
        {"gpu-memory": "2000", "gpu-fraction-num-devices": "2"},
        becomes={"c": share(4)},
        count="2",
    ),
    Case(
        "kai-other-container",
        {"web": {}, "model": {}},
        {"gpu-fraction": "0.25", "gpu-fraction-container-name": "model"},
        becomes={"web": {}, "model": share(3)},
    ),
)
LEFT_ALONE = (
    Case("whole-gpu-of-nvidias-plugin", {"c": {GPU: "1"}}, {"nvidia.com/use-gputype": "A100"}),
    Case("our-own-request", {"c": share(3)}),
    Case("another-scheduler", {"c": {GPU: "1", MEMORY: "1024"}}, spec={"schedulerName": "volcano"}),
    Case("hami-request-for-kai-scheduler", {"c": {MEMORY: "1024"}}, spec={"schedulerName": "kai-scheduler"}),
    Case("pod-with-a-node", {"c": {MEMORY: "1024"}}, spec={"nodeName": "n1"}),
    Case("opted-out", {"c": {MEMORY: "1024"}}, labels={names.LABEL_ADMISSION: "disabled"}),
    Case("other-annotations", {"c": {}}, {"hami.io/node-scheduler-policy": "spread", "mps": "true"}),
)
REJECTED = (
    Case(
        "hami-memory-0",
        {"c": {GPU: "1", MEMORY: "0"}},
        says=f"{MEMORY} must be a whole number of MiB from 1 to 16777216: container c requests 0",
    ),
    Case(
        "hami-percent-101",
        {"a": {PERCENT: "20"}, "b": {PERCENT: "101"}},
        says=f"{PERCENT} must be a whole number from 1 to 100: container b requests 101",
    ),
    Case(
        "hami-percent-without-reference-gpu",
        {"c": {PERCENT: "20"}},
        counting=Counting(),
        says=f"{PERCENT} requires a reference GPU size, which is not configured in this cluster (chart value "
        "admission.referenceGpuMemoryMiB): request MiB in container c",
    ),
    Case(
        "hami-two-ways",
        {"c": {MEMORY: "1024", PERCENT: "20"}},
        says=f"{MEMORY} and {PERCENT} exclude each other: keep one of them in container c",
    ),
    Case(
        "hami-compute-33",
        {"c": {MEMORY: "1024", CORES: "33"}},
        says=f"{CORES} must be a whole number from 0 to 100 that is divisible by 5: container c requests 33",
    ),
    Case(
        "hami-compute-without-memory",
        {"c": {GPU: "1", CORES: "50"}},
        says=f"{CORES} without memory would get HAMi's default memory, which gpushare does not know: add {MEMORY} to the limits of container c",
    ),
    Case(
        "hami-compute-on-2-gpus",
        {"c": {GPU: "2", MEMORY: "1024", CORES: "50"}},
        says=f"{CORES} has no equivalent on several GPUs: {GPU} is 2, and {CORES} is set for container c; "
        f"remove {CORES}, or request 1 GPU",
    ),
    Case(
        "hami-0-gpus",
        {"c": {GPU: "0", MEMORY: "1024"}},
        says=f"{GPU} must be a whole number from 1 to 9999: container c requests 0",
    ),
    Case(
        "hami-counts-differ",
        {"a": {GPU: "2", MEMORY: "1024"}, "b": {MEMORY: "1024"}},
        says=f"{GPU} must be the same in all containers of a pod: container a requests 2, container b requests 1; use a pod for each",
    ),
    Case(
        "hami-whole-gpu-beside-a-share",
        {"a": {GPU: "1", MEMORY: "1024"}, "b": {GPU: "1"}},
        says=f"{GPU} without {MEMORY} requests a whole GPU, which cannot be combined with shares in one pod: whole GPUs for container b, "
        f"shares for container a; add {MEMORY}, or use two pods",
    ),
    Case(
        "hami-no-equivalent",
        {"c": {MEMORY: "1024", "nvidia.com/priority": "1"}},
        {"nvidia.com/numa-bind": "true", "nvidia.com/vgpu-mode": "mig"},
        says="no equivalent in gpushare for nvidia.com/priority, annotation nvidia.com/numa-bind, annotation nvidia.com/vgpu-mode; "
        "remove it from the manifest",
    ),
    Case(
        "hami-policy-topology",
        {"c": {MEMORY: "1024"}},
        {"hami.io/gpu-scheduler-policy": "topology-aware"},
        says="annotation hami.io/gpu-scheduler-policy can be binpack or spread in gpushare: it is 'topology-aware'; "
        "change it, or remove it",
    ),
    Case(
        "hami-beside-ours",
        {"c": {MEMORY: "1024", names.GPU_MEM: "1"}},
        {"nvidia.com/use-gputype": "A10", names.ANN_GPU_MODEL: "A10"},
        says=f"the pod requests a share in the format of hami and in gpushare's own: {names.ANN_GPU_MODEL}, a GPU among its limits; "
        "keep one of them",
    ),
    Case(
        "hami-count-beside-ours",
        {"c": {GPU: "2", MEMORY: "1024"}},
        labels={names.LABEL_POD_GPU_COUNT: "2"},
        says=f"the pod requests a share in the format of hami and in gpushare's own: {names.LABEL_POD_GPU_COUNT}; keep one of them",
    ),
    Case(
        "hami-and-kai",
        {"c": {MEMORY: "1024"}},
        {"gpu-memory": "1024"},
        says="the pod requests a share in the formats of hami and kai; keep one of them",
    ),
    Case(
        "kai-fraction-1",
        {"c": {}},
        {"gpu-fraction": "1.0"},
        says="annotation gpu-fraction must be a decimal number from 0.01 to below 1: it is '1.0'; correct it",
    ),
    Case(
        "kai-fraction-without-reference-gpu",
        {"c": {}},
        {"gpu-fraction": "0.5"},
        counting=Counting(),
        says="annotation gpu-fraction requires a reference GPU size, which is not configured in this cluster (chart value "
        "admission.referenceGpuMemoryMiB): request MiB in container c",
    ),
    Case(
        "kai-memory-in-Gi",
        {"c": {}},
        {"gpu-memory": "2Gi"},
        says="annotation gpu-memory must be a whole number of MiB from 1 to 16777216: it is '2Gi'; correct it",
    ),
    Case(
        "kai-0-gpus",
        {"c": {}},
        {"gpu-memory": "2000", "gpu-fraction-num-devices": "0"},
        says="annotation gpu-fraction-num-devices must be a whole number from 1 to 9999: it is '0'; correct it",
    ),
    Case(
        "kai-two-ways",
        {"c": {}},
        {"gpu-memory": "2000", "gpu-fraction": "0.5"},
        says="a share requires exactly one of the annotations gpu-fraction and gpu-memory: the pod has gpu-fraction and gpu-memory",
    ),
    Case(
        "kai-no-amount",
        {"c": {}},
        {"gpu-fraction-num-devices": "2"},
        says="a share requires exactly one of the annotations gpu-fraction and gpu-memory: the pod has gpu-fraction-num-devices",
    ),
    Case(
        "kai-no-such-container",
        {"c": {}},
        {"gpu-memory": "2000", "gpu-fraction-container-name": "d"},
        says="annotation gpu-fraction-container-name names no container of the pod: it is 'd'; correct it",
    ),
    Case(
        "kai-beside-whole-gpus",
        {"c": {GPU: "1"}},
        {"gpu-memory": "2000"},
        says=f"{GPU} and annotation gpu-memory exclude each other: container c requests {GPU}; remove one of them",
    ),
    Case(
        "kai-no-equivalent",
        {"c": {}},
        {"gpu-memory": "2000", "gpu-memory.limit": "4Gi", "gpu-sm-percentage": "30", "mps": "true"},
        says="no equivalent in gpushare for annotation gpu-memory.limit, gpu-sm-percentage, mps; remove it from the manifest",
    ),
    Case(
        "kai-fractions-of-containers",
        {"c": {}},
        {"nvidia.com/container.c.gpu-memory.request": "2Gi"},
        says="no equivalent in gpushare for annotation nvidia.com/container.c.gpu-memory.request; remove it from the manifest",
    ),
)
#: Translated, and then rejected by the rules for every pod.
INVALID_AFTERWARDS = (
    Case(
        "hami-compute-in-some-containers",
        {"a": {MEMORY: "1024", CORES: "50"}, "b": {MEMORY: "1024"}},
        says=f"either all GPU containers of a pod request {names.GPU_CORE} or none does: with it container a, "
        "without it container b; add it to all of them, or to none",
    ),
    Case(
        "hami-percent-of-less-than-a-unit",
        {"c": {PERCENT: "3"}},
        says=f"{names.GPU_MEMORY_PERCENT} is less than one unit of 1GiB on a GPU of 16160 MiB: container c requests 3; "
        "request 7 or more",
    ),
    Case(
        "hami-uuid-of-another-form",
        {"c": {MEMORY: "1024"}},
        {"nvidia.com/use-gpuuuid": "0"},
        says=f"annotation {names.ANN_GPU_UUID} must be UUIDs of GPUs, with commas between them: GPU-…,GPU-…: it is '0'; "
        "correct it, or remove the annotation",
    ),
)


def pod(case: Case) -> dict[str, Any]:
    """As the API server sends it to webhooks: requests are filled in from limits."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "x",
            "namespace": "default",
            "annotations": case.annotations,
            "labels": case.labels,
        },
        "spec": {
            "schedulerName": "default-scheduler",
            "containers": [
                {
                    "name": name,
                    "image": "x",
                    "resources": {"limits": limits, "requests": limits} if limits else {},
                }
                for name, limits in case.limits.items()
            ],
            **case.spec,
        },
    }
