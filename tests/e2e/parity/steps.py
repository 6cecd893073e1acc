"""Steps for both control planes: kubectl's command lines, one after the other, and what each waits for."""

import json
from dataclasses import dataclass
from typing import Any, Final

from tests.patience import SLOWNESS

JsonObject = dict[str, Any]
#: All on one node, so that records name the same GPU on both.
_ON_T4: Final = {"nodeSelector": {"kubernetes.io/hostname": "cgpu-t4"}}
#: The node agent marks a pod's record, and posts events, when the pod may be Ready already.
_MARKED: Final = '"ALIYUN_COM_GPU_MEM_ASSIGNED":"true"'
_TOLD: Final = ("Scheduled", "Started")
_WITHIN: Final = f"--timeout={80 * SLOWNESS:.0f}s"


@dataclass(frozen=True, slots=True)
class Step:
    """One command. ``sent`` goes to its stdin; ``code`` is its exit code on both.

    ``until`` is a text that its output must contain before it is compared: states are waited for, not times.
    With ``unordered`` lines are compared as a set, with ``last`` only the last one is. With ``ended`` it is
    about a pod that may have ended before its node agent marked the record. ``differs`` is the reason why
    the outputs may differ; they must differ then.
    """

    name: str
    command: str
    sent: str = ""
    until: str | tuple[str, ...] = ""
    code: int = 0
    unordered: bool = False
    last: bool = False
    ended: bool = False
    differs: str = ""


def pod(name: str, **more: Any) -> JsonObject:
    """A pod of one busybox that sleeps."""
    container = {
        "name": "main",
        "image": "busybox:1.36",
        "command": ["sleep", "infinity"],
        "resources": {"limits": more.pop("limits", {"aliyun.com/gpu-mem": 2})},
        **more.pop("container", {}),
    }
    meta = {"name": name, "labels": {"app": name}, **more.pop("metadata", {})}
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container], **more}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def workload(kind: str, name: str, **more: Any) -> JsonObject:
    """A workload of the pods above."""
    template = pod(name, **_ON_T4, **more.pop("pod", {}))
    template = {"metadata": {"labels": {"app": name}}, "spec": template["spec"]}
    group = {"Job": "batch/v1", "CronJob": "batch/v1"}.get(kind, "apps/v1")
    selector = {} if kind == "Job" else {"selector": {"matchLabels": {"app": name}}}
    spec = {**selector, "template": template, **more}
    return {"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": spec}


def sent(*items: JsonObject) -> str:
    """Manifests as ``kubectl -f -`` takes them."""
    # Not as a List: kubectl would check the fields of one by itself, by what the server's OpenAPI says.
    return "\n---\n".join(map(json.dumps, items))


