"""All policies, their pods and the nodes: which policy applies to a pod, and each policy's book.

If several policies select a pod, the oldest applies. An event of a pod updates that pod. A node that is added, deleted or relabelled
updates the pods on it. A policy that is added or deleted updates the pods of its namespace.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from gpushare.api import names
from gpushare.api.crd.resource_policy import Labels, PolicyPod, ResourcePolicy
from gpushare.scheduler.plugins.resource_policy.model.unit_nodes import Nodes
from gpushare.scheduler.plugins.resource_policy.model.unit_usage import PolicyBook

#: Difference between the deletion costs of consecutive units.
_COST_STEP: Final = 100


@dataclass(slots=True, eq=False)
class _Space:
    """A namespace with policies."""

    books: list[PolicyBook] = field(default_factory=list)
    pods: dict[str, PolicyPod] = field(default_factory=dict)
    governed: dict[str, PolicyBook] = field(default_factory=dict)


class Census:
    """Index of policies, pods and nodes. Not thread-safe."""

    def __init__(self) -> None:
        self.nodes = Nodes()
        self.costly: set[str] = set()
        """UIDs of pods whose deletion cost has to be written."""
        self._spaces: dict[str, _Space] = {}
        self._space_of: dict[str, str] = {}
        self._on_node: dict[str, set[str]] = {}

    # --- policies -------------------------------------------------------------------------------

    @property
    def namespaces(self) -> frozenset[str]:
        """Namespaces with a policy."""
        return frozenset(self._spaces)

    def books(self) -> Iterator[PolicyBook]:
        """The books of all policies."""
        for space in self._spaces.values():
            yield from space.books

    def set_policy(self, policy: ResourcePolicy) -> bool:
        """Add or update a policy; false if its specification has not changed."""
        space = self._spaces.setdefault(policy.namespace, _Space())
        old = next((one for one in space.books if one.policy.name == policy.name), None)
        if old is not None and (old.policy.uid, old.policy.generation) == (policy.uid, policy.generation):
            old.policy = policy
            return False
        if old is not None:
            self._close(space, old)
        book = PolicyBook(policy, self.nodes)
        space.books.append(book)
        space.books.sort(key=lambda one: one.policy.rank)
        self._assign_all(space)
        if old is not None:
            _carry_over(old, book, space)
        return True

    def remove_policy(self, key: str) -> None:
        """A policy was deleted. Bound pods stay as they are. The namespace is forgotten with its last policy."""
        namespace, _, name = key.partition("/")
        space = self._spaces.get(namespace)
        book = None if space is None else next((one for one in space.books if one.policy.name == name), None)
        if space is None or book is None:
            return
        self._close(space, book)
        if space.books:
            self._assign_all(space)
            return
        for uid in list(space.pods):
            self.remove_pod(uid)
        del self._spaces[namespace]

    def book_for(self, namespace: str, labels: Labels) -> PolicyBook | None:
        """The book of the policy that applies to a pod with these labels; ``None`` if none does."""
        space = self._spaces.get(namespace)
        return None if space is None else _book_in(space, labels)

    # --- nodes ----------------------------------------------------------------------------------

    def set_node(self, name: str, labels: Labels) -> None:
        """Add or update a node."""
        if self.nodes.set(name, labels):
            self._assign_on(name)

    def remove_node(self, name: str) -> None:
        """A node was deleted: its pods count in no unit."""
        if self.nodes.remove(name):
            self._assign_on(name)

    def forget_nodes(self) -> None:
        """Forget all nodes: their watch stops, and deletions will not be reported."""
        for name in self.nodes.names():
            self.remove_node(name)

    # --- pods -----------------------------------------------------------------------------------

    def set_pod(self, pod: PolicyPod) -> None:
        """Add or update a pod of a namespace with policies."""
        space = self._spaces.get(pod.namespace)
        if space is None:
            return  # the last policy was just deleted
        previous = space.pods.get(pod.uid)
        if previous is not None and previous.node and previous.node != pod.node:
            self._leave_node(previous)
        space.pods[pod.uid] = pod
        self._space_of[pod.uid] = pod.namespace
        if pod.node:
            self._on_node.setdefault(pod.node, set()).add(pod.uid)
        self._assign(space, pod)

    def remove_pod(self, uid: str) -> None:
        """A pod has ended or was deleted."""
        namespace = self._space_of.pop(uid, None)
        if namespace is None:
            return
        space = self._spaces[namespace]
        pod = space.pods.pop(uid)
        self._leave_node(pod)
        book = space.governed.pop(uid, None)
        if book is not None:
            book.drop(uid)
            book.unbook(uid)
            book.strays.discard(uid)
        self.costly.discard(uid)

    def pod(self, uid: str) -> PolicyPod | None:
        """The last known state of the pod; ``None`` if its namespace has no policies."""
        namespace = self._space_of.get(uid)
        return None if namespace is None else self._spaces[namespace].pods[uid]

    def pods_of(self, namespace: str) -> Iterator[PolicyPod]:
        """Every known pod of a namespace with policies."""
        space = self._spaces.get(namespace)
        if space is not None:
            yield from space.pods.values()

    # --- deletion costs ---------------------------------------------------------------------------

    def cost_changes(self, uid: str) -> dict[str, str | None]:
        """The annotations to write (``None``: to remove) to correct the pod's deletion cost; empty if it is correct."""
        pod = self.pod(uid)
        if pod is None:
            return {}
        book = self._spaces[pod.namespace].governed.get(uid)
        entry = None if book is None else book.counted.get(uid)
        cost = None if book is None or entry is None else cost_of(book.policy, entry.unit)
        return cost_annotations(pod, cost)

    # --- within -----------------------------------------------------------------------------------

    def _close(self, space: _Space, book: PolicyBook) -> None:
        """Remove the book. Its pods have no policy until they are assigned again."""
        space.books.remove(book)
        space.governed = {
            uid: governing for uid, governing in space.governed.items() if governing is not book
        }
        book.close()

    def _assign_all(self, space: _Space) -> None:
        for pod in space.pods.values():
            self._assign(space, pod)

    def _assign_on(self, node: str) -> None:
        for uid in self._on_node.get(node, ()):
            space = self._spaces[self._space_of[uid]]
            self._assign(space, space.pods[uid])

    def _assign(self, space: _Space, pod: PolicyPod) -> None:
        book, previous = _book_in(space, pod.labels), space.governed.get(pod.uid)
        if previous is not None and previous is not book:
            previous.drop(pod.uid)
            previous.unbook(pod.uid)
            previous.strays.discard(pod.uid)
            del space.governed[pod.uid]
        if book is not None:
            space.governed[pod.uid] = book
            if pod.strays:
                book.strays.add(pod.uid)
            if pod.node:
                book.unbook(pod.uid)
                book.put(pod)
        if pod.node and self.cost_changes(pod.uid):
            self.costly.add(pod.uid)
        else:
            self.costly.discard(pod.uid)

    def _leave_node(self, pod: PolicyPod) -> None:
        uids = self._on_node.get(pod.node)
        if uids is not None:
            uids.discard(pod.uid)
            if not uids:
                del self._on_node[pod.node]


