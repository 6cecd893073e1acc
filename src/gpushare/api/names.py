"""Names of resources, labels, annotations and environment variables.

They are those of ACK's documentation, so that its manifests work unchanged. Our own names are under ``gpushare.dev/``.
"""

from typing import Final

SCHEDULER_NAME: Final = "ack-co-scheduler"
DAEMON_SET_NAME: Final = "gpushare-device-plugin-ds"
AGENT_PART: Final = "gpushare-device-plugin"
"""``app.kubernetes.io/name`` of the node agents' pods."""

# --- reading decisions and usage ---------------------------------------------------------------
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
GPU_SHARE: Final = "gpushare.dev/share"
"""Ours, in limits: shares of the default size, for which kube-scheduler makes the claim (``extendedResourceName`` of the DeviceClass)."""
DEVICE_CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"
"""Kubernetes': with the name of a DeviceClass, an extended resource that every DeviceClass has."""

# --- elastic quotas --------------------------------------------------------------------------
QUOTA_GROUP: Final = "scheduling.sigs.k8s.io/v1beta1"
QUOTA_KIND: Final = "ElasticQuotaTree"
QUOTA_PLURAL: Final = "elasticquotatrees"
QUOTA_NAMESPACE: Final = "kube-system"
"""The one namespace in which an ElasticQuotaTree counts."""
MAX_JOBS: Final = "kube-queue/max-jobs"
"""In ACK's trees: the maximum number of jobs of a job queue. gpushare has no job queue: accepted, and ignored."""
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
"""``true`` on a node with ``gpushare.dev/devices`` or the condition, written together with them by the node agent. When the mode's label is
removed, this label keeps the agent's pod on the node until no pod holds a share of it."""
LABEL_AGENT_PORT: Final = "gpushare.dev/agent-port"
"""Ours: the port of probes and metrics of a node agent that runs on the host instead of in a pod."""

CONDITION_READY: Final = "GPUShareReady"
"""Ours, a condition of nodes that share GPUs: mode, unit, backend, and problems."""

# --- pod labels ------------------------------------------------------------------------------
LABEL_POD_GPU_COUNT: Final = "aliyun.com/gpu-count"
LABEL_POD_PLACEMENT: Final = "ack.gpushare.placement"
POD_PLACEMENT_WHOLE_DEVICE: Final = "require-whole-device"
LABEL_POD_APART: Final = "gpushare.dev/gpu-per-container"
"""Ours: ``true`` allocates a separate GPU to each container of the pod that requests a share."""
LABEL_POD_COMPUTE_CLASS: Final = "gpushare.dev/compute-class"
"""Ours: the pod's GPU workload type, if it cannot be inferred from its pauses; read when its containers start."""
COMPUTE_LATENCY: Final = "latency"
COMPUTE_BATCH: Final = "batch"
COMPUTE_CLASSES: Final = (COMPUTE_LATENCY, COMPUTE_BATCH)
LABEL_GANG_NAME: Final = "pod-group.scheduling.sigs.k8s.io/name"
LABEL_GANG_LEAST: Final = "pod-group.scheduling.sigs.k8s.io/min-available"
"""The number of pods of the gang that must run together."""
ANN_GANG_BY: Final = "gpushare.dev/gang-by"
"""Ours, on a pod, set by users: the key of a label. Pods of one gang name with different values of that label are gangs of their own."""

LABEL_WAIT_FOR_SCALING: Final = "k8s.aliyun.com/resource-policy-wait-for-ecs-scaling"
"""Among ``podLabels`` of a unit: pods wait in that unit for new nodes. Never set on a pod."""

# --- foreign names ---------------------------------------------------------------------------
POLICY_GROUP: Final = "scheduling.alibabacloud.com"
POLICY_VERSION: Final = "v1alpha1"
POLICY_PLURAL: Final = "resourcepolicies"
ANN_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
"""A ReplicaSet that is scaled down deletes pods with the lowest cost first."""
LABEL_NODE_TYPE: Final = "type"
NODE_TYPE_VIRTUAL: Final = "virtual-kubelet"
"""The label's value on virtual nodes."""

