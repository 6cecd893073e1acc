"""Whether the cluster has a GPU that a pod's annotations allow (``gpushare.api.request.gpu_selection``).

Only what is certain rejects a pod: while a node's GPUs are unknown, or nodes cannot be listed, every pod is accepted.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Set
from typing import Final, NamedTuple

import msgspec

from gpushare.admission.rules.request_rules import asks_for_gpu
from gpushare.api import names
from gpushare.api.errors import MalformedDevices
from gpushare.api.node.device import Device, node_devices
from gpushare.api.objects import Pod, decode_node
from gpushare.api.request.gpu_selection import GpuSelection, bound_selection
from gpushare.kube.client.errors import KubeError, MalformedAnswer
from gpushare.kube.client.listing import list_pages
from gpushare.kube.client.session import Session
from gpushare.kube.clock import SYSTEM_CLOCK, Clock
from gpushare.reasons.suggestions.selected_gpus import kind_text, listed_kinds

logger = logging.getLogger(__name__)

_NODES: Final = "/api/v1/nodes"
#: How long a list of the cluster's GPUs is used, in seconds.
FRESH_S: Final = 30.0


class ClusterGpus(NamedTuple):
    """The GPUs of a cluster at one moment: UUIDs by kind, which is a GPU without index and UUID.

    ``complete``: whether the GPUs of every node are known.
    """

    uuids: Mapping[Device, Set[str]]
    complete: bool

    def problem(self, selection: GpuSelection) -> str:
        """Why no GPU is one that ``selection`` allows; empty if there is one, or may be."""
        if not self.complete or any(self._has(kind, selection) for kind in self.uuids):
            return ""
        kinds = Counter({kind_text(kind): len(uuids) for kind, uuids in self.uuids.items()})
        return (
            f"no GPU of this cluster matches the annotations ({'; '.join(selection.written())}): "
            f"there are {listed_kinds(kinds)}"
        )

    def _has(self, kind: Device, selection: GpuSelection) -> bool:
        return not selection.kind_rule(kind) and not all(map(selection.uuid_rule, self.uuids[kind]))


class MatchingGpus:
    """Judges pods by the cluster's GPUs. They are listed for a pod with such annotations, if the last list is ``FRESH_S`` old.

    ``within_s``: for that, in seconds; less than API servers wait for the webhook (chart value ``webhook.timeoutSeconds``).
    """

    def __init__(self, session: Session, clock: Clock = SYSTEM_CLOCK, *, within_s: float = 3.0) -> None:
        self._session = session
        self._clock = clock
        self._within_s = within_s
        self._listed: ClusterGpus | None = None
        self._listed_at_s = 0.0
        self._turn = asyncio.Lock()

    async def problem(self, pod: Pod) -> str:
        """Why ``pod`` would wait until the cluster has other GPUs; empty if it would not, or if that is not certain."""
        selection = bound_selection(pod.metadata.annotations)
        opted_out = (pod.metadata.labels or {}).get(names.LABEL_ADMISSION) == "disabled"
        if selection is None or opted_out or not asks_for_gpu(pod):
            return ""
        gpus = await self._known()
        return "" if gpus is None else gpus.problem(selection)

    async def _known(self) -> ClusterGpus | None:
        """The GPUs by a list that is recent enough; ``None`` if there is none."""
        try:
            async with asyncio.timeout(self._within_s), self._turn:
                now_s = self._clock.monotonic()
                if self._listed is None or now_s - self._listed_at_s >= FRESH_S:
                    self._listed, self._listed_at_s = await self._list(), now_s
                return self._listed
        except TimeoutError:
            logger.warning(
                "nodes were not listed within %.0f s, so the choice of GPUs is not checked", self._within_s
            )
        except KubeError as error:
            logger.warning("nodes cannot be listed, so the choice of GPUs is not checked: %s", error)
        return None

    async def _list(self) -> ClusterGpus:
        uuids: defaultdict[Device, set[str]] = defaultdict(set)
        complete = True
        async for page in list_pages(self._session, _NODES, timeout_s=self._within_s):
            for item in page.items:
                devices = _devices(bytes(item))
                complete = complete and devices is not None
                for gpu in devices or ():
                    uuids[_kind(gpu)].add(gpu.uuid)
        return ClusterGpus(uuids, complete)


def _devices(raw: bytes) -> tuple[Device, ...] | None:
    """The GPUs of a node that gpushare shares; ``None`` if it has some, which are not known."""
    try:
        node = node_devices(decode_node(raw))
    except MalformedDevices:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedAnswer(_NODES, f"unexpected item in the response ({error})") from error
    if node is None:
        return ()
    return node.devices or None


def _kind(gpu: Device) -> Device:
    return Device(0, "", gpu.total_mib, model=gpu.model, architecture=gpu.architecture)
