"""ElasticQuotaTree (``scheduling.sigs.k8s.io/v1beta1``): guaranteed minimum and maximum for each group of namespaces.

A tree is accepted or rejected as a whole; a rejection lists its problems. Source of its shape and rules: ACK's documentation of
capacity scheduling.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from gpushare.api import names
from gpushare.api.errors import InvalidQuantity, InvalidQuotaTree
from gpushare.api.quantity import Quantity
from gpushare.api.request.amounts import Amounts, thousandths_of, written

ROOT: Final = 0
#: The root's ``parent``.
NO_PARENT: Final = -1
#: Maximum size and depth of a tree.
MOST_QUOTAS: Final = 1000
MOST_LEVELS: Final = 16
#: Maximum number of problems in a message.
_MAX_LISTED: Final = 5
_BUILT_IN: Final = ("cpu", "memory", "ephemeral-storage")
_QUALIFIED: Final = re.compile(
    r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII
)
#: Resources that gpushare allocates itself; only these are reclaimed.
GPU_RESOURCES: Final = (names.GPU_MEM, names.GPU_CORE, names.GPU_WHOLE)
_RESOURCE_QUOTA_PREFIXES: Final = ("requests.", "limits.")
#: Suffixes that multiply a number, mostly of amounts in bytes.
_SUFFIXES: Final = (*"kMGTPE", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


class Quota(msgspec.Struct, frozen=True):
    """A quota: ``min`` is guaranteed, ``max`` is never exceeded. A resource that is not in ``max`` has no limit; one that is not in ``min``
    has no guarantee. ``parent``: index in the tree's ``quotas``."""

    name: str
    parent: int
    min: Amounts
    max: Amounts
    namespaces: tuple[str, ...] = ()


class QuotaTree(msgspec.Struct, frozen=True):
    """A consistent tree. The root is the first of ``quotas``; each quota comes after its parent.

    ``leaf_of``: index of each namespace's quota. ``resources``: all resources in any quota. ``notes``: warnings about quotas whose children
    are guaranteed more than the quota itself, of resources that gpushare does not allocate.
    """

    quotas: tuple[Quota, ...]
    leaf_of: dict[str, int]
    resources: frozenset[str]
    notes: tuple[str, ...] = ()

    @property
    def counts_every_pod(self) -> bool:
        """Whether it also limits resources of pods without a GPU."""
        return not self.resources <= set(GPU_RESOURCES)

    def path(self, place: int) -> tuple[int, ...]:
        """A quota and its ancestors, the root last."""
        path = [place]
        while (parent := self.quotas[path[-1]].parent) != NO_PARENT:
            path.append(parent)
        return tuple(path)


class _Node(msgspec.Struct):
    name: str = ""
    min: dict[str, Quantity] | None = None
    max: dict[str, Quantity] | None = None
    namespaces: list[str] | None = None
    children: list["_Node"] | None = None


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    uid: str = ""
    generation: int = 0
    creation_timestamp: str = ""


class _Spec(msgspec.Struct):
    root: msgspec.Raw = msgspec.Raw(b"null")


class _Status(msgspec.Struct, rename="camel"):
    in_force: str = ""


