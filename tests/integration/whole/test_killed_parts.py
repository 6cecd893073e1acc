"""Extender and node agents are killed at random moments of a stream of pods, and nothing goes wrong.

A pod whose kubelet needs devices while the node agent is dead is refused by every kubelet (reason
UnexpectedAdmissionError, phase Failed, permanently), and the pod's owner creates another. So the stream does
what a Job would: it replaces each pod that ended so (docs/decisions/0003). A decision that is in progress
while the agent moves an identical pod's record to that GPU may find it full; such pods are few
(docs/decisions/0008).
"""

import asyncio
import contextlib
import os
import random
from collections import deque
from collections.abc import Mapping
from functools import partial

import pytest

from gpushare.api import names
from gpushare.api.quantity import MemoryUnit
from gpushare_playground.cluster.parts import Part
from tests.integration.whole.cluster import (
    CheckFn,
    Json,
    annotations_of,
    held_mib,
    is_finished,
    is_running,
    node_of,
    phase_of,
    record_of,
    waits_because,
)
from tests.integration.whole.world import World, gpu_pod, shared_node, until, world
from tests.randomized import rounds, seeds

NODES = (
    shared_node("four", "core-mem-4", "share", (names.LABEL_PLACEMENT, "spread")),
    shared_node("isolated", "t4", "cgpu"),
    shared_node("single", "v100-16384"),
)
UNITS = {"four": [15, 15, 15, 15], "isolated": [15], "single": [16]}
PODS, KILLS = rounds(90, soak=200), rounds(8, soak=20)
#: Minimum number of pending pods: the GPUs are full after some thirty.
WAITED = rounds(2, soak=5)
WAITING, FULL = 12, 0.7
#: How many pods may be created before a due kill has happened.
AHEAD = 4
#: Every kubelet's message when the device plugin is missing at admission; any other is a bug of ours.
PLUGIN_AWAY = (
    "no healthy devices present",
    "is stopped: its device plugin is gone",
    "code = Unavailable",
    "code = Canceled",
)
#: Our agent's message for a pod whose GPU an identical pod's exchange took while it was decided, and the
#: maximum number of them.
OVERTAKEN, MOST_OVERTAKEN = "and no other GPU has enough free", 4


def never_above_capacity(cluster: World) -> CheckFn:
    """After each event: what the bound and unfinished pods hold of each GPU, by their annotations.

    Two identical pods that the kubelet admitted in the other order swap their records, one write after the
    other; a decision may be in progress meanwhile (docs/decisions/0008), and the kubelet allocates again
    what a pod had before it reports that the pod has ended. So the records of a GPU may exceed it by those
    that were moved there, until the others move away or end. (What containers have never exceeds it: no
    device is allocated twice.)
    """
    place: dict[str, str] = {}
    moved_ever: set[str] = set()
    versions: dict[str, str] = {}
    changes: deque[str] = deque(maxlen=100)

    def check(pods: Mapping[str, Json]) -> None:
        moved: dict[str, int] = {}
        for key, pod in pods.items():
            if versions.get(key) != pod["metadata"]["resourceVersion"]:
                versions[key] = pod["metadata"]["resourceVersion"]
                changes.append(state(key, pod))
            if not node_of(pod) or is_finished(pod):
                continue
            for one in record_of(pod):
                if place.setdefault(pod["metadata"]["uid"], one["uuid"]) != one["uuid"]:
                    place[pod["metadata"]["uid"]] = one["uuid"]
                    moved_ever.add(pod["metadata"]["uid"])
                if pod["metadata"]["uid"] in moved_ever:
                    moved[one["uuid"]] = moved.get(one["uuid"], 0) + one["mib"]
        for uuid, mib in held_mib(pods.values()).items():
            most_mib = cluster.total_mib[uuid]
            if mib > most_mib + moved.get(uuid, 0) and not cluster.over:
                changed = (f"{uuid}: {mib} MiB of {most_mib}; before that:", *changes)
                cluster.over.append("\n".join(changed))

    return check


