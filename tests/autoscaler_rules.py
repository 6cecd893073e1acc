"""cluster-autoscaler's rules as far as they concern us, without its code: which pods it considers, whether it finds room on existing
nodes, and how many nodes it adds (first fit, largest first). Its own code runs in ``tests/e2e/test_autoscaling.py``.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

from gpushare.api.quantity import parse_quantity
from tests.autoscaler_cases import JsonObject

_HOSTNAME = "kubernetes.io/hostname"


@dataclass(frozen=True)
class Answer:
    """Pods that it considers, those without room, and the number of nodes that it adds."""

    seen: list[str]
    lacking: list[str]
    nodes: int


class _Room:
    """Free resources of a node, as counted by kube-scheduler's plugins without extenders."""

    def __init__(self, node: JsonObject) -> None:
        self.labels = node["metadata"]["labels"]
        self.left = {name: parse_quantity(amount) for name, amount in node["status"]["allocatable"].items()}

    def takes(self, pod: JsonObject) -> bool:
        selected = pod["spec"].get("nodeSelector", {}).items() <= self.labels.items()
        return (
            selected
            and self._allowed(pod)
            and all(
                self.left.get(name, 0) >= parse_quantity(amount) for name, amount in _requests(pod).items()
            )
        )

    def take(self, pod: JsonObject) -> None:
        for name, amount in _requests(pod).items():
            self.left[name] -= parse_quantity(amount)

    def _allowed(self, pod: JsonObject) -> bool:
        affinity = pod["spec"].get("affinity")
        if affinity is None:
            return True
        terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        (term,) = terms
        return all(
            (self.labels.get(rule["key"]) in rule["values"]) is {"In": True, "NotIn": False}[rule["operator"]]
            for rule in term["matchExpressions"]
        )


def _requests(pod: JsonObject) -> JsonObject:
    requests: JsonObject = pod["spec"]["containers"][0]["resources"]["requests"]
    return requests


def simulated(template: JsonObject, pods: Sequence[JsonObject], nodes: Sequence[JsonObject]) -> Answer:
    """The decision of cluster-autoscaler."""
    rooms = {node["metadata"]["name"]: _Room(node) for node in nodes}
    for pod in pods:
        if on := pod["spec"].get("nodeName"):
            rooms[on].take(pod)
    seen = [pod for pod in pods if _is_considered(pod)]
    lacking = []
    for pod in seen:
        room = next((room for room in rooms.values() if room.takes(pod)), None)
        if room is None:
            lacking.append(pod)
        else:
            room.take(pod)
    fresh: list[_Room] = []
    for pod in sorted(lacking, key=lambda pod: -sum(map(parse_quantity, _requests(pod).values()))):
        room = next((room for room in fresh if room.takes(pod)), None)
        if room is None:
            room = _Room(_named(template, f"template-{len(fresh)}"))
            if not room.takes(pod):
                continue
            fresh.append(room)
        room.take(pod)
    return Answer([_name(pod) for pod in seen], [_name(pod) for pod in lacking], len(fresh))


def _is_considered(pod: JsonObject) -> bool:
    status = pod["status"]
    return (
        not pod["spec"].get("nodeName")
        and not status.get("nominatedNodeName")
        and any(
            (one["type"], one["status"], one["reason"]) == ("PodScheduled", "False", "Unschedulable")
            for one in status.get("conditions", ())
        )
    )


def _named(template: JsonObject, name: str) -> JsonObject:
    made = copy.deepcopy(template)
    made["metadata"]["name"] = made["metadata"]["labels"][_HOSTNAME] = name
    return made


def _name(pod: JsonObject) -> str:
    name: str = pod["metadata"]["name"]
    return name
