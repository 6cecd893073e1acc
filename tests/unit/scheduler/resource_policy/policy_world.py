"""A scheduler with policies, and requests in kube-scheduler's format."""

import json
from collections.abc import Collection
from typing import Any

import msgspec

from gpushare.api.crd.resource_policy import decode_policy, policy_pod_of
from gpushare.api.objects import decode_pod
from gpushare.scheduler.framework.binder import Binder
from gpushare.scheduler.framework.cycle import filter_nodes
from gpushare.scheduler.framework.cycle_state import Bodies
from gpushare.scheduler.plugins.preemption.extender_preempt import preempt_pods
from gpushare.scheduler.plugins.resource_policy.plugin import Policies
from gpushare.scheduler.plugins.resource_policy.prebind import PolicyBinding
from gpushare.scheduler.server import protocol
from gpushare.scheduler.server.protocol import BindingArgs
from tests.unit.scheduler.resource_policy.policy_samples import written
from tests.unit.scheduler.world import World, pod_object

NODES = ("a1", "a2", "b1", "c1", "n1")
FIRST = 1_767_225_600  # 2026-01-01T00:00:00Z


class PolicyWorld(World):
    """A scheduler with policies; the pods of their namespace are seen as they are made."""

    def __init__(self) -> None:
        super().__init__()
        self.clock.wall_off_s = FIRST - self.clock.now_s
        self.kept_on = self.ledger.nominations.node_of
        self.policies = Policies(self.clock, kept_on=lambda uid: self.kept_on(uid))
        self.in_turn = self.policies.by_unit
        self.again: list[str] = []
        self.policies.retry_wanted.subscribe(self.again.extend)
        self.binding = PolicyBinding(self.api, self.policies, self.clock)
        self.plugins += [self.policies, self.binding]
        self.binder = Binder(self.view, self.api, self.reservations, self.clock, self.framework())
        for name in NODES:
            self.policies.census.set_node(name, {"pool": name[0]})

    def rules(self, *units: dict[str, Any], generation: int = 1, **spec: Any) -> None:
        policy = decode_policy(written(*units, **spec))
        self.policies.upsert_policy(msgspec.structs.replace(policy, generation=generation))
        self.policies.unread.clear()

    def make(self, name: str, mem: Any = None, **more: Any) -> None:
        labels = {"app": "x", **more.pop("labels", {})}
        status = more.pop("status", {})
        made = pod_object(name, mem, labels=labels, **more)
        made["status"] |= status
        self.api.create(made)
        self.look(name)

    def look(self, name: str) -> None:
        """Let the informers see a pod."""
        self.see(name)
        self.policies.upsert_pod(policy_pod_of(decode_pod(self.api.pods[f"default/{name}"])))

    def gone(self, name: str) -> None:
        self.policies.remove_pod(policy_pod_of(decode_pod(self.api.pods.pop(f"default/{name}"))))

    def ask(self, name: str, *nodes: str) -> tuple[list[str], dict[str, str], dict[str, str]]:
        """(Nodes that fit, reasons where others could be evicted, reasons elsewhere)."""
        body = {"Pod": self.api.pods[f"default/{name}"], "Nodes": None, "NodeNames": list(nodes or NODES)}
        ending: list[str] = []

        def refused(uid: str, where: Collection[str]) -> None:
            ending.extend(where)
            self.refused(uid, where)

        raw = filter_nodes(
            self.view, Bodies().read(json.dumps(body).encode()), self.framework(refused=refused)
        )
        read = msgspec.json.decode(raw)
        reasons = (read["FailedNodes"] or {}) | (read["FailedAndUnresolvableNodes"] or {})
        if read["NodeNames"]:
            return read["NodeNames"], read["FailedNodes"] or {}, read["FailedAndUnresolvableNodes"] or {}
        return [], {one: reasons.pop(one) for one in ending}, reasons

    async def bind(self, name: str, node: str) -> None:
        await self.binder.bind(BindingArgs("default", name, f"uid-{name}", node))

    def victims(self, name: str, *nodes: str) -> list[str]:
        """On which nodes kube-scheduler may evict for the pod."""
        offered = {node: {"Pods": [{"UID": "v"}], "NumPDBViolations": 0} for node in nodes}
        body = {"Pod": self.api.pods[f"default/{name}"], "NodeNameToMetaVictims": offered}
        args = protocol.read_preemption(json.dumps(body).encode())
        answer = preempt_pods(self.view, args, lambda uid: None, self.policies, quotas=self.quotas)
        return list(msgspec.json.decode(answer)["NodeNameToMetaVictims"])


def meta(world: PolicyWorld, name: str) -> dict[str, Any]:
    found: dict[str, Any] = world.api.pods[f"default/{name}"]["metadata"]
    return found
