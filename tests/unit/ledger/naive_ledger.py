"""The ledger, written without regard for speed: lists, sums, everything recomputed.

The tests compare the real ledger with it. The wording comes from ``gpushare.ledger.fit.reasons`` (tables of
sentences test that); which reason applies is determined here independently.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from math import ceil, floor

from gpushare.api.allocation.allocation import Allocation, GpuShare, allocate_over
from gpushare.api.node.device import Device, NodeDevices, Placement
from gpushare.api.request.request import Request
from gpushare.ledger import GpuUsage, NodeUsage, PendingShare, Totals
from gpushare.ledger.fit import reasons
from gpushare.ledger.placement.fragmentation.growth import IDLE_PRICE_MILLE


@dataclass
class Holding:
    pod: str
    node: str
    allocation: Allocation
    confirmed: bool


@dataclass
class NaiveLedger:
    nodes: dict[str, NodeDevices] = field(default_factory=dict)
    holdings: dict[str, Holding] = field(default_factory=dict)
    nominated: dict[str, tuple[str, tuple[GpuShare, ...]]] = field(default_factory=dict)
    """Capacity reserved for pending pods: the node, and the shares there."""

    # --- sums ---

    def shares_of(self, node: str, uuid: str) -> list[tuple[str, GpuShare]]:
        return [
            (uid, share)
            for uid, holding in sorted(self.holdings.items())
            for share in (self.resolved(node, recorded) for recorded in holding.allocation.gpus)
            if holding.node == node and share.uuid == uuid
        ]

    def resolved(self, name: str, share: GpuShare) -> GpuShare:
        """The share on the existing GPU, matched by UUID, or by index if one side has only a placeholder UUID."""
        node = self.nodes.get(name)
        devices = node.devices if node else ()
        if share.uuid in {device.uuid for device in devices}:
            return share
        for device in devices:
            placeholder = f"{name}/{device.index}"
            if device.index == share.index and (share.uuid == placeholder or device.uuid == placeholder):
                mib = floor(Fraction(device.total_mib * share.units, share.device_units))
                return GpuShare(
                    device.uuid, share.index, mib, share.units, share.device_units, share.core_percent
                )
        return share

    def used_mib(self, node: str, uuid: str) -> int:
        return sum(share.mib for _, share in self.shares_of(node, uuid))

    def used_core(self, node: str, uuid: str) -> int:
        return sum(share.core_percent for _, share in self.shares_of(node, uuid))

    def pods(self, node: str, uuid: str) -> list[str]:
        return sorted({uid for uid, _ in self.shares_of(node, uuid)})

    def nominated_of(self, node: str, uuid: str) -> list[GpuShare]:
        return [
            share
            for name, shares in self.nominated.values()
            for share in shares
            if (name, share.uuid) == (node, uuid)
        ]

    def free_mib(self, node: str, device: Device) -> int:
        nominated_mib = sum(share.mib for share in self.nominated_of(node, device.uuid))
        return max(
            0, device.total_mib - device.foreign_mib - self.used_mib(node, device.uuid) - nominated_mib
        )

    def shares_on(self, node: str) -> list[tuple[GpuShare, ...]]:
        """The shares of each pod on a node, and those reserved for pending pods."""
        allocated = [one.allocation.gpus for one in self.holdings.values() if one.node == node]
        return allocated + [shares for name, shares in self.nominated.values() if name == node]

    def of_kind(self, node: str, *, core: bool) -> int:
        return sum(any(share.core_percent for share in shares) == core for shares in self.shares_on(node))

    def pods_of(self, node: str) -> int:
        return len(self.shares_on(node))

    def full(self, node: NodeDevices) -> str:
        count = self.pods_of(node.name)
        if node.max_node_pods is None or count < node.max_node_pods:
            return ""
        note = reasons.unhealthy_text(node.devices)
        return reasons.node_at_cap(count) + (f"; {note}" if note else "")

    # --- one GPU ---

    def asked_mib(self, node: NodeDevices, device: Device, units: int) -> int | None:
        """What ``units`` of ``device`` are worth; ``None`` for more than it has."""
        return (
            floor(Fraction(device.total_mib * units, node.units_of(device)))
            if (units <= node.units_of(device) and node.units_of(device))
            else None
        )

    def has_memory(self, node: NodeDevices, device: Device, units: int) -> bool:
        requested_mib = self.asked_mib(node, device, units)
        return (
            device.in_service
            and requested_mib is not None
            and requested_mib <= self.free_mib(node.name, device)
        )

    def below_cap(self, node: NodeDevices, device: Device) -> bool:
        count = len(self.pods(node.name, device.uuid)) + len(self.nominated_of(node.name, device.uuid))
        return node.max_pods is None or count < node.max_pods

    def free_core(self, node: NodeDevices, device: Device) -> int:
        nominated = sum(share.core_percent for share in self.nominated_of(node.name, device.uuid))
        return max(0, 100 - self.used_core(node.name, device.uuid) - nominated)

    def has_core(self, node: NodeDevices, device: Device, core_percent: int) -> bool:
        return self.free_core(node, device) >= core_percent

    def room_units(self, node: NodeDevices, device: Device) -> int:
        """The largest request whose memory fits here, counted up one by one."""
        units = 0
        while self.has_memory(node, device, units + 1):
            units += 1
        return units

    def suits(self, request: Request, device: Device) -> bool:
        """MIG instances are not whole GPUs, and a pod gets at most one."""
        return not device.uuid.startswith("MIG-") or (request.gpu_count == 1 and not request.by_gpu)

    # --- decisions ---

    def reason(self, request: Request, name: str) -> tuple[str, bool] | None:
        """Why ``name`` refuses, and whether that is hopeless; ``None`` if it takes the request."""
        node = self.nodes.get(name)
        if node is None:
            return reasons.UNKNOWN_NODE, False
        refusal = reasons.standing_refusals(node)[2 if request.by_gpu else 1 if request.core_percent else 0]
        if refusal:
            return refusal, True
        if request.unit_mib not in (0, node.unit.mib):
            return reasons.other_unit(request, node.unit.mib), True
        if request.core_percent > 100:
            return reasons.too_much_core(request.core_percent), True
        selection = request.selection
        if selection is None:
            return self._reason_of_gpus(request, node, node.devices)
        allowed = tuple(device for device in node.devices if selection.allows(device))
        rules = [selection.kind_rule(device) or selection.uuid_rule(device.uuid) for device in node.devices]
        text = reasons.excluded(selection, rules)
        if text and len(allowed) < request.gpu_count:
            return reasons.too_few_allowed(request, len(allowed), text), True
        found = self._reason_of_gpus(request, node, allowed)
        return (f"{found[0]}; {text}", found[1]) if found and text else found

    def _reason_of_gpus(
        self, request: Request, node: NodeDevices, devices: tuple[Device, ...]
    ) -> tuple[str, bool] | None:
        """As if the node had only these GPUs, except for the note on GPUs out of service."""
        name = node.name
        if request.gpu_count > 1 or request.whole_device:
            return self._reason_beyond_one_share(request, node, devices)
        asked_mib = request.memory_units * node.unit.mib
        largest = max(node.units_of(device) for device in devices)
        if request.memory_units > largest:
            return reasons.too_large(request, largest, node.unit), True
        healthy = [device for device in devices if device.in_service]
        note = self._note(node, devices)
        if all(node.units_of(device) < request.memory_units for device in healthy):
            return reasons.only_unhealthy(asked_mib, note), True
        others = self.of_kind(name, core=not request.core_percent)
        if others:
            return reasons.mixed(request, others), False
        if full := self.full(node):
            return full, False
        text = self._short(request, node, devices, asked_mib)
        shortage = reasons.shortage_note(node.devices)
        return text and (text + (f"; {shortage}" if shortage else ""), False)

    @staticmethod
    def _note(node: NodeDevices, devices: tuple[Device, ...]) -> str:
        sick = any(not device.in_service for device in devices)
        return reasons.unhealthy_text(node.devices) if sick else ""

    def _short(
        self, request: Request, node: NodeDevices, devices: tuple[Device, ...], asked_mib: int
    ) -> str | None:
        healthy = [device for device in devices if device.in_service]
        roomy = [device for device in healthy if self.has_memory(node, device, request.memory_units)]
        if not roomy:
            best = max(healthy, key=lambda device: (self.room_units(node, device), -device.index))
            free_mib = self.room_units(node, best) * node.unit.mib
            if not free_mib and len(healthy) < len(devices):
                return reasons.no_room(asked_mib) + reasons.full_in_service(len(healthy), len(devices))
            return reasons.no_room(asked_mib) + reasons.largest_free(free_mib, best.index)
        open_to_pods = [device for device in roomy if self.below_cap(node, device)]
        if not open_to_pods:
            assert node.max_pods is not None
            return reasons.at_cap(node.max_pods)
        if not request.core_percent:
            return None
        if any(self.has_core(node, device, request.core_percent) for device in open_to_pods):
            return None
        best = max(open_to_pods, key=lambda device: (self.free_core(node, device), -device.index))
        free_mib = self.room_units(node, best) * node.unit.mib
        head = reasons.no_compute(asked_mib, request.core_percent)
        return head + reasons.nearest(free_mib, best.index, self.free_core(node, best))

    def _reason_beyond_one_share(
        self, request: Request, node: NodeDevices, devices: tuple[Device, ...]
    ) -> tuple[str, bool] | None:
        count, asked_mib = request.gpu_count, request.memory_units * node.unit.mib
        note = self._note(node, devices)
        if count > 1 and not node.mode.gives_several and not request.by_gpu:
            return node.mode.one_gpu_text, True
        kind = [device for device in devices if self.suits(request, device)]
        if len(kind) < count:
            return reasons.too_few_gpus(count, len(kind)), True
        large = [device for device in kind if node.units_of(device) >= request.memory_units]
        if len(large) < count:
            if count > 1:
                indices = [device.index for device in large]
                return reasons.too_few_large(request, asked_mib, indices), True
            largest = max(node.units_of(device) for device in devices)
            return reasons.too_large(request, largest, node.unit), True
        if sum(device.in_service for device in large) < count:
            if count > 1:
                return reasons.too_few_healthy(request, asked_mib, note), True
            return reasons.only_unhealthy(asked_mib, note), True
        others = self.of_kind(node.name, core=not request.core_percent)
        if others and not request.by_gpu:
            return reasons.mixed(request, others), False
        if full := self.full(node):
            return full, False
        free = [device for device in large if self.has_memory(node, device, request.memory_units)]
        if request.whole_device:
            free = [device for device in free if self.is_untouched(node.name, device)]
        shortage = reasons.shortage_note(node.devices)
        more = f"; {shortage}" if shortage else ""
        if len(free) < count:
            indices = [device.index for device in free]
            return reasons.too_few_free(request, asked_mib, indices) + more, False
        open_to_pods = [device for device in free if self.below_cap(node, device)]
        if len(open_to_pods) < count:
            assert node.max_pods is not None
            indices = [device.index for device in open_to_pods]
            text = reasons.too_few_below_cap(request, asked_mib, node.max_pods, indices)
            return text + more, False
        core = request.core_percent
        computing = [device.index for device in open_to_pods if not core or self.has_core(node, device, core)]
        if len(computing) < count:
            return reasons.too_few_with_compute(request, asked_mib, computing) + more, False
        return None

    def is_untouched(self, name: str, device: Device) -> bool:
        return not (
            self.shares_of(name, device.uuid) or self.nominated_of(name, device.uuid) or device.foreign_mib
        )

    def chosen(self, request: Request, name: str) -> list[Device]:
        """The GPUs that take a request that fits."""
        fitting = self.preferred(request, name)
        if request.gpu_count == 1 and not request.by_gpu:
            return fitting[:1]
        return list(self._nearest(request, self.nodes[name], fitting))

    def preferred(self, request: Request, name: str) -> list[Device]:
        """The GPUs that fit, in the order of the node's placement."""
        node = self.nodes[name]
        fitting = [
            device
            for device in node.devices
            if request.allows(device)
            and self.suits(request, device)
            and self.has_memory(node, device, request.memory_units)
            and self.below_cap(node, device)
            and (not request.core_percent or self.has_core(node, device, request.core_percent))
            and (not request.whole_device or self.is_untouched(name, device))
        ]
        fitting.sort(key=lambda device: (self.preference(request, name, device), device.index))
        return fitting

    def preference(self, request: Request, name: str, device: Device) -> tuple[int, ...]:
        """Sort key: the node's placement prefers the GPU with the lowest."""
        if (request.gpu_placement or self.nodes[name].placement) is Placement.SPREAD:
            return -self.left_mib(request, name, device), len(self.pods(name, device.uuid))
        return (self.left_mib(request, name, device),)

    def _nearest(self, request: Request, node: NodeDevices, fitting: list[Device]) -> tuple[Device, ...]:
        """The best of all sets, compared one by one."""
        name = node.name

        def worth(some: tuple[Device, ...]) -> tuple[object, ...]:
            rest = [device for device in fitting if device not in some]
            return (
                -self.least(node, some),
                ()
                if request.by_gpu
                else tuple(sorted(self.preference(request, name, device) for device in some)),
                -sum(self.near(node, one, other) for one, other in combinations(some, 2)),
                -sum(self.near(node, one, other) for one, other in combinations(rest, 2)),
                len({device.numa_node for device in some}),
                sum(self._begins(node, numa, fitting, some) for numa in {one.numa_node for one in some}),
                sorted(device.index for device in some),
            )

        return min(combinations(fitting, request.gpu_count), key=worth)

    @staticmethod
    def _begins(node: NodeDevices, numa: int, free: Iterable[Device], some: tuple[Device, ...]) -> bool:
        """Whether all GPUs of a NUMA node are free and ``some`` takes only a part of them."""
        members = {device.uuid for device in node.devices if device.numa_node == numa}
        return members <= {device.uuid for device in free} and not members <= {device.uuid for device in some}

    @staticmethod
    def near(node: NodeDevices, one: Device, other: Device) -> int:
        row_of = {device.uuid: row for row, device in enumerate(node.devices)}
        return node.near[row_of[one.uuid]][row_of[other.uuid]] if node.near else 0

    def least(self, node: NodeDevices, some: Iterable[Device]) -> int:
        return min((self.near(node, one, other) for one, other in combinations(some, 2)), default=0)

    def left_mib(self, request: Request, name: str, device: Device) -> int:
        requested_mib = self.asked_mib(self.nodes[name], device, request.memory_units)
        assert requested_mib is not None
        return self.free_mib(name, device) - requested_mib

    def scores(self, request: Request, names: list[str], policy: Placement) -> list[int]:
        policy = request.node_placement or policy
        fits = [name for name in names if self.reason(request, name) is None]
        worth = {name: self._worth(request, self.nodes[name], policy) for name in fits}
        order = sorted(set(worth.values()))
        steps = min(max(len(order) - 1, 1), 10)
        return [
            max(10 - ceil(Fraction(10 * order.index(worth[name]), steps)), 0) if name in worth else 0
            for name in names
        ]

    def _worth(self, request: Request, node: NodeDevices, policy: Placement) -> tuple[int, ...]:
        name, sign = node.name, -1 if policy is Placement.SPREAD else 1
        chosen = self.chosen(request, name)
        least = self.least(node, chosen) if request.gpu_count > 1 else 0
        if request.by_gpu:
            free = sum(request.allows(device) and self._is_eligible(node, device) for device in node.devices)
            return -least, sign * (free - request.gpu_count)
        left = floor(
            Fraction(sum(self.left_mib(request, name, device) for device in chosen), request.gpu_count)
        )
        if policy is Placement.FRAGMENTATION:
            # Nothing has arrived: the memory left over decides, or for several GPUs the node's free memory.
            free = sum(max(self.free_mib(name, device), 0) for device in node.devices)
            return -least, self._idle_price(node), free if request.gpu_count > 1 else left
        closes = not request.core_percent and node.mode.gives_core and not self.of_kind(name, core=False)
        return -least, closes, sign * left, self.pods_of(name) if policy is Placement.SPREAD else 0

    def _idle_price(self, node: NodeDevices) -> int:
        idle = [device.total_mib for device in node.devices if self.is_untouched(node.name, device)]
        return sum(idle) * IDLE_PRICE_MILLE // 1000

    def _is_eligible(self, node: NodeDevices, device: Device) -> bool:
        return self.has_memory(node, device, 1) and self.is_untouched(node.name, device)

    # --- changes ---

    def reserve(self, uid: str, pod: str, request: Request, name: str) -> Allocation:
        """Only for a pod without an allocation there, and a request that fits."""
        allocation = allocate_over(self.nodes[name], self.chosen(request, name), request)
        self.holdings[uid] = Holding(pod, name, allocation, confirmed=False)
        return allocation

    def nominate(self, uid: str, request: Request, name: str, rows: tuple[int, ...]) -> None:
        node = self.nodes[name]
        self.nominated[uid] = (name, allocate_over(node, [node.devices[row] for row in rows], request).gpus)

    # --- usage ---

    def usage(self, name: str) -> NodeUsage:
        node = self.nodes.get(name)
        devices = node.devices if node else ()
        present = {device.uuid for device in devices}
        pending = [
            PendingShare(uid, share)
            for uid, holding in self.holdings.items()
            for share in (self.resolved(name, recorded) for recorded in holding.allocation.gpus)
            if holding.node == name and share.uuid not in present
        ]
        return NodeUsage(
            node=name,
            unit=node.unit if node else None,
            gpus=tuple(self._gpu_usage(node, device) for device in devices if node),
            pending=tuple(sorted(pending, key=lambda one: (one.uid, one.share.uuid))),
        )

    def _gpu_usage(self, node: NodeDevices, device: Device) -> GpuUsage:
        shares = [share for _, share in self.shares_of(node.name, device.uuid)]
        units = node.units_of(device)
        exact = sum(share.units for share in shares if share.device_units == units)
        rest_mib = sum(share.mib for share in shares if share.device_units != units)
        used_units = exact + ceil(Fraction(rest_mib * units, device.total_mib))
        used_mib = self.used_mib(node.name, device.uuid)
        return GpuUsage(
            uuid=device.uuid,
            index=device.index,
            healthy=device.healthy,
            total_mib=device.total_mib,
            used_mib=used_mib,
            total_units=units,
            used_units=used_units if used_mib > device.total_mib else min(used_units, units),
            used_core=self.used_core(node.name, device.uuid),
            pods=tuple(self.pods(node.name, device.uuid)),
            foreign_mib=device.foreign_mib,
        )

    def totals(self) -> Totals:
        devices = [(name, device) for name, node in self.nodes.items() for device in node.devices]
        everywhere = set(self.nodes) | {one.node for one in self.holdings.values()}
        return Totals(
            nodes=len(self.nodes),
            gpus=len(devices),
            total_mib=sum(device.total_mib for _, device in devices),
            used_mib=sum(self.used_mib(name, device.uuid) for name, device in devices),
            used_core=sum(self.used_core(name, device.uuid) for name, device in devices),
            pods=len(self.holdings),
            reserved=sum(not one.confirmed for one in self.holdings.values()),
            pending=sum(
                len({(one.uid, one.share.uuid) for one in self.usage(name).pending}) for name in everywhere
            ),
        )
