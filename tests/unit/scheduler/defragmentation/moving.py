"""A scheduler with defragmentation, whose nodes have room for everything but GPUs."""

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from gpushare.api import names
from gpushare.api.disruption import decode_budget
from gpushare.scheduler.cache.pod_records import decode_record
from gpushare.scheduler.framework.cycle import filter_nodes
from gpushare.scheduler.framework.cycle_state import Bodies
from gpushare.scheduler.leader.lease import NotLeading
from gpushare.scheduler.plugins.defragmentation.mobility import with_mobility
from gpushare.scheduler.plugins.defragmentation.plugin import LOOK_S, Defragmenter, Limits
from gpushare.scheduler.plugins.resource_policy.move_targets import PolicyPlaces
from gpushare.scheduler.plugins.resource_policy.plugin import Policies
from gpushare.scheduler.server.protocol import BindingArgs
from tests.unit.scheduler.world import World, gpu_node, pod_object

if TYPE_CHECKING:
    from collections.abc import Callable

DECODE = with_mobility(decode_record)
INTERVAL_S = 300.0
WAIT_S = 60.0


class Moving(World):
    """A scheduler with defragmentation."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__()
        self.policies = Policies(self.clock)
        self.leads: Callable[[], bool] = lambda: True
        self.outcomes: list[str] = []
        self.hurried: list[str] = []
        self.mover = Defragmenter(
            self.view,
            self.api,
            self.events,
            self.clock,
            limits or Limits(INTERVAL_S, WAIT_S),
            PolicyPlaces(self.policies),
            quotas=self.quotas,
            must_lead=self._must_lead,
            retry=self.hurried.extend,
            count=self.outcomes.append,
        )

    async def _must_lead(self) -> None:
        if not self.leads():
            raise NotLeading

    def refused(self, uid: str, nodes: Any) -> None:
        super().refused(uid, nodes)
        self.mover.post_filter(uid, nodes)

    def see(self, name: str) -> None:
        found = DECODE(msgspec.json.encode(self.api.pods[f"default/{name}"]))
        assert found is not None
        self.mover.pod_arriving(found[1])
        self.view.upsert_pod(found[1])

    def node(self, name: str, *gib: int) -> None:
        self.add_node(gpu_node(name, *(1024 * size for size in gib)))
        amounts = {"cpu": "8", "pods": "99", names.GPU_MEM: "999"}
        self.api.hosts[name] = {"metadata": {"name": name}, "spec": {}, "status": {"allocatable": amounts}}

    async def bound(self, name: str, units: int, node: str, *, owner: str = "rs", **more: Any) -> None:
        self.made(name, units, owner, **more)
        await self.binder.bind(BindingArgs("default", name, f"uid-{name}", node))
        self.see(name)

    def made(self, name: str, units: int, owner: str = "rs", **more: Any) -> None:
        pod = pod_object(name, units, **more)
        if owner:
            references = [{"uid": owner, "kind": "ReplicaSet", "controller": True}]
            pod["metadata"]["ownerReferences"] = references
        self.api.create(pod)
        self.see(name)

    def ask(self, name: str, *nodes: str) -> list[str]:
        offered = list(nodes or self.api.hosts)
        body = {"Pod": self.api.pods[f"default/{name}"], "NodeNames": offered}
        answer = filter_nodes(self.view, Bodies().read(msgspec.json.encode(body)), self.framework())
        found: list[str] = msgspec.json.decode(answer)["NodeNames"] or []
        return found

    async def look(self, *turns_s: float) -> None:
        """Let the mover run once after these times."""
        running = asyncio.create_task(self.mover.run())
        await asyncio.sleep(0)
        for turn_s in (*turns_s, LOOK_S):
            await self.clock.turn(turn_s)
            for _ in range(60):
                await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    def end(self, name: str) -> None:
        record = self.view.bound[f"uid-{name}"]
        del self.api.pods[f"default/{name}"]
        self.view.remove_pod(record)

    def budget(self, allowed: int, **labels: str) -> None:
        self.api.budgets = [
            decode_budget(
                msgspec.json.encode(
                    {
                        "metadata": {"name": "b", "namespace": "default"},
                        "spec": {"selector": {"matchLabels": labels}},
                        "status": {"disruptionsAllowed": allowed},
                    }
                )
            )
        ]
