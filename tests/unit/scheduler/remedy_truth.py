"""Whether what is advised to a waiting pod is true: it is done to a copy of the drawn cluster, and the naive ledger is asked again."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from gpushare.model.device import Device, NodeDevices, NodeMode
from gpushare.model.quantity import MemoryUnit
from gpushare.model.request import Request
from tests.unit.scheduler import why_truth
from tests.unit.scheduler.why_truth import memory
from tests.unit.scheduler.why_world import OFFERS, SLIP, Scene

ROOM = r"there is room by now, on node (\S+): kube-scheduler asks again by itself"
FULL = "all GPUs of the kind are full; pods that end, or one node more"
LARGEST = r"the nearest has (\d+ [GM]iB) free, GPU (\d+) of node (\w+?)(?:, which has (\d+)% compute free)?"
COMPUTE = r"the nearest has (\d+ [GM]iB) and (\d+)% free, GPU (\d+) of node (\w+)"
SEVERAL = r"the nearest is node (\w+): (.+)"
SCATTERED = r"; node (\w+) has as much in all, on several GPUs: `kubectl inspect cgpu --fragmentation` says whether a move would help"
NOT_ASKED = (
    r"; node (\w+) has room, but the pod's node selector, affinity or tolerations keep it off: "
    r"kube-scheduler does not ask about it"
)
CAPS = (
    r" these GPUs(?:, or a larger cap on node (?P<raised>\w+) \(node labels? (?P<labels>.+?)\)"
    r"|: node (?P<shut>\w+) is in mode (?P<mode>\w+), where a GPU has (?P<most>\d+) pods? at most, whatever its labels say)"
    r"(?:; that alone would not do: (?P<besides>.+))?"
)
CAP_OF_GPU, CAP_OF_NODE = "ack.node.gpu.max-pod", "gpushare.dev/max-pods-per-node"
KEPT = r"; node (\w+) has room, but keeps it for (pod \S+|another pod)"
KINDS = "a node without pods of the other kind: those with GPU memory alone and those with compute too are never together on one"
SERVICE = r"GPUs that (are back in service|their kubelet offers again)(, and the end of what runs there|, and room there that is kept for others)?: node (\w+): (.+)"
ONCE = (
    r"(?:, which is of use once (?:its (\d+) pods?(?: with GPU memory alone)?)?(?: and )?"
    r"(?:(\d+) pods? for which room is kept there)? ha(?:s|ve) ended)?"
)
CORRECTED = rf"node (\w+), once what is written on it is corrected{ONCE}: {re.escape(SLIP)}"
RULES = "the pod's node selector, affinity or tolerations leave "
LABEL = (
    rf"(node (?P<alone>\w+) is in mode (?P<mode>\w+)|{RULES}node (?P<left>\w+) alone, which is in mode (?P<its>\w+)"
    rf"|{RULES}(?P<count>\d+) nodes \((?P<modes>.+?)\)): "
    rf"`kubectl label node (?P<node>\w+) ack.node.gpu.schedule=(?P<wanted>\w+) --overwrite`(?P<once>{ONCE}); or (?P<else>.+)"
)
NODE = "a node with the label ack.node.gpu.schedule=share (core_mem for compute, topology for aliyun.com/gpu)"
LARGER = r"a node in mode (\w+) with larger GPUs, or more of them; or ask for less"
DIVIDED = (
    r', or label the pod aliyun.com/gpu-count: "(\d+)", which divides it between (\d+) GPUs of one node$'
)
POLICY = "a place in one of the units of its ResourcePolicy, or another ResourcePolicy"
NO_ROOM = "; and room, which none of these nodes has now"


class Judge:
    """What may be said to a pod that asks for ``request``, of the nodes ``asked`` about; ``known``: these are known to the scheduler."""

    def __init__(self, scene: Scene, request: Request, asked: Sequence[str], *, known: bool = True) -> None:
        self.scene, self.naive, self.request = scene, scene.naive, request
        self.asked, self.known = asked, known
        self.open = [node for node in asked if scene.may_have(node)]
        self.kinds = {node: self.kind(node) for node in self.open}
        self.said_kept = False

    def kind(self, node: str) -> str:
        """Why the node does not take the pod now; what its kubelet lacks counts where its GPUs would do, at last."""
        kind = why_truth.kind_of(self.naive, self.request, node)
        short = self.scene.is_short(self.request, node)
        return "health" if short and kind not in ("node", "unit", "size", "health") else kind

    def takes(self, node: str) -> bool:
        return self.scene.may_have(node) and not self.kind(node)

    @contextmanager
    def altered(
        self, node: str, *, emptied: bool = False, kept: bool | None = None, **changes: Any
    ) -> Iterator[None]:
        """The cluster with another node in the place of one, and without the pods that are there, and those for which room is kept."""
        naive, holdings, before = self.naive, self.naive.holdings, self.naive.nodes[node]
        all_kept = naive.kept
        naive.nodes[node] = msgspec.structs.replace(before, **changes)
        if emptied:
            naive.holdings = {uid: one for uid, one in holdings.items() if one.node != node}
        if not (kept if kept is not None else not emptied):
            naive.kept = {uid: one for uid, one in all_kept.items() if one[0] != node}
        try:
            yield
        finally:
            naive.nodes[node], naive.holdings, naive.kept = before, holdings, all_kept

    def would(
        self,
        node: str,
        *,
        emptied: bool = False,
        kept: bool | None = None,
        request: Request | None = None,
        **changes: Any,
    ) -> bool:
        """Whether the node would take the pod then, by its GPUs; with another ``request``."""
        with self.altered(node, emptied=emptied, kept=kept, **changes):
            return self.naive.reason(request or self.request, node) is None

    def once(self, node: str, **changes: Any) -> int | None:
        """How many pods have to end for the change to be of use: none, or all; ``None`` where it is of none."""
        if self.would(node, **changes):
            return 0
        return self.naive.pods_of(node) if self.would(node, emptied=True, **changes) else None

    # --- by the kind of the reason ------------------------------------------------------------------

    def holds(self, category: str, remedy: str) -> str:
        """Which form the advice has; raises ``AssertionError`` where it is no known form, or not true."""
        now = [node for node in self.asked if self.takes(node)]
        of_nodes = category in ("quota", "memory", "compute", "pods", "kinds", "health", "size", "node")
        if of_nodes and now:
            found = re.fullmatch(ROOM, remedy)
            assert found, remedy
            assert found[1] in now
            return "room"
        if of_nodes and category not in self.kinds.values():
            # It is another now than it was when the pod was asked about; where no unit of a policy is left, that.
            category = why_truth.nearest(self.kinds.values() or ["policy"])
        by_kind: dict[str, Callable[[str], str]] = {
            "memory": self._room,
            "compute": self._room,
            "pods": self._pods,
            "kinds": self._kinds,
            "health": self._health,
            "size": self._size,
            "node": self._node,
            "policy": self._policy,
            "unit": self._unit,
        }
        self.category = category
        return by_kind[category](remedy if category == "policy" else self._kept_for(remedy))

    def _kept_for(self, remedy: str) -> str:
        """Without what is said of room that is kept for another pod."""
        keeping = {
            node
            for node, kind in self.kinds.items()
            if kind in ("memory", "compute", "pods", "kinds") and self.would(node, kept=False)
        }
        found = re.search(f"{KEPT}$", remedy)
        assert bool(found) == bool(keeping), (remedy, keeping)
        if found is None:
            return remedy
        assert found[1] in keeping
        pods = {uid.removeprefix("uid-") for uid, (node, _) in self.naive.kept.items() if node == found[1]}
        assert (found[2] or "").removeprefix("pod default/") in pods or found[2] == "another pod"
        assert ("moved" in pods) >= (found[2] == "another pod")
        self.said_kept = True
        return remedy[: found.start()]

    def _of_kind(self) -> list[str]:
        return [node for node in self.open if self.kinds[node] == self.category]

    def wanted(self) -> str:
        request = self.request
        if request.by_gpu:
            return "a whole GPU" if request.gpu_count == 1 else f"{request.gpu_count} whole GPUs of one node"
        amount = f"{request.memory_units} of aliyun.com/gpu-mem"
        if request.unit_mib:
            amount = memory(request.memory_units * request.unit_mib)
        if request.core_percent:
            amount += f" and {request.core_percent}% compute"
        state = "that nobody uses" if request.whole_device else "free"
        if request.gpu_count == 1:
            return f"a GPU with {amount} {state}"
        return f"{request.gpu_count} GPUs of one node with {amount} {state} each"

    def _room(self, remedy: str) -> str:
        remedy = self._elsewhere(remedy)
        assert remedy.startswith(f"{self.wanted()}: "), remedy
        rest = remedy.removeprefix(f"{self.wanted()}: ")
        if self.request.is_ordinary and self.category == "compute":
            return self._nearest_compute(rest)
        if self.request.is_ordinary:
            return self._nearest_memory(rest)
        free = {node: self._would_do(node) for node in self._of_kind()}
        if not free:
            assert rest == FULL
            return "full"
        found = re.fullmatch(SEVERAL, rest)
        assert found, rest
        assert free[found[1]] == max(free.values())
        assert (found[2], False) == self.naive.reason(self.request, found[1])
        return "several, with compute" if self.request.core_percent else "several"

    def _elsewhere(self, remedy: str) -> str:
        """Without what is said of a node that is not asked about."""
        others = [node for node in self.naive.nodes if node not in self.asked and self.takes(node)]
        found = re.search(f"{NOT_ASKED}$", remedy)
        assert bool(found) == bool(others), (remedy, others)
        if found is None:
            return remedy
        assert found[1] in others
        return remedy[: found.start()]

    def _would_do(self, name: str) -> int:
        """How many of a node's GPUs have room for the pod."""
        node, request = self.naive.nodes[name], self.request
        return sum(
            self.naive.has_memory(node, device, request.memory_units)
            and (not request.whole_device or self.naive.is_untouched(name, device))
            and (
                self.category != "compute"
                or (
                    self.naive.below_cap(node, device)
                    and self.naive.has_core(node, device, request.core_percent)
                )
            )
            for device in node.devices
        )

    def free_units(self, name: str) -> dict[int, int]:
        node = self.naive.nodes[name]
        return {
            device.index: self.naive.room_units(node, device) for device in node.devices if device.in_service
        }

    def _nearest_memory(self, rest: str) -> str:
        free = {node: self.free_units(node) for node in self._of_kind()}
        most = max((max(its.values()) for its in free.values()), default=0)
        if not most:
            assert rest == FULL
            return "full"
        scattered = re.search(f"{SCATTERED}$", rest)
        could = [node for node, its in free.items() if sum(its.values()) >= self.request.memory_units]
        assert bool(scattered) == bool(could), (rest, could)
        if scattered is not None:
            assert scattered[1] in could
            rest = rest[: scattered.start()]
        found = re.fullmatch(LARGEST, rest)
        assert found, rest
        node, gpu = found[3], int(found[2])
        assert free[node][gpu] == most
        assert found[1] == memory(most * self.naive.nodes[node].unit.mib)
        core = self._free_core(node, gpu)
        wants = self.request.core_percent
        assert found[4] == (str(core) if wants and core < wants else None)
        return "nearest, without compute" if found[4] else "scattered" if scattered else "nearest"

    def _free_core(self, name: str, gpu: int) -> int:
        node = self.naive.nodes[name]
        return self.naive.free_core(node, node.devices[gpu])

    def _nearest_compute(self, rest: str) -> str:
        node_of = {node: self.naive.nodes[node] for node in self._of_kind()}
        could = {
            (node, device.index): self._free_core(node, device.index)
            for node, its in node_of.items()
            for device in its.devices
            if self.naive.has_memory(its, device, self.request.memory_units)
            and self.naive.below_cap(its, device)
        }
        if not could or not max(could.values()):
            assert rest == FULL
            return "full"
        found = re.fullmatch(COMPUTE, rest)
        assert found, rest
        node, gpu = found[4], int(found[3])
        assert could[node, gpu] == max(could.values()) == int(found[2])
        assert found[1] == memory(self.free_units(node)[gpu] * self.naive.nodes[node].unit.mib)
        return "compute"

    def _pods(self, remedy: str) -> str:
        head = (
            "a pod that ends on one of"
            if self.request.gpu_count == 1
            else "pods that end on as many as it asks for of"
        )
        if all(
            self._keeps(node) and not self.would(node, emptied=True, kept=True) for node in self._of_kind()
        ):
            head = "the end of pods for which room is kept on"
        found = re.fullmatch(head + CAPS, remedy)
        assert found, remedy
        raised = {
            node: self.would(node, **self._raised(node, CAP_OF_GPU, CAP_OF_NODE)) for node in self._of_kind()
        }
        lifted = {node: self.would(node, max_pods=None, max_node_pods=None) for node in self._of_kind()}
        node = found["raised"] or found["shut"]
        assert node in raised
        if found["shut"]:
            known = self.naive.nodes[node]
            assert known.mode.isolated
            assert (found["mode"], int(found["most"])) == (known.mode.value, self.scene.isolated_cap)
            with self.altered(node, **self._raised(node, CAP_OF_GPU, CAP_OF_NODE)):
                assert why_truth.kind_of(self.naive, self.request, node) == "pods"
        if any(raised.values()):
            assert (found["raised"], found["besides"]) == (node, None)
            # Each label that is named has to say more, and no other.
            labels = found["labels"].split(" and ")
            assert self.would(node, **self._raised(node, *labels))
            assert len(labels) == 1 or not any(self.would(node, **self._raised(node, one)) for one in labels)
        elif any(lifted.values()):
            assert (found["shut"], found["besides"]) == (node, None)
        else:
            with self.altered(node, max_pods=None, max_node_pods=None):
                refused = self.naive.reason(self.request, node)
            assert refused is not None
            assert refused[0] == found["besides"]
        if found["besides"] is None:
            ends = any(self._one_end_helps(node) or self._keeps(node) for node in self._of_kind())
            assert ends or not self.request.is_ordinary
        form = "pods" if found["raised"] else "pods at most"
        return form if found["besides"] is None else f"{form}, and more"

    def _raised(self, name: str, *labels: str) -> dict[str, Any]:
        """The node's caps, as they are where those ``labels`` say as much as anybody likes."""
        most = self.scene.isolated_cap if self.naive.nodes[name].mode.isolated else None
        return {
            **({"max_pods": most} if CAP_OF_GPU in labels else {}),
            **({"max_node_pods": None} if CAP_OF_NODE in labels else {}),
        }

    def _keeps(self, name: str) -> bool:
        return any(node == name for node, _ in self.naive.kept.values())

    def _one_end_helps(self, node: str) -> bool:
        kept = self.naive.holdings
        for gone in [uid for uid, one in kept.items() if one.node == node]:
            self.naive.holdings = {uid: one for uid, one in kept.items() if uid != gone}
            helps = self.naive.reason(self.request, node) is None
            self.naive.holdings = kept
            if helps:
                return True
        return False

    def _kinds(self, remedy: str) -> str:
        assert remedy == KINDS
        for node in self._of_kind():
            assert self.naive.of_kind(node, core=not self.request.core_percent)
            nobody = self.naive.nodes[node].devices
            devices = tuple(msgspec.structs.replace(one, foreign_mib=0) for one in nobody)
            assert self.would(node, emptied=True, devices=devices)
        return "kinds"

    def _health(self, remedy: str) -> str:
        if not self.known:
            assert remedy == "GPUs that are back in service"
            return "health of some"
        found = re.fullmatch(SERVICE, remedy)
        assert found, remedy
        node, text = found[3], found[4]
        assert node in self._of_kind()
        if text.startswith(OFFERS):
            assert found[1] == "their kubelet offers again"
            assert node in self.scene.short
            changes: dict[str, Any] = {}
        else:
            assert found[1] == "are back in service"
            assert self.naive.reason(self.request, node) == (text, True)
            changes = {"devices": in_service(self.naive.nodes[node])}
        at_once = self.would(node, **changes)
        assert at_once == (found[2] is None)
        assert (found[2] == ", and room there that is kept for others") == (
            not at_once and self.would(node, kept=False, **changes)
        )
        if not at_once:
            nobody = changes.get("devices", self.naive.nodes[node].devices)
            devices = tuple(msgspec.structs.replace(one, foreign_mib=0) for one in nobody)
            assert self.would(node, emptied=True, devices=devices)
        return ("offers" if not changes else "health") + ("" if at_once else ", and ends")

    def _size(self, remedy: str) -> str:
        request = self.request
        if request.core_percent > 100:
            assert remedy == (
                "ask for 100% compute at most, all containers together: no GPU has more, however large"
            )
            return "size of compute"
        divided = re.search(DIVIDED, remedy)
        over = self._spread_over()
        assert (int(divided[1]), int(divided[2])) == (over, over) if divided else not over, (remedy, over)
        remedy = re.sub(DIVIDED, "", remedy)
        if request.gpu_count == 1 and not request.by_gpu:
            assert remedy == "a node with larger GPUs; or ask for less"
        else:
            found = re.fullmatch(
                r"a node with (\d+) GPUs or more"
                r"(?:; or ask for fewer| that are as large as each of those asked for; or ask for less)",
                remedy,
            )
            assert found, remedy
            assert int(found[1]) == request.gpu_count
            assert ("fewer" in remedy) == request.by_gpu
        devices = tuple(
            Device(index, f"GPU-new-{index}", request.memory_units * 1024)
            for index in range(request.gpu_count)
        )
        self.naive.nodes["new"] = NodeDevices("new", self.mode(), MemoryUnit.GIB, devices)
        taken = self.naive.reason(request, "new") is None
        del self.naive.nodes["new"]
        assert taken
        return "size" if divided is None else "size, divided"

    def _spread_over(self) -> int:
        """On how many GPUs of one of the nodes, were it empty, the pod would have as much in all; 0 for none."""
        request = self.request
        if request.by_gpu or request.core_percent or request.unit_mib or request.apart:
            return 0
        for count in range(request.gpu_count + 1, 9):
            units, rest = divmod(request.memory_units * request.gpu_count, count)
            divided = msgspec.structs.replace(request, memory_units=units, gpu_count=count)
            whole = not rest and not any(one.memory_units % count for one in request.containers)
            if whole and any(self.would(node, emptied=True, request=divided) for node in self.open):
                return count
        return 0

    def mode(self) -> NodeMode:
        """In which nodes give what is asked for."""
        if self.request.by_gpu:
            return NodeMode.TOPOLOGY
        return NodeMode.CORE_MEM if self.request.core_percent else NodeMode.SHARE

    def _node(self, remedy: str) -> str:
        if not self.known:
            assert remedy == NODE
            return "node of some"
        wanted = self.mode()
        slips = [node for node in self.open if self.naive.nodes[node].refusal]
        corrected = {node: self.once(node, refusal="") for node in slips}
        if any(once is not None for once in corrected.values()):
            found = re.fullmatch(CORRECTED, remedy)
            assert found, remedy
            assert corrected[found[1]] == int(found[2] or 0) + int(found[3] or 0)
            return "corrected"
        wrong = [node for node in self.open if node not in slips]
        labelled = {node: self.once(node, mode=wanted) for node in wrong if self._mode_is_in_the_way(node)}
        useful = {node: once for node, once in labelled.items() if once is not None}
        if useful:
            return self._label(remedy, wanted, labelled, useful)
        if remedy == NODE:
            return "node"
        found = re.fullmatch(LARGER, remedy)
        assert found, remedy
        assert found[1] == wanted.value
        for node in labelled:
            devices = in_service(self.naive.nodes[node])
            assert self.once(node, mode=wanted, devices=devices) is None
        return "larger"

    def _mode_is_in_the_way(self, name: str) -> bool:
        mode = self.naive.nodes[name].mode
        if self.request.by_gpu:
            return mode is not NodeMode.TOPOLOGY
        if mode in (NodeMode.DEFAULT, NodeMode.TOPOLOGY):
            return True
        if self.request.core_percent:
            return mode is not NodeMode.CORE_MEM
        return self.request.gpu_count > 1 and mode is NodeMode.MPS

    def _label(self, remedy: str, wanted: NodeMode, wrong: Collection[str], useful: dict[str, int]) -> str:
        found = re.fullmatch(LABEL, remedy)
        assert found, remedy
        node, mode_of = found["node"], {node: self.naive.nodes[node].mode.value for node in wrong}
        assert found["wanted"] == wanted.value
        assert useful[node] == min(useful.values()) == sum(map(int, re.findall(r"\d+", found["once"])))
        if set(self.asked) >= set(self.naive.nodes):
            assert (found["alone"], found["mode"]) == (node, mode_of[node])
            assert found["else"] == f"one node more, in mode {wanted.value}"
            return "label"
        if len(self.asked) == 1:
            assert (found["left"], found["its"]) == (node, mode_of[node])
        else:
            told = {mode: int(many) for many, mode in re.findall(r"(\d+) in mode (\w+)", found["modes"])}
            assert (int(found["count"]), told) == (len(self.asked), Counter(mode_of.values()))
        others = [node for node in self.naive.nodes if node not in self.asked and self.takes(node)]
        if others:
            assert found["else"] in [f"other rules: node {node} has room" for node in others]
        else:
            assert found["else"] == f"rules that let it go to a node in mode {wanted.value}"
        return "label of some"

    def _policy(self, remedy: str) -> str:
        has_room = any(not self.kind(node) for node in self.asked)
        assert remedy == (POLICY if has_room else POLICY + NO_ROOM)
        return "policy" if has_room else "policy, and more"

    def _unit(self, remedy: str) -> str:
        assert remedy == "delete the pod, so that it is made anew in the unit of the nodes"
        assert all(self.request.unit_mib != self.naive.nodes[node].unit.mib for node in self.asked)
        return "unit"


def in_service(node: NodeDevices) -> tuple[Any, ...]:
    return tuple(msgspec.structs.replace(one, healthy=True, cordoned=False) for one in node.devices)
