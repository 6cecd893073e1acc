"""Finds the node's GPUs and monitors their health, in its own thread: NVML calls block.

The thread opens NVML (with back-off, while there is no driver or no GPU), then waits for XIDs, probes each GPU periodically, and
passes a new ``Inventory`` to the event loop whenever something changed. It opens NVML again when GPUs appeared, disappeared or changed
their index or MIG mode, and keeps it closed after ``release``. A GPU that was found once stays in the inventory, unhealthy, when NVML
no longer finds it.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

import pynvml

from gpushare.api.node.device import Device
from gpushare.api.node.shared_event_texts import (
    REASON_DRIVER_FAILED,
    REASON_NO_DRIVER,
    REASON_NO_GPU,
    REASON_RELEASED,
)
from gpushare.api.node.topology import UNKNOWN, TopologyLevels, matrix
from gpushare.kube.backoff import Backoff
from gpushare.kube.clock import SYSTEM_CLOCK, Clock
from gpushare.nodeagent.driver.driver_faults import suggestion_of
from gpushare.nodeagent.driver.health import CriticalXid, HealthBook
from gpushare.nodeagent.driver.nvml import (
    IN_MIG_MODE,
    NOT_FOUND,
    FoundGpu,
    Hardware,
    Nvml,
    Unreadable,
)
from gpushare.nodeagent.driver.placements import Placement
from gpushare.nodeagent.driver.topology import pair_of
from gpushare.nodeagent.errors import DriverMissing, NodeAgentError, NvmlFailed
from gpushare.nodeagent.settings import Pace

logger = logging.getLogger(__name__)

DriverProblem = Literal["DriverNotFound", "DriverFailed", "NoGPU", "DriverReleased"]
TROUBLES: Final[tuple[DriverProblem, ...]] = (
    REASON_NO_DRIVER,
    REASON_DRIVER_FAILED,
    REASON_NO_GPU,
    REASON_RELEASED,
)

_JOIN_S: Final = 3.0
#: How long a MIG instance may take to be created or destroyed, with the GPUs read again: a kubelet waits 45 s for its claim.
_CHANGE_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why there is no working GPU; ``reason`` is an event's, ``note`` says what to do."""

    reason: DriverProblem
    note: str


@dataclass(frozen=True, slots=True)
class DivisibleGpu:
    """A GPU in MIG mode on which instances are created on demand: where they may be, and where there are some."""

    device: Device
    hardware: Hardware
    placements: tuple[Placement, ...]
    occupied: tuple[Placement, ...] = ()


@dataclass(frozen=True, slots=True)
class Inventory:
    """The GPUs of this node by index, what is wrong if there are none, and what was excluded and why."""

    devices: tuple[Device, ...] = ()
    trouble: Trouble | None = None
    left_out: tuple[str, ...] = ()
    minors: tuple[tuple[str, int], ...] = ()
    """UUID and minor number of each GPU whose driver reports it."""
    near: TopologyLevels = ()
    """The topology level of each pair of ``devices``."""
    unreadable: tuple[Unreadable, ...] = ()
    """Those of ``left_out`` that NVML counts and that never responded."""
    reserved_mib: tuple[tuple[str, int], ...] = ()
    """UUID and the driver's reserved memory, of each GPU that has any."""
    hardware: tuple[tuple[str, Hardware], ...] = ()
    """UUID and properties of each of ``devices``."""
    xids: tuple[tuple[str, CriticalXid], ...] = ()
    """UUID and last critical XID of each GPU that is unhealthy because of one."""
    capabilities: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """UUID of each MIG instance, and the numbers of the device nodes that give access to it."""
    divisible: tuple[DivisibleGpu, ...] = ()
    """GPUs in MIG mode whose instances are created on demand; not among ``devices``."""

    def without_instances(self) -> "Inventory":
        """The same without MIG instances."""
        rows = [row for row, device in enumerate(self.devices) if not device.is_instance]
        if len(rows) == len(self.devices):
            return self
        near = tuple(tuple(self.near[one][other] for other in rows) for one in rows) if self.near else ()
        return replace(self, devices=tuple(self.devices[row] for row in rows), near=near)

    @property
    def is_released(self) -> bool:
        """Whether NVML is closed so that the driver can be replaced."""
        return self.trouble is not None and self.trouble.reason == REASON_RELEASED

    @property
    def is_gpus_own(self) -> bool:
        """Whether the fault is that of each of ``devices``, and not of the driver."""
        return self.trouble is None or (self.trouble.reason == REASON_NO_GPU and bool(self.devices))


