"""Drawn clusters and pods, a scheduler over them that is called over HTTP's own bytes, and the naive ledger next to it."""

import random
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import msgspec

from gpushare.api import names
from gpushare.api.node.device import Device, NodeDevices, Placement
from gpushare.api.node.modes import NodeMode
from gpushare.api.node.topology import matrix
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import Request, request_of
from gpushare.ledger.results import Held
from gpushare.scheduler.observability.metrics import Metrics
from gpushare.scheduler.plugins.explain.decisions_api import pod_response
from gpushare.scheduler.server.app import ExtenderApp
from tests.unit.ledger.naive_arrivals import NaiveArrivals
from tests.unit.ledger.naive_ledger import Holding
from tests.unit.scheduler.resource_policy.policy_world import PolicyWorld
from tests.unit.scheduler.world import pod_object

SIZES_MIB = (2048, 4096, 8192, 16160)
MODES = (
    *(
        NodeMode.SHARE,
        NodeMode.SHARE,
        NodeMode.SHARE,
        NodeMode.CORE_MEM,
        NodeMode.CORE_MEM,
        NodeMode.CORE_MEM,
    ),
    *(NodeMode.CGPU, NodeMode.MPS, NodeMode.TOPOLOGY, NodeMode.TOPOLOGY, NodeMode.DEFAULT),
)
# : Of clusters on which most pods find a place, until memory or compute run short.
SHARING = (NodeMode.SHARE, NodeMode.SHARE, NodeMode.CGPU, NodeMode.MPS)
COMPUTING = (NodeMode.CORE_MEM,)
COUNTING = (NodeMode.TOPOLOGY, NodeMode.TOPOLOGY, NodeMode.SHARE)
POOLS = ("a", "b", "n")
PRIORITIES = (0, 0, 0, 5, 9)
MISTAKE = "label gpushare.dev/max-pods=many is not a number from 1; correct or remove it"


class Answer(NamedTuple):
    """The answer of ``filter`` about the nodes that it was ``offered``: those that take the pod, and the reasons of the others."""

    pod: dict[str, Any]
    request: Request
    offered: list[str]
    fits: list[str]
    texts: dict[str, str]


