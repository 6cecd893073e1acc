"""cluster-autoscaler's decisions for our nodes and pods: one table for its rules as we know them and for its own code.

It runs kube-scheduler's plugins without extenders, so it sees sums per node and no single GPUs (docs/decisions/0022).
"""

import copy
from dataclasses import dataclass
from typing import Any

import msgspec

from gpushare.admission.rules.unit_rules import conversion
from gpushare.api import names
from gpushare.api.crd.placeholder_pod import UNSCHEDULABLE, Likeness, placeholder_for
from gpushare.api.node.hosting import decode_guest
from gpushare.api.node.modes import NodeMode
from gpushare.api.node.node_template import NodeTemplate
from gpushare.api.objects import decode_pod
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.unit_conversion import Counting
from gpushare.scheduler.plugins.autoscaling.settings import INSTANCE_TYPE
from gpushare_playground.apiserver.writes.patching import json_patch

V100 = 16160
#: The kind of all nodes here.
KIND = "gpu.large"

JsonObject = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """``template`` is the group's node, ``nodes`` exist, ``pods`` run or are pending.

    ``seen``: how many pods it considers; ``lacking``: those without room; ``makes``: how many nodes it adds.
    """

    id: str
    template: JsonObject
    pods: tuple[JsonObject, ...]
    nodes: tuple[JsonObject, ...] = ()
    seen: int = 1
    lacking: tuple[str, ...] = ()
    makes: int = 0


def node(name: str, template: NodeTemplate, **more: str) -> JsonObject:
    """A ready node, or a future one, according to ``template``."""
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    amounts |= {resource: str(amount) for resource, amount in template.capacity.items()} | more
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "labels": {"kubernetes.io/hostname": name, INSTANCE_TYPE: KIND, **template.labels},
        },
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(name: str, units: int, *, on: str = "", seen: bool = True) -> JsonObject:
    """A pod that runs ``on`` a node, or is pending; ``seen``: with kube-scheduler's condition."""
    amounts = {names.GPU_MEM: str(units)}
    made: JsonObject = {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {
            "schedulerName": names.SCHEDULER_NAME,
            "nodeSelector": {names.LABEL_MODE: "share"},
            "containers": [
                {"name": "c", "image": "x", "resources": {"limits": amounts, "requests": amounts}}
            ],
        },
        "status": {},
    }
    if on:
        made["spec"]["nodeName"] = on
    elif seen:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        made["status"]["conditions"] = [condition]
    return made


def elsewhere(made: JsonObject, *nodes: str, kind: str = KIND) -> JsonObject:
    """The placeholder for a pod that these nodes refused, as cluster-autoscaler sees it."""
    guest = decode_guest(msgspec.json.encode(made))
    likeness = Likeness(frozenset(nodes), INSTANCE_TYPE, frozenset((kind,)))
    found = placeholder_for(guest, likeness, "gpushare-placeholders")
    found["metadata"]["uid"] = f"{made['metadata']['uid']}-e"
    return {**found, "status": {"conditions": [UNSCHEDULABLE]}}


def _demanding(made: JsonObject, zone: str) -> JsonObject:
    found = copy.deepcopy(made)
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    found["spec"]["affinity"] = {"nodeAffinity": required}
    return found


def _with_compute(made: JsonObject, percent: int) -> JsonObject:
    found = copy.deepcopy(made)
    found["spec"]["nodeSelector"] = {names.LABEL_MODE: "core_mem"}
    for amounts in found["spec"]["containers"][0]["resources"].values():
        amounts[names.GPU_CORE] = str(percent)
    return found


def _admitted(made: JsonObject, counting: Counting, **amounts: str) -> JsonObject:
    """The pod after admission, with these amounts in place of units."""
    found = copy.deepcopy(made)
    found["spec"]["containers"][0]["resources"] = {"limits": amounts, "requests": dict(amounts)}
    return json_patch(found, conversion(decode_pod(found), counting))


