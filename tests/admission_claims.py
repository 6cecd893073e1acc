"""Requests that become ResourceClaims, and the messages for those that claims cannot express: one table, for the webhook alone and
behind a real API server."""

from dataclasses import dataclass, field
from typing import Any

from gpushare.api import names
from tests.admission_accept import Case, pod, share

__all__ = ["CLAIMED", "LEFT_ALONE", "REJECTED", "Claim", "Claimed", "pod"]

ATTRIBUTES = 'device.attributes["gpushare.dev"]'
CAPACITY = 'device.capacity["gpushare.dev"].memory'
NO_INSTANCE = f'!("profile" in {ATTRIBUTES})'


@dataclass(frozen=True)
class Claim:
    """A claim's requirements of each GPU, as the API server writes them."""

    capacity: dict[str, str]
    count: int = 1
    selectors: tuple[str, ...] = ()
    compute_class: str = ""

    def devices(self) -> dict[str, Any]:
        """``spec.devices`` of the claim, with the API server's defaults."""
        exactly: dict[str, Any] = {
            "deviceClassName": "gpushare.dev",
            "allocationMode": "ExactCount",
            "count": self.count,
        }
        if self.capacity:
            exactly["capacity"] = {"requests": self.capacity}
        if self.selectors:
            exactly["selectors"] = [{"cel": {"expression": one}} for one in self.selectors]
        devices: dict[str, Any] = {"requests": [{"name": "gpu", "exactly": exactly}]}
        if self.count > 1:
            devices["constraints"] = [{"distinctAttribute": "gpushare.dev/uuid"}]
        if self.compute_class:
            parameters = {
                "apiVersion": "gpushare.dev/v1",
                "kind": "ShareConfig",
                "computeClass": self.compute_class,
            }
            devices["config"] = [{"opaque": {"driver": "gpushare.dev", "parameters": parameters}}]
        return devices


@dataclass(frozen=True)
class Claimed:
    """A pod, its claims with their requirements, and the claims of its containers (``uses``); ``left``: limits that stay."""

    case: Case
    claims: dict[str, Claim]
    uses: dict[str, str] = field(default_factory=dict)
    left: dict[str, dict[str, str]] = field(default_factory=dict)
    scheduler: str = "default-scheduler"

    @property
    def id(self) -> str:
        return self.case.id


def one(named: str, limits: dict[str, str], claim: Claim, **changes: Any) -> Claimed:
    """A pod with one container."""
    return Claimed(Case(named, {"c": limits}, **changes), {"c": claim}, {"c": "c"})


