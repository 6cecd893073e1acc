"""The protocol between kube-scheduler and an extender.

Source: k8s.io/kube-scheduler ``extender/v1``. That package has no JSON tags, so keys are the Go names.
Schedulers before 1.15 sent lower-case keys, and Go reads either. We read both and write Go names.
"""

from typing import Any, Final, NamedTuple

import msgspec

from gpushare.api.objects import Pod

#: A body above this size, in bytes, is refused: 5,000 full nodes of 40 KB are 200 MB.
MAX_BODY_BYTES: Final = 256 * 1024 * 1024


class WireError(ValueError):
    """A body that the verb cannot decode; ``str()`` is the reason."""


class _NodeList(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class _Named(msgspec.Struct):
    class Metadata(msgspec.Struct):
        name: str

    metadata: Metadata


class ExtenderArgs(msgspec.Struct, rename="pascal"):
    """The body of filter and prioritize: a pod and its candidate nodes, as names or as objects."""

    pod: Pod
    nodes: _NodeList | None = None
    node_names: list[str] | None = None

    def names(self) -> list[str]:
        """The candidate nodes' names, in the order of the body; raises ``WireError`` if a node has no name."""
        if self.node_names is None:
            items = (self.nodes.items if self.nodes else None) or ()
            try:
                self.node_names = [_NAMED.decode(item).metadata.name for item in items]
            except _UNREADABLE as error:
                raise WireError(f"not an ExtenderArgs object: a node of Nodes.items: {error}") from None
        return self.node_names


class _LowerArgs(msgspec.Struct):
    pod: Pod
    nodes: _NodeList | None = None
    nodenames: list[str] | None = None


class _Priority(msgspec.Struct, frozen=True, gc=False, rename="pascal"):
    host: str
    score: int


class BindingArgs(msgspec.Struct, frozen=True):
    """The body of bind."""

    namespace: str = msgspec.field(name="PodNamespace")
    name: str = msgspec.field(name="PodName")
    uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


class _LowerBindingArgs(msgspec.Struct):
    namespace: str = msgspec.field(name="podNamespace")
    name: str = msgspec.field(name="podName")
    uid: str = msgspec.field(name="podUID")
    node: str = msgspec.field(name="node")


#: The errors of decoding: invalid JSON or another structure, invalid UTF-8, or too deep nesting.
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_ARGS = msgspec.json.Decoder(ExtenderArgs)
_LOWER_ARGS = msgspec.json.Decoder(_LowerArgs)
_BINDING = msgspec.json.Decoder(BindingArgs)
_LOWER_BINDING = msgspec.json.Decoder(_LowerBindingArgs)
_NAMED = msgspec.json.Decoder(_Named)
_ENCODER = msgspec.json.Encoder()


def read_args(body: bytes) -> ExtenderArgs:
    """Read a filter or prioritize body; raises ``WireError``."""
    try:
        args = _ARGS.decode(body)
    except _UNREADABLE as error:
        try:
            lower = _LOWER_ARGS.decode(body)
        except _UNREADABLE:
            raise WireError(f"not an ExtenderArgs object: {error}") from None
        args = ExtenderArgs(lower.pod, lower.nodes, lower.nodenames)
    if args.node_names is not None:
        args.nodes = None
    return args


def read_binding(body: bytes) -> BindingArgs:
    """Read a bind body; raises ``WireError``."""
    try:
        return _BINDING.decode(body)
    except _UNREADABLE as error:
        try:
            lower = _LOWER_BINDING.decode(body)
        except _UNREADABLE:
            raise WireError(f"not an ExtenderBindingArgs object: {error}") from None
        return BindingArgs(lower.namespace, lower.name, lower.uid, lower.node)


class Victims(NamedTuple):
    """The pods to evict on a node (UIDs), and how many PodDisruptionBudgets that would violate."""

    uids: tuple[str, ...]
    violations: int


class _MetaVictims(msgspec.Struct, rename="pascal"):
    class Pod(msgspec.Struct):
        uid: str = msgspec.field(name="UID")

    pods: list[Pod] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class _FullVictims(msgspec.Struct, rename="pascal"):
    pods: list[Pod] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class PreemptionArgs(msgspec.Struct, rename="pascal"):
    """The body of preempt: a pod, and by node the victims that kube-scheduler proposes, as objects or as UIDs."""

    pod: Pod
    node_name_to_victims: dict[str, _FullVictims] | None = None
    node_name_to_meta_victims: dict[str, _MetaVictims] | None = None

    def victims(self) -> dict[str, Victims]:
        """The proposed victims by node, from either form."""
        victims = {
            node: Victims(tuple(pod.uid for pod in meta.pods or ()), meta.num_pdb_violations)
            for node, meta in (self.node_name_to_meta_victims or {}).items()
        }
        for node, full in (self.node_name_to_victims or {}).items():
            uids = tuple(pod.metadata.uid for pod in full.pods or ())
            victims.setdefault(node, Victims(uids, full.num_pdb_violations))
        return victims


def read_preemption(body: bytes) -> PreemptionArgs:
    """Read a preempt body; raises ``WireError``."""
    try:
        return _PREEMPTION.decode(body)
    except _UNREADABLE as error:
        raise WireError(f"not an ExtenderPreemptionArgs object: {error}") from None


def preemption_answer(victims: dict[str, Victims]) -> bytes:
    """The response to preempt: the remaining nodes and their victims."""
    by_node = {
        node: {"Pods": [{"UID": uid} for uid in one.uids], "NumPDBViolations": one.violations}
        for node, one in victims.items()
    }
    return _ENCODER.encode({"NodeNameToMetaVictims": by_node})


_PREEMPTION: Final = msgspec.json.Decoder(PreemptionArgs)


def filter_answer(
    args: ExtenderArgs, fits: list[str], refused: dict[str, str], hopeless: dict[str, str]
) -> bytes:
    """``ExtenderFilterResult``: names or node objects, as in the request."""
    answer: dict[str, Any] = {
        "Nodes": None,
        "NodeNames": fits,
        "FailedNodes": refused,
        "FailedAndUnresolvableNodes": hopeless,
        "Error": "",
    }
    if args.nodes is not None:
        fitting = set(fits)
        answer["Nodes"] = {
            "metadata": {},
            "items": [
                item
                for item, name in zip(args.nodes.items or (), args.names(), strict=True)
                if name in fitting
            ],
        }
        answer["NodeNames"] = None
    return _ENCODER.encode(answer)


def priorities(above: list[tuple[str, int]]) -> bytes:
    """``HostPriorityList``: how far each node's score is above the lowest score. Nodes with the lowest score are left out.

    kube-scheduler treats a missing node as 0, and only differences matter. Mostly all but a few nodes have the lowest
    score, and decoding an entry costs kube-scheduler more than encoding costs us.
    """
    return _ENCODER.encode([_Priority(name, score) for name, score in above])


def binding_answer(error: str) -> bytes:
    """``ExtenderBindingResult``; an empty ``error`` means bound."""
    return _ENCODER.encode({"Error": error})
