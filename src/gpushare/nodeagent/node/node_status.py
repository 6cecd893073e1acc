"""Keeps the node object up to date: the annotation with its GPUs, ``aliyun.com/gpu-count``, the condition ``GPUShareReady``.

Together with annotation and condition it sets a label, by which the DaemonSet knows that the node still needs its agent after the
mode label that brought the agent there was removed.

The kubelet keeps a patched capacity, but a node that is recreated loses it. So the desired state is compared with what the watch
shows, and written again whenever they differ.
"""

import asyncio
import logging
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import msgspec

from gpushare.api import names
from gpushare.kube.backoff import Backoff
from gpushare.kube.client.client import NodeWriter
from gpushare.kube.client.errors import KubeError
from gpushare.kube.clock import Clock
from gpushare.nodeagent.node.condition import Condition, stopped
from gpushare.nodeagent.node.node_handler import ReportingNode

logger = logging.getLogger(__name__)

#: Seconds within which a write should show up in the watch before it is repeated.
SHOW_UP_S: Final = 10.0
#: Seconds that the last write may take.
END_S: Final = 1.0
_YES: Final = "true"


@dataclass(frozen=True, slots=True)
class Advertised:
    """``gpushare.dev/devices``, ``aliyun.com/gpu-count``, ``gpushare.dev/isolation`` and the condition; ``None``: absent."""

    devices: str | None = None
    gpu_count: str | None = None
    isolation: str | None = None
    condition: Condition | None = None

    @property
    def labelled(self) -> bool:
        """Whether the node must keep its agent until this is removed."""
        return self.devices is not None or self.condition is not None


class NodeStatus:
    """Writes one node object until it is in the desired state."""

    def __init__(self, name: str, client: NodeWriter, clock: Clock) -> None:
        self._name = name
        self._client = client
        self._clock = clock
        self._wanted: Advertised | None = None
        self._seen: Advertised | None = None
        self._labelled = False
        self._ended = False
        self._woken = asyncio.Event()
        self._writing = asyncio.Lock()

    @property
    def settled(self) -> bool:
        """Whether the node object is known to be in the desired state."""
        return self._wanted is not None and self._wanted == self._seen and self._is_labelled_as(self._wanted)

    def want(self, wanted: Advertised | None) -> None:
        """Publish this from now on; ``None``: leave it to another agent."""
        if wanted != self._wanted and not self._ended:
            self._wanted = wanted
            self._woken.set()

    async def end(self) -> None:
        """Report that the node's agent has ended, unless another agent acts; tried once, within ``END_S``."""
        (wanted, self._wanted), seen, self._ended = (self._wanted, None), self._seen, True
        if wanted is None or wanted.condition is None or seen is None:
            return
        final = stopped(wanted.condition)
        if final != wanted.condition:
            # The watch may still show the condition that the previous agent wrote when it ended.
            seen = replace(seen, condition=wanted.condition)
        try:
            # After writes in progress: otherwise one of them would be the last.
            async with asyncio.timeout(END_S), self._writing:
                await self._write_condition(replace(wanted, condition=final), seen)
        except (KubeError, TimeoutError) as error:
            logger.warning("cannot set the condition of node %s at shutdown: %s", self._name, error)

    def seen(self, node: ReportingNode | None) -> None:
        """The node object as the watch shows it; ``None``: it does not exist."""
        if node is None:
            self._seen = None
            return
        count = (node.status.capacity or {}).get(names.GPU_COUNT)
        annotations = node.metadata.annotations or {}
        self._seen = Advertised(
            annotations.get(names.ANN_DEVICES),
            None if count is None else str(count),
            annotations.get(names.ANN_ISOLATION),
            node.ready,
        )
        self._labelled = (node.metadata.labels or {}).get(names.LABEL_DESCRIBED) == _YES
        self._woken.set()

    async def run(self) -> None:
        """Write until cancelled."""
        backoff = Backoff()
        while True:
            wait_s: float | None = None
            if self._wanted is not None and self._seen is not None and not self.settled:
                self._woken.clear()
                wait_s = SHOW_UP_S
                try:
                    async with self._writing:
                        await self._write(self._wanted, self._seen)
                    backoff.reset()
                except KubeError as error:
                    wait_s = backoff.next_s()
                    logger.warning("cannot update node %s: %s; retrying in %.1f s", self._name, error, wait_s)
                    await self._clock.sleep(wait_s)
                    continue
            else:
                self._woken.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def _write(self, wanted: Advertised, seen: Advertised) -> None:
        # A node with a count but no description looks as if another agent shared it: never leave it so. And no
        # reader should count the GPUs of a node that shares none any more.
        leaving = wanted.gpu_count is None
        if leaving:
            await self._write_count(wanted, seen)
        if wanted.condition is None:
            await self._write_condition(wanted, seen)
        if (
            wanted.devices != seen.devices
            or wanted.isolation != seen.isolation
            or not self._is_labelled_as(wanted)
        ):
            await self._client.annotate_node(
                self._name,
                {names.ANN_DEVICES: wanted.devices, names.ANN_ISOLATION: wanted.isolation},
                labels={names.LABEL_DESCRIBED: _YES if wanted.labelled else None},
            )
        if not leaving:
            await self._write_count(wanted, seen)
        if wanted.condition is not None:
            await self._write_condition(wanted, seen)

    def _is_labelled_as(self, wanted: Advertised) -> bool:
        return self._labelled is wanted.labelled

    async def _write_count(self, wanted: Advertised, seen: Advertised) -> None:
        if wanted.gpu_count != seen.gpu_count:
            await self._client.patch_node_capacity(self._name, {names.GPU_COUNT: wanted.gpu_count})

    async def _write_condition(self, wanted: Advertised, seen: Advertised) -> None:
        if wanted.condition == seen.condition:
            return
        body = None
        if wanted.condition is not None:
            moment = datetime.fromtimestamp(self._clock.time_ns() // 1_000_000_000, UTC)
            now = f"{moment:%Y-%m-%dT%H:%M:%SZ}"
            # Written on changes, not as a heartbeat: that is the purpose of the kubelet's condition.
            body = {**msgspec.structs.asdict(wanted.condition), "lastHeartbeatTime": now}
            if seen.condition is None or seen.condition.status != wanted.condition.status:
                body["lastTransitionTime"] = now
        await self._client.set_node_condition(self._name, names.CONDITION_READY, body)