class _Object(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: msgspec.Raw = msgspec.Raw(b"{}")


class QuotaTreeRecord(msgspec.Struct, frozen=True):
    """A decoded ElasticQuotaTree.

    ``tree`` is ``None`` if ``problem`` says what is wrong; ``earlier`` is then the last valid tree, stored in its status. ``root``: its
    ``spec.root`` as JSON; ``status``: its status.
    """

    name: str
    uid: str
    generation: int
    created: str
    root: str
    tree: QuotaTree | None
    problem: str
    earlier: QuotaTree | None
    earlier_root: str
    status: Mapping[str, Any]


def decode_quota_tree(raw: bytes) -> QuotaTreeRecord:
    """Decode an ElasticQuotaTree; raises ``msgspec.DecodeError``."""
    read = _OBJECT.decode(raw)
    meta = read.metadata
    status = _as_dict(bytes(read.status))
    problem, tree = "", None
    try:
        tree = quota_tree_of(bytes(read.spec.root))
    except InvalidQuotaTree as error:
        problem = error.problem
    earlier, earlier_root = None, ""
    remembered = status.get("inForce")
    if tree is None and isinstance(remembered, str) and remembered:
        try:
            earlier, earlier_root = quota_tree_of(remembered.encode()), remembered
        except InvalidQuotaTree:
            earlier = None  # the status was edited, or an earlier release was more lenient
    return QuotaTreeRecord(
        name=meta.name,
        uid=meta.uid,
        generation=meta.generation,
        created=meta.creation_timestamp,
        root=json.dumps(json.loads(bytes(read.spec.root)), separators=(",", ":"), sort_keys=True),
        tree=tree,
        problem=problem,
        earlier=earlier,
        earlier_root=earlier_root,
        status=status,
    )


def _as_dict(raw: bytes) -> dict[str, Any]:
    document = msgspec.json.decode(raw)
    return document if isinstance(document, dict) else {}


def counting(records: Iterable[QuotaTreeRecord]) -> QuotaTreeRecord | None:
    """The effective tree among those in ``QUOTA_NAMESPACE``: the oldest, ties broken by name."""
    return min(records, key=lambda record: (record.created, record.name), default=None)


def quota_tree_of(root: bytes) -> QuotaTree:
    """The tree in ``spec.root``. Raises ``InvalidQuotaTree`` with the first few problems."""
    try:
        read = _ROOT.decode(root)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidQuotaTree("", f"spec.root cannot be read: {error}") from None
    if read is None:
        raise InvalidQuotaTree("", "there is no spec.root; give it a name, min, max and children")
    reading = _Reading()
    reading.take(read, NO_PARENT, 1)
    if not reading.problems:
        reading.check()
    if reading.problems:
        text = "; ".join(reading.problems[:_MAX_LISTED])
        more = len(reading.problems) - _MAX_LISTED
        raise InvalidQuotaTree("", f"{text}; and {more} more" if more > 0 else text)
    resources = frozenset(name for quota in reading.quotas for name in (*quota.min, *quota.max))
    return QuotaTree(tuple(reading.quotas), reading.leaf_of, resources, tuple(reading.notes[:_MAX_LISTED]))


class _Reading:
    """A tree while it is read, with the problems so far."""

    def __init__(self) -> None:
        self.quotas: list[Quota] = []
        self.leaf_of: dict[str, int] = {}
        self.problems: list[str] = []
        self.notes: list[str] = []
        self._named: set[str] = set()

    def take(self, node: _Node, parent: int, level: int) -> None:
        """Read ``node`` and its descendants."""
        if len(self.quotas) == MOST_QUOTAS:
            self._wrong(f"the tree has more than {MOST_QUOTAS} quotas")
            return
        if level > MOST_LEVELS:
            self._wrong(f"quota {node.name}: the tree has more than {MOST_LEVELS} levels")
            return
        place = len(self.quotas)
        subject = f"quota {node.name}"
        if not node.name:
            above = f"below {self.quotas[parent].name}" if parent != NO_PARENT else "at the root"
            subject = f"the quota without a name {above}"
            self._wrong(f"{subject}: give it one")
        elif node.name in self._named:
            self._wrong(f"{subject}: this name is used twice; quota names must be unique")
        self._named.add(node.name)
        namespaces = tuple(node.namespaces or ())
        if namespaces and node.children:
            self._wrong(
                f"{subject}: it has children, so it has no namespaces of its own; move them to a child"
            )
        for namespace in namespaces:
            if not namespace:
                self._wrong(f"{subject}: a namespace without a name")
            elif namespace in self.leaf_of:
                other = self.leaf_of[namespace]
                self._wrong(
                    f"{subject}: namespace {namespace} is named twice there; name it once"
                    if other == place
                    else f"{subject}: namespace {namespace} belongs to quota {self.quotas[other].name} already; "
                    "a namespace has one quota"
                )
            else:
                self.leaf_of[namespace] = place
        least, most = self._amounts(subject, "min", node.min), self._amounts(subject, "max", node.max)
        self.quotas.append(Quota(node.name, parent, least, most, namespaces))
        for child in node.children or ():
            self.take(child, place, level + 1)

    def _amounts(self, subject: str, which: str, amounts: dict[str, Quantity] | None) -> dict[str, int]:
        thousandths: dict[str, int] = {}
        for resource, amount in (amounts or {}).items():
            if resource == names.MAX_JOBS:
                continue
            if problem := _resource_problem(resource):
                self._wrong(f"{subject}: {which} names {resource}: {problem}")
                continue
            if resource == names.GPU_MEM and str(amount).endswith(_SUFFIXES):
                self._wrong(
                    f"{subject}: {which} of {resource} is {amount}, but must be a number of units, as in pod requests, "
                    "without Mi or Gi; for 6 units write 6"
                )
                continue
            try:
                read = thousandths_of(amount)
            except InvalidQuantity as error:
                self._wrong(f"{subject}: {which} of {resource}: {error.problem}")
                continue
            if read < 0:
                self._wrong(f"{subject}: {which} of {resource} is {amount}; write 0 or more")
            elif "/" in resource and read % 1000:
                self._wrong(f"{subject}: {which} of {resource} is {amount}; it is counted in whole numbers")
            else:
                thousandths[resource] = read
        return thousandths

    def check(self) -> None:
        """Check each quota by itself, and parents against their children."""
        sums: list[dict[str, int]] = [{} for _ in self.quotas]
        for quota in self.quotas:
            for resource, least in quota.min.items():
                if least > quota.max.get(resource, least):
                    self._wrong(
                        f"quota {quota.name}: min of {resource} ({written(resource, least)}) is above its max "
                        f"({written(resource, quota.max[resource])})"
                    )
                if quota.parent != NO_PARENT:
                    sums[quota.parent][resource] = sums[quota.parent].get(resource, 0) + least
        for quota, sum_of_children in zip(self.quotas, sums, strict=True):
            for resource, least in sum_of_children.items():
                if least > quota.min.get(resource, 0):
                    # An example in ACK's documentation does so with CPU, which is never reclaimed.
                    target = self.problems if resource in GPU_RESOURCES else self.notes
                    target.append(
                        f"quota {quota.name}: its children's min of {resource} add up to {written(resource, least)}, "
                        f"above its own min ({written(resource, quota.min.get(resource, 0))}); "
                        "raise its min, or lower theirs"
                    )

    def _wrong(self, problem: str) -> None:
        self.problems.append(problem)


def _resource_problem(resource: str) -> str:
    """Why a quota cannot count ``resource``; empty if it can."""
    for prefix in _RESOURCE_QUOTA_PREFIXES:
        if resource.startswith(prefix):
            return f"this is the ResourceQuota form; write {resource.removeprefix(prefix)}"
    if (
        resource in _BUILT_IN
        or resource in GPU_RESOURCES
        or re.fullmatch(r"hugepages-\w+", resource, re.ASCII)
    ):
        return ""
    if resource.startswith("aliyun.com/"):
        return f"use the names that pods request: {', '.join(GPU_RESOURCES[:-1])} or {GPU_RESOURCES[-1]}"
    if _QUALIFIED.fullmatch(resource) is None:
        return f"no such resource; write cpu, memory, ephemeral-storage, or a name with its domain, as {GPU_RESOURCES[0]}"
    return ""


_OBJECT: Final = msgspec.json.Decoder(_Object)
_ROOT: Final = msgspec.json.Decoder(_Node | None)