STEPS: Final = (
    # --- a pod's life ---
    Step("create a pod", "create -f -", sent(pod("one", **_ON_T4))),
    Step("it runs", f"wait --for=condition=Ready pod/one {_WITHIN}"),
    Step("its object", "get pod one -o json", until=_MARKED.replace(":", ": ")),
    Step("its row", "get pod one"),
    Step("its wide row", "get pod one -o wide"),
    Step("its row with labels", "get pods --show-labels"),
    Step("it is described", "describe pod one", until=_TOLD, unordered=True),
    Step("its events", "events --for pod/one", until=_TOLD, unordered=True),
    Step("its log", "logs one"),
    # Two streams, of which either may be read first.
    Step("a command in it", "exec one -- sh -c 'echo out; echo err >&2; exit 3'", code=3, unordered=True),
    Step("standard input into it", "exec -i one -- cat", "hello"),
    Step("no such container", "exec one -c none -- true", code=1),
    Step("no such log", "logs one -c none", code=1),
    Step("no previous log", "logs one --previous", code=1),
    # --- changes ---
    Step("label", "label pod one tier=gold"),
    Step("label again", "label pod one tier=silver", code=1),
    Step("annotate", "annotate pod one note=yes"),
    Step("merge patch", 'patch pod one --type=merge -p \'{"metadata":{"labels":{"tier":null}}}\' -o json'),
    Step(
        "json patch",
        'patch pod one --type=json -p \'[{"op":"add","path":"/metadata/labels/x","value":"y"}]\'',
    ),
    Step(
        "json patch of nothing",
        'patch pod one --type=json -p \'[{"op":"remove","path":"/metadata/labels/none"}]\'',
        code=1,
    ),
    Step("strategic patch", 'patch pod one -p \'{"metadata":{"finalizers":["example.com/keep"]}}\''),
    Step(
        "an immutable field", 'patch pod one --type=merge -p \'{"spec":{"schedulerName":"other"}}\'', code=1
    ),
    Step("an image may change", "set image pod/one main=busybox:latest"),
    Step("delete with a finalizer", "delete pod one --wait=false"),
    Step("it is still there", "get pod one -o jsonpath={.metadata.finalizers}"),
    Step("the finalizer goes", 'patch pod one --type=merge -p \'{"metadata":{"finalizers":null}}\''),
    Step("it is not found", "get pod one", until="NotFound", code=1),
    # --- what is refused ---
    Step("no image", "create -f -", sent(pod("bad", container={"image": ""})), code=1),
    Step("a bad name", "create -f -", sent(pod("Bad_Name")), code=1),
    Step("a bad label", "create -f -", sent(pod("bad", metadata={"labels": {"a b": "c"}})), code=1),
    Step("half a GPU unit", "create -f -", sent(pod("bad", limits={"aliyun.com/gpu-mem": "500m"})), code=1),
    Step(
        "request and limit differ",
        "create -f -",
        sent(
            pod(
                "bad",
                container={
                    "resources": {"limits": {"aliyun.com/gpu-mem": 2}, "requests": {"aliyun.com/gpu-mem": 1}}
                },
            )
        ),
        code=1,
    ),
    Step("a bad quantity", "create -f -", sent(pod("bad", limits={"cpu": "lots"})), code=1),
    Step("an unknown field", "create -f -", sent(pod("bad", gpus=3)), code=1),
    Step("no containers", "create -f -", sent(pod("bad", containers=[])), code=1),
    Step(
        "two of one name",
        "create -f -",
        sent(pod("bad", containers=[{"name": "a", "image": "x"}, {"name": "a", "image": "x"}])),
        code=1,
    ),
    Step("an unknown namespace", "create -n nowhere -f -", sent(pod("bad")), code=1),
    Step("an unknown priority class", "create -f -", sent(pod("bad", priorityClassName="none")), code=1),
    Step(
        "7 percent",
        "create -f -",
        sent(pod("bad", limits={"aliyun.com/gpu-mem": 2, "aliyun.com/gpu-core.percentage": 7})),
        code=1,
    ),
    Step("an unknown kind", "get sheep", code=1),
    Step("selector of no match", "get pods -l app=none", code=0),
    Step("a bad selector", "get pods -l 'a in b'", code=1),
    Step("a bad field selector", "get pods --field-selector spec.none=1", code=1),
    # --- apply ---
    Step("apply", "apply -f -", sent(pod("two", **_ON_T4))),
    Step("apply the same", "apply -f -", sent(pod("two", **_ON_T4))),
    Step(
        "apply a label",
        "apply -f -",
        sent(pod("two", metadata={"labels": {"app": "two", "b": "c"}}, **_ON_T4)),
    ),
    Step(
        "apply what cannot change",
        "apply -f -",
        sent(pod("two", limits={"aliyun.com/gpu-mem": 3}, **_ON_T4)),
        code=1,
        unordered=True,
    ),
    Step(
        "apply a config map",
        "apply -f -",
        sent({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}),
    ),
    Step(
        "diff", "diff -f -", sent(pod("two", metadata={"labels": {"app": "two", "b": "d"}}, **_ON_T4)), code=1
    ),
    Step("dry run", "create --dry-run=server -o json -f -", sent(pod("dry"))),
    Step(
        "memory in MiB",
        "create --dry-run=server -o json -f -",
        sent(pod("mib", limits={"gpushare.dev/gpu-memory": "1500Mi"})),
    ),
    Step(
        "percent of a card",
        "create --dry-run=server -o json -f -",
        sent(pod("percent", limits={"gpushare.dev/gpu-memory.percentage": 25})),
    ),
    Step(
        "memory in bytes",
        "create -f -",
        sent(pod("bad", limits={"gpushare.dev/gpu-memory": "6144"})),
        code=1,
    ),
    Step("already there", "create -f -", sent(pod("two", **_ON_T4)), code=1),
    Step(
        "replace",
        "replace -f -",
        sent({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"z": "9"}}),
    ),
    Step(
        "replace a stale one",
        "replace -f -",
        sent(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "c", "resourceVersion": "1"},
                "data": {},
            }
        ),
        code=1,
    ),
    Step("two is deleted", "delete pod two --now"),
    # --- what does not fit ---
    Step("too large", "create -f -", sent(pod("large", limits={"aliyun.com/gpu-mem": 20}))),
    Step("why too large", "get pod large -o jsonpath={.status}", until="nodes are available"),
    Step("events of it", "events --for pod/large", until="FailedScheduling", unordered=True),
    Step("its description", "describe pod large", until="FailedScheduling", unordered=True),
    Step("its rows", "get pod large -o wide"),
    Step("no log of it", "logs large"),
    Step("no command in it", "exec large -- true", code=1),
    Step("far too large", "create -f -", sent(pod("huge", limits={"aliyun.com/gpu-mem": 200}))),
    Step("why far too large", "get pod huge -o jsonpath={.status.conditions}", until="nodes are available"),
    Step("nowhere", "create -f -", sent(pod("nowhere", limits={}, nodeSelector={"a": "b"}))),
    Step("why nowhere", "get pod nowhere -o jsonpath={.status.conditions}", until="nodes are available"),
    Step("a taint", "taint nodes cgpu-t4 a=b:NoSchedule"),
    Step("a cordon", "cordon share-v100"),
    Step("its taint", "get node share-v100 -o jsonpath={.spec.taints[*].key}", until="unschedulable"),
    Step("much cpu", "create -f -", sent(pod("cpu", limits={"cpu": "64"}))),
    Step("why not that cpu", "get pod cpu -o jsonpath={.status.conditions}", until="nodes are available"),
    Step("unscheduled pods", "get pods"),
    Step("nodes", "get nodes"),
    Step(
        "nodes with taints",
        "get nodes -o 'custom-columns=N:.metadata.name,T:.spec.taints[*].key,U:.spec.unschedulable'",
        until="unschedulable",
    ),
    Step("no taint", "taint nodes cgpu-t4 a-"),
    Step("no cordon", "uncordon share-v100"),
    Step("no pods", "delete pods --all --now"),
    # --- what goes wrong ---
    Step(
        "a program that fails",
        "create -f -",
        sent(
            pod(
                "fails",
                restartPolicy="Never",
                container={"command": ["sh", "-c", "echo no; exit 4"]},
                **_ON_T4,
            )
        ),
    ),
    Step("it failed", "get pod fails -o jsonpath={.status.phase}", until="Failed"),
    Step("its status", "get pod fails -o jsonpath={.status}"),
    Step("its row when failed", "get pod fails"),
    Step("its log when failed", "logs fails"),
    Step(
        "no such image",
        "create -f -",
        sent(pod("imageless", container={"image": "none.example/none:1"}, **_ON_T4)),
    ),
    # What it stays at.
    Step(
        "its reason",
        "get pod imageless -o jsonpath={.status.containerStatuses[0].state}",
        until="ImagePullBackOff",
    ),
    Step(
        "a program that ends",
        "create -f -",
        sent(pod("ends", restartPolicy="Never", container={"command": ["true"]}, **_ON_T4)),
    ),
    Step("it ended", "get pod ends", until="Completed"),
    Step("events of one that ended", "events --for pod/ends", until=_TOLD, unordered=True),
    Step(
        "init containers",
        "create -f -",
        sent(
            pod("init", initContainers=[{"name": "first", "image": "busybox", "command": ["true"]}], **_ON_T4)
        ),
    ),
    Step("it is initialised", f"wait --for=condition=Ready pod/init {_WITHIN}"),
    Step("status of init containers", "get pod init -o jsonpath={.status}"),
    Step("no pods again", "delete pods --all --now"),
)
"""In order; what a step makes is there for those after it."""

