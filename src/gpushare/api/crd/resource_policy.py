"""``ResourcePolicy`` (``scheduling.alibabacloud.com/v1alpha1``, spec §4): the order in which pods use node groups.

Policies are validated like in the chart's schema, for API servers without that schema. Amounts are thousandths, rounded up, so that CPUs
and bytes are counted alike.
"""

import re
from datetime import datetime
from enum import Enum
from typing import Any, Final

import msgspec

from gpushare.api import names
from gpushare.api.errors import InvalidQuantity, ModelError
from gpushare.api.objects import ObjectMeta, ObjectReference, Pod
from gpushare.api.quantity import Quantity
from gpushare.api.request.amounts import NOTHING, Amounts, amounts_of, thousandths_of
from gpushare.api.request.pluralize import counted

Labels = dict[str, str]

#: Default seconds that a pod waits in a unit.
TIMEOUT_S: Final = 15 * 60.0
#: Maximum length of annotation values, as in the schema.
LONGEST_TEXT: Final = 1024
_MOST_UNITS: Final = 16
#: The condition's reason while a pod has scheduling gates, and for an instant after.
_GATED: Final = "SchedulingGated"
_DURATION: Final = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?(?:ms|s|m|h))+", re.ASCII)
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)", re.ASCII)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class MalformedPolicy(ModelError):
    """An invalid ResourcePolicy."""


class Kind(Enum):
    """``resource`` of a unit: real nodes (``ecs``; ``elastic``: to be added) or virtual ones."""

    ECS = "ecs"
    ELASTIC = "elastic"
    ECI = "eci"
    ACS = "acs"

    @property
    def is_virtual(self) -> bool:
        """Whether its nodes are virtual."""
        return self in (Kind.ECI, Kind.ACS)


class TryNext(Enum):
    """``whenTryNextUnits.policy``: when a pod may proceed from a unit without capacity to the next one."""

    LACK = "LackResourceOrExceedMax"
    EXCEED = "ExceedMax"
    TIMEOUT = "TimeoutOrExceedMax"
    NO_TERMINATING = "LackResourceAndNoTerminating"


class Unit(msgspec.Struct, frozen=True):
    """One of ``units``. ``most_pods`` and ``most`` (thousandths by resource) are ``None`` if unlimited."""

    kind: Kind
    node_selector: Labels
    most_pods: int | None = None
    most: Amounts | None = None
    pod_labels: Labels = {}
    pod_annotations: Labels = {}
    waits: bool = False
    """Whether pods wait here for new nodes although there is no cap."""

    @property
    def is_capped(self) -> bool:
        """Whether it has a cap."""
        return self.most_pods is not None or self.most is not None

    def has_node(self, labels: Labels) -> bool:
        """Whether a node with ``labels`` belongs to the unit."""
        virtual = labels.get(names.LABEL_NODE_TYPE) == names.NODE_TYPE_VIRTUAL
        return virtual is self.kind.is_virtual and self.node_selector.items() <= labels.items()

    def is_carried(self, labels: Labels, annotations: Labels) -> bool:
        """Whether a pod with these labels counts here, if its node belongs to the unit."""
        return (
            self.pod_labels.items() <= labels.items() and self.pod_annotations.items() <= annotations.items()
        )


class ResourcePolicy(msgspec.Struct, frozen=True):
    """A parsed policy. ``created`` is in seconds since 1970; ``status`` is the last written status."""

    namespace: str
    name: str
    uid: str
    generation: int
    created: float
    selector: Labels
    units: tuple[Unit, ...]
    try_next: TryNext = TryNext.LACK
    timeout_s: float = TIMEOUT_S
    preempts_before_next: bool = False
    ignores_previous: bool = False
    ignores_terminating: bool = True
    label_keys: tuple[str, ...] = ()
    status: dict[str, Any] | None = None

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def rank(self) -> tuple[float, str]:
        """Sort key: of several policies that select a pod the first, the oldest, applies."""
        return self.created, self.name

    def selects(self, labels: Labels) -> bool:
        """Whether it selects pods with ``labels``; an empty selector selects every pod of the namespace."""
        return self.selector.items() <= labels.items()

    def reference(self) -> ObjectReference:
        """A reference for events about the policy."""
        version = f"{names.POLICY_GROUP}/{names.POLICY_VERSION}"
        return ObjectReference("ResourcePolicy", self.name, self.namespace, self.uid, version)