def _of_whole_gpus(made: JsonObject, count: int) -> JsonObject:
    found = copy.deepcopy(made)
    found["spec"]["nodeSelector"] = {names.LABEL_MODE: "topology"}
    amounts = {names.GPU_WHOLE: str(count)}
    found["spec"]["containers"][0]["resources"] = {"limits": amounts, "requests": amounts}
    return found


def _labelled(made: JsonObject, key: str, value: str) -> JsonObject:
    found = copy.deepcopy(made)
    found["metadata"]["labels"] = {key: value}
    return found


def _nominated(made: JsonObject) -> JsonObject:
    found = copy.deepcopy(made)
    found["status"]["nominatedNodeName"] = "n1"
    return found


def _failed(made: JsonObject) -> JsonObject:
    found = copy.deepcopy(made)
    found["status"]["conditions"][0]["reason"] = "SchedulerError"
    return found


def _bare(*, labelled: bool) -> JsonObject:
    """A template without amounts or labels."""
    made = node("template", NodeTemplate(() if labelled else (V100,), NodeMode.SHARE))
    if labelled:
        del made["status"]["capacity"][names.GPU_MEM], made["status"]["capacity"][names.GPU_COUNT]
    else:
        del made["metadata"]["labels"][names.LABEL_MODE]
    return made


def _several(count: int, units: int) -> tuple[JsonObject, ...]:
    return tuple(pod(f"p{number}", units) for number in range(count))


def _named(count: int) -> tuple[str, ...]:
    return tuple(f"p{number}" for number in range(count))


ONE, TWO = NodeTemplate((16384,)), NodeTemplate((16384, 16384))
#: Six units are free on each of its two GPUs; ``LARGE`` fits on neither.
BROKEN_UP = (node("n1", TWO),)
RUNNING = (pod("a", 10, on="n1"), pod("b", 10, on="n1"))
LARGE = pod("large", 8)
STAND_IN = elsewhere(LARGE, "n1")

