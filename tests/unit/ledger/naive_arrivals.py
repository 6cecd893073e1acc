"""The naive ledger with arrivals: placement ``fragmentation`` by the written-out definition of what nodes can still take."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from gpushare.api.node.device import Device, NodeDevices, Placement
from gpushare.api.request.request import Request
from gpushare.ledger.placement.fragmentation.outlook import SEQUENCES, Outlook
from gpushare.ledger.placement.fragmentation.workload_mix import ARRIVAL, Kind
from tests.unit.ledger.naive_fragmentation import NaiveGpu, NaiveNode
from tests.unit.ledger.naive_ledger import NaiveLedger


@dataclass
class NaiveArrivals(NaiveLedger):
    """Nodes with unknown CPU, without a cap on their pods."""

    kinds: list[Kind] = field(default_factory=list)
    outlook: Outlook = field(default_factory=lambda: Outlook.of({}))
    recomputed_at: int = 1
    values: dict[NaiveNode, int] = field(default_factory=dict)

    def arrived(self, request: Request) -> None:
        """The mix is recomputed once arrivals have grown by an eighth."""
        if request.by_gpu:
            return
        self.kinds.append(
            Kind(
                request.gpu_count,
                request.memory_units,
                request.core_percent,
                whole=request.whole_device,
            )
        )
        if len(self.kinds) < self.recomputed_at:
            return
        self.recomputed_at += max(len(self.kinds) // 8, 1)
        self.outlook = Outlook.of({kind: count * ARRIVAL for kind, count in Counter(self.kinds).items()})
        self.values.clear()

    def grown(self, request: Request, name: str, some: Collection[Device]) -> int:
        """MiB that can no longer be allocated once ``some`` of the node's GPUs take the request."""
        before, after = (self._value(self._node(request, name, taking)) for taking in ((), some))
        return (before - after) * self.nodes[name].unit.mib // SEQUENCES

    def grown_on(self, request: Request, name: str, device: Device) -> int:
        """The same for one GPU; 0 for several GPUs, of which those with the least left over are preferred."""
        return self.grown(request, name, [device]) if request.gpu_count == 1 else 0

    def preference(self, request: Request, name: str, device: Device) -> tuple[int, ...]:
        plain = super().preference(request, name, device)
        if self.nodes[name].placement is not Placement.FRAGMENTATION or request.by_gpu:
            return plain
        return (self.grown_on(request, name, device), *plain)

    def _value(self, node: NaiveNode) -> int:
        if node not in self.values:
            self.values[node] = node.value(self.outlook)
        return self.values[node]

    def _node(self, request: Request, name: str, taking: Collection[Device]) -> NaiveNode:
        node = self.nodes[name]
        gpus = []
        for device in node.devices:
            takes = device in taking
            units = node.units_of(device) if request.whole_device else request.memory_units
            free_mib = self.free_mib(name, device)
            free_core = max(100 - self.used_core(name, device.uuid), 0) if node.mode.gives_core else -1
            if takes:
                free_mib -= self.asked_mib(node, device, units) or 0
                free_core -= request.core_percent
            fit_units = 0
            while (more := self.asked_mib(node, device, fit_units + 1)) is not None and more <= free_mib:
                fit_units += 1
            pods = len(self.pods(name, device.uuid)) + takes
            if not device.in_service or (node.max_pods is not None and pods >= node.max_pods):
                fit_units = -1
            untouched = self.is_untouched(name, device) and not takes
            gpus.append(NaiveGpu(free_mib, fit_units, free_core, untouched))
        core_pods = self.of_kind(name, core=True) + (bool(taking) and request.wants_core)
        memory_pods = self.of_kind(name, core=False) + (bool(taking) and not request.wants_core)
        return NaiveNode(
            tuple(gpus),
            None,
            open_to_memory=not core_pods,
            open_to_core=node.mode.gives_core and not memory_pods,
            unit_mib=node.unit.mib,
        )

    def _worth(self, request: Request, node: NodeDevices, policy: Placement) -> tuple[int, ...]:
        if policy is not Placement.FRAGMENTATION or request.by_gpu:
            return super()._worth(request, node, policy)
        least, price, *others = super()._worth(request, node, policy)
        closes = node.mode.gives_core and not request.core_percent and not self.of_kind(node.name, core=False)
        closes = closes and any(kind.core_percent for kind in self.outlook.kinds)
        return least, closes, self.grown(request, node.name, self.chosen(request, node.name)) + price, *others
