"""The in-tree filters, in kube-scheduler's order and with its messages."""

from collections.abc import Collection
from typing import Final

from gpushare.api.json_objects import Json, spec_of
from gpushare.kubescheduler.node_affinity import admits_unscheduled, untolerated, wants_node
from gpushare.kubescheduler.node_usage import HostPort, NodeState, host_ports_of
from gpushare.kubescheduler.resources import CPU, MEMORY, PODS, Amounts, requests_of

UNSCHEDULABLE: Final = "node(s) were unschedulable"
TAINTED: Final = "node(s) had untolerated taint(s)"
NOT_WANTED: Final = "node(s) didn't match Pod's node affinity/selector"
PORTS_TAKEN: Final = "node(s) didn't have free ports for the requested pod ports"
TOO_MANY_PODS: Final = "Too many pods"
_ORDER: Final = {CPU: 0, MEMORY: 1, "ephemeral-storage": 2}


class Wanted:
    """A pod with the data that the filters need, computed once per scheduling cycle; ``ignored`` resources do not count."""

    def __init__(self, pod: Json, ignored: Collection[str] = ()) -> None:
        self.pod = pod
        self.requests: Amounts = {
            name: amount for name, amount in requests_of(pod).items() if name not in ignored
        }
        self.ports: frozenset[HostPort] = host_ports_of(pod)

    def refusals(self, state: NodeState) -> list[str]:
        """Reasons of the first filter that rejects the node; empty if it is feasible."""
        node = state.node
        if not admits_unscheduled(self.pod, node):
            return [UNSCHEDULABLE]
        if untolerated(self.pod, node, ("NoSchedule", "NoExecute")):
            return [TAINTED]
        if not wants_node(self.pod, node):
            return [NOT_WANTED]
        if any(state.has_port(port) for port in self.ports):
            return [PORTS_TAKEN]
        return self._shortages(state)

    def is_hopeless(self, state: NodeState) -> bool:
        """Whether the node would be infeasible even if it were empty."""
        node = state.node
        return (
            not admits_unscheduled(self.pod, node)
            or bool(untolerated(self.pod, node, ("NoSchedule", "NoExecute")))
            or not wants_node(self.pod, node)
            or any(wanted > state.allocatable.get(name, 0) for name, wanted in self.requests.items())
        )

    def _shortages(self, state: NodeState) -> list[str]:
        found = []
        if len(state.pods) + 1 > state.allocatable.get(PODS, 0):
            found.append(TOO_MANY_PODS)
        for name in sorted(self.requests, key=lambda name: (_ORDER.get(name, 3), name)):
            wanted = self.requests[name]
            if wanted and wanted > state.allocatable.get(name, 0) - state.used.get(name, 0):
                found.append(f"Insufficient {name}")
        return found


def ignored_wishes(pod: Json) -> list[str]:
    """Scheduling features that the pod uses and that are not implemented here."""
    spec = spec_of(pod)
    affinity = spec.get("affinity") or {}
    wishes = {
        "affinity.podAffinity": affinity.get("podAffinity"),
        "affinity.podAntiAffinity": affinity.get("podAntiAffinity"),
        "topologySpreadConstraints": spec.get("topologySpreadConstraints"),
        "resourceClaims": spec.get("resourceClaims"),
        "persistentVolumeClaim": any(
            volume.get("persistentVolumeClaim") or volume.get("ephemeral")
            for volume in spec.get("volumes") or ()
        ),
    }
    return [name for name, wish in wishes.items() if wish]