def state(key: str, pod: Json) -> str:
    """A pod's state in a line."""
    places = [f"{one['units']} on {one['uuid'][4:12]}" for one in record_of(pod)]
    notes = annotations_of(pod)
    return (
        f"{pod['metadata']['resourceVersion']} {key} {phase_of(pod)} on {node_of(pod) or 'no node'}: {places}, "
        f"assigned {notes.get(names.ANN_ASSIGNED)}, also at {notes.get(names.ANN_ALSO)}"
    )


def fits(cluster: World) -> bool:
    """Whether no GPU is allocated more than once.

    Not at every moment: records of identical pods that the kubelet admitted in the other order are swapped
    one after the other.
    """
    held = held_mib(cluster.pods.items.values())
    return all(mib <= cluster.total_mib[uuid] for uuid, mib in held.items())


async def no_device_is_allocated_twice(cluster: World) -> None:
    """Until cancelled, checks after each change of a pod: each kubelet lists every device ID once."""
    while True:
        await cluster.pods.changed()
        for node in NODES:
            holder_of: dict[str, tuple[str, str]] = {}
            for holder, ids in (await cluster.devices(node.name)).items():
                for one in ids:
                    other = holder_of.setdefault(one, holder)
                    assert other == holder, f"{one} of {node.name} is held by {other} and {holder}"


class Stream:
    """Creates pods while fewer than the maximum are pending, and deletes some of them."""

    def __init__(self, cluster: World, chance: random.Random) -> None:
        self.cluster = cluster
        self.chance = chance
        self.made = 0
        self.most = 0
        self.waited: set[str] = set()
        """Pods that said that they wait for a GPU."""
        self.again: list[str] = []
        self.overtaken = 0
        self._redone: set[str] = set()

    def pod(self, name: str, units: int) -> Json:
        # Two of three end by themselves, soon, once the GPUs have been full: a slow machine would never
        # fill them.
        for_ever = self.chance.random() < 0.33 or len(self.waited) < WAITED
        return gpu_pod(
            name, units, "sleep", "infinity" if for_ever else f"{self.chance.uniform(0.1, 1.2):.2f}"
        )

    async def run(self) -> None:
        while self.made < PODS:
            await self.cluster.pods.until(
                lambda: (len(self.waiting()) < WAITING and self.made < self.most) or self.is_stuck(),
                "pods that wait are placed",
                60.0,
                detail=self.reasons,
            )
            if self.is_stuck():
                await self.delete_one()
                continue
            self.made += 1
            waits = {pod["metadata"]["name"] for pod in self.waiting() if waits_for_a_gpu(pod)}
            self.waited |= waits
            await self.cluster.create(self.pod(f"p{self.made:03}", self.chance.randint(1, 6)))
            await self.redo()
            # However slow the machine is, the GPUs fill up before pods have to go.
            if self.chance.random() < (0.6 if waits else 0.1):
                await self.delete_one()

    def go_on(self, pods: int) -> None:
        """Create pods up to that number."""
        self.most = min(pods, PODS)
        self.cluster.pods.look_again()

    def has_made(self, pods: int) -> bool:
        return self.made >= pods

    def has_seen(self, events: int) -> bool:
        return self.cluster.pods.events >= events or self.made >= self.most

    def waiting(self) -> list[Json]:
        pods = self.cluster.pods.items.values()
        return [pod for pod in pods if not node_of(pod) and not pod["metadata"].get("deletionTimestamp")]

    def is_stuck(self) -> bool:
        """Whether nothing changes by itself: the maximum is pending, and the GPUs are full of pods that do
        not end.
        """
        bound = [pod for pod in self.cluster.pods.items.values() if node_of(pod) and not is_finished(pod)]
        full = sum(held_mib(bound).values()) > FULL * sum(self.cluster.total_mib.values())
        return len(self.waiting()) >= WAITING and full and all(map(self.is_for_ever, bound))

    @staticmethod
    def is_for_ever(pod: Json) -> bool:
        """Whether the pod runs and does not end by itself."""
        command = pod["spec"]["containers"][0]["command"]
        return is_running(pod) and command[1] == "infinity" and not pod["metadata"].get("deletionTimestamp")

    async def delete_one(self) -> None:
        """Delete one of the pods that do not end by themselves, or a pending one."""
        candidates = sorted(
            pod["metadata"]["name"]
            for pod in self.cluster.pods.items.values()
            if self.is_for_ever(pod) or (not node_of(pod) and self.chance.random() < 0.1)
        )
        if candidates:
            await self.cluster.delete(self.chance.choice(candidates))

    async def redo(self) -> None:
        """Replace a pod that was bound while the node's agent was dead, as a controller would."""
        for pod in list(self.cluster.pods.items.values()):
            name = pod["metadata"]["name"]
            deleted = pod["metadata"].get("deletionTimestamp")
            if phase_of(pod) != "Failed" or deleted or name in self._redone:
                continue
            status = pod["status"]
            failure = f"{name}: {status.get('reason')}: {status.get('message')}"
            assert status.get("reason") == "UnexpectedAdmissionError", failure
            self.overtaken += OVERTAKEN in status["message"]
            if not any(message in status["message"] for message in (*PLUGIN_AWAY, OVERTAKEN)):
                raise AssertionError(f"{failure}\n{await self.cluster.account(node_of(pod))}")
            self._redone.add(name)
            self.again.append(failure)
            units = pod["spec"]["containers"][0]["resources"]["limits"][names.GPU_MEM]
            await self.cluster.create(self.pod(f"{name}-again", int(units)))

    def reasons(self) -> str:
        return "; ".join(f"{pod['metadata']['name']}: {waits_because(pod)}" for pod in self.waiting())


