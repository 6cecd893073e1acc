"""The cluster's nodes and pods, read through kubectl."""

from collections.abc import Collection
from typing import Final, NamedTuple, TypeVar

import msgspec

from gpushare.api import names
from gpushare.api.allocation.resource_claim import ResourceClaim, decode_resource_claims
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import ListMeta, Node, Pod
from gpushare.inspect.errors import KubectlFailed, UnreadableAnswer
from gpushare.inspect.sources.kubectl import Kubectl, Round
from gpushare.inspect.sources.paths import CLAIMS_PATH, begin, nodes_path, pods_path, unknown_node

_ATTEMPTS: Final = 3
_T = TypeVar("_T")


class Snapshot(NamedTuple):
    """Nodes, and unfinished pods with and without a node, each in the API server's order (by name).

    ``claims`` are read where a node is in mode ``dra``; ``claims_problem`` says why they could not be.
    """

    nodes: list[Node]
    pods: list[Pod]
    waiting: list[Pod]
    claims: Collection[ResourceClaim] = ()
    claims_problem: str = ""


class _Nodes(msgspec.Struct, gc=False):
    items: list[Node] | None = None


class _Pods(msgspec.Struct, gc=False):
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[Pod] | None = None


def read(kubectl: Kubectl, node: str | None, begun: Round | None = None) -> Snapshot:
    """Read the nodes (or the one named ``node``) and the pods on them.

    ``begun`` is a reading that ``begin`` started. Raises ``KubectlFailed``, ``KubectlMissing``,
    ``UnreadableAnswer``, and ``UnknownNode`` when ``node`` does not exist.
    """
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            return _read_once(kubectl, node, begun or begin(kubectl, node))
        except KubectlFailed as error:
            if node is not None and error.not_found and error.path == nodes_path(node):
                raise unknown_node(node) from None
            if not (error.expired and attempts_left):
                raise
            begun = None  # the continue token expired: read the list from its start
    raise AssertionError("the last try returns or raises")


def _read_once(kubectl: Kubectl, node: str | None, begun: Round) -> Snapshot:
    nodes_answer, pods_answer = begun.finish()
    if node is None:
        nodes = _decoded(_NODES, nodes_answer, nodes_path(None)).items or []
    else:
        nodes = [_decoded(_NODE, nodes_answer, nodes_path(node))]
    pods: list[Pod] = []
    waiting: list[Pod] = []
    while True:
        page = _decoded(_PODS, pods_answer, pods_path(node))
        for pod in page.items or ():
            if not pod.finished and pod.spec.scheduler_name != names.PLACEHOLDER_SCHEDULER:
                (pods if pod.spec.node_name else waiting).append(pod)
        if not page.metadata.continue_:
            return Snapshot(nodes, pods, waiting, *read_claims(kubectl, nodes))
        (pods_answer,) = kubectl.start(pods_path(node, page.metadata.continue_)).finish()


def read_claims(kubectl: Kubectl, nodes: list[Node]) -> tuple[Collection[ResourceClaim], str]:
    """The cluster's ResourceClaims, where nodes share GPUs through them, and why they are not known. Raises ``KubectlMissing``."""
    if not any((node.metadata.labels or {}).get(names.LABEL_MODE) == NodeMode.DRA.value for node in nodes):
        return (), ""
    try:
        (answer,) = kubectl.start(CLAIMS_PATH).finish()
        return decode_resource_claims(answer), ""
    except (KubectlFailed, msgspec.DecodeError, RecursionError) as error:
        return (), f"ResourceClaims are not counted on nodes in mode {NodeMode.DRA.value}: {error}"


def _decoded(decoder: "msgspec.json.Decoder[_T]", answer: bytearray, path: str) -> _T:
    try:
        return decoder.decode(answer)
    except msgspec.DecodeError as error:
        raise UnreadableAnswer(
            f"answer to {path}",
            f"is not a valid API server response ({error}); check the output of `kubectl get --raw '{path}'`",
        ) from None


_NODES = msgspec.json.Decoder(_Nodes)
_NODE = msgspec.json.Decoder(Node)
_PODS = msgspec.json.Decoder(_Pods)
