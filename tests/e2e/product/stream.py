"""A stream of pods that hold GPU memory, and the account of allocations while it runs."""

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from gpushare.api import names
from gpushare.api.node.device import Device
from gpushare.kubeletapi.podresources_pb2 import ListPodResourcesRequest
from gpushare.kubeletapi.podresources_pb2_grpc import PodResourcesListerStub
from gpushare.nodeagent.deviceplugin.device_ids import DeviceIds
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.product.product import Product, gpu_pod
from tests.patience import SLOWNESS

Json = dict[str, Any]

APP: Final = "churn"
REPLICAS: Final = 12
#: 31 units in all: 12 pods of 2 fit on the two nodes, not on one of them.
ON_TWO_NODES: Final = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {
                    "matchExpressions": [
                        {
                            "key": "kubernetes.io/hostname",
                            "operator": "In",
                            "values": ["share-v100", "cgpu-t4"],
                        }
                    ]
                }
            ]
        }
    }
}
_EVERY_S: Final = 0.4
_SOCKET: Final = "var/lib/kubelet/pod-resources/kubelet.sock"
#: A message of the kubelet may be longer than gRPC takes by default.
_MOST_BYTES: Final = 64 << 20


@dataclass
class Account:
    """Observations while the stream ran: every GPU with more allocated than it has."""

    over: list[str] = field(default_factory=list)
    samples: int = 0
    deleted: int = 0


def deployment(name: str, replicas: int, mem: int = 1, core: int | None = None, **spec: object) -> Json:
    """A Deployment whose pods each request ``mem`` units."""
    pod = gpu_pod(name, mem, core, labels={"app": name}, **spec)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod["spec"]},
        },
    }


@contextmanager
def stream(cluster: Cluster, app: str) -> Iterator[Account]:
    """During the block, the oldest pod of the Deployment is deleted again and again, and allocations are
    added up.

    Some tests are about an API server that does not answer: the stream continues when it is back.
    """
    account, stopped = Account(), threading.Event()
    # A separate thread; an error in it would otherwise be lost.
    failed: list[BaseException] = []

    def run() -> None:
        try:
            while not stopped.wait(_EVERY_S):
                _step(cluster, app, account)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name=f"stream of {app}")
    thread.start()
    try:
        yield account
    finally:
        stopped.set()
        thread.join(timeout=60 * SLOWNESS)
    if failed:
        raise failed[0]
    assert not account.over, account.over
    assert account.samples > 3, "the stream saw too little"


def _step(cluster: Cluster, app: str, account: Account) -> None:
    try:
        pods = cluster.get("/api/v1/pods")["items"]
        nodes = cluster.get("/api/v1/nodes")["items"]
    except (OSError, TimeoutError):
        return
    account.samples += 1
    account.over += over_capacity(pods, nodes)
    mine = [pod for pod in pods if pod["metadata"].get("labels", {}).get("app") == app]
    ready = [pod for pod in mine if pod["status"].get("phase") == "Running"]
    if ready:
        oldest = min(ready, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))
        name = oldest["metadata"]["name"]
        done = cluster.kubectl("delete", "pod", name, "--grace-period=1", "--wait=false", check=False)
        account.deleted += done.returncode == 0


def over_capacity(pods: list[Json], nodes: list[Json]) -> list[str]:
    """GPUs of which more MiB are allocated than they have, by the records of pods that have not ended."""
    total: dict[str, int] = {}
    for node in nodes:
        text = (node["metadata"].get("annotations") or {}).get(names.ANN_DEVICES)
        if text:
            total |= {gpu["uuid"]: gpu["mib"] for gpu in json.loads(text)["gpus"]}
    held: dict[str, int] = defaultdict(int)
    for pod in pods:
        if pod["status"].get("phase") in ("Succeeded", "Failed"):
            continue
        for gpu in _record(pod).get("gpus", ()):
            held[gpu["uuid"]] += gpu["mib"]
    return [f"{uuid}: {mib} of {total[uuid]} MiB" for uuid, mib in held.items() if mib > total.get(uuid, mib)]


def settle(cluster: Cluster, product: Product, app: str, replicas: int, within_s: float = 90.0) -> list[Json]:
    """Wait until every replica runs and the records match what the kubelets allocated; returns the pods.

    Identical pods that are admitted at the same moment may get each other's GPU. The node agent then
    corrects their records, one after the other.
    """
    product.running(f"app={app}", replicas, timeout_s=within_s)
    differences: list[str] = []

    def agreed() -> bool:
        differences[:] = disagreements(cluster)
        return not differences

    try:
        wait_for("kubelets and records agree", agreed, timeout=30, every=0.3)
    except TimeoutError as error:
        raise AssertionError(f"{error}; they differ: {differences}") from error
    return product.running(f"app={app}", replicas)


def disagreements(cluster: Cluster) -> list[str]:
    """Pods whose record names another GPU than the one whose devices their kubelet gave them."""
    found = []
    pods = {
        (pod["metadata"]["namespace"], pod["metadata"]["name"]): pod
        for pod in cluster.get("/api/v1/pods")["items"]
    }
    for node in cluster.nodes:
        annotations = cluster.get(f"/api/v1/nodes/{node.name}")["metadata"].get("annotations") or {}
        gpus = json.loads(annotations.get(names.ANN_DEVICES, '{"gpus": []}'))["gpus"]
        ids = DeviceIds([Device(gpu["index"], gpu["uuid"], gpu["mib"]) for gpu in gpus])
        for key, pod_ids in _allocated(node.machine.init.pid).items():
            pod = pods.get(key)
            if pod is None or pod["metadata"].get("deletionTimestamp"):
                continue
            recorded = {gpu["uuid"] for gpu in _record(pod).get("gpus", ())}
            really = {ids.gpu_of(one) for one in pod_ids}
            if recorded != really:
                found.append(f"{key[1]} on {node.name}: recorded {recorded}, allocated {really}")
    return found


def _allocated(machine: int) -> dict[tuple[str, str], list[str]]:
    """(namespace, pod) → IDs of GPU memory that the kubelet of this machine has allocated, by its pod resources API."""
    address = f"unix:///proc/{machine}/root/{_SOCKET}"
    with grpc.insecure_channel(
        address, options=[("grpc.max_receive_message_length", _MOST_BYTES)]
    ) as channel:
        answer = PodResourcesListerStub(channel).List(ListPodResourcesRequest(), timeout=10 * SLOWNESS)
    allocated: dict[tuple[str, str], list[str]] = defaultdict(list)
    for pod in answer.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                if devices.resource_name == names.GPU_MEM:
                    allocated[pod.namespace, pod.name] += devices.device_ids
    return allocated


def _record(pod: Json) -> Json:
    text = (pod["metadata"].get("annotations") or {}).get(names.ANN_SHARE)
    record: Json = json.loads(text) if text else {}
    return record
