"""How long the event loop is blocked while room is made on 5,000 nodes of eight GPUs: for gangs by preemption, for one pod by moving others.

In this process, with the scheduler's own parts and an API server that answers immediately. Measured is the longest time in which no
other task had a turn, in processor time: work of other processes does not count. Usage: ``python -m benchmarks.making_room [--quick]``.
"""

import argparse
import asyncio
import time
from collections.abc import Coroutine, Mapping
from typing import Any

import msgspec

from benchmarks.api_server import described_node, node_name, pod_object
from benchmarks.in_use import GPU_MIB, NO_EVENTS, Figures, cluster, request_of, settled
from gpushare.api import names
from gpushare.api.allocation.allocation import allocate_on
from gpushare.api.disruption import DisruptionBudget
from gpushare.api.node.hosting import Guest, HostingNode
from gpushare.api.objects import Pod, decode_pod
from gpushare.api.quantity import MemoryUnit
from gpushare.kube.client.errors import ApiError
from gpushare.kube.clock import SYSTEM_CLOCK
from gpushare.ledger import Ledger
from gpushare.scheduler.cache.cache import ClusterCache, NodeRecord
from gpushare.scheduler.cache.pod_records import PodRecord, record_of
from gpushare.scheduler.framework.cycle import filter_nodes
from gpushare.scheduler.framework.cycle_state import Bodies
from gpushare.scheduler.framework.runtime import Enabled, Framework
from gpushare.scheduler.leader.lease import always_leads
from gpushare.scheduler.plugins.defragmentation.limits import Limits
from gpushare.scheduler.plugins.defragmentation.plugin import Defragmenter
from gpushare.scheduler.plugins.gangs.plugin import Gangs
from gpushare.scheduler.plugins.preemption.plugin import Preemptor
from gpushare.scheduler.plugins.resource_policy.move_targets import PolicyPlaces
from gpushare.scheduler.plugins.resource_policy.plugin import Policies

#: A gang whose pods request half a GPU each, of 80 units: every one needs victims.
GANG, REQUESTED = 32, 40
#: Units of the pods on each GPU of the nodes examined for a move: 3 are free. One GPU elsewhere has 12.
CROWD = (12, 11, 10, 9, 8, 7, 6, 5, 4, 2, 2, 1)
#: Nodes with a crowd, and units of the pending pod: each has more in total, but moving two pods is never enough.
CROWDED, WIDE = 400, 20
ROUNDS = 5


class _Api:
    """Accepts everything immediately; there are no pods to move, only to search for."""

    async def get_pod(self, namespace: str, name: str) -> Pod:
        return Pod()

    async def list_budgets(self) -> list[DisruptionBudget]:
        return []

    async def nominate(self, namespace: str, name: str, node: str, *, uid: str) -> None:
        """Accepted."""

    async def annotate_pod(
        self, namespace: str, name: str, annotations: Mapping[str, str | None], *, uid: str
    ) -> None:
        """Accepted."""

    async def evict_pod(self, namespace: str, name: str, *, uid: str) -> None:
        """Accepted."""

    async def get_guest(self, namespace: str, name: str) -> Guest:
        raise ApiError(404, "NotFound", "", "")

    async def list_guests(self, node: str) -> list[Guest]:
        return []

    async def list_hosting(self, node: str) -> list[HostingNode]:
        return []


async def _longest_hold_ms(work: Coroutine[Any, Any, object]) -> tuple[float, float]:
    """The longest time in which only ``work`` had a turn, and its total time."""
    longest_s, began_s = 0.0, time.process_time()
    working = asyncio.create_task(work)
    last_s = began_s
    while not working.done():
        await asyncio.sleep(0)
        now_s = time.process_time()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    await working
    return longest_s * 1e3, (last_s - began_s) * 1e3


