"""The simulation does what the scheduler does: compared with its verbs, called with encoded bodies by the playground's kube-scheduler."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.api.json_objects import Json, key_of, name_of, uid_of
from gpushare.api.node.device import Placement
from gpushare.api.objects import decode_node, decode_pod
from gpushare.api.quantity import MemoryUnit
from gpushare.kubescheduler.node_usage import Occupancy
from gpushare.ledger import Ledger
from gpushare.scheduler.cache.cache import ClusterCache, NodeReader
from gpushare.scheduler.cache.pod_records import counted_record_of
from gpushare.scheduler.framework.binder import Binder, BindRefused, Reservations
from gpushare.scheduler.framework.cycle import filter_nodes, prioritize_nodes
from gpushare.scheduler.framework.cycle_state import Bodies
from gpushare.scheduler.server import protocol
from gpushare.simulate.engine.engine import Settings
from gpushare.simulate.engine.simulation import simulate
from gpushare.simulate.input.manifests import manifests_of
from gpushare.simulate.snapshot import ClusterState, counting_of
from gpushare_playground.kubescheduler.cycle import Unschedulable, choose
from gpushare_playground.kubescheduler.extender import FilterResult, HostPriority
from tests.randomized import rounds
from tests.unit.scheduler.world import Api, Recorded, TurnedClock
from tests.unit.simulate.objects import node, pod

quick = settings(max_examples=rounds(50, soak=120), deadline=None)


class Verbs:
    """The extender as kube-scheduler's loop calls it, with encoded bodies and responses, but no socket."""

    def __init__(self, nodes: Sequence[Json], policy: Placement, api: Api | None = None) -> None:
        self.api = api or Api()
        self.ledger = Ledger(node_policy=policy)
        self.reservations = Reservations(15.0)
        clock = TurnedClock()
        self.view = ClusterCache(self.ledger, Recorded(), self.reservations.end)
        self.binder = Binder(self.view, self.api, self.reservations, clock)
        self.bodies = Bodies()
        reader = NodeReader(unit=MemoryUnit.GIB, isolated_cap=16, node_policy=policy)
        for one in nodes:
            self.view.upsert_node(reader.read(decode_node(one)))

    def is_interested(self, item: Json) -> bool:
        return bool(item["spec"].get("schedulerName") == "ack-co-scheduler")

    async def filter(self, item: Json, names: Sequence[str]) -> FilterResult:
        response = filter_nodes(self.view, self.bodies.read(_body(item, names)))
        return msgspec.json.decode(response, type=FilterResult)

    async def prioritize(self, item: Json, names: Sequence[str]) -> dict[str, int]:
        response = prioritize_nodes(self.view, self.bodies.read(_body(item, names)))
        return {one.host: one.score * 50 for one in msgspec.json.decode(response, type=list[HostPriority])}

    async def bind(self, item: Json, on: str) -> None:
        arguments = {
            "PodName": name_of(item),
            "PodNamespace": "default",
            "PodUID": uid_of(item),
            "Node": on,
        }
        await self.binder.bind(protocol.read_binding(msgspec.json.encode(arguments)))

    def observe(self, item: Json) -> None:
        record = counted_record_of(decode_pod(item))
        if record is not None:
            self.view.upsert_pod(record)


def _body(item: Json, names: Sequence[str]) -> bytes:
    return msgspec.json.encode({"Pod": item, "Nodes": None, "NodeNames": list(names)})


async def run_scheduler(
    nodes: Sequence[Json], pods: Sequence[Json], policy: Placement, seed: int
) -> dict[str, Any]:
    """Node and GPUs by pod: kube-scheduler's loop, pod by pod, repeated while any pod is placed."""
    verbs, occupancy, chance = Verbs(nodes, policy), Occupancy(), random.Random(seed).random
    for one in nodes:
        occupancy.set_node(one)
    current = {key_of(one): msgspec.json.decode(msgspec.json.encode(one)) for one in pods}
    for item in current.values():
        verbs.api.create(item)
        verbs.observe(item)
    queue = list(current)
    while True:
        left = []
        for key in queue:
            item = current[key]
            extender: Any = verbs if verbs.is_interested(item) else None
            try:
                choice = await choose(item, occupancy, extender, chance)
                if verbs.is_interested(item):
                    await verbs.bind(item, choice.node)
                else:
                    item["spec"]["nodeName"] = choice.node
            except (Unschedulable, BindRefused):
                left.append(key)
                continue
            verbs.observe(item)
            occupancy.place(item)
        if not left or len(left) == len(queue):
            break
        queue = left
    return {
        key: (
            item["spec"].get("nodeName") or "",
            [share.index for share in held.allocation.gpus]
            if (held := verbs.ledger.held(uid_of(item)))
            else [],
        )
        for key, item in current.items()
    }


GPUS = st.sampled_from(((16160,), (16160, 16160), (8192, 16384), (24576, 8192, 8192), ()))
node_lists = st.lists(
    st.tuples(GPUS, st.sampled_from(("share", "cgpu", "core_mem")), st.sampled_from(("2", "16"))),
    min_size=1,
    max_size=5,
)
requests = st.tuples(
    st.sampled_from((None, 1, 2, 3, 5, 8, 15, 16)),
    st.sampled_from((None, None, None, 30, 50)),
    st.sampled_from(
        ({}, {}, {"aliyun.com/gpu-count": "2"}, {"ack.gpushare.placement": "require-whole-device"})
    ),
)


@quick
@given(node_lists, st.lists(requests, min_size=1, max_size=14), st.sampled_from(Placement), st.integers(0, 3))
def test_pods_are_placed_where_the_verbs_place_them(
    shapes: list[Any], requested: list[Any], policy: Placement, seed: int
) -> None:
    nodes = tuple(
        node(f"n{number}", *gpus, mode=mode, cpu=cpu) for number, (gpus, mode, cpu) in enumerate(shapes)
    )
    state = ClusterState(nodes)
    documents = [
        ("test", pod(f"p{number}", mem, core if mem else None, labels=dict(labels)))
        for number, (mem, core, labels) in enumerate(requested)
    ]
    wanted = manifests_of(documents, state, counting_of(state)).pods
    result = simulate(state, wanted, Settings(policy, seed=seed))
    expected = asyncio.run(run_scheduler(nodes, [one.pod for one in wanted if not one.refused], policy, seed))
    found = {
        fate.pod: (fate.node, [share.index for share in fate.gpus])
        for fate in result.fates
        if not fate.why.startswith("admission")
    }
    assert found == expected