def _book_in(space: _Space, labels: Labels) -> PolicyBook | None:
    return next((book for book in space.books if book.policy.selects(labels)), None)


def _carry_over(old: PolicyBook, new: PolicyBook, space: _Space) -> None:
    """Keep the bookings of pods that are being bound while their policy changes."""
    for uid, booking in old.booked.items():
        pod = space.pods.get(uid)
        if pod is not None and booking.node and space.governed.get(uid) is new:
            unit = new.unit_for(pod, booking.node)
            if unit is not None:
                new.book(pod, unit, booking.node)


def cost_of(policy: ResourcePolicy, unit: int) -> int:
    """The deletion cost of pods in ``unit`` (from 0). Pods in later units have lower costs and are deleted first, after pods in no unit."""
    return _COST_STEP * (len(policy.units) - unit)


def cost_annotations(pod: PolicyPod, cost: int | None) -> dict[str, str | None]:
    """The annotations to write on a pod for ``cost`` (``None``: none). Empty if they are correct, or if the cost is set by others."""
    present = pod.annotations.get(names.ANN_DELETION_COST)
    written = pod.annotations.get(names.ANN_COST_WRITTEN)
    if present is not None and present != written:
        return {}  # not set by us, or changed since
    wanted = None if cost is None else str(cost)
    if present == wanted and written == wanted:
        return {}
    return {names.ANN_DELETION_COST: wanted, names.ANN_COST_WRITTEN: wanted}