@dataclass(slots=True)
class _Change:
    """What the event loop asks the thread to do with the driver."""

    make: Callable[[Nvml], None]
    done: asyncio.Future[None]
    error: NodeAgentError | None = None

    def settle(self) -> None:
        if self.done.done():
            return
        if self.error is not None:
            self.done.set_exception(self.error)
        else:
            self.done.set_result(None)


class GpuWatch:
    """Runs the thread. ``on_change`` is called in the event loop with each new inventory.

    ``on_xid`` is called in the thread with every XID, critical or not (UUID, number). ``look`` is called in the thread every
    ``Pace.watch_s`` seconds while there are GPUs, or when the thread wakes, after at most ``Pace.wait_s``, and ``look_now`` returns true; it may
    use NVML. ``between`` is called each other time that the thread wakes. ``placements``: whether ``Inventory.divisible`` is read.
    """

    def __init__(
        self,
        nvml: Nvml,
        on_change: Callable[[Inventory], None],
        *,
        pace: Pace | None = None,
        health: HealthBook | None = None,
        clock: Clock = SYSTEM_CLOCK,
        look: Callable[[Nvml], None] | None = None,
        look_now: Callable[[], bool] = lambda: False,
        between: Callable[[Nvml], None] | None = None,
        on_xid: Callable[[str, int], None] = lambda uuid, xid: None,
        placements: bool = False,
    ) -> None:
        self._nvml = nvml
        self._on_change = on_change
        self._pace = pace or Pace()
        self._health = health or HealthBook()
        self._clock = clock
        self._look = look
        self._look_now = look_now
        self._between = between
        self._on_xid = on_xid
        self._known: dict[str, FoundGpu] = {}
        self._near: dict[tuple[str, str], int] = {}
        self._left_out: tuple[str, ...] = ()
        self._unreadable: tuple[Unreadable, ...] = ()
        self._missing: dict[str, str] = {}
        self._published: Inventory | None = None
        self._divisible: dict[str, FoundGpu] = {}
        self._on_demand = self._opened_on_demand = placements
        self._changes: queue.SimpleQueue[_Change] = queue.SimpleQueue()
        self._made: list[_Change] = []
        self._released = ""
        self._stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: asyncio.Future[None] | None = None

    def release(self, why: str) -> None:
        """Keep NVML closed, for the reason ``why``; empty: open it. Takes effect within ``Pace.wait_s``."""
        self._released = why

    def want_placements(self, *, wanted: bool) -> None:
        """Set whether ``Inventory.divisible`` is read. Takes effect within ``Pace.wait_s``."""
        self._on_demand = wanted

    async def create_instance(self, placement: Placement, *, ours: bool) -> None:
        """Create a MIG instance unless it exists and is ``ours``. The GPUs are read again before this returns.

        Raises ``PlacementTaken``, ``NvmlFailed``.
        """
        await self._change(lambda nvml: nvml.create_instance(placement, ours=ours))

    async def destroy_instance(self, placement: Placement) -> None:
        """Destroy a MIG instance if it exists. The GPUs are read again before this returns; raises ``NvmlFailed``."""

        await self._change(lambda nvml: nvml.destroy_instance(placement))

    async def _change(self, make: Callable[[Nvml], None]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changes.put(_Change(make, done))
        try:
            async with asyncio.timeout(_CHANGE_S):
                await done
        except TimeoutError:
            raise NvmlFailed(
                "NVML", "the driver does not respond, or is closed to be replaced", pynvml.NVML_ERROR_TIMEOUT
            ) from None

    async def run(self) -> None:
        """Watch until cancelled. Raises what the thread failed with, except failures of NVML."""
        self._loop = asyncio.get_running_loop()
        self._failure = self._loop.create_future()
        thread = threading.Thread(target=self._thread, name="nvml", daemon=True)
        thread.start()
        try:
            await self._failure
        finally:
            self._stop.set()
            # In another thread, as the event loop has other tasks to stop meanwhile; bounded by the join.
            await asyncio.to_thread(thread.join, _JOIN_S)

    def _thread(self) -> None:
        try:
            self._watch()
        except BaseException as error:
            failure = error
            self._in_loop(lambda: self._fail(failure))

    def _fail(self, error: BaseException) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    def _watch(self) -> None:
        look = Backoff(self._pace.look_first_s, self._pace.look_most_s)
        logged_note = ""
        while not self._stop.is_set():
            if self._released:
                self._publish(self._without_nvml(self._released))
                self._stop.wait(self._pace.wait_s)
                continue
            trouble = self._open()
            if trouble is None:
                trouble = self._follow()
                self._nvml.close()
                if self._published is not None and self._published.trouble is None:
                    # It worked in the meantime.
                    look.reset()
                    logged_note = ""
            if trouble is not None:
                self._publish(trouble)
                wait_s = look.next_s()
                # Log each problem once: a node may stay without a driver.
                level = logging.DEBUG if trouble.note == logged_note else logging.WARNING
                logged_note = trouble.note
                logger.log(
                    level,
                    "%s. Retrying at least every %.0f s",
                    trouble.note,
                    self._pace.look_most_s,
                )
                self._stop.wait(wait_s)

    def _open(self) -> Trouble | None:
        """Open NVML and read the GPUs; returns what is wrong if there is none to watch (then NVML is closed)."""
        try:
            self._nvml.open()
        except (DriverMissing, NvmlFailed) as error:
            return self._without_driver(error)
        try:
            self._opened_on_demand = self._on_demand
            listed = self._nvml.enumerate(placements=self._on_demand)
        except NvmlFailed as error:
            self._nvml.close()
            return self._without_driver(error)
        divisible = {gpu.uuid: gpu for gpu in listed.gpus if gpu.placements}
        divided = {gpu.parent for gpu in listed.gpus if gpu.parent} | divisible.keys()
        mig = tuple(
            f"GPU {gpu.index} ({gpu.uuid}) is in MIG mode without instances and is ignored; create instances, disable MIG mode to "
            f"share the whole GPU (`nvidia-smi -i {gpu.index} -mig 0`) or serve it with NVIDIA's own device plugin"
            for gpu in listed.gpus
            if gpu.mig and gpu.uuid not in divided
        )
        whole = {gpu.uuid: gpu for gpu in listed.gpus if not gpu.mig}
        # An instance that is gone while its GPU is there was destroyed.
        there = {gpu.uuid for gpu in listed.gpus if not gpu.hides_instances}
        destroyed = {uuid for uuid, gpu in self._known.items() if gpu.parent in there} - whole.keys()
        self._known = {uuid: gpu for uuid, gpu in self._known.items() if uuid not in destroyed}
        self._health.forget(destroyed)
        if not self._on_demand:
            self._divisible = {}
        self._divisible = {
            uuid: gpu for uuid, gpu in self._divisible.items() if uuid not in whole
        } | divisible
        lost = {gpu.index: uuid for uuid, gpu in self._known.items() if uuid not in whole}
        self._missing = dict.fromkeys(self._known.keys() - whole.keys(), NOT_FOUND)
        self._missing |= dict.fromkeys(self._divisible.keys() - divisible.keys(), NOT_FOUND)
        self._missing |= {lost[one.index]: one.why for one in listed.unreadable if one.index in lost}
        self._missing |= {
            gpu.uuid: IN_MIG_MODE for gpu in listed.gpus if gpu.mig and gpu.uuid in self._missing
        }
        self._unreadable = tuple(one for one in listed.unreadable if one.index not in lost)
        self._left_out = mig + tuple(map(str, self._unreadable))
        self._known |= whole
        # A GPU that does not respond keeps its topology.
        self._near |= listed.near
        if whole or divisible:
            return None
        self._nvml.close()
        excluded = mig + tuple(map(str, listed.unreadable))
        if excluded:
            # The node has GPUs: removing its label would hide what is wrong with them.
            more = "; run nvidia-smi and dmesg on the node for details" if listed.unreadable else ""
            return Trouble("NoGPU", f"no GPU of the node can be shared: {'; '.join(excluded)}{more}")
        return Trouble(
            "NoGPU",
            "the NVIDIA driver runs but finds no GPU. Remove the label from nodes without a GPU, or check the hardware",
        )

    def _without_driver(self, error: NodeAgentError) -> Trouble:
        self._missing = dict.fromkeys((*self._known, *self._divisible), error.problem)
        note = f"{error}. {suggestion_of(error)}"
        return Trouble(REASON_DRIVER_FAILED if isinstance(error, NvmlFailed) else REASON_NO_DRIVER, note)

    def _without_nvml(self, why: str) -> Trouble:
        self._missing = dict.fromkeys(
            (*self._known, *self._divisible), "the node agent has closed the driver"
        )
        return Trouble(
            REASON_RELEASED, f"the node agent has closed the driver, so that it can be replaced: {why}"
        )

    def _follow(self) -> Trouble | None:
        """Watch the GPUs of NVML until stopped or until NVML should be closed or reopened; returns what is wrong if the driver fails."""
        opened_s = probe_at_s = watch_at_s = self._clock.monotonic()
        changed = False
        while not self._stop.is_set() and not self._released:
            if self._make_changes() or self._on_demand != self._opened_on_demand:
                return None
            now_s = self._clock.monotonic()
            if now_s >= probe_at_s:
                if self._nvml.replaced():
                    logger.warning("the NVIDIA driver was removed or replaced; reopening NVML")
                    return None
                try:
                    for uuid in (self._known.keys() | self._divisible.keys()) - self._missing.keys():
                        self._health.take_probe(uuid, self._nvml.probe(uuid), now_s)
                except NvmlFailed as error:
                    # A failure of the driver, not of each GPU.
                    return self._without_driver(error)
                changed = self._nvml.gpus_changed()
                probe_at_s = now_s + self._pace.probe_s
            if self._look is not None and (now_s >= watch_at_s or self._look_now()):
                self._look(self._nvml)
                watch_at_s = now_s + self._pace.watch_s
            elif self._between is not None:
                self._between(self._nvml)
            self._publish(None)
            outdated = changed or bool(self._missing or self._unreadable) or self._health.failing
            if outdated and now_s - opened_s >= self._pace.reopen_s:
                if changed:
                    logger.info("the driver has other GPUs than before; reopening NVML")
                return None
            wait_s = min(self._pace.wait_s, max(0.0, probe_at_s - self._clock.monotonic()))
            events = self._nvml.wait_xids(wait_s)
            if events is None:
                self._stop.wait(wait_s)
            for event in events or ():
                self._on_xid(event.uuid, event.xid)
                counts = self._health.take_xid(event.uuid, event.xid, self._clock.monotonic())
                level = logging.ERROR if counts else logging.INFO
                logger.log(level, "GPU %s: XID %d%s", event.uuid, event.xid, "" if counts else " (ignored)")
        return None

    def _make_changes(self) -> bool:
        """Do what the event loop has requested; returns whether the GPUs must be read again."""
        before = len(self._made)
        while not self._changes.empty():
            change = self._changes.get()
            if change.done.done():
                continue  # nobody waits for it any more
            try:
                change.make(self._nvml)
            except NodeAgentError as error:
                change.error = error
            self._made.append(change)
        return len(self._made) > before

    def _publish(self, trouble: Trouble | None) -> None:
        # A missing GPU is replaced by the GPU that has its index now.
        by_index = {gpu.index: gpu for uuid, gpu in self._known.items() if uuid in self._missing}
        by_index |= {gpu.index: gpu for uuid, gpu in self._known.items() if uuid not in self._missing}
        devices = tuple(self._device(gpu) for _, gpu in sorted(by_index.items()))
        minors = tuple((device.uuid, self._known[device.uuid].minor) for device in devices)
        uuids = [device.uuid for device in devices]
        inventory = Inventory(
            devices,
            trouble,
            self._left_out,
            tuple((uuid, minor) for uuid, minor in minors if minor >= 0),
            matrix(len(uuids), lambda a, b: self._near.get(pair_of(uuids[a], uuids[b]), UNKNOWN)),
            self._unreadable,
            tuple((uuid, reserved_mib) for uuid in uuids if (reserved_mib := self._known[uuid].reserved_mib)),
            tuple((uuid, self._known[uuid].hardware) for uuid in uuids),
            tuple(self._health.xids.items()),
            tuple((uuid, numbers) for uuid in uuids if (numbers := self._known[uuid].capabilities)),
            tuple(
                DivisibleGpu(self._device(gpu), gpu.hardware, gpu.placements, gpu.occupied)
                for gpu in sorted(self._divisible.values(), key=lambda gpu: gpu.index)
            ),
        )
        if inventory != self._published:
            self._published = inventory
            self._in_loop(lambda: self._on_change(inventory))
        for change in self._made:
            self._in_loop(change.settle)
        self._made = []

    def _device(self, gpu: FoundGpu) -> Device:
        reason = self._missing.get(gpu.uuid) or self._health.reason(gpu.uuid)
        return Device(
            index=gpu.index,
            uuid=gpu.uuid,
            total_mib=gpu.total_mib,
            model=gpu.model,
            healthy=not reason,
            reason=reason,
            pci_bus_id=gpu.pci_bus_id,
            numa_node=gpu.numa_node,
            architecture=gpu.hardware.architecture.lower().replace(" ", "-"),
        )

    def _in_loop(self, call: Callable[[], None]) -> None:
        loop = self._loop
        if loop is not None and not self._stop.is_set():
            try:
                loop.call_soon_threadsafe(call)
            except RuntimeError:
                logger.debug("the event loop has ended")
