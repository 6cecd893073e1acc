"""Part of the whole machine: pods are moved for others, and their controllers recreate them."""

import copy
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gpushare.api import names
from gpushare.scheduler.plugins.defragmentation.plugin import RESERVED_S
from tests.unit.scheduler.machine.machine_owners import budget
from tests.unit.scheduler.machine.replicas import LIMITS, Replica
from tests.unit.scheduler.machine.watched import Cluster, allocation_of
from tests.unit.scheduler.some_pods import made_pod

#: Kinds of controllers whose pods may be moved unless they say otherwise.
RECREATED = ("ReplicaSet", "StatefulSet")
#: Seconds between two runs of the defragmenter, when much time passes in one step and it is busy in one of them.
_LATE_S = 102.0


class Moving(RuleBasedStateMachine):
    """Checks of each act of a defragmenter at the moment it is made: the pods as the API server has them."""

    acts = moved = spared = 0
    """Waiting pods for which others were moved, these, and plans that a budget stood against, of all examples."""

    cluster: Cluster
    made: int

    def do(self, work: Any) -> Any:
        raise NotImplementedError

    def befell(self, name: str) -> None:
        raise NotImplementedError

    def _turn(self, seconds: int) -> None:
        raise NotImplementedError

    def follow_moves(self) -> None:
        self._wants: dict[int, str] = {}
        self._in_act = 0
        self._since: dict[tuple[int, str, float], tuple[float, int]] = {}
        self._switches_before = 0
        for replica in self.cluster.replicas:
            replica.on_room_made = self._room_is_made
            replica.on_moved = self._is_moved
            replica.on_result = self._came_of_it

    # --- users and controllers --------------------------------------------------------------------

    @rule(
        sizes=st.lists(st.sampled_from((1, 2, 3)), min_size=3, max_size=10),
        goes=st.integers(0, 2),
        namespace=st.sampled_from(("default", "default", "x", "z")),
        seconds=st.sampled_from((4, 8, 20)),
        allowed=st.sampled_from((None, None, 0, 1)),
    )
    def gpus_lie_in_pieces(
        self, sizes: list[int], goes: int, namespace: str, seconds: int, allowed: int | None
    ) -> None:
        """Small pods come, large ones next to them, every third small one goes, and one is pending that fits on no GPU."""
        small = [self._share(mem, namespace, "ReplicaSet") for mem in sizes]
        self._asked_about(small)
        frees = sorted(self._free(), reverse=True)
        self._asked_about([self._share(free - 2, "default", "") for free in frees if free > 3])
        for name in small[goes::3]:
            self.cluster.api.remove(name)
        self.cluster.leader.tell_all()
        if allowed is not None:
            self.cluster.api.budgets = [budget(namespace, allowed, "pieces")]
        wide = self._share(1 + max(self._free(), default=0), namespace, "")
        for _ in range(2):
            self._asked_about([wide])
            self._turn(seconds)

    def _free(self) -> list[int]:
        """Units that each GPU has free, according to the scheduler."""
        usage = map(self.cluster.world.ledger.usage, self.cluster.nodes)
        return [gpu.total_units - gpu.used_units for node in usage for gpu in node.gpus if gpu.healthy]

    def _asked_about(self, pods: list[str]) -> None:
        self.cluster.leader.tell_all()
        self.do(self.cluster.schedule([name for name in self.cluster.waiting() if name in pods]))
        self.cluster.leader.tell_all()

    def _share(self, mem: int, namespace: str, owner: str) -> str:
        self.made += 1
        name = f"p{self.made}"
        pod = made_pod(
            name, f"uid-{self.made}", mem=mem, gpus=None, beside=[], namespace=namespace, owner=owner
        )
        self.cluster.api.create(pod)
        self.cluster.api.changed(name)
        return name

    @rule(late=st.integers(0, 1))
    def controllers_recreate(self, late: int) -> None:
        """Evicted pods with an owner; all, or all but the last."""
        leaving = [
            pod
            for pod in self.cluster.api.pods.values()
            if pod["metadata"].get("deletionTimestamp") and pod["metadata"].get("ownerReferences")
        ]
        for pod in leaving[: len(leaving) - late]:
            if not pod.get("replaced"):
                pod["replaced"] = True
                self._recreated(pod)

    def _recreated(self, pod: dict[str, Any]) -> None:
        self.made += 1
        meta = copy.deepcopy(pod["metadata"])
        del meta["deletionTimestamp"]
        meta["name"], meta["uid"] = f"p{self.made}", f"uid-{self.made}"
        wish = meta["annotations"].get(names.ANN_DEFRAGMENTATION)
        meta["annotations"] = {} if wish is None else {names.ANN_DEFRAGMENTATION: wish}
        spec = {**copy.deepcopy(pod["spec"]), "nodeName": ""}
        self.cluster.api.create({"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})
        self.cluster.api.changed(meta["name"])

    @rule(data=st.data(), wish=st.sampled_from(("false", "false", "true", "maybe", "")))
    def a_pod_says_whether_it_may_be_moved(self, data: st.DataObject, wish: str) -> None:
        if not self.cluster.api.pods:
            return
        key = data.draw(st.sampled_from(sorted(self.cluster.api.pods)))
        annotations = self.cluster.api.pods[key]["metadata"]["annotations"]
        annotations.pop(names.ANN_DEFRAGMENTATION, None)
        if wish:
            annotations[names.ANN_DEFRAGMENTATION] = wish
        self.cluster.api.changed(key.partition("/")[2])

    # --- invariants of each act -------------------------------------------------------------------

    def _pod(self, name: str) -> dict[str, Any]:
        return self.cluster.api.pods[self.cluster.api.key(name)]

    def _came_of_it(self, result: str) -> None:
        Moving.spared += result == "protected"

    def _room_is_made(self, replica: Replica, name: str) -> None:
        now_s = self.cluster.clock.monotonic()
        assert now_s >= replica.acted_s + LIMITS.interval_s, (
            f"pods were moved {now_s - replica.acted_s} s ago"
        )
        replica.acted_s = now_s
        self._wants[replica.number], self._in_act = name, 0
        Moving.acts += 1

    def _is_moved(self, replica: Replica, name: str) -> None:
        pod, wants = self._pod(name), self._wants[replica.number]
        meta = pod["metadata"]
        self._in_act += 1
        Moving.moved += 1
        assert self._in_act <= LIMITS.most_moves, "no more are moved at once than may be"
        assert names.LABEL_GANG_NAME not in meta["labels"], f"{name} is of a gang"
        owners = [one["kind"] for one in meta.get("ownerReferences") or ()]
        wish = meta["annotations"].get(names.ANN_DEFRAGMENTATION)
        assert wish == "true" or wish is None, f"{name} does not want to be moved"
        assert replica.world.ledger.nominations.node_of(f"moved:{meta['uid']}"), (
            f"no place is kept for {name}"
        )
        if replica.feed.late:
            return  # it cannot know what has happened since
        assert owners, f"{name} would not be recreated"
        assert owners != ["DaemonSet"], f"{name} would be recreated where it was"
        assert wish == "true" or owners[0] in RECREATED, f"{name} is of a {owners[0]}"
        assert "deletionTimestamp" not in meta, f"{name} leaves already"
        claimant = self._pod(wants)
        assert not claimant["spec"]["nodeName"], f"{wants} waits no more"
        assert "deletionTimestamp" not in claimant["metadata"], f"{wants} leaves"
        assert pod["spec"]["priority"] <= claimant["spec"]["priority"], f"{name} is more important"
        self._gains(replica, name, claimant["metadata"]["uid"])

    def _gains(self, replica: Replica, name: str, uid: str) -> None:
        """On a GPU of the pod's there is room for the waiting one once the moved pods have left, and none while they are there."""
        where = self._pod(name)["spec"]["nodeName"]
        assert replica.world.ledger.nominations.node_of(uid) == where, (
            "capacity is reserved for it where a pod leaves"
        )
        request = replica.world.view.waiting[uid].request
        assert request is not None
        on = {share.uuid for share in allocation_of(self._pod(name)).gpus}
        moved = replica.mover._reservations[uid].leaving
        devices = self.cluster.nodes[where]
        found = []
        for gpu in devices.devices:
            if gpu.uuid not in on:
                continue
            mib = gpu.total_mib * request.memory_units // (gpu.total_mib // devices.unit.mib)
            stays, goes = self._used(gpu.uuid, moved)
            enough = stays[0] + mib <= gpu.total_mib and stays[1] + request.core_percent <= 100
            short = stays[0] + goes[0] + mib > gpu.total_mib or (
                stays[1] + goes[1] + request.core_percent > 100
            )
            found.append(enough and (short or devices.max_pods is not None))
        assert any(found), f"{name} leaves {where}, of which {uid} has nothing"

    def _used(self, uuid: str, moved: set[str]) -> tuple[list[int], list[int]]:
        """MiB and percent of the GPU that staying and moved pods hold; terminating ones already hold nothing."""
        stays, goes = [0, 0], [0, 0]
        for pod in self.cluster.running().values():
            meta = pod["metadata"]
            if not pod["spec"]["containers"][0]["resources"]["limits"]:
                continue
            if "deletionTimestamp" in meta and meta["uid"] not in moved:
                continue
            for share in allocation_of(pod).gpus:
                if share.uuid == uuid:
                    used = goes if meta["uid"] in moved else stays
                    used[0] += share.mib
                    used[1] += share.core_percent
        return stays, goes

    # --- permanent invariants ---------------------------------------------------------------------

    @invariant()
    def room_is_kept_for_its_pod_or_let_go_after_its_time(self) -> None:
        now_s, before, self._since = self.cluster.clock.monotonic(), self._since, {}
        for replica in self.cluster.replicas:
            ledger, mover = replica.world.ledger, replica.mover
            places = {place.key: place.since_s for place in mover._places}
            reserved = {
                uid: one.since_s
                for uid, one in mover._reservations.items()
                if ledger.nominations.node_of(uid)
            }
            lost = [uid for uid in ledger.nominations.all() if uid.startswith("moved:") and uid not in places]
            assert not lost, f"room is kept for {lost} for ever"
            for uid, since_s in {**places, **reserved}.items():
                key = (id(replica.world), uid, since_s)
                self._since[key] = before.get(key, (now_s, self._switches_before))
                assert now_s - self._since[key][0] <= RESERVED_S + _LATE_S, (
                    f"room is kept for {uid} for too long"
                )
            for uid, since_s in reserved.items():
                # Another replica that is called meanwhile, or was since the pod was evicted, knows nothing of it (decision 8).
                if self._since[id(replica.world), uid, since_s][1] == self.cluster.switches:
                    self._is_its_own(replica, uid)
        self._switches_before = self.cluster.switches

    def _is_its_own(self, replica: Replica, uid: str) -> None:
        record, ledger = replica.world.view.waiting.get(uid), replica.world.ledger
        leaving = replica.mover._reservations[uid].leaving & replica.world.view.bound.keys()
        if record is None or record.request is None or leaving or ledger.held(uid) is not None:
            return
        node = ledger.nominations.node_of(uid)
        assert ledger.filter_for(uid, record.request, [node]).fits, f"{node}: {uid} has no room there"