class PolicyPod(msgspec.Struct, frozen=True, gc=False):
    """A pod with the data that policies need. Times are seconds since 1970.

    ``scheduled``: when it got its node, or when scheduling first failed (0: unknown). ``untimed``: it has no node, and its condition has
    no time. ``amounts``: its requests, thousandths by resource.
    """

    uid: str
    namespace: str
    name: str
    node: str
    scheduler: str
    labels: Labels
    annotations: Labels
    created: float = 0.0
    scheduled: float = 0.0
    amounts: Amounts = NOTHING
    leaving: bool = False
    nominated: str = ""
    untimed: bool = False
    refused_since: float = 0.0
    """The recorded time; 0 if there is none."""
    strays: bool = False
    """See ``strays_from_policies``."""

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


def strays_from_policies(pod: Pod) -> bool:
    """Whether another scheduler, which ignores policies, places the pod; DaemonSet pods do not count."""
    if pod.spec.scheduler_name in ("", names.SCHEDULER_NAME):
        return False
    return not any(
        owner.controller and owner.kind in ("DaemonSet", "Node")
        for owner in pod.metadata.owner_references or ()
    )


def others_text(pods: int, *, capped: bool) -> str:
    """The warning about a policy that selects pods of other schedulers."""
    unknown = "which applies neither its order nor its max" if capped else "which does not apply its order"
    return f"{counted(pods, 'pod')} that it selects {'names' if pods == 1 else 'name'} another scheduler, {unknown}"


class _Meta(ObjectMeta, rename="camel", gc=False):
    generation: int = 0


class _Unit(msgspec.Struct, rename="camel"):
    resource: Kind = Kind.ECS
    node_selector: Labels | None = None
    max: int | None = None
    max_resources: dict[str, Quantity] | None = None
    pod_labels: Labels | None = None
    pod_annotations: Labels | None = None


class _When(msgspec.Struct):
    policy: TryNext = TryNext.LACK
    timeout: str | None = None


class _Spec(msgspec.Struct, rename="camel"):
    units: list[_Unit] = []
    selector: Labels | None = None
    strategy: str = "prefer"
    preempt_policy: str = "AfterAllUnits"
    ignore_previous_pod: bool = False
    ignore_terminating_pod: bool = True
    match_label_keys: list[str] | None = None
    when_try_next_units: _When | None = None