def some_node(
    choose: random.Random, name: str, placements: Collection[Placement], modes: Sequence[NodeMode]
) -> NodeDevices:
    count = choose.randint(1, 4)
    devices = tuple(
        Device(
            index,
            f"GPU-{name}-{index}",
            choose.choice(SIZES_MIB),
            healthy=choose.random() > 0.1,
            reason="XID 79",
            cordoned=choose.random() < 0.1,
            foreign_mib=choose.choice((0,) * 9 + (1024,)),
            numa_node=index // 2 if choose.random() < 0.3 else -1,
        )
        for index in range(count)
    )
    mode = choose.choice(modes)
    by_fragments = Placement.FRAGMENTATION in placements
    mistake = MISTAKE if choose.random() < 0.05 else ""
    near = matrix(count, lambda one, other: 100 if one // 2 == other // 2 else 1)
    return NodeDevices(
        name,
        mode,
        MemoryUnit.GIB,
        devices,
        placement=choose.choice(list(placements)),
        max_pods=choose.choice((None, None, None, None, 2, 1)),
        refusal=mistake,
        problem=mistake,
        # That a node is full is not checked where fragments decide.
        max_node_pods=None if by_fragments else choose.choice((None, None, None, 3)),
        near=near if choose.random() < 0.4 else (),
    )


def some_pod(choose: random.Random, name: str, priority: int, modes: Sequence[NodeMode]) -> dict[str, Any]:
    """A pod with every possible kind of request; a few of them invalid. With few ``modes``, one that finds a place at first."""
    labels = {"app": "x"}
    annotations = {}
    mem = choose.choice((1, 2, 2, 4, 4, 8, 20))
    core = choose.choice((None,) * 9 + (20,) * 4 + (60, 60))
    crowded = modes is not MODES
    if crowded:
        mem = choose.choice((1, 2, 4, 8))
        core = choose.choice((20, 60, 80, 80)) if modes is COMPUTING else None
    drawn = choose.random()
    if drawn < 0.2 and (core is None or choose.random() < 0.1):
        labels[names.LABEL_POD_GPU_COUNT] = "2"
    elif 0.2 < drawn < 0.3 and core is None:
        labels[names.LABEL_POD_PLACEMENT] = names.POD_PLACEMENT_WHOLE_DEVICE
        labels[names.LABEL_POD_GPU_COUNT] = choose.choice(("1", "2"))
    if choose.random() < 0.15:
        unit_mib = choose.choice((1024, 1024, 1024 if crowded else 128))
        noted = {"unitMib": unit_mib, "cardMib": 0, "containers": {"c": f"{mem * unit_mib}Mi"}}
        annotations[names.ANN_REQUESTED] = msgspec.json.encode(noted).decode()
    pod = pod_object(name, mem, core=core, labels=labels, annotations=annotations, priority=priority)
    containers = pod["spec"]["containers"]
    if choose.random() < (0.7 if modes is COUNTING else 0 if crowded else 0.1):
        containers[0]["resources"]["limits"] = {names.GPU_WHOLE: choose.choice((1, 1, 2, 3))}
    elif core == 60 and not crowded and choose.random() < 0.5:
        containers.append({**containers[0], "name": "d"})
    elif len(labels) == 1 and not annotations and choose.random() < (0.15 if core is None else 0.25):
        labels[names.LABEL_POD_APART] = "true"
        containers.append({**containers[0], "name": "d"})
    elif core is None and mem == 20 and not annotations and choose.random() < 0.3:
        limits = {names.GPU_MEM: choose.choice((1, 4))}
        containers.append({**containers[0], "name": "d", "resources": {"limits": limits}})
    return pod


class Scene:
    """One scheduler, the expected outcome next to it, and the pods that come one after the other."""

    def __init__(self, seed: int) -> None:
        self.choose = choose = random.Random(seed)
        self.world = PolicyWorld()
        self.policy = choose.choice(list(Placement))
        self.world.ledger._left.policy = self.policy  # what ``--node-policy`` sets
        placements = set(Placement)
        if self.policy is not Placement.FRAGMENTATION and choose.random() < 0.5:
            placements.discard(Placement.FRAGMENTATION)
        elif self.policy is not Placement.FRAGMENTATION:
            self.policy = self.world.ledger._left.policy = choose.choice(list(Placement))
        self.modes = choose.choice((MODES,) * 4 + (SHARING, SHARING, COMPUTING, COMPUTING, COUNTING))
        self.naive = NaiveArrivals()
        self.decisions = self.world.decisions
        self.world.in_turn = self.world.policies.by_unit
        self.pool_of: dict[str, str] = {}
        caps = random.Random(seed)  # the other drawn values stay
        self.isolated_cap = self.world.view.isolated_cap = caps.choice((16, 2, 1))
        for number in range(choose.randint(1 if self.modes is MODES else 3, 6)):
            name = f"{choose.choice(POOLS)}{number}"
            by_value = sorted(placements, key=lambda one: one.value)
            node = some_node(choose, name, by_value, self.modes)
            if node.mode.isolated:
                most = min(node.max_pods or self.isolated_cap, self.isolated_cap)
                node = msgspec.structs.replace(node, max_pods=most)
            self.pool_of[node.name] = node.name[0]
            self.world.add_node(node)
            self.world.policies.census.set_node(node.name, {"pool": node.name[0]})
            self.naive.nodes[node.name] = node
        self.units: list[tuple[str, int]] = []
        if choose.random() < (0.5 if self.modes is MODES else 0.2):
            self.units = [(pool, choose.randint(1, 3)) for pool in choose.sample(POOLS, 2)]
            self.world.rules(
                *(
                    {"resource": "ecs", "nodeSelector": {"pool": pool}, "max": most}
                    for pool, most in self.units
                )
            )
        self.app = ExtenderApp(
            self.world.view,
            self.world.binder,
            Metrics(),
            lambda: "",
            framework=self.world.framework(
                self.decisions,
                self.world.verb(self.world.policies, self.decisions),
                refused=lambda uid, nodes: None,
            ),
        )

    def record_of(self, name: str) -> Any:
        return msgspec.json.decode(pod_response(self.decisions, f"/gpushare/decisions/default/{name}/nodes"))

    async def post(self, verb: str, body: Any) -> Any:
        answered = self.app.quick(f"/gpushare/{verb}".encode())(msgspec.json.encode(body))  # type: ignore[misc]
        return msgspec.json.decode(answered if isinstance(answered, bytes) else await answered)

    def make(self, name: str) -> tuple[dict[str, Any], Request | None]:
        """A pod that is seen; without a request if its resources contradict each other."""
        pod = self.drawn(name)
        return pod, self.seen(pod)

    def seen(self, pod: dict[str, Any]) -> Request | None:
        """Creates a pod and shows it; returns its request, ``None`` if its resources contradict each other."""
        made = self.world.api.create(pod)
        self.world.look(pod["metadata"]["name"])
        try:
            request = request_of(made)
        except msgspec.MsgspecError:
            raise
        except Exception:
            return None
        assert request is not None
        self.naive.arrived(request)
        return request

    def drawn(self, name: str) -> dict[str, Any]:
        return some_pod(self.choose, name, self.choose.choice(PRIORITIES), modes=self.modes)

    async def filter(self, pod: dict[str, Any], request: Request) -> Answer:
        nodes = sorted(self.pool_of)
        count = len(nodes) if self.choose.random() < 0.4 else self.choose.randint(1, len(nodes))
        offered = self.choose.sample(nodes, count)
        answer = await self.post("filter", {"Pod": pod, "Nodes": None, "NodeNames": offered})
        texts = (answer["FailedNodes"] or {}) | (answer["FailedAndUnresolvableNodes"] or {})
        return Answer(pod, request, offered, answer["NodeNames"] or [], texts)

    async def bind(self, name: str, node: str, request: Request) -> Held:
        answer = await self.post(
            "bind", {"PodNamespace": "default", "PodName": name, "PodUID": f"uid-{name}", "Node": node}
        )
        assert answer["Error"] == ""
        self.world.look(name)
        held = self.world.ledger.held(f"uid-{name}")
        assert held is not None
        self.naive.holdings[f"uid-{name}"] = Holding(f"default/{name}", node, held.allocation, confirmed=True)
        return held

    def end(self, uid: str) -> None:
        """A bound pod ends, and every watch has seen it."""
        record = self.world.view.bound[uid]
        self.world.gone(uid.removeprefix("uid-"))
        self.world.view.remove_pod(record)
        self.decisions.forget(uid)
        del self.naive.holdings[uid]

    def leave(self, name: str) -> None:
        """A pending pod is deleted."""
        self.world.view.remove_pod(self.world.view.waiting[f"uid-{name}"])
        self.world.gone(name)
        self.decisions.forget(f"uid-{name}")

    # --- expected outcome -----------------------------------------------------------------------------

    def expected(self, request: Request, offered: list[str]) -> dict[str, str]:
        """The reason by node, empty if it takes the pod; only beginnings where a policy or a kubelet is involved."""
        refusals = {name: self.naive.reason(request, name) for name in offered}
        reasons = {name: "" if found is None else found[0] for name, found in refusals.items()}
        if not self.units:
            return reasons
        open_to_pod = [name for name in offered if not reasons[name]]
        its = self.in_first_unit(open_to_pod)
        if its:
            return {name: reasons[name] or ("" if name in its else "an earlier unit") for name in offered}
        return {name: reasons[name] or "ResourcePolicy" for name in offered}

    def in_first_unit(self, nodes: list[str]) -> list[str]:
        """Those of ``nodes`` in the first unit that has any and is not full; all of them without a policy."""
        if not self.units:
            return nodes
        for pool, most in self.units:
            its = [name for name in nodes if self.pool_of[name] == pool]
            if its and self.taken(pool) < most:
                return its
        return []

    def taken(self, pool: str) -> int:
        return [self.pool_of[one.node] for one in self.naive.holdings.values()].count(pool)
