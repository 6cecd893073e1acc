"""Names that users type and old readers read: resources, labels, annotations, environment.

They are those of the reference documentation (ACK), so that its manifests work as they stand.
Names of our own live under ``gpushare.dev/``.
"""

from typing import Final

SCHEDULER_NAME: Final = "ack-co-scheduler"
DAEMON_SET_NAME: Final = "gpushare-device-plugin-ds"
AGENT_PART: Final = "gpushare-device-plugin"
"""``app.kubernetes.io/name`` of the node agents' pods."""

# --- who reads decisions and use ---------------------------------------------------------------
READER_ACCOUNT: Final = "gpushare-reader"
"""ServiceAccount of the scheduler's chart, in its namespace, whose tokens allow reading decisions and usage."""
READER_AUDIENCE: Final = "gpushare.dev"
"""The audience of those tokens, which the API server does not accept."""
READER_HEADER: Final = "X-Gpushare-Token"

# --- resources -------------------------------------------------------------------------------
GPU_MEM: Final = "aliyun.com/gpu-mem"
"""GPU memory in units; a node's capacity is the sum over its GPUs."""
GPU_CORE: Final = "aliyun.com/gpu-core.percentage"
"""Compute in percent of one GPU; 100 per GPU, on ``core_mem`` nodes only."""
GPU_COUNT: Final = "aliyun.com/gpu-count"
"""Node capacity: number of GPUs. As a pod *label*: over how many GPUs the pod is spread."""
GPU_WHOLE: Final = "aliyun.com/gpu"
"""Whole GPUs, on ``topology`` nodes."""

DRA_DRIVER: Final = "gpushare.dev"
"""Ours: the DRA driver of nodes in mode ``dra``, and the DeviceClass of their GPUs."""

# --- elastic quotas --------------------------------------------------------------------------
QUOTA_GROUP: Final = "scheduling.sigs.k8s.io/v1beta1"
QUOTA_KIND: Final = "ElasticQuotaTree"
QUOTA_PLURAL: Final = "elasticquotatrees"
QUOTA_NAMESPACE: Final = "kube-system"
"""The one namespace in which an ElasticQuotaTree counts."""
MAX_JOBS: Final = "kube-queue/max-jobs"
"""In the documentation's trees: how many jobs a job queue lets run. There is none here: taken, and not counted."""
# --- MiB and percentage requests, which admission converts to aliyun.com/gpu-mem ------------------
GPU_MEMORY: Final = "gpushare.dev/gpu-memory"
"""Ours, in limits: GPU memory in bytes, as Kubernetes counts ``memory``: ``6144Mi``, ``6Gi``."""
GPU_MEMORY_PERCENT: Final = "gpushare.dev/gpu-memory.percentage"
"""Ours, in limits: percent of the memory of a reference GPU, whose size the administrator configures."""

# --- node labels -----------------------------------------------------------------------------
LABEL_MODE: Final = "ack.node.gpu.schedule"
LABEL_PLACEMENT: Final = "ack.node.gpu.placement"
LABEL_MAX_PODS: Final = "ack.node.gpu.max-pod"
LABEL_MAX_NODE_PODS: Final = "gpushare.dev/max-pods-per-node"
"""Ours: maximum pods with GPU memory on the node, over all its GPUs."""
LABEL_DESCRIBED: Final = "gpushare.dev/described"
"""``true`` on a node that carries ``gpushare.dev/devices`` or the condition, written with them by the node agent: when the mode's label is
removed, this one keeps the agent's pod on the node until no pod holds a share of it."""
LABEL_AGENT_PORT: Final = "gpushare.dev/agent-port"
"""Ours: where the node agent of a node runs beside its kubelet and in no pod, the port of its probes and figures."""

CONDITION_READY: Final = "GPUShareReady"
"""Ours, a condition of nodes that share: mode, unit, backend, and what is wrong."""

# --- pod labels ------------------------------------------------------------------------------
LABEL_POD_GPU_COUNT: Final = "aliyun.com/gpu-count"
LABEL_POD_PLACEMENT: Final = "ack.gpushare.placement"
POD_PLACEMENT_WHOLE_DEVICE: Final = "require-whole-device"
LABEL_POD_APART: Final = "gpushare.dev/gpu-per-container"
"""Ours: ``true`` gives each container of the pod that asks for a share a GPU of its own."""
LABEL_POD_COMPUTE_CLASS: Final = "gpushare.dev/compute-class"
"""Ours: the pod's GPU workload type, if it cannot be inferred from its pauses; read when its containers start."""
COMPUTE_LATENCY: Final = "latency"
COMPUTE_BATCH: Final = "batch"
COMPUTE_CLASSES: Final = (COMPUTE_LATENCY, COMPUTE_BATCH)
LABEL_GANG_NAME: Final = "pod-group.scheduling.sigs.k8s.io/name"
LABEL_GANG_LEAST: Final = "pod-group.scheduling.sigs.k8s.io/min-available"
"""How many pods of the gang must run together."""

LABEL_WAIT_FOR_SCALING: Final = "k8s.aliyun.com/resource-policy-wait-for-ecs-scaling"
"""Among ``podLabels`` of a unit: pods wait in that unit for nodes to come. Never put on a pod."""