class _Policy(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: dict[str, Any] | None = None


#: Labels that change what a pod requests.
_REQUEST_LABELS: Final = frozenset({names.LABEL_POD_GPU_COUNT, names.LABEL_POD_PLACEMENT})
_KUBERNETES_DOMAINS: Final = ("kubernetes.io", "k8s.io")

_POLICY: Final = msgspec.json.Decoder(_Policy)


def decode_policy(raw: bytes) -> ResourcePolicy:
    """A policy from JSON; raises ``ValueError`` (``MalformedPolicy`` or ``msgspec.ValidationError``)."""
    read = _POLICY.decode(raw)
    meta, spec = read.metadata, read.spec
    subject = f"ResourcePolicy {meta.namespace}/{meta.name}"
    if not 1 <= len(spec.units) <= _MOST_UNITS:
        raise MalformedPolicy(subject, f"it has {len(spec.units)} units; name 1 to {_MOST_UNITS}")
    if spec.strategy != "prefer":
        raise MalformedPolicy(subject, f"strategy is '{spec.strategy}'; the only one is prefer")
    if spec.preempt_policy not in ("BeforeNextUnit", "AfterAllUnits"):
        raise MalformedPolicy(
            subject, f"preemptPolicy is '{spec.preempt_policy}'; write BeforeNextUnit or AfterAllUnits"
        )
    selector, keys = spec.selector or {}, spec.match_label_keys or []
    for number, unit in enumerate(spec.units, 1):
        for label, text in (unit.pod_labels or {}).items():
            if label in keys or selector.get(label, text) != text:
                raise MalformedPolicy(
                    f"{subject}: unit {number}",
                    f"podLabels sets {label}, by which the policy finds its pods or groups them; choose another label",
                )
        _check_keys(unit, f"{subject}: unit {number}")
    when = spec.when_try_next_units or _When()
    return ResourcePolicy(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        generation=meta.generation,
        created=seconds_of(meta.creation_timestamp),
        selector=selector,
        units=tuple(_unit(unit, f"{subject}: unit {number}") for number, unit in enumerate(spec.units, 1)),
        try_next=when.policy,
        timeout_s=TIMEOUT_S if when.timeout is None else duration_s(when.timeout, subject),
        preempts_before_next=spec.preempt_policy == "BeforeNextUnit",
        ignores_previous=spec.ignore_previous_pod,
        ignores_terminating=spec.ignore_terminating_pod,
        label_keys=tuple(keys),
        status=read.status,
    )


def _check_keys(read: _Unit, subject: str) -> None:
    """Raise ``MalformedPolicy`` for keys that the scheduler must not write on behalf of a tenant."""
    for key in read.pod_labels or ():
        if key.startswith(names.RESERVED) or key in _REQUEST_LABELS:
            raise MalformedPolicy(
                subject, f"podLabels sets {key}, which says what a pod requests or holds; remove it"
            )
    for key in read.pod_annotations or ():
        # A binding's annotations bypass admission of pods: keys that other components act on are reserved for the pod's creator.
        if key.startswith(names.RESERVED) or key.partition("/")[0].endswith(_KUBERNETES_DOMAINS):
            raise MalformedPolicy(
                subject,
                f"podAnnotations sets {key}, which only gpushare or a component of Kubernetes writes; remove it",
            )


def _unit(read: _Unit, subject: str) -> Unit:
    labels = dict(read.pod_labels or {})
    waits = labels.pop(names.LABEL_WAIT_FOR_SCALING, "") == "true" or read.resource is Kind.ELASTIC
    if read.max is not None and read.max < 0:
        raise MalformedPolicy(subject, f"max is {read.max}; write 0 or more")
    return Unit(
        kind=read.resource,
        node_selector=read.node_selector or {},
        most_pods=read.max,
        most=None if read.max_resources is None else _amounts(read.max_resources, subject),
        pod_labels=labels,
        pod_annotations=read.pod_annotations or {},
        waits=waits,
    )


def _amounts(written: dict[str, Quantity], subject: str) -> Amounts:
    amounts = {}
    for name, text in written.items():
        try:
            amounts[name] = thousandths_of(text, f"{subject}: maxResources {name}")
        except InvalidQuantity as error:
            raise MalformedPolicy(error.subject, error.problem) from None
    return amounts


def policy_pod_of(pod: Pod) -> PolicyPod:
    """``pod`` with the data that policies need."""
    meta, spec = pod.metadata, pod.spec
    annotations = {key: text for key, text in (meta.annotations or {}).items() if len(text) <= LONGEST_TEXT}
    conditions = pod.status.conditions or ()
    condition = next((condition for condition in conditions if condition.type == "PodScheduled"), None)
    scheduled = 0.0 if condition is None else seconds_of(condition.last_transition_time)
    if condition is not None and condition.reason == _GATED:
        scheduled = 0.0  # the time of its creation: scheduling has not begun
    return PolicyPod(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        node=spec.node_name,
        scheduler=spec.scheduler_name,
        labels=meta.labels or {},
        annotations=annotations,
        created=seconds_of(meta.creation_timestamp),
        scheduled=scheduled,
        amounts=amounts_of(pod),
        leaving=meta.deletion_timestamp is not None,
        nominated=pod.status.nominated_node_name,
        untimed=condition is not None and not scheduled and not spec.node_name,
        refused_since=seconds_of(annotations.get(names.ANN_REFUSED_SINCE)),
        strays=strays_from_policies(pod),
    )


def duration_s(text: str, subject: str) -> float:
    """Seconds of a Go duration: ``15m``, ``1h30m``, ``1.5s``. Raises ``MalformedPolicy``."""
    if _DURATION.fullmatch(text) is None:
        raise MalformedPolicy(subject, f"timeout is {text[:40]!r}; write a duration such as 15m or 1h30m")
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))


def seconds_of(text: str | None) -> float:
    """Seconds since 1970 of an RFC 3339 time; 0 if missing or invalid."""
    if not text:
        return 0.0
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
