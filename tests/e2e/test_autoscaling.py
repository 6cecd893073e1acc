"""What cluster-autoscaler's own code makes of our nodes and pods: packages of its module, built here, asked with objects.

Its simulation runs kube-scheduler's plugins without extenders, so it knows sums of nodes and no GPU (docs/decisions/0022).
"""

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpushare.model import names
from gpushare.model.device import NodeMode
from gpushare.model.node_template import NodeTemplate
from gpushare.model.quantity import MemoryUnit
from gpushare.model.requested import Counting
from tests.e2e.cluster.gomodules import built
from tests.e2e.cluster.programs import Program

SIMULATION = Program("ca-simulation", "cluster-autoscaler", "./ca-simulation")
V100 = 16160

type_of_object = dict[str, Any]


@pytest.fixture(scope="module")
def simulation() -> Path:
    """The program, built or from the cache."""
    return built([SIMULATION], print)[SIMULATION.name]


def node(name: str, template: NodeTemplate, **more: str) -> type_of_object:
    """A ready node with what ``template`` says, or one that is to come."""
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    amounts |= {resource: str(amount) for resource, amount in template.capacity.items()} | more
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "labels": {"kubernetes.io/hostname": name, **template.labels},
        },
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(name: str, units: int, *, on: str = "", seen: bool = True) -> type_of_object:
    """A pod that runs ``on`` a node, or waits; ``seen``: with the condition that kube-scheduler gives."""
    amounts = {names.GPU_MEM: str(units)}
    made: type_of_object = {
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


def elsewhere(made: type_of_object, *nodes: str) -> type_of_object:
    """A stand-in for a pod: it asks for the same, on no node of these."""
    found = copy.deepcopy(made)
    found["metadata"] |= {
        "name": f"{made['metadata']['name']}-elsewhere",
        "uid": f"{made['metadata']['uid']}-e",
    }
    rule = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(nodes)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}
    found["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return found


def asked(
    simulation: Path, template: type_of_object, pods: list[type_of_object], *nodes: type_of_object
) -> type_of_object:
    question = json.dumps({"nodes": nodes, "pods": pods, "template": template})
    ran = subprocess.run(
        [simulation], input=question, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found: type_of_object = json.loads(ran.stdout)
    return found


@pytest.mark.parametrize("unit", list(MemoryUnit), ids=lambda unit: unit.setting)
def test_from_zero_as_many_nodes_as_pods_need(simulation: Path, unit: MemoryUnit) -> None:
    """Two pods of 6 GiB are on a GPU of 15: ten pods need five nodes, whatever the unit."""
    template = NodeTemplate((V100,), NodeMode.SHARE, unit)
    units = Counting(unit).units_of_mib(6144)
    waiting = [pod(f"p{number}", units) for number in range(10)]
    found = asked(simulation, node("template", template), waiting)
    assert found["nodes"] == 5
    assert set(found["served"]) == {f"p{number}" for number in range(10)}


def test_a_group_that_is_not_described_gets_no_node(simulation: Path) -> None:
    bare = node("template", NodeTemplate((), NodeMode.DEFAULT))
    bare["metadata"]["labels"][names.LABEL_MODE] = "share"
    found = asked(simulation, bare, [pod("p", 6)])
    assert (found["lacking"], found["nodes"]) == (["p"], 0)


def test_a_group_without_the_label_gets_no_node_for_pods_that_select_it(simulation: Path) -> None:
    unlabelled = node("template", NodeTemplate((V100,)))
    del unlabelled["metadata"]["labels"][names.LABEL_MODE]
    assert asked(simulation, unlabelled, [pod("p", 6)])["nodes"] == 0


def test_compute_is_counted_too(simulation: Path) -> None:
    template = NodeTemplate((V100,), NodeMode.CORE_MEM)
    waiting = [pod(f"p{number}", 2) for number in range(4)]
    for one in waiting:
        one["spec"]["nodeSelector"] = {names.LABEL_MODE: "core_mem"}
        for amounts in one["spec"]["containers"][0]["resources"].values():
            amounts[names.GPU_CORE] = "40"
    assert asked(simulation, node("template", template), waiting)["nodes"] == 2


def test_only_pods_that_kube_scheduler_calls_unschedulable_are_seen(simulation: Path) -> None:
    """Room that is kept for a nominated pod is on its way, and a pod that nobody has tried is not its business."""
    nominated = pod("nominated", 6)
    nominated["status"]["nominatedNodeName"] = "n1"
    other = pod("failed-otherwise", 6)
    other["status"]["conditions"][0]["reason"] = "SchedulerError"
    found = asked(
        simulation,
        node("template", NodeTemplate((V100,))),
        [pod("new", 6, seen=False), nominated, other, pod("p", 6)],
    )
    assert found["seen"] == ["p"]


TWO = NodeTemplate((16384, 16384))
#: Six units are free on each of its GPUs.
BROKEN_UP = (node("n1", TWO), [pod("a", 10, on="n1"), pod("b", 10, on="n1")])


def test_a_pod_that_the_sum_would_hold_and_no_gpu_does_is_not_helped(simulation: Path) -> None:
    """The gap: eight units of twelve, six on each GPU."""
    there, running = BROKEN_UP
    found = asked(simulation, node("template", TWO), [*running, pod("large", 8)], there)
    assert found["seen"] == ["large"]
    assert (found["lacking"], found["nodes"]) == ([], 0)


def test_a_stand_in_that_may_not_be_on_those_nodes_gets_a_new_one(simulation: Path) -> None:
    there, running = BROKEN_UP
    large = pod("large", 8)
    found = asked(simulation, node("template", TWO), [*running, large, elsewhere(large, "n1")], there)
    assert (found["lacking"], found["nodes"]) == (["large-elsewhere"], 1)


def test_a_stand_in_is_served_by_the_node_that_came(simulation: Path) -> None:
    there, running = BROKEN_UP
    large = pod("large", 8)
    pods = [*running, large, elsewhere(large, "n1")]
    found = asked(simulation, node("template", TWO), pods, there, node("n2", TWO))
    assert (found["lacking"], found["nodes"]) == ([], 0)


def test_a_template_that_is_a_living_node_serves_it_too(simulation: Path) -> None:
    """Where a group has nodes, one of them is the template; only its name becomes another."""
    there, running = BROKEN_UP
    large = pod("large", 8)
    found = asked(simulation, there, [*running, large, elsewhere(large, "n1")], there)
    assert (found["lacking"], found["nodes"]) == (["large-elsewhere"], 1)


def test_with_one_gpu_in_a_node_sums_say_the_truth(simulation: Path) -> None:
    one = NodeTemplate((16384,))
    pods = [pod("a", 10, on="n1"), pod("b", 10, on="n2"), pod("large", 8)]
    found = asked(simulation, node("template", one), pods, node("n1", one), node("n2", one))
    assert (found["lacking"], found["nodes"]) == (["large"], 1)


def test_of_several_gpus_too_few_nodes_are_counted_at_first(simulation: Path) -> None:
    """Three pods of 9 units: two GPUs of 16 hold two of them, their sum three. The third is left for the next round."""
    waiting = [pod(f"p{number}", 9) for number in range(3)]
    assert asked(simulation, node("template", TWO), waiting)["nodes"] == 1


def test_a_node_whose_agent_has_not_registered_yet_looks_like_one_without_gpu(simulation: Path) -> None:
    """Why such nodes need a startup taint: a second one would be made for the same pod."""
    empty = node("n1", TWO, **{names.GPU_MEM: "0"})
    found = asked(simulation, node("template", TWO), [pod("p", 8)], empty)
    assert (found["lacking"], found["nodes"]) == (["p"], 1)