# --- namespace labels ------------------------------------------------------------------------
LABEL_ADMISSION: Final = "gpushare.dev/admission"
"""``disabled`` on a namespace: its pods keep the scheduler that they name."""

# --- keys that tenants must not set through gpushare --------------------------------------------------
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
"""On a pod whose containers were allocated another GPU than recorded: their actual allocation, in the same form, while the record
cannot be corrected because it represents the allocation of a pod with an equal request."""
ANN_RETRY: Final = "gpushare.dev/retry"
"""On a pending pod: when the scheduler last requested another scheduling attempt (unix ns)."""
ANN_REQUESTED: Final = "gpushare.dev/requested"
"""On a pod with a request in MiB or percent: that request, and the unit to which admission converted it."""
ANN_GPU_MODEL: Final = "gpushare.dev/gpu-model"
ANN_GPU_MODEL_EXCLUDE: Final = "gpushare.dev/gpu-model-exclude"
"""On a pod, set by users: models of GPUs that it may have, or must not have, comma-separated (``api.request.gpu_selection``)."""
ANN_GPU_ARCHITECTURE: Final = "gpushare.dev/gpu-architecture"
ANN_GPU_ARCHITECTURE_EXCLUDE: Final = "gpushare.dev/gpu-architecture-exclude"
"""The same by architecture: ``ampere,hopper``."""
ANN_GPU_MEMORY_MIN: Final = "gpushare.dev/gpu-memory-min"
ANN_GPU_MEMORY_MAX: Final = "gpushare.dev/gpu-memory-max"
"""The same by the memory that a GPU has in total: ``24Gi``."""
ANN_GPU_UUID: Final = "gpushare.dev/gpu-uuid"
ANN_GPU_UUID_EXCLUDE: Final = "gpushare.dev/gpu-uuid-exclude"
"""The same by UUID."""
ANN_GPU_MEMORY_LIMIT: Final = "gpushare.dev/gpu-memory-limit"
"""On a pod, set by users: how much memory its containers may use of their GPU while it is free: ``20Gi``, or ``main=20Gi,side=4Gi``."""
ANN_GPU_PLACEMENT: Final = "gpushare.dev/gpu-placement"
ANN_NODE_PLACEMENT: Final = "gpushare.dev/node-placement"
"""On a pod, set by users: the placement policy for it among the GPUs of a node, and among nodes, in place of the node's and the cluster's."""
ANN_DEFRAGMENTATION: Final = "gpushare.dev/defragmentation"
"""On a pod, set by users: ``"false"`` excludes it from being moved by defragmentation, ``"true"`` permits it where its kind does not."""
ANN_ROOM_MADE: Final = "gpushare.dev/room-made"
"""On a pending pod: when the scheduler last moved other pods for it (unix ns)."""
LABEL_STANDS_FOR: Final = "gpushare.dev/stands-for"
"""On a placeholder pod: the UID of the pending pod for which it makes an autoscaler add a node."""
ANN_STANDS_FOR: Final = "gpushare.dev/stands-for"
"""On a placeholder pod: namespace and name of that pod, as information."""
PLACEHOLDER_SCHEDULER: Final = "gpushare-stand-in"
"""The ``schedulerName`` of placeholder pods. No such scheduler exists, so they never run."""
ANN_DEVICES: Final = "gpushare.dev/devices"
"""On a node: its GPUs, mode and memory unit, written by the node agent."""
ANN_CORDONED: Final = "gpushare.dev/cordoned-gpus"
"""On a node, set by users: GPUs excluded from new allocations, by index or UUID, comma-separated."""
ANN_COST_WRITTEN: Final = "gpushare.dev/deletion-cost"
"""On a pod: the deletion cost set by a ResourcePolicy. A different cost on the pod was set by something else."""
ANN_UNIT_LABELS: Final = "gpushare.dev/unit-labels"
"""On a pod: keys of the labels set by the unit of a ResourcePolicy, comma-separated."""
ANN_REFUSED_SINCE: Final = "gpushare.dev/refused-since"
"""On a pending pod: start of its timeout in a ResourcePolicy (RFC 3339), if its condition has no time."""
ANN_ISOLATION: Final = "gpushare.dev/isolation"
"""On a node: what enforces shares there and why, or what is wrong with it; as information."""

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
