"""The node agent as a whole: turns the node's label and the GPUs that NVML finds into devices of the kubelet.

Everything flows one way. The watches of the node, its pods and its GPUs report into plain synchronous methods; ``_converge``
computes from all of it what each resource's device list, the node's annotation and its gpu-count must be, and publishes that.
It is cheap and may be called too often.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from gpushare.api.errors import InvalidQuantity, MalformedDevices
from gpushare.api.node.device import Device, NodeDevices, devices_annotation, mode_of, with_cordons
from gpushare.api.node.modes import NodeMode
from gpushare.api.node.other_plugins import offer_text, offered_by_others
from gpushare.api.quantity import parse_amount
from gpushare.httpserver.authorization import Readers
from gpushare.kube.auth.token_reviews import AccessReviews
from gpushare.kube.client.client import Client
from gpushare.kube.client.session import Session
from gpushare.kube.clock import SYSTEM_CLOCK, Clock
from gpushare.kube.event_recorder import EventRecorder, Recorder
from gpushare.nodeagent.allocate.allocator import Allocator
from gpushare.nodeagent.allocate.exclusive_pods import ExclusivePods
from gpushare.nodeagent.allocate.node_allocations import NodeAllocations
from gpushare.nodeagent.allocate.whole_allocator import WholeAllocator
from gpushare.nodeagent.deviceplugin.device_lists import (
    HEALTHY,
    UNHEALTHY,
    DeviceList,
    device_list,
)
from gpushare.nodeagent.deviceplugin.handover import Handover
from gpushare.nodeagent.deviceplugin.registration import ResourceServer
from gpushare.nodeagent.deviceplugin.resource import Deciders, PluginResource
from gpushare.nodeagent.deviceplugin.service import DeviceFeed, DevicePlugin
from gpushare.nodeagent.deviceplugin.shutdown import handed_over, permissions_are_gone
from gpushare.nodeagent.deviceplugin.socket_names import new_generation, socket_name
from gpushare.nodeagent.dra.claiming_pods import ClaimHolders
from gpushare.nodeagent.dra.driver import DraDriver
from gpushare.nodeagent.dra.partitions import claim_devices_of
from gpushare.nodeagent.dra.slices import Owner
from gpushare.nodeagent.driver.discovery import DivisibleGpu, GpuWatch, Inventory
from gpushare.nodeagent.driver.health import XID_REASON, HealthBook
from gpushare.nodeagent.driver.nvml import Nvml
from gpushare.nodeagent.driver.telemetry import Readings
from gpushare.nodeagent.isolation.backends.driver_limits import DriverLimits, due_of
from gpushare.nodeagent.isolation.burst.bursts import Bursts
from gpushare.nodeagent.isolation.controller import Isolation
from gpushare.nodeagent.isolation.options import AskedIsolation
from gpushare.nodeagent.isolation.storage.usage_limit import UsageLimit
from gpushare.nodeagent.isolation.watchdog.violations import Use
from gpushare.nodeagent.isolation.watchdog.watchdog import Watchdog
from gpushare.nodeagent.memory_trim import settle, trim
from gpushare.nodeagent.modes.rules import all_plugins, rules_of
from gpushare.nodeagent.node.condition import condition_of, mislabelled
from gpushare.nodeagent.node.described_gpus import Known, described, offered_to_claims
from gpushare.nodeagent.node.driver_upgrade import closing_label
from gpushare.nodeagent.node.node_events import NodeEvents
from gpushare.nodeagent.node.node_handler import NodeHandler, ReportingNode
from gpushare.nodeagent.node.node_status import Advertised, NodeStatus
from gpushare.nodeagent.node.period_file import PeriodFile, Periods
from gpushare.nodeagent.node.startup_state import NodeAtStart
from gpushare.nodeagent.node.watches import PodRecords, Watches
from gpushare.nodeagent.observability.metrics import Metrics
from gpushare.nodeagent.observability.metrics_pages import MetricsPages
from gpushare.nodeagent.observability.probes import Probes
from gpushare.nodeagent.observability.snapshot import Sources
from gpushare.nodeagent.observability.usage_history import UsageHistory
from gpushare.nodeagent.reconcile.pod_handler import PodsOnNode
from gpushare.nodeagent.reconcile.pod_resources import KubeletPodResources
from gpushare.nodeagent.reconcile.reconciler import Reconciler
from gpushare.nodeagent.runtime.cdi.gpu_access import GpuAccess
from gpushare.nodeagent.runtime.cdi.spec_dirs import CdiFolders
from gpushare.nodeagent.runtime.driver_in_containers import DriverInContainers
from gpushare.nodeagent.settings import Settings

logger = logging.getLogger(__name__)

CONTROLLER: Final = "gpushare.dev/node-agent"

_FLUSH_S: Final = 1.0
_WRITE_S: Final = 5.0


class Agent:
    """The agent of one node, over one session with the API server."""

    def __init__(
        self, settings: Settings, session: Session, nvml: Nvml, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._client = Client(session, timeout_s=_WRITE_S)
        self._recorder = EventRecorder(session, controller=CONTROLLER, instance=settings.node)
        self._events: Recorder = self._recorder
        self.metrics = Metrics()
        self._mode = NodeMode.DEFAULT
        self._rules = rules_of(self._mode)
        self._plugins = all_plugins()
        self._node: ReportingNode | None = None
        self._inventory: Inventory | None = None
        self._before = NodeAtStart()
        self._mislabelled = ""
        self._node_events = NodeEvents(
            settings.node, self._events, self.metrics, acts=lambda: self._handover.newest
        )
        self._started = False
        self._gpus_read = asyncio.Event()
        self._feeds: dict[str, DeviceFeed] = {}
        self._servers: dict[str, ResourceServer] = {}
        self._to_start: asyncio.Queue[ResourceServer] = asyncio.Queue(len(self._plugins))
        self._book = NodeAllocations(NodeDevices(settings.node, NodeMode.DEFAULT, settings.unit, ()))
        self._exclusive = ExclusivePods()
        listing = KubeletPodResources(settings.pod_resources)
        self._reconciler = Reconciler(
            self._book,
            self._exclusive,
            listing,
            self._client,
            events=self._events,
            metrics=self.metrics,
            clock=clock,
            on_blocked=self._converge,
            on_idle=trim,
        )
        self._pods = PodsOnNode(self._book, self._exclusive, self._events, self._on_pods)
        self._claim_holders = ClaimHolders(lambda: self._dra.claims)
        self._watches = Watches(
            settings.node,
            session,
            NodeHandler(self.on_node),
            PodRecords(self._pods, self._claim_holders),
            self.metrics,
        )
        isolation = settings.isolation
        looks = isolation.watch.policy != "off" and isolation.asked is not AskedIsolation.NONE
        self._limits = DriverLimits(isolation.watch, looks=looks, events=self._events, metrics=self.metrics)
        self._bursts = Bursts(
            self._book,
            acts=lambda: self._started and self._handover.newest,
            policy=isolation.reclaim,
            grace_s=isolation.watch.grace_s,
            events=self._events,
            metrics=self.metrics,
            clock=clock,
        )
        self._isolation = Isolation(
            settings,
            listing,
            self._limits,
            live=lambda: {*self._pods.uids(), *self._dra.claims},
            refresh=lambda: self._dra.refresh(),  # noqa: PLW0108 - it is made later
            metrics=self.metrics,
            clock=clock,
            on_change=self._converge,
            on_made=self._bursts.refresh,
            needs_allowance=self._bursts.needs_allowance,
        )
        self._access = GpuAccess(
            settings.container_runtime,
            CdiFolders(settings.cdi_folders),
            dev=settings.host_root / "dev",
            look_s=settings.pace.cdi_s,
            on_change=self._on_access,
            shimmed=self._isolation.shimmed,
        )
        self._isolation.attend(self._access)
        self._readers = Readers(AccessReviews(session))
        self._history = UsageHistory(clock, self._isolation.directories)
        self._periods = PeriodFile(isolation.folder.parent)
        self._watchdog = Watchdog(
            isolation.watch,
            self._book,
            claim_holder_of=self._claim_holders.holder_of,
            burst_mib=self._bursts.limit_mib,
            core_policy=isolation.core_policy,
            report_on_node=self._node_events.report,
            events=self._events,
            metrics=self.metrics,
            clock=clock,
            on_change=self._converge,
            on_used=self._on_used,
        )
        directories, pods_of = self._isolation.directories, self._claim_holders.pods_of
        self._bursts.attend(directories, self._watchdog.kill)
        self._drivers = DriverInContainers(
            self._book, self._access, self._events, isolation.watch.proc, acts=lambda: self._handover.newest
        )
        self._usage_limit = UsageLimit(directories, self._book, pods_of, self._events)
        self._list_pods = partial(self._client.list_pods, field_selector=f"spec.nodeName={settings.node}")
        self._allocator = Allocator(
            self._book,
            self._pods,
            list_pods=self._list_pods,
            listing=listing,
            backend_of=self._isolation.backend_of,
            give=self._access.give,
            events=self._events,
            metrics=self.metrics,
            clock=clock,
            on_answer=self._reconciler.trigger,
        )
        whole = WholeAllocator(self._allocator, self._book, self._exclusive, self._access.give)
        self._deciders = Deciders(self._allocator, whole)
        self._readings = Readings()
        sources = Sources(
            present=self._present,
            labels=lambda: (self._node and self._node.metadata.labels) or {},
            minors=lambda: dict(self._inventory.minors) if self._inventory is not None else {},
            book=self._book,
            whole=self._exclusive,
            claims=self._claim_holders,
            readings=self._readings,
            watchdog=self._watchdog,
            unanswering=lambda: [one.uuid for one in self._found if not one.healthy],
            directories=self._isolation.directories,
            proc=isolation.watch.proc,
        )
        self.metrics_pages = MetricsPages(self.metrics, self._watches.count, sources)
        self._status = NodeStatus(settings.node, self._client, clock)
        self._handover = Handover(
            settings.kubelet_dir,
            new_generation(),
            clock=clock,
            on_change=self._on_handover,
            may_take_over=lambda: self._started and not self._unregistered(),
        )
        self._gpus = GpuWatch(
            nvml,
            self._on_inventory,
            pace=settings.pace,
            health=HealthBook(xid_recovery_s=settings.xid_recovery_s, xids=self._periods.read().xids),
            clock=clock,
            look=self._look,
            look_now=self._bursts.wants_sample,
            between=self._limits.look_at_new,
            on_xid=self._readings.take_xid,
            placements=settings.mig_dynamic,
        )
        self._dra = DraDriver(
            settings,
            session,
            self._handover.generation,
            gpus=lambda: self._book.node.devices,
            divisible=lambda: self._divisible,
            maker=self._gpus,
            isolation=self._isolation,
            give=self._access.give,
            clock=clock,
            on_change=self._converge,
        )

    async def run(self) -> None:
        """Serve until cancelled. Raises ``OSError`` if it cannot listen for probes."""
        probes = Probes(self.missing, self.metrics_pages.pages, self._history.pages, self._readers)
        listeners = await probes.open(self._settings.doors)
        self._watchdog.attend()
        self._limits.attend()
        try:
            async with asyncio.TaskGroup() as tasks:
                for part in (
                    self._gpus.run(),
                    self._access.run(),
                    self._isolation.run(),
                    *self._watches.running(),
                    self._recorder.run(),
                    self._status.run(),
                    self._dra.run(),
                    self._drivers.run(),
                    self._serve(tasks),
                ):
                    tasks.create_task(part)
        finally:
            for one in listeners:
                one.close()
            await self._flush()

    async def leave(self) -> bool:
        """Call before ``run`` is cancelled: pass our connections with the kubelet to a newer agent.

        Returns whether it keeps them. Then the process must exit without closing them.
        """
        if self._handover.newest:
            there = self._access.there or self._isolation.there or self._periods.there
            if there and await permissions_are_gone(self._list_pods, self._clock):
                self._periods.clear()
                await self._access.remove()
                await self._isolation.clear()
                return False
        # A newer one may have come meanwhile: an agent that is not ready gets SIGTERM before the next one starts.
        if self._handover.newest:
            await self._status.end()
            return False
        return await handed_over(self._handover, list(self._servers.values()), self._clock)

    def missing(self) -> list[str]:
        """What is not ready, one text each; empty once all is."""
        missing = self._watches.missing()
        if missing:
            return missing
        if self._node is None:
            return [f"there is no node {self._settings.node}"]
        if self._inventory is None:
            return ["NVML has not answered yet"]
        if not self._mode.offers_gpus:
            return []
        if self._access.trouble:
            # A new setting that cannot work blocks its rollout, and the previous agent continues.
            return [self._access.trouble]
        if self._isolation.trouble:
            return [self._isolation.trouble]
        if not self._inventory.devices and not self._divisible:
            # Only the driver is missing: no other agent would be more ready, so no rollout should wait for it.
            return []
        claims = self._dra.missing if self._mode.claims else []
        return [
            *claims,
            *(f"{resource} not registered with the kubelet" for resource in self._unregistered()),
        ]

    def _unregistered(self) -> list[str]:
        wanted = (one.name for one in self._rules.plugins)
        return [one for one in wanted if one not in self._servers or not self._servers[one].registered]

    def on_node(self, node: ReportingNode | None) -> None:
        """The node as the watch shows it; ``None``: it does not exist."""
        first, self._node = self._node is None, node
        self._status.seen(node)
        if node is None:
            logger.error("there is no node %s; waiting for it", self._settings.node)
            return
        if first:
            self._before = NodeAtStart.of(node)
            self._node_events.restore(self._before.reasons, self._before.out)
            if self._inventory is not None:
                self._on_inventory(self._inventory)
        mode, problem = NodeMode.DEFAULT, ""
        try:
            mode = mode_of(node)
        except MalformedDevices as error:
            problem = error.problem
        self._mislabelled = self._node_events.mode(problem)
        if mode is not self._mode:
            logger.info("mode of node %s: %s → %s", node.metadata.name, self._mode.value, mode.value)
            self._mode, self._rules = mode, rules_of(mode)
        self._gpus.want_placements(wanted=self._settings.mig_dynamic and mode.claims)
        label = closing_label(node.metadata.labels or {})
        self._gpus.release(f"the node has the label {label}" if label else "")
        self._access.take_report(node.reported)
        if self._mode.offers_gpus:
            self._access.want(wanted=True)
        self._converge()

    def _on_access(self) -> None:
        """The way in which containers get their GPU, or what is wrong with it, changed."""
        choice = self._access.choice
        if choice is not None:
            self._node_events.way(choice.way, choice.why, self._settings.container_runtime.value)
        self._converge()

    def _on_inventory(self, inventory: Inventory) -> None:
        before, self._inventory = self._inventory, self._before.complete(inventory)
        self._gpus_read.set()
        self._access.take_gpus(self._inventory.devices, dict(inventory.minors), dict(inventory.capabilities))
        if inventory.trouble is not None:
            self._readings.lose()
            self._watchdog.lose()
        if self._node is not None:  # else it is unknown which events the previous agent recorded
            self._node_events.gpus(self._inventory, before, self._settings.xid_recovery_s)
        self._converge()

    def _on_handover(self, unsettled: bool) -> None:  # noqa: FBT001 - a callback's only argument
        """Another agent came to this node or left; ``unsettled``: the kubelet may have dropped us because of it."""
        newest = self._handover.newest
        self._reconciler.rest(resting=not newest)
        self._access.rest(resting=not newest)
        self._dra.refresh_soon()
        if newest and unsettled:
            for server in self._servers.values():
                server.register_again()
        self._converge()

    def _on_pods(self) -> None:
        """The pods of this node changed."""
        self._reconciler.trigger()
        self._isolation.pods_changed()
        self._plan_limits()
        if not self._rules.plugins:
            self._converge()  # what a node without shares publishes depends on remaining allocations

    def _look(self, nvml: Nvml) -> None:
        """Sample readings, processes and driver limits; called in NVML's thread."""
        self._readings.look(nvml)
        self._watchdog.look(nvml, {uuid: reading.used_mib for uuid, reading in self._readings.last.items()})
        self._limits.look(nvml)

    def _on_used(self, uses: Sequence[Use], began_s: float) -> None:
        self._history.take(uses)
        self._bursts.sampled(uses, began_s)
        self._keep_periods()

    def _keep_periods(self) -> None:
        """Let the next agent continue what this one has promised for a period."""
        if self._started and self._handover.newest and self._inventory is not None:
            xids, overuse = dict(self._inventory.xids), self._watchdog.overuse
            self._periods.write(Periods(xids, self._dra.lost_since_s, overuse, self._bursts.asked_s))

    def _plan_limits(self) -> None:
        self._bursts.refresh()
        wanted = self._started and self._handover.newest and self._isolation.by_driver
        self._limits.want(due_of(self._book, self._bursts.limit_mib) if wanted else ())

    async def _serve(self, tasks: asyncio.TaskGroup) -> None:
        """Start to serve once everything needed for decisions is known, then serve each new resource."""
        await self._watches.synced()
        await self._gpus_read.wait()
        if self._node is None:
            logger.error("there is no node %s; waiting for it", self._settings.node)
        await self._access.decided.wait()
        await self._isolation.decided.wait()
        periods = self._periods.read()
        await self._dra.adopt(periods.lost_since_s)
        tasks.create_task(self._handover.run())
        await self._handover.met.wait()
        self._book.set_node(self._present())
        self._pods.rebuild()
        await self._reconciler.once()
        for work in (self._reconciler.run(), self._allocator.confirm(), self._isolation.keep()):
            tasks.create_task(work)
        tasks.create_task(self._usage_limit.run(self._settings.pace.isolation_s))
        self._started = True
        self._bursts.restore(periods.reclaiming_since_s)
        self._watchdog.start(periods.overuse)
        self._converge()
        for _ in range(self._to_start.qsize()):
            tasks.create_task(self._to_start.get_nowait().run())
        settle()
        while True:
            server = await self._to_start.get()
            tasks.create_task(server.run())

    @property
    def _found(self) -> Sequence[Device]:
        """The GPUs as the driver reports them; MIG instances only where shares are allocated."""
        return self._offered.devices

    @property
    def _offered(self) -> Inventory:
        """What the driver reports; without MIG instances where GPUs are allocated whole."""
        inventory = self._inventory or Inventory()
        return inventory.without_instances() if self._mode.gives_whole else inventory

    @property
    def _divisible(self) -> Sequence[DivisibleGpu]:
        """GPUs in MIG mode on which instances are created for claims."""
        return self._inventory.divisible if self._inventory is not None else ()

    def _present(self) -> NodeDevices:
        lacking = self._isolation.lacking() | self._access.lacking()
        kept = self._reconciler.blocked(self._rules)
        if not self._mode.claims:
            kept = {**self._dra.held(), **kept}
        # ACK's tables count it where shares are not enforced; where they are, no container could use it.
        reserved_mib = dict(self._inventory.reserved_mib) if self._inventory and self._mode.isolated else {}
        contexts_mib = {**self._before.contexts_mib, **self._isolation.contexts_mib}
        claim_devices = claim_devices_of(self._divisible, self._dra.instances)
        known = Known(reserved_mib, self._watchdog.foreign, contexts_mib, lacking, kept, claim_devices)
        devices = tuple(described(device, known) for device in self._found)
        return NodeDevices(
            self._settings.node, self._mode, self._settings.unit, devices, near=self._offered.near
        )

    def _converge(self) -> None:
        """Publish what follows from the current state."""
        # Until the node's label is known its mode is unknown, and only seems to be the one without sharing.
        devices = self._inventory.devices if self._inventory is not None and self._node is not None else ()
        gpus = [device.uuid for device in devices]
        driven = self._inventory is None or self._inventory.trouble is None
        released = self._inventory is not None and self._inventory.is_released
        unused = frozenset(gpus) - self._book.held().keys() if released else None
        self._isolation.take(self._mode, gpus, acts=self._handover.newest, driven=driven, unused=unused)
        if not self._started or self._node is None or self._inventory is None:
            return
        if not self._handover.newest:
            self._limits.want(())
            self._status.want(None)
            self._dra.rest()
            return
        self._reconciler.take_blocked(self._rules)
        node = self._present()
        self._node_events.present(node.devices)
        if node != self._book.node:
            self._book.set_node(node)
            self._pods.rebuild()
            self._reconciler.trigger()
        self._pods.report_gpus(self._inventory.devices)
        self._plan_limits()
        wanted = self._mode.offers_gpus
        inventory = self._inventory if wanted else Inventory()
        wrong = {
            "access": self._access.trouble if wanted else "",
            "isolation": self._isolation.alarm if wanted else "",
            "fallen": self._isolation.fallen if wanted else "",
            "claims": self._dra.trouble if self._mode.claims else "",
        }
        self._node_events.offered_by_others(offer_text(offered_by_others(self._node)) if wanted else "")
        seen = self._exclusive.with_cordons = with_cordons(node, self._node)
        faults = self._access.faults if wanted else ()
        self._node_events.troubles(inventory, faults=faults, mode=node.mode.value, **wrong)
        for plugin in self._plugins.values():
            if plugin in self._rules.plugins and node.devices:
                self._advertise(plugin, node)
            elif plugin.name in self._servers or self._is_left_over(plugin.name):
                self._retire(plugin)
        self._offer_to_claims(seen)
        shares = node.mode.shares_memory and bool(node.devices)
        # A node that no longer shares is described for as long as pods have allocations, so that they can be seen.
        needed = wanted or bool(self._book.pods) or bool(self._exclusive.pods) or bool(self._dra.claims)
        described = bool(node.devices) and needed
        self._access.want(wanted=needed)
        self._status.want(
            Advertised(
                devices_annotation(node.mode, node.unit, node.devices, node.near) if described else None,
                str(sum(not device.is_instance for device in node.devices)) if shares else None,
                self._isolation.active if described and wanted else None,
                condition_of(seen, inventory, active=self._isolation.active, **wrong)
                if wanted
                else mislabelled(self._mislabelled),
            )
        )
        self._keep_periods()

    def _offer_to_claims(self, node: NodeDevices) -> None:
        """Have the ResourceSlice of a node whose GPUs are allocated through claims; of another, none."""
        if self._node is None or self._inventory is None:
            return
        owner = Owner(node.name, self._node.metadata.uid) if node.mode.claims else None
        trouble = self._isolation.trouble or self._access.trouble
        divisible = offered_to_claims(self._divisible, trouble, node, self._node)
        found = (*self._found, *(gpu.device for gpu in self._inventory.divisible))
        lost = [gpu.uuid for gpu in found if not gpu.healthy and not gpu.reason.startswith(XID_REASON)]
        if self._inventory.is_released:
            lost = []  # who replaces the driver decides when pods end
        hardware = dict(self._inventory.hardware)
        self._dra.offer(owner, node.devices, lost, hardware, self._book.held(), divisible)

    def _advertise(self, plugin: PluginResource, node: NodeDevices) -> None:
        devices = device_list(plugin, node, self._book.ids)
        if self._feed_of(plugin).put(devices):
            logger.info(
                "%s: %d devices, %d of them not healthy, in %d bytes",
                *(plugin.name, devices.healthy + devices.unhealthy, devices.unhealthy, len(devices.encoded)),
            )
            self._count(plugin.name, devices)

    def _retire(self, plugin: PluginResource) -> None:
        """Advertise no devices, and continue to serve: the kubelet expects a vanished plugin to come back."""
        if self._feed_of(plugin).put(DeviceList()):
            logger.info("%s: no devices", plugin.name)
            self._count(plugin.name, DeviceList())

    def _count(self, resource: str, devices: DeviceList) -> None:
        self.metrics.devices.set(resource, HEALTHY, value=devices.healthy)
        self.metrics.devices.set(resource, UNHEALTHY, value=devices.unhealthy)

    def _feed_of(self, plugin: PluginResource) -> DeviceFeed:
        """The feed of a resource, whose server is started on first use."""
        resource = plugin.name
        if resource not in self._servers:
            feed = self._feeds[resource] = DeviceFeed()
            server = self._servers[resource] = ResourceServer(
                resource,
                DevicePlugin(resource, feed, plugin.decider(self._deciders)),
                self._settings.kubelet_dir / socket_name(plugin.socket, self._handover.generation),
                metrics=self.metrics,
                clock=self._clock,
                acts=lambda: self._handover.newest,
                on_registered=self._reconciler.kubelet_restarted,
                apart=lambda: self._node is not None and self._node.reported.keeps_sockets_apart,
            )
            self._to_start.put_nowait(server)
        return self._feeds[resource]

    def _is_left_over(self, resource: str) -> bool:
        """Whether the node still has capacity that a previous agent advertised in another mode."""
        capacity = (self._node.status.capacity or {}) if self._node is not None else {}
        try:
            return parse_amount(capacity.get(resource, 0)) > 0
        except InvalidQuantity:
            return True

    async def _flush(self) -> None:
        try:
            async with asyncio.timeout(_FLUSH_S):
                await self._recorder.flush()
        except TimeoutError:
            logger.warning("some events were not written")