WORKLOADS: Final = (
    Step("a deployment", "create -f -", sent(workload("Deployment", "web", replicas=2))),
    Step("it is rolled out", f"rollout status deployment/web {_WITHIN}", last=True),
    Step("row of the deployment", "get deployment web", until="2/2"),
    Step("wide row of the deployment", "get deployment web -o wide"),
    Step("object of the deployment", "get deployment web -o json"),
    Step("replica set of the deployment", "get rs -o wide"),
    Step("the object of that", "get rs -o json"),
    Step("pods of the deployment", "get pods -l app=web"),
    Step("a pod's metadata", "get pods -l app=web -o jsonpath={.items[0].metadata}", until=_MARKED),
    Step("described", "describe deployment web", until="ScalingReplicaSet", unordered=True),
    Step(
        "events of the deployment", "events --for deployment/web", until="ScalingReplicaSet", unordered=True
    ),
    Step("scale", "scale deployment web --replicas=1"),
    Step("scaled", "get deployment web", until="1/1"),
    Step("a new image", "set image deployment/web main=busybox:latest"),
    Step("rolled out again", f"rollout status deployment/web {_WITHIN}", last=True),
    Step("history", "rollout history deployment/web"),
    Step("undo", "rollout undo deployment/web"),
    Step("undone", f"rollout status deployment/web {_WITHIN}", last=True),
    Step(
        "a wrong template",
        "create -f -",
        sent(
            {
                **workload("Deployment", "wrong"),
                "spec": {
                    "selector": {"matchLabels": {"a": "b"}},
                    "template": workload("Deployment", "wrong")["spec"]["template"],
                },
            }
        ),
        code=1,
    ),
    Step("deployment deleted", "delete deployment web"),
    Step("its pods go", "get pods -l app=web", until="No resources found"),
    Step("a stateful set", "create -f -", sent(workload("StatefulSet", "db", replicas=2, serviceName="db"))),
    Step("it is there", f"rollout status statefulset/db {_WITHIN}", last=True),
    Step("row of the stateful set", "get sts -o wide", until="2/2"),
    Step("object of the stateful set", "get sts db -o json", until='"updatedReplicas": 2'),
    Step("pod of the stateful set", "get pod db-1 -o jsonpath={.metadata}", until=_MARKED),
    Step("events of the stateful set", "events --for statefulset/db", until="db-1", unordered=True),
    Step("stateful set deleted", "delete sts db"),
    Step(
        "a job",
        "create -f -",
        sent(
            workload(
                "Job",
                "work",
                completions=2,
                parallelism=1,
                pod={"restartPolicy": "Never", "container": {"command": ["true"]}},
            )
        ),
    ),
    Step("it completes", f"wait --for=condition=Complete job/work {_WITHIN}"),
    Step("row of the job", "get jobs -o wide"),
    Step("object of the job", "get job work -o json"),
    Step("job described", "describe job work", until="Job completed", unordered=True),
    Step("pod of the job", "get pods -l job-name=work -o jsonpath={.items[0].metadata}", ended=True),
    Step("events of the job", "events --for job/work", until="Completed", unordered=True),
    Step(
        "a job that fails",
        "create -f -",
        sent(
            workload(
                "Job",
                "broken",
                backoffLimit=0,
                pod={"restartPolicy": "Never", "container": {"command": ["false"]}},
            )
        ),
    ),
    Step("it fails", f"wait --for=condition=Failed job/broken {_WITHIN}"),
    Step("object of the failed job", "get job broken -o jsonpath={.status}"),
    Step("events of the failed job", "events --for job/broken", until="BackoffLimitExceeded", unordered=True),
    Step("jobs deleted", "delete jobs --all"),
    Step("nothing is left", "get pods", until="No resources found"),
    Step("a node", "get node cgpu-t4 -o json"),
    Step("a node described", "describe node cgpu-t4", unordered=True),
    Step("wide nodes", "get nodes -o wide"),
    Step("inspect", "inspect cgpu"),
    Step("namespaces", "get namespaces"),
    Step("a namespace", "create namespace other"),
    Step("object of the namespace", "get namespace other -o json"),
    Step("a pod in it", "create -n other -f -", sent(pod("inside"))),
    Step("it runs there", f"wait -n other --for=condition=Ready pod/inside {_WITHIN}"),
    Step("pods everywhere", "get pods -A"),
    Step("namespace deleted", "delete namespace other"),
    Step("explain", "explain pod.spec.schedulerName", differs="the embedded OpenAPI has no descriptions"),
    Step("version", "get --raw /version", differs="it says which server it is"),
    Step(
        "who am I",
        "auth whoami",
        differs="the embedded server knows users by token, the real one by certificate",
    ),
    Step("may I", "auth can-i create pods"),
)