# --- others' names ---------------------------------------------------------------------------
POLICY_GROUP: Final = "scheduling.alibabacloud.com"
POLICY_VERSION: Final = "v1alpha1"
POLICY_PLURAL: Final = "resourcepolicies"
ANN_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
"""A ReplicaSet that shrinks ends the pods with the least first."""
LABEL_NODE_TYPE: Final = "type"
NODE_TYPE_VIRTUAL: Final = "virtual-kubelet"
"""What virtual nodes call themselves."""

# --- namespace labels ------------------------------------------------------------------------
LABEL_ADMISSION: Final = "gpushare.dev/admission"
"""``disabled`` on a namespace: its pods keep the scheduler that they name."""

# --- keys that tenants cannot set through us --------------------------------------------------
RESERVED: Final = ("gpushare.dev/", "scheduler.framework.", "gpushare.alibabacloud.com/", "ALIYUN_COM_GPU_")
"""Prefixes of allocation annotations. The scheduler must not write them on behalf of a tenant's policy."""

# --- annotations on a bound pod, first generation ---------------------------------------------
ANN_MEM_INDEX: Final = "ALIYUN_COM_GPU_MEM_IDX"
ANN_MEM_POD: Final = "ALIYUN_COM_GPU_MEM_POD"
ANN_MEM_DEVICE: Final = "ALIYUN_COM_GPU_MEM_DEV"
ANN_MEM_ASSIGNED: Final = "ALIYUN_COM_GPU_MEM_ASSIGNED"
ANN_MEM_ASSUME_TIME: Final = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"

# --- second generation -----------------------------------------------------------------------
ANN_ALLOCATION: Final = "scheduler.framework.gpushare.allocation"
ANN_ASSIGNED: Final = "scheduler.framework.gpushare.assigned"
ANN_ASSUME_TIME: Final = "scheduler.framework.gpushare.assume-time"
ANN_CORE: Final = "gpushare.alibabacloud.com/core-percentage"

# --- our own ---------------------------------------------------------------------------------
ANN_SHARE: Final = "gpushare.dev/allocation"
"""On a pod: MiB, units, compute and GPU UUID per GPU and container. The ledger reads this one first."""
ANN_ALSO: Final = "gpushare.dev/also-holds"
"""On a pod whose containers were allocated another GPU than recorded: what they have, in the same form, for as
long as the record cannot be corrected because it stands for the place of a pod that asked alike."""
ANN_RETRY: Final = "gpushare.dev/retry"
"""On a waiting pod: when the scheduler last asked for it to be tried again (unix ns)."""
ANN_REQUESTED: Final = "gpushare.dev/requested"
"""On a pod that asked in people's units: what it asked for, and the unit in which admission counted that."""
ANN_DEFRAGMENTATION: Final = "gpushare.dev/defragmentation"
"""On a pod, set by people: ``"false"`` keeps it from being moved so that another fits, ``"true"`` allows it where its kind does not."""
ANN_ROOM_MADE: Final = "gpushare.dev/room-made"
"""On a waiting pod: when the scheduler last had others moved for it (unix ns). It bounds how often that is done."""
LABEL_STANDS_FOR: Final = "gpushare.dev/stands-for"
"""On a placeholder pod: the UID of the pod that it stands for, so that an autoscaler makes a node for that."""
ANN_STANDS_FOR: Final = "gpushare.dev/stands-for"
"""On a placeholder pod: namespace and name of that pod, for people."""
PLACEHOLDER_SCHEDULER: Final = "gpushare-stand-in"
"""The scheduler that a placeholder pod names. There is none of that name: it is never to run."""
ANN_DEVICES: Final = "gpushare.dev/devices"
"""On a node: its GPUs, mode and memory unit, as the node agent found them."""
ANN_CORDONED: Final = "gpushare.dev/cordoned-gpus"
"""On a node, set by people: GPUs that take nothing new, by index or UUID, with commas."""
ANN_COST_WRITTEN: Final = "gpushare.dev/deletion-cost"
"""On a pod: the deletion cost that a ResourcePolicy gave it. One that differs from this is somebody else's."""
ANN_UNIT_LABELS: Final = "gpushare.dev/unit-labels"
"""On a pod: the labels that the unit of a ResourcePolicy put on it, by key, with commas."""
ANN_REFUSED_SINCE: Final = "gpushare.dev/refused-since"
"""On a waiting pod: since when a ResourcePolicy counts its time (RFC 3339), where its own condition cannot tell."""
ANN_ISOLATION: Final = "gpushare.dev/isolation"
"""On a node: what holds containers to their share there and why, or what is wrong with it; for people."""

# --- environment of a container --------------------------------------------------------------
ENV_VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
ENV_MEM_INDEX: Final = "ALIYUN_COM_GPU_MEM_IDX"
ENV_MEM_POD: Final = "ALIYUN_COM_GPU_MEM_POD"
ENV_MEM_CONTAINER: Final = "ALIYUN_COM_GPU_MEM_CONTAINER"
ENV_MEM_DEVICE: Final = "ALIYUN_COM_GPU_MEM_DEV"
ENV_MEM_LIMIT: Final = "GPUSHARE_MEM_LIMIT_MIB"
"""Ours: MiB of the container's share, ``floor(physical MiB * units / units of the GPU)``."""
ENV_CORE_PERCENT: Final = "GPUSHARE_CORE_PERCENT"
"""Ours: the container's compute share in percent of one GPU, on ``core_mem`` nodes."""