MIB = {"memory": "3Gi"}
CLAIMED = (
    one("memory", share(3), Claim(MIB)),
    one("memory-and-compute", share(3, 30), Claim({**MIB, "compute": "30"})),
    one("mib-in-units", {names.GPU_MEMORY: "2100Mi"}, Claim(MIB)),
    one("percent", {names.GPU_MEMORY_PERCENT: "25"}, Claim(MIB)),
    one("2-gpus", share(6), Claim(MIB, 2, (NO_INSTANCE,)), labels={names.LABEL_POD_GPU_COUNT: "2"}),
    one("whole-gpus", {names.GPU_WHOLE: "2"}, Claim({}, 2, (NO_INSTANCE,))),
    one(
        "a-whole-gpu-of-at-least",
        share(4),
        Claim({}, 1, (NO_INSTANCE, f'{CAPACITY}.compareTo(quantity("4096Mi")) >= 0')),
        labels={names.LABEL_POD_PLACEMENT: names.POD_PLACEMENT_WHOLE_DEVICE},
    ),
    one(
        "compute-class",
        share(3, 30),
        Claim({**MIB, "compute": "30"}, compute_class="latency"),
        labels={names.LABEL_POD_COMPUTE_CLASS: "latency"},
    ),
    one(
        "model",
        share(3),
        Claim(
            MIB,
            selectors=(
                f'"productName" in {ATTRIBUTES} && {ATTRIBUTES}.productName.lowerAscii()'
                '.matches("(^|[^a-z0-9])(v100[^a-z0-9]+sxm2|a10)([^a-z0-9]|$)")',
                f'"productName" in {ATTRIBUTES} && !{ATTRIBUTES}.productName.lowerAscii()'
                '.matches("(^|[^a-z0-9])(p40)([^a-z0-9]|$)")',
            ),
        ),
        annotations={names.ANN_GPU_MODEL: "V100-SXM2, A10", names.ANN_GPU_MODEL_EXCLUDE: "P40"},
    ),
    one(
        "architecture",
        share(3),
        Claim(
            MIB,
            selectors=(
                f'"architecture" in {ATTRIBUTES} && {ATTRIBUTES}.architecture.lowerAscii() in ["volta", "ada lovelace"]',
                f'"architecture" in {ATTRIBUTES} && !({ATTRIBUTES}.architecture.lowerAscii() in ["kepler"])',
            ),
        ),
        annotations={
            names.ANN_GPU_ARCHITECTURE: "volta,ada-lovelace",
            names.ANN_GPU_ARCHITECTURE_EXCLUDE: "kepler",
        },
    ),
    one(
        "memory-of-the-gpu",
        share(3),
        Claim(
            MIB,
            selectors=(
                f'{CAPACITY}.compareTo(quantity("8192Mi")) >= 0',
                f'{CAPACITY}.compareTo(quantity("16500Mi")) <= 0',
            ),
        ),
        annotations={names.ANN_GPU_MEMORY_MIN: "8Gi", names.ANN_GPU_MEMORY_MAX: "16500Mi"},
    ),
    one(
        "uuid",
        share(3),
        Claim(
            MIB,
            selectors=(
                f'"uuid" in {ATTRIBUTES} && {ATTRIBUTES}.uuid in ["GPU-1", "GPU-2"]',
                f'"uuid" in {ATTRIBUTES} && !({ATTRIBUTES}.uuid in ["GPU-3"])',
            ),
        ),
        annotations={names.ANN_GPU_UUID: "GPU-1,GPU-2", names.ANN_GPU_UUID_EXCLUDE: "GPU-3"},
    ),
    Claimed(
        Case("containers", {"a": share(3), "web": {"cpu": "1"}, "b": {**share(2), "cpu": "2"}}),
        {"a": Claim(MIB), "b": Claim({"memory": "2Gi"})},
        {"a": "a", "b": "b"},
        {"web": {"cpu": "1"}, "b": {"cpu": "2"}},
    ),
    Claimed(
        Case(
            "init-containers-and-sidecars",
            {"a": share(3)},
            spec={
                "initContainers": [
                    {"name": "i", "image": "x", "resources": {"limits": share(3), "requests": share(3)}},
                    {"name": "larger", "image": "x", "resources": {"limits": share(5), "requests": share(5)}},
                    {
                        "name": "sidecar",
                        "image": "x",
                        "restartPolicy": "Always",
                        "resources": {"limits": share(3), "requests": share(3)},
                    },
                ]
            },
        ),
        {"a": Claim(MIB), "larger": Claim({"memory": "5Gi"}), "sidecar": Claim(MIB)},
        {"a": "a", "i": "a", "larger": "larger", "sidecar": "sidecar"},
    ),
    Claimed(
        Case(
            "claims-of-others",
            {"c": share(3)},
            spec={
                "resourceClaims": [{"name": "network", "resourceClaimTemplateName": "network"}],
                "containers": [
                    {
                        "name": "c",
                        "image": "x",
                        "resources": {
                            "limits": share(3),
                            "requests": share(3),
                            "claims": [{"name": "network", "request": "card"}],
                        },
                    }
                ],
            },
        ),
        {"c": Claim(MIB)},
        {"c": "c"},
    ),
    one("our-scheduler", share(3), Claim(MIB), spec={"schedulerName": names.SCHEDULER_NAME}),
    Claimed(
        Case(
            "gang-of-another-scheduler",
            {"c": share(3)},
            labels={names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: "2"},
            spec={"schedulerName": "volcano"},
        ),
        {"c": Claim(MIB)},
        {"c": "c"},
        scheduler="volcano",
    ),
    one(
        "hami",
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"},
        Claim(
            {**MIB, "compute": "30"},
            selectors=(f'"uuid" in {ATTRIBUTES} && {ATTRIBUTES}.uuid in ["GPU-1"]',),
        ),
        annotations={"nvidia.com/use-gpuuuid": "GPU-1"},
        spec={"schedulerName": "hami-scheduler"},
    ),
)
LEFT_ALONE = (
    Case("no-request", {"c": {"cpu": "1"}}),
    Case("opted-out", {"c": share(3)}, labels={names.LABEL_ADMISSION: "disabled"}),
    Case("nothing-of-a-gpu", {"c": {names.GPU_MEM: "0"}}),
)
CANNOT = (
    "requests become ResourceClaims in this cluster (chart value admission.toClaims), which cannot express"
)
#: The last is a rule for every request.
REJECTED = (
    Case(
        "claim-named-like-a-container",
        {"c": share(3)},
        spec={"resourceClaims": [{"name": "c", "resourceClaimTemplateName": "network"}]},
        says="requests become ResourceClaims in this cluster (chart value admission.toClaims), named after their containers, and "
        "spec.resourceClaims has other claims of these names: c; rename the claims there",
    ),
    Case(
        "gang",
        {"c": share(3)},
        labels={names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: "2"},
        says=f"{CANNOT} label {names.LABEL_GANG_NAME}: kube-scheduler places pods with claims one by one; remove it from the manifest",
    ),
    Case(
        "a-gpu-for-each-container",
        {"a": share(3), "b": share(3)},
        labels={names.LABEL_POD_APART: "true"},
        says=f"{CANNOT} label {names.LABEL_POD_APART}: different claims of a pod may be allocated from the same GPU; remove it from the manifest",
    ),
    Case(
        "containers-share-a-whole-gpu",
        {"a": share(3), "b": share(3)},
        labels={names.LABEL_POD_PLACEMENT: names.POD_PLACEMENT_WHOLE_DEVICE},
        says=f"{CANNOT} label {names.LABEL_POD_PLACEMENT}: containers do not share a whole GPU; remove it from the manifest",
    ),
    Case(
        "placement",
        {"c": share(3)},
        {names.ANN_GPU_PLACEMENT: "spread", names.ANN_NODE_PLACEMENT: "binpack"},
        says=f"{CANNOT} annotation {names.ANN_GPU_PLACEMENT}: kube-scheduler chooses among the GPUs that fit, annotation "
        f"{names.ANN_NODE_PLACEMENT}: kube-scheduler chooses among the GPUs that fit; remove it from the manifest",
    ),
    Case(
        "memory-limit",
        {"c": share(3)},
        {names.ANN_GPU_MEMORY_LIMIT: "6Gi"},
        says=f"{CANNOT} annotation {names.ANN_GPU_MEMORY_LIMIT}: a claim's capacity is also its limit; remove it from the manifest",
    ),
    Case(
        "compute-7",
        {"c": {names.GPU_MEM: "3", names.GPU_CORE: "7"}},
        says=f"{names.GPU_CORE} must be a multiple of 5 from 5 to 100: container c requests 7",
    ),
)