def preemption(nodes: int) -> Figures:
    """Preemption for all pods of a gang, possible on every node."""
    view = cluster(nodes, lambda number, pod: (0, 100, 200)[pod % 3])
    all_names = [node_name(number) for number in range(nodes)]
    gangs = Gangs(view, SYSTEM_CLOCK)
    preemptor = Preemptor(view, _Api(), NO_EVENTS, SYSTEM_CLOCK, gangs=gangs)
    found = []
    for turn in range(ROUNDS):
        records = []
        for number in range(GANG):
            pod = pod_object(10**7 + GANG * turn + number, 1, REQUESTED, None)
            labels = {names.LABEL_GANG_NAME: f"gang-{turn}", names.LABEL_GANG_LEAST: str(GANG)}
            pod["metadata"]["labels"] = labels  # type: ignore[index]
            pod["spec"] |= {"priority": 1000}  # type: ignore[operator]
            raw = msgspec.json.encode(pod)
            record = record_of(decode_pod(raw))
            assert record is not None
            view.upsert_pod(record)
            records.append(record)
        body = msgspec.json.encode({"Pod": msgspec.Raw(raw), "NodeNames": all_names})
        for one in records:
            assert one.gang is not None
            gangs.remember_offer(one.uid, one.gang, all_names)
        filter_nodes(view, Bodies().read(body), Framework([Enabled("gangs", gangs)]))
        work = preemptor._make_room_for_gang(records[-1], all_names)  # noqa: SLF001 (one attempt, without the waits around it)
        found.append(asyncio.run(_longest_hold_ms(work)))
        assert all(view.ledger.nominations.node_of(one.uid) for one in records)
        for one in records:
            view.remove_pod(one)
    return {
        f"preemption_gang_stall_ms_{nodes}": (max(stall for stall, _ in found), "ms"),
        f"preemption_gang_ms_{nodes}": (max(took for _, took in found), "ms"),
    }


def _crowded(nodes: int) -> ClusterCache:
    """Nodes with a crowd on each GPU, one with some room on one of its GPUs, and others whose GPUs are fully allocated."""
    view = ClusterCache(Ledger(), NO_EVENTS, lambda uid: None)
    for number in range(nodes):
        node = described_node(number, GPU_MIB, MemoryUnit.GIB)
        view.upsert_node(NodeRecord(node, ""))
        for gpu, device in enumerate(node.devices):
            sizes = CROWD if number < CROWDED else (68 if (number, gpu) == (nodes - 1, 0) else 80,)
            for turn, units in enumerate(sizes):
                uid = f"{number}-{gpu}-{turn}"
                view.upsert_pod(
                    PodRecord(
                        uid,
                        f"default/{uid}",
                        node.name,
                        finished=False,
                        allocation=allocate_on(node, device, request_of(units)),
                        owner="rs",
                    )
                )
    settled()
    return view


def defragmentation(nodes: int) -> Figures:
    """An unsuccessful search for pods to move, over all nodes that it examines."""
    view = _crowded(nodes)
    mover = Defragmenter(
        view,
        _Api(),
        NO_EVENTS,
        SYSTEM_CLOCK,
        Limits(300.0, 60.0),
        PolicyPlaces(Policies(SYSTEM_CLOCK)),
        must_lead=always_leads,
        retry=lambda uids: None,
        count=lambda result: None,
    )
    record = PodRecord("wide", "default/wide", "", finished=False, request=request_of(WIDE))
    view.upsert_pod(record)
    all_names = [node_name(number) for number in range(nodes)]
    found = []
    for _ in range(ROUNDS):
        work = mover._make_room(record, all_names)  # noqa: SLF001 (as above)
        found.append(asyncio.run(_longest_hold_ms(work)))
    return {
        f"defragmentation_stall_ms_{nodes}": (max(stall for stall, _ in found), "ms"),
        f"defragmentation_look_ms_{nodes}": (max(took for _, took in found), "ms"),
    }


def measure(quick: bool = False) -> Figures:
    """Every figure of making room."""
    nodes = 100 if quick else 5000
    return preemption(nodes) | defragmentation(nodes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="small and fast")
    for name, (value, unit) in measure(parser.parse_args().quick).items():
        print(f"{name:<44} {value:10.3f} {unit}", flush=True)