CASES: tuple[Case, ...] = (
    *(
        # Two pods of 6 GiB fit on a GPU of 15: ten pods need five nodes in any unit.
        Case(
            f"from-zero-as-many-nodes-as-pods-need-in-units-of-{unit.setting}",
            node("template", NodeTemplate((V100,), NodeMode.SHARE, unit)),
            _several(10, Counting(unit).units_of_mib(6144)),
            seen=10,
            lacking=_named(10),
            makes=5,
        )
        for unit in MemoryUnit
    ),
    Case(
        "memory-in-bytes",
        node("template", ONE),
        tuple(_admitted(one, Counting(), **{names.GPU_MEMORY: "6145Mi"}) for one in _several(3, 0)),
        seen=3,
        lacking=_named(3),
        makes=2,
    ),
    Case(
        "memory-in-percent",
        node("template", ONE),
        tuple(
            _admitted(one, Counting(reference_mib=16384), **{names.GPU_MEMORY_PERCENT: "50"})
            for one in _several(3, 0)
        ),
        seen=3,
        lacking=_named(3),
        makes=2,
    ),
    Case("a-group-that-is-not-described", _bare(labelled=True), (pod("p", 6),), lacking=("p",)),
    Case("a-group-without-the-label-that-pods-select", _bare(labelled=False), (pod("p", 6),), lacking=("p",)),
    Case(
        "compute-is-counted-too",
        node("template", NodeTemplate((V100,), NodeMode.CORE_MEM)),
        tuple(_with_compute(one, 40) for one in _several(4, 2)),
        seen=4,
        lacking=_named(4),
        makes=2,
    ),
    Case(
        "whole-gpus-by-count",
        node("template", NodeTemplate((V100,) * 4, NodeMode.TOPOLOGY)),
        tuple(_of_whole_gpus(one, 2) for one in _several(3, 0)),
        seen=3,
        lacking=_named(3),
        makes=2,
    ),
    Case(
        "a-pod-on-several-gpus",
        node("template", TWO),
        tuple(_labelled(one, names.LABEL_POD_GPU_COUNT, "2") for one in _several(2, 32)),
        seen=2,
        lacking=_named(2),
        makes=2,
    ),
    # It counts their requests, not that each holds a whole GPU.
    Case(
        "whole-gpus-by-label-that-request-half-of-one",
        node("template", ONE),
        tuple(
            _labelled(one, names.LABEL_POD_PLACEMENT, names.POD_PLACEMENT_WHOLE_DEVICE)
            for one in _several(4, 8)
        ),
        seen=4,
        lacking=_named(4),
        makes=2,
    ),
    # A nominated pod's capacity is being freed, and a pod that was never tried is not the autoscaler's concern.
    Case(
        "only-pods-that-kube-scheduler-calls-unschedulable",
        node("template", ONE),
        (pod("new", 6, seen=False), _nominated(pod("nominated", 6)), _failed(pod("failed", 6)), pod("p", 6)),
        lacking=("p",),
        makes=1,
    ),
    # The gap: eight units of twelve, six on each GPU.
    Case(
        "a-pod-that-the-sum-would-hold-and-no-gpu-does", node("template", TWO), (*RUNNING, LARGE), BROKEN_UP
    ),
    Case(
        "a-stand-in-that-may-not-be-on-those-nodes",
        node("template", TWO),
        (*RUNNING, LARGE, STAND_IN),
        BROKEN_UP,
        seen=2,
        lacking=("stand-in-large",),
        makes=1,
    ),
    # If a group has nodes, one of them is the template, with another name.
    Case(
        "a-stand-in-where-a-living-node-is-the-template",
        BROKEN_UP[0],
        (*RUNNING, LARGE, STAND_IN),
        BROKEN_UP,
        seen=2,
        lacking=("stand-in-large",),
        makes=1,
    ),
    Case(
        "a-stand-in-once-its-node-has-come",
        node("template", TWO),
        (*RUNNING, LARGE, STAND_IN),
        (*BROKEN_UP, node("n2", TWO)),
        seen=2,
    ),
    Case(
        "a-stand-in-once-its-node-is-on-its-way-and-its-pod-is-on-it",
        node("template", TWO),
        (*RUNNING, pod("large", 8, on="n2"), STAND_IN),
        (*BROKEN_UP, node("n2", TWO)),
    ),
    # Nodes of a kind on which the pod would not fit even if empty are not added, whatever the sum.
    Case(
        "a-stand-in-that-no-node-of-this-group-is-right-for",
        node("template", TWO),
        (*RUNNING, LARGE, elsewhere(LARGE, "n1", kind="gpu.larger")),
        BROKEN_UP,
        seen=2,
        lacking=("stand-in-large",),
    ),
    Case(
        "a-stand-in-with-what-its-pod-demands-of-nodes",
        node("template", TWO),
        (*RUNNING, LARGE, elsewhere(_demanding(LARGE, "other"), "n1")),
        BROKEN_UP,
        seen=2,
        lacking=("stand-in-large",),
    ),
    # A pod left for the next round gets its own node then.
    Case(
        "the-third-of-three-where-a-node-holds-two",
        node("template", TWO),
        (pod("p0", 9, on="n1"), pod("p1", 9, on="n1"), pod("p2", 9), elsewhere(pod("p2", 9), "n1")),
        (node("n1", TWO),),
        seen=2,
        lacking=("stand-in-p2",),
        makes=1,
    ),
    Case(
        "with-one-gpu-in-a-node-sums-say-the-truth",
        node("template", ONE),
        (pod("a", 10, on="n1"), pod("b", 10, on="n2"), LARGE),
        (node("n1", ONE), node("n2", ONE)),
        lacking=("large",),
        makes=1,
    ),
    # Two GPUs of 16 hold two pods of 9, their sum three: the third is left for the next round.
    Case(
        "of-several-gpus-too-few-nodes-at-first",
        node("template", TWO),
        _several(3, 9),
        seen=3,
        lacking=_named(3),
        makes=1,
    ),
    # Why such nodes need a startup taint: a second one would be added for the same pod.
    Case(
        "a-node-whose-agent-has-not-registered-yet",
        node("template", TWO),
        (pod("p", 8),),
        (node("n1", TWO, **{names.GPU_MEM: "0"}),),
        lacking=("p",),
        makes=1,
    ),
)
