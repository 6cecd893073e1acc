"""Guarantees of elastic quotas, computed at every Binding and every eviction from the pods in the API server."""

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

from gpushare.api import names
from gpushare.api.crd.elastic_quota_tree import QuotaTree, QuotaTreeRecord
from gpushare.api.request.amounts import Amounts
from gpushare.ledger.quota.accounting import below
from tests.unit.scheduler.elastic_quota.test_quotas import root, tree
from tests.unit.scheduler.machine.watched import Cluster, allocation_of

MEM, CORE, CPU = names.GPU_MEM, names.GPU_CORE, "cpu"

#: Namespaces with a quota of their own; ``default`` has none.
SPACES = ("x", "z")


def _nested() -> dict[str, Any]:
    """A tree of three levels, with compute as well."""
    leaves = [
        {"name": "a", "namespaces": ["x"], "min": {MEM: 10, CORE: 50}, "max": {MEM: 30}},
        {"name": "b", "namespaces": ["z"], "min": {MEM: 6}, "max": {MEM: 40, CORE: 200}},
    ]
    both = {"name": "both", "min": {MEM: 20, CORE: 100}, "max": {MEM: 48, CORE: 300}, "children": leaves}
    return {"name": "root", "min": {MEM: 56, CORE: 700}, "max": {MEM: 56, CORE: 700}, "children": [both]}


def _of_processors() -> dict[str, Any]:
    """A tree by which pods without a GPU count, too."""
    leaves = [
        {"name": "a", "namespaces": ["x"], "min": {MEM: 20, CPU: 2}, "max": {CPU: 4}},
        {"name": "b", "namespaces": ["z"], "min": {MEM: 20, CPU: 2}, "max": {MEM: 40}},
    ]
    return {"name": "root", "min": {MEM: 40, CPU: 4}, "max": {MEM: 56, CPU: 5}, "children": leaves}


TREES = (
    root(a={"min": 20}, b={"min": 20}, whole=56),
    root(a={"min": 8, "max": 16}, b={"min": 16, "max": 40}, whole=56),
    root(a={"max": 12}, b={"max": 30}, whole=40),
    _nested(),
    _of_processors(),
)


def some_tree(number: int, generation: int) -> QuotaTreeRecord:
    return tree(TREES[number], generation=generation)


