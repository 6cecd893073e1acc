"""One replica of a scheduler: all of its extender but the sockets, what its watches have delivered, and its loops."""

import asyncio
from collections.abc import Callable, Collection

from gpushare.api.crd.resource_policy import policy_pod_of
from gpushare.api.objects import decode_pod
from gpushare.scheduler.cache.cache import NodeRecord
from gpushare.scheduler.framework.binder import Binder
from gpushare.scheduler.leader.lease import LeaderWatch, Leading
from gpushare.scheduler.leader.resync import LeaderResync
from gpushare.scheduler.plugins.defragmentation.limits import Limits
from gpushare.scheduler.plugins.defragmentation.plugin import Defragmenter
from gpushare.scheduler.plugins.resource_policy.move_targets import PolicyPlaces
from gpushare.scheduler.plugins.resource_policy.plugin import Policies
from gpushare.scheduler.plugins.resource_policy.prebind import PolicyBinding
from tests.unit.scheduler.machine.watched_api import Face, Feed, MoverFace, WatchedApi
from tests.unit.scheduler.world import TurnedClock, World

#: Real seconds that pods of a gang wait for each other.
PATIENCE_S = 0.002
LEASE = ("kube-system", "ack-co-scheduler")
LIMITS = Limits(interval_s=8.0, wait_s=2.0)


class Governed(World):
    """A scheduler with ResourcePolicies, over ``face``, the API server as it sees it."""

    def __init__(self, api: WatchedApi, clock: TurnedClock, face: Face) -> None:
        super().__init__(api, clock)
        self.api: WatchedApi = api
        self.gangs._patience_s = PATIENCE_S
        self.retries._pods = face
        self.preemptor._pods = self.preemptor._victim_evictor._pods = face
        self.policies = Policies(clock, kept_on=self.ledger.nominations.node_of)
        self.in_turn = self.policies.by_unit
        self.governs = self.policies.governs
        self.binding = PolicyBinding(face, self.policies, clock)
        self.plugins += [self.policies, self.binding]
        self.binder = Binder(self.view, face, self.reservations, clock, self.framework())
        keep = self.quotas.keep

        def kept(uid: str) -> None:
            face.claims(self.view.waiting_non_gpu[uid].pod.partition("/")[2])
            keep(uid)

        setattr(self.quotas, "keep", kept)  # noqa: B010 - it stands for a nomination

    def see(self, name: str) -> None:
        """Let the informer see a pod's present state."""
        record = self.api.record(name)
        if record is not None:
            self.view.upsert_pod(record)
            self.nominated.pod_updated(record)


