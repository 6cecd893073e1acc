"""Part of the whole machine: two replicas learn late of changes, each in its own time, and the lease goes between them."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.unit.scheduler.machine.watched import Cluster


class Electing(RuleBasedStateMachine):
    """What the kube-schedulers of the replicas do with their lease, and what the watches deliver."""

    switched = 0
    """How often the lease went to another replica, of all examples."""

    cluster: Cluster

    def do(self, work: Any) -> Any:
        raise NotImplementedError

    def room_changes(self) -> None:
        raise NotImplementedError

    # --- watches ----------------------------------------------------------------------------------

    @rule(
        pods=st.integers(0, 12), nodes=st.integers(0, 3), policies=st.integers(0, 12), which=st.integers(0, 3)
    )
    def the_watches_tell(self, pods: int, nodes: int, policies: int, which: int) -> None:
        """Mostly the replica that was called last, as the other's knowledge counts later."""
        leader = self.cluster.leader
        replica = self.cluster.replicas[1 - leader.number] if which == 3 else leader
        replica.tell_nodes(nodes)
        replica.tell_trees(nodes)
        replica.tell_policies(policies)
        replica.tell_pods(pods)

    @rule(most=st.sampled_from((1, 2, 2)))
    def the_watches_tell_all(self, most: int) -> None:
        """The replica that was called last, or both."""
        self.cluster.leader.tell_all()
        if most == 2:
            self.cluster.replicas[1 - self.cluster.leader.number].tell_all()

    # --- the lease --------------------------------------------------------------------------------

    @rule(to=st.sampled_from((0, 1, None)))
    def the_lease_passes(self, to: int | None) -> None:
        """To one of them, whether it has led before or not, or to none yet: then no kube-scheduler calls."""
        Electing.switched += to is not None and to != self.cluster.leader.number
        self.cluster.api.lease.passes_to(to)

    @rule(writes=st.integers(1, 4))
    def the_lease_will_be_lost_in_the_midst(self, writes: int) -> None:
        """Between two Bindings, or two evictions."""
        self.cluster.api.lease.lost_after = writes

    @rule(
        order=st.randoms(use_true_random=False),
        bindings=st.integers(0, 4),
        fates=st.lists(st.sampled_from(("", "", "lost before", "lost after", "failed")), max_size=4),
    )
    def the_lease_is_lost_between_decision_and_bind(
        self, order: Any, bindings: int, fates: list[str]
    ) -> None:
        """Some Bindings are on their way, and arrive before the other replica is called; the rest are lost."""
        Electing.switched += 1
        waiting = self.cluster.waiting()
        order.shuffle(waiting)
        self.cluster.api.answers.extend(fates)
        self.do(self.cluster.schedule(waiting, lost_after=bindings))
        self.cluster.api.answers.clear()

    @rule(which=st.integers(0, 1), fails_over=st.booleans())
    def a_scheduler_is_killed(self, which: int, fails_over: bool) -> None:
        """With its kube-scheduler, so that the other leads, or the extender alone."""
        self.room_changes()
        if fails_over and self.cluster.api.lease.replica == which:
            Electing.switched += 1
            self.cluster.api.lease.passes_to(1 - which)
        self.do(self.cluster.start(which))
