"""Part of the whole machine: kube-scheduler evicts pods for others, after a call of the verb ``preempt``."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.unit.scheduler.machine.quota_truth import QuotaTruth
from tests.unit.scheduler.machine.watched import Cluster
from tests.unit.scheduler.some_pods import made_pod, some_pod


class Preempting(RuleBasedStateMachine):
    """kube-scheduler's choice is drawn: it considers resources that we do not, and names pods that are no use on GPUs."""

    preempted = added = 0
    """Pods that kube-scheduler evicted for others, and those of them that the verb added, over all examples."""

    cluster: Cluster
    truth: QuotaTruth
    made: int

    def do(self, work: Any) -> Any:
        raise NotImplementedError

    def befell(self, name: str) -> None:
        raise NotImplementedError

    def leaves(self, name: str) -> None:
        raise NotImplementedError

    @rule(data=st.data())
    def kube_scheduler_preempts(self, data: st.DataObject) -> None:
        self.do(self.cluster.taken_over())
        if waiting := self.cluster.waiting():
            self._preempts(data.draw(st.sampled_from(sorted(waiting))), data)

    @rule(asked=some_pod(), mem=st.sampled_from((None, 4, 7, 8, 16)), data=st.data())
    def a_pod_comes_that_is_more_important_than_all(
        self, asked: dict[str, Any], mem: int | None, data: st.DataObject
    ) -> None:
        """It is offered immediately; without room, others are evicted for it. ``mem``: a plain share of this size."""
        self.made += 1
        name = f"p{self.made}"
        if mem is not None:
            asked = asked | {"mem": mem, "core": None, "beside": [], "gpus": None, "labels": {}}
        asked = asked | {"priority": 2000, "never": False}
        self.cluster.api.create(made_pod(name, f"uid-{self.made}", **asked))
        self.cluster.api.changed(name)
        self.do(self.cluster.taken_over())
        self.cluster.leader.tell_pods(1000)
        if node := self.cluster.ask(name, sorted(self.cluster.nodes)):
            self.do(self.cluster.bind(name, node))
        else:
            self._preempts(name, data)

    def _preempts(self, name: str, data: st.DataObject) -> None:
        running = self.cluster.running()
        if not running or not self.cluster.nodes:
            return
        claimant = self.cluster.api.pods[self.cluster.api.key(name)]
        priority = claimant["spec"]["priority"]
        if claimant["spec"].get("preemptionPolicy") == "Never":
            return
        lesser: dict[str, list[str]] = {}
        for other, pod in sorted(running.items()):
            if pod["spec"]["nodeName"] in self.cluster.nodes and pod["spec"]["priority"] < priority:
                lesser.setdefault(pod["spec"]["nodeName"], []).append(other)
        if not lesser:
            return
        where = data.draw(st.sampled_from(sorted(lesser)))
        chosen = data.draw(st.lists(st.sampled_from(lesser[where]), unique=True, max_size=2))
        informed = not self.cluster.leader.feed.pods
        evicted = []
        for victim in self.cluster.preempt(name, where, chosen):
            pod = self.cluster.api.pods[self.cluster.api.key(victim)]
            # A pod of no lower priority is evicted only to reclaim for another quota, which has lent to its own (``ended_for``).
            lends = (
                self.truth.tree is not None
                and pod["metadata"]["namespace"] != claimant["metadata"]["namespace"]
            )
            assert pod["spec"]["priority"] < priority or lends, f"{victim} ended for {name}"
            self.befell(victim)
            # Terminating pods may be named, and are not evicted for this one.
            if "deletionTimestamp" not in pod["metadata"]:
                self.leaves(victim)
                evicted.append(victim)
        Preempting.preempted += len(evicted)
        Preempting.added += len(set(evicted) - set(chosen))
        if evicted:
            self._nominate(name, where)
        self.truth.ended_for(name, evicted, informed=informed)

    def _nominate(self, name: str, where: str) -> None:
        """As in kube-scheduler: clear the nominations of lower-priority pods there."""
        pods = self.cluster.api.pods
        named = pods[self.cluster.api.key(name)]
        for other in self.cluster.waiting():
            pod = pods[self.cluster.api.key(other)]
            less = pod["spec"]["priority"] < named["spec"]["priority"]
            if less and pod["status"].get("nominatedNodeName") == where:
                pod["status"]["nominatedNodeName"] = ""
                self.cluster.api.changed(other)
        named["status"]["nominatedNodeName"] = where
        self.cluster.api.changed(name)