class QuotaTruth:
    """Checks, independently of the scheduler's own books, what a cluster's pods hold of each quota."""

    bound = ended = 0
    """How many Bindings and ends of pods were held against a quota, of all clusters."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        cluster.api.counted_in = SPACES
        self.let_in: set[str] = set()
        """UIDs of pods that had their room when another tree came into force: it is theirs."""
        cluster.api.on_evicted = self._evicted
        cluster.on_tree = self._another_tree

    @property
    def tree(self) -> QuotaTree | None:
        """The tree that the scheduler uses."""
        return self._cluster.world.quotas.books.tree

    def _another_tree(self) -> None:
        world = self._cluster.world
        self.let_in = {
            uid
            for name in self._cluster.waiting()
            if world.ledger.held(uid := self._uid(name)) or world.quotas.is_reserved(uid)
        }

    # --- what pods hold ---------------------------------------------------------------------------

    def _pod(self, name: str) -> dict[str, Any]:
        return self._cluster.api.pods[self._cluster.api.key(name)]

    def _uid(self, name: str) -> str:
        return str(self._pod(name)["metadata"]["uid"])

    def _amounts(self, name: str) -> Amounts:
        """The pod's request, or its allocation of GPU memory if that is more."""
        record = self._cluster.api.record(name)
        if record is None:
            return {}
        if record.bystander:
            return record.amounts
        if record.node:
            gpus = allocation_of(self._pod(name)).gpus
        else:
            held = self._cluster.world.ledger.held(record.uid)
            gpus = () if held is None else held.allocation.gpus
        units = 1000 * sum(share.units for share in gpus)
        requested = record.amounts.get(MEM)
        return record.amounts if not requested or units <= requested else {**record.amounts, MEM: units}

    def _charged(self, *, leaving: bool, reserved: bool) -> Iterator[str]:
        """Names of pods that count: running ones, including ``leaving`` ones, and with ``reserved`` those with a reservation."""
        ledger, quotas = self._cluster.world.ledger, self._cluster.world.quotas
        for name, pod in self._cluster.running().items():
            if leaving or not pod["metadata"].get("deletionTimestamp"):
                yield name
        if reserved:
            for name in self._cluster.waiting():
                uid = self._uid(name)
                has_room = ledger.held(uid) is not None or ledger.nominations.node_of(uid)
                if has_room or quotas.is_reserved(uid) or quotas.keeps(uid):
                    yield name

    def sums(self, *, leaving: bool = True, reserved: bool = True) -> Counter[tuple[int, str]]:
        """By quota and resource, in thousandths."""
        found: Counter[tuple[int, str]] = Counter()
        tree = self.tree
        if tree is None:
            return found
        for name in self._charged(leaving=leaving, reserved=reserved):
            leaf = tree.leaf_of.get(self._cluster.api.key(name).partition("/")[0])
            if leaf is None:
                continue
            for resource, amount in self._amounts(name).items():
                for place in tree.path(leaf):
                    found[place, resource] += amount
        for namespace, amounts in self._moved() if reserved else ():
            leaf = tree.leaf_of.get(namespace)
            for resource, amount in amounts.items() if leaf is not None else ():
                assert leaf is not None
                for place in tree.path(leaf):
                    found[place, resource] += amount
        return found

    def _moved(self) -> Iterator[tuple[str, Amounts]]:
        """Namespaces of pods for whose successors places are reserved, and their requests."""
        for place in self._cluster.leader.mover._places:
            if self._cluster.world.ledger.nominations.node_of(place.key):
                yield self._cluster.api.amounts[place.key.removeprefix("moved:")]

    # --- invariants -------------------------------------------------------------------------------

    def _path(self, name: str) -> tuple[int, ...]:
        assert self.tree is not None
        leaf = self.tree.leaf_of.get(self._cluster.api.key(name).partition("/")[0])
        return () if leaf is None else self.tree.path(leaf)

    def check_binding(self, name: str) -> None:
        """A Binding was written: no quota of the pod is above its max."""
        tree = self.tree
        if tree is None or self._uid(name) in self.let_in or not (path := self._path(name)):
            return
        QuotaTruth.bound += 1
        sums, amounts = self.sums(reserved=False), self._amounts(name)
        for place in path:
            for resource, most in tree.quotas[place].max.items():
                if amounts.get(resource):
                    quota = tree.quotas[place].name
                    assert sums[place, resource] <= most, f"{name}: {quota} is above its max of {resource}"

    def _evicted(self, name: str) -> None:
        """We have evicted a pod for the one that was nominated, or had a sum reserved, last."""
        self.ended_for(self._cluster.api.nominated[-1][0], [name], informed=self._cluster.api.informed)

    def ended_for(self, claimant: str, victims: Collection[str], *, informed: bool) -> None:
        """Pods are evicted for another: none of theirs falls below its min, if the scheduler's knowledge was complete (``informed``)."""
        tree = self.tree
        if tree is None or not informed:
            return
        sums, own = self.sums(leaving=False), self._path(claimant)
        for victim in victims:
            path, amounts = self._path(victim), self._amounts(victim)
            QuotaTruth.ended += bool(path)
            for place in below(path, own) if own else path[:-1] or path:
                for resource, least in tree.quotas[place].min.items():
                    if amounts.get(resource):
                        quota = tree.quotas[place].name
                        assert sums[place, resource] >= least, (
                            f"{victim} ended for {claimant}: {quota} is below its min of {resource}"
                        )

    def books_agree(self) -> None:
        """The scheduler's figures match the definition."""
        tree, books = self.tree, self._cluster.world.quotas.books
        if tree is None:
            return
        sums = self.sums()
        for place in range(len(tree.quotas)):
            for resource in tree.resources:
                assert books.held(place, resource) == sums[place, resource], (
                    tree.quotas[place].name,
                    resource,
                )