async def kill_at_random(stream: Stream, chance: random.Random) -> list[str]:
    """Kill that many times, spread over the stream, each time some events after a certain pod was created."""
    cluster = stream.cluster
    agents = [f"node-agent {node.name}" for node in NODES]
    victims = ["extender"] * (KILLS // 2) + [chance.choice(agents) for _ in range(KILLS - KILLS // 2)]
    chance.shuffle(victims)
    moments = sorted(chance.sample(range(3, PODS - AHEAD), KILLS))
    killed = []
    for moment, victim in zip(moments, victims, strict=True):
        stream.go_on(moment + AHEAD)
        await cluster.pods.until(partial(stream.has_made, moment), "the stream goes on", 60.0)
        events = cluster.pods.events + chance.randrange(12)
        await cluster.pods.until(partial(stream.has_seen, events), "pods change", 60.0)
        part = cluster.playground.parts[victim]
        await until(partial(_runs, part), f"{victim} was started again")
        cluster.playground.kill(victim)
        killed.append(f"{victim} after pod {stream.made}")
    stream.go_on(PODS)
    return killed


async def _runs(part: Part) -> bool:
    return part.pid != 0


@contextlib.asynccontextmanager
async def concurrently(*coroutines):  # type: ignore[no-untyped-def]
    """Runs coroutines during the block; an exception of one of them is raised from it."""
    tasks = [asyncio.create_task(one) for one in coroutines]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


@pytest.mark.randomized
@pytest.mark.timeout(500)
async def test_killing_extender_and_agents_during_a_stream_of_pods_loses_and_leaks_nothing() -> None:
    seed = int(os.environ.get("GPUSHARE_TEST_SEED") or seeds(1)[0])
    print(f"seed {seed}; GPUSHARE_TEST_SEED={seed} repeats the choices")
    chance = random.Random(seed)
    async with world(*NODES, unit=MemoryUnit.GIB, check=never_above_capacity) as cluster:
        stream = Stream(cluster, chance)
        async with concurrently(no_device_is_allocated_twice(cluster)):
            async with concurrently(kill_at_random(stream, random.Random(seed + 1))) as [killing]:
                await stream.run()
                killed = await killing
            print(f"killed: {', '.join(killed)}")
            print(f"waited for a GPU: {len(stream.waited)} pods")
            assert (stream.made, len(killed)) == (PODS, KILLS)
            assert len(stream.waited) >= WAITED
            await all_placed_or_waiting_with_a_reason(cluster, stream)
            print(
                f"admitted while the agent was dead, made again: {len(stream.again)}; overtaken: {stream.overtaken}"
            )
            assert stream.overtaken <= MOST_OVERTAKEN, stream.again
            await records_are_what_the_kubelets_gave(cluster)
            await cluster.pods.until(lambda: fits(cluster), "no GPU is allocated more than once")
            await everything_is_free_again(cluster)
        cluster.assert_sound()


async def all_placed_or_waiting_with_a_reason(cluster: World, stream: Stream) -> None:
    def unsettled() -> list[str]:
        return [
            f"{pod['metadata']['name']} ({phase_of(pod)} on {node_of(pod) or 'no node'}: {waits_because(pod)})"
            for pod in cluster.pods.items.values()
            if not is_running(pod) and not is_finished(pod) and not waits_for_a_gpu(pod)
        ]

    while True:
        await cluster.pods.until(
            lambda: not unsettled(), "every pod is placed or says why not", 60.0, detail=unsettled
        )
        before = len(stream.again)
        await stream.redo()
        if len(stream.again) == before:
            break


def waits_for_a_gpu(pod: Json) -> bool:
    """Whether the pod is reported pending because no GPU has enough free memory: not because a component is
    missing.
    """
    why = waits_because(pod)
    return not node_of(pod) and ("no single GPU has" in why or "the kubelet has" in why)


async def records_are_what_the_kubelets_gave(cluster: World) -> None:
    """Checks of each running pod: it has as many devices as it requested, on the GPU in its annotation."""

    async def agree() -> bool:
        return not await disagreements(cluster)

    await until(
        agree, "annotations and pod resources agree", detail=lambda: cluster.logs()["node-agent-four"][-2000:]
    )


async def disagreements(cluster: World) -> list[str]:
    found = []
    for node in NODES:
        devices = await cluster.devices(node.name)
        for key, pod in cluster.pods.items.items():
            if node_of(pod) != node.name or not is_running(pod):
                continue
            ids = devices.get((key, "main"), frozenset())
            on = {one.partition("-")[0] for one in ids}
            wanted = [
                (one["units"], one["uuid"].removeprefix("GPU-").partition("-")[0]) for one in record_of(pod)
            ]
            if [(len(ids), next(iter(on), ""))] != wanted or len(on) != 1:
                found.append(f"{key}: has {sorted(ids)}, its record says {wanted}")
    return found


async def everything_is_free_again(cluster: World) -> None:
    await cluster.delete_all()

    async def nothing_held() -> bool:
        figures = await cluster.metrics()
        devices = [await cluster.devices(node.name) for node in NODES]
        return not any(devices) and [
            figures.get(name)
            for name in ("memory_allocated_bytes", "reservations", "allocated_pods", "pending_pods")
        ] == [0, 0, 0, 0]

    await until(nothing_held, "nothing is held any more", detail=lambda: "a share leaked")
    whole = [
        gpu_pod(f"whole-{node}-{number}", units, node=node)
        for node, sizes in UNITS.items()
        for number, units in enumerate(sizes)
    ]
    await cluster.create(*whole)
    await cluster.pods.until(
        lambda: all(is_running(cluster.pod(pod["metadata"]["name"])) for pod in whole),
        "a pod fits on every GPU as a whole",
        detail=lambda: [waits_because(pod) for pod in cluster.pods.items.values()],
    )
    # Of identical pods that the kubelet admitted in the other order the records are swapped later.
    await cluster.pods.until(
        lambda: held_mib(cluster.pods.items.values()) == cluster.total_mib,
        "every GPU is allocated as a whole",
        detail=lambda: held_mib(cluster.pods.items.values()),
    )
    await cluster.delete_all()