class Replica:
    """``on_room_made`` and ``on_moved`` are called for each act of its defragmenter, ``on_result`` with the result of each plan, ``on_tree`` when another tree is in force."""

    def __init__(self, number: int, api: WatchedApi, clock: TurnedClock) -> None:
        self.number = number
        self.api = api
        self.clock = clock
        self.feed = Feed()
        api.feeds.append(self.feed)
        self.face = Face(api, self)
        self.mover_face = MoverFace(
            api, self, lambda name: self.on_room_made(self, name), lambda name: self.on_moved(self, name)
        )
        self.on_room_made: Callable[[Replica, str], None] = lambda replica, name: None
        self.on_moved: Callable[[Replica, str], None] = lambda replica, name: None
        self.on_result: Callable[[str], None] = lambda result: None
        self.on_tree: Callable[[], None] = lambda: None
        self.may_bind = number == 0
        self.acted_s = 0.0
        """When it last moved pods, became leader, or began."""
        self._read_under = ""
        self._tasks: list[asyncio.Task[None]] = []
        self.world = Governed(api, clock, self.face)

    # --- its life -------------------------------------------------------------------------------

    async def begin(self, world: Governed) -> None:
        """Start with what ``world`` has just read."""
        await self.stop()
        self.feed.clear()
        self.world = world
        self.acted_s = self.clock.monotonic()
        leading = LeaderWatch(Leading(self.api.lease, LEASE, f"r{self.number}"), self.clock)
        self.takeover = LeaderResync(leading, self, monotonic=self.clock.monotonic)
        self.takeover.resynced.subscribe(world.gangs.give_up_all)
        self.takeover.resynced.subscribe(world.binder.forget_reservations)
        world.must_lead = self.takeover.must_lead
        self.places = PolicyPlaces(world.policies)
        self.mover = Defragmenter(
            world.view,
            self.mover_face,
            world.events,
            self.clock,
            LIMITS,
            self.places,
            quotas=world.quotas,
            must_lead=self.takeover.must_lead,
            retry=world.retries.hurry,
            count=self.on_result,
        )
        for record in (*world.view.waiting.values(), *world.view.bound.values()):
            self.mover.pod_arriving(record)
        self.mover.pods_listed()
        self.takeover.resynced.subscribe(self.mover.took_over)
        self.takeover.resynced.subscribe(self._took_over)
        self._tasks = [
            asyncio.create_task(coroutine)
            for coroutine in (
                world.binder.sweep(),
                world.gangs.run(),
                world.retries.run(),
                world.preemptor.run(),
                world.binding.run(),
                self.mover.run(),
                self.takeover.run(),
            )
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def runs(self) -> bool:
        """Whether none of its loops has ended."""
        for task in self._tasks:
            assert not task.done(), task
        return True

    def refused(self, uid: str, nodes: Collection[str]) -> None:
        """Filter has refused a pod on all nodes."""
        self.world.refused(uid, nodes)
        self.mover.post_filter(uid, nodes)

    @property
    def has_read(self) -> bool:
        """Whether it has read everything since its kube-scheduler has led."""
        return self._read_under == self.api.lease.holder

    async def relist(self) -> None:
        """Read everything, as a list of each kind does: first the deletions, then the current state of the others."""
        held = self.api.lease.holder
        await asyncio.sleep(0)
        self.tell_nodes(1000)
        self.tell_trees(1000)
        now = {record.uid: (record, last) for record, last in self.feed.pods}
        self.feed.pods.clear()
        self.feed.pods.extend(sorted(now.values(), key=lambda pair: not pair[1]))
        self.tell_pods(1000)
        self.tell_policies(1000)
        self._read_under = held

    # --- what its watches deliver -----------------------------------------------------------------

    def tell_pods(self, most: int) -> None:
        for _ in range(min(most, len(self.feed.pods))):
            record, last = self.feed.pods.popleft()
            if last:
                self.world.view.remove_pod(record)
                self.world.nominated.pod_removed(record)
            else:
                self.mover.pod_arriving(record)
                self.world.view.upsert_pod(record)
                self.world.nominated.pod_updated(record)

    def _took_over(self) -> None:
        self.acted_s = self.clock.monotonic()

    def tell_nodes(self, most: int) -> None:
        """Their GPUs, and the labels by which units choose."""
        for _ in range(min(most, len(self.feed.nodes))):
            name, devices = self.feed.nodes.popleft()
            if devices is None:
                self.world.view.remove_node(name)
            else:
                self.world.view.upsert_node(NodeRecord(devices, ""))
        for node, pool in self.api.pools.items() if most else ():
            if self.feed.pools.get(node) != pool:
                self.feed.pools[node] = pool
                self.world.policies.census.set_node(node, {"pool": pool})

    def tell_policies(self, most: int) -> None:
        """Policies, and the pods that they may govern."""
        policies = self.world.policies
        for _ in range(min(most, len(self.feed.policy_pods))):
            pod, last = self.feed.policy_pods.popleft()
            if last:
                policies.remove_pod(pod)
            else:
                policies.upsert_pod(pod)
        for _ in range(min(most, len(self.feed.policies))):
            policy, gone = self.feed.policies.popleft()
            if gone:
                policies.remove_policy(policy.key)
                continue
            policies.upsert_policy(policy)
            if policies.unread:
                # Its pods are listed again, and watched from there.
                self.feed.policy_pods.clear()
                list_pods(self.api, policies)

    def tell_trees(self, most: int) -> None:
        for _ in range(min(most, len(self.feed.trees))):
            key, tree, gone = self.feed.trees.popleft()
            if gone:
                self.world.quotas.remove(key, tree)
            else:
                self.world.quotas.upsert(tree)
            self.on_tree()

    def tell_all(self) -> None:
        """Everything, in order."""
        self.tell_nodes(1000)
        self.tell_trees(1000)
        self.tell_policies(1000)
        self.tell_pods(1000)

    def caught_up(self) -> bool:
        """Whether it knows everything, and nothing is under way."""
        return (
            not self.feed.late and self.feed.pools == self.api.pools and not self.world.reservations.deadlines
        )


def list_pods(api: WatchedApi, policies: Policies) -> None:
    """The first list of the pods of a namespace with policies."""
    for pod in map(decode_pod, api.pods.values()):
        if not pod.finished:
            policies.upsert_pod(policy_pod_of(pod))
    policies.unread.clear()
