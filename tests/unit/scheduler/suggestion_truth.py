"""Whether what is advised to a waiting pod is true: it is done to a copy of the drawn cluster, and the naive ledger is asked again."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from gpushare.api.node.modes import NodeMode
from gpushare.api.request.request import Request
from tests.unit.scheduler import why_truth
from tests.unit.scheduler.end_suggestion_truth import ENOUGH, enough
from tests.unit.scheduler.health_suggestion_truth import in_service, of_service
from tests.unit.scheduler.kind_suggestion_truth import of_kinds
from tests.unit.scheduler.quota_suggestion_truth import NO_ROOM, of_whole
from tests.unit.scheduler.size_suggestion_truth import DIVIDED, larger, of_size, spread_over
from tests.unit.scheduler.why_truth import memory
from tests.unit.scheduler.why_world import SLIP, Scene

ROOM = r"there is room by now, on node (\S+): kube-scheduler asks again by itself"
FULL = "all GPUs of the kind are full; pods that end, or one node more"
LARGEST = rf"the nearest has (\d+ [GM]iB) free, GPU (\d+) of node (\w+?)(?:, which has (\d+)% compute free)?{ENOUGH}"
COMPUTE = rf"the nearest has (\d+ [GM]iB) and (\d+)% free, GPU (\d+) of node (\w+?){ENOUGH}"
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
HOLDS = ": mode {} holds what runs there to its share"
ONCE = (
    r"(?:, (?:which is of use )?once (?:its (\d+) pods?(?: with GPU memory alone)?)?(?: and )?"
    r"(?:(\d+) pods? for which room is kept there)? ha(?:s|ve) ended(?:: mode \w+ holds what runs there to its share)?)?"
)
CORRECTED = rf"node (\w+), once what is written on it is corrected{ONCE}: {re.escape(SLIP)}"
RULES = "the pod's node selector, affinity or tolerations leave "
LABEL = (
    rf"(node (?P<alone>\w+) is in mode (?P<mode>\w+)|{RULES}only node (?P<left>\w+), which is in mode (?P<its>\w+)"
    rf"|{RULES}(?P<count>\d+) nodes \((?P<modes>.+?)\)): "
    rf"`kubectl label node (?P<node>\w+) ack.node.gpu.schedule=(?P<wanted>\w+) --overwrite`(?P<once>{ONCE}); or (?P<else>.+)"
)
NODE = "a node with the label ack.node.gpu.schedule=share (core_mem for compute, topology for aliyun.com/gpu)"
LABELLED = rf"{DIVIDED}, and `kubectl label node (\w+) ack.node.gpu.schedule=(\w+) --overwrite`({ONCE})$"
POLICY = "a place in one of the units of its ResourcePolicy, or another ResourcePolicy"


class Judge:
    """What may be said to a pod ``name`` that asks for ``request``, of the nodes ``asked`` about; ``known``: these are known to the scheduler."""

    def __init__(
        self, scene: Scene, name: str, request: Request, asked: Sequence[str], *, known: bool = True
    ) -> None:
        self.scene, self.naive, self.request, self.name = scene, scene.naive, request, name
        self.charged = scene.charged_units()
        self.asked, self.known = asked, known
        self.open = [node for node in asked if scene.may_have(node)]
        self.kinds = {node: self.kind(node) for node in self.open}
        self.said_kept = False

    def kind(self, node: str) -> str:
        """Why the node does not take the pod now; what its kubelet lacks counts where its GPUs would do, at last.

        Where room alone would be of no use, as quotas do not let it have the GPUs, these.
        """
        kind = self._kind_of_room(node)
        never = kind in ("node", "unit", "size")
        return kind if never or self.let_in(self.request, node) else "quota"

    def _kind_of_room(self, node: str) -> str:
        kind = why_truth.kind_of(self.naive, self.request, node)
        short = self.scene.is_short(self.request, node)
        return "health" if short and kind not in ("node", "unit", "size", "health") else kind

    def has_room(self, node: str) -> bool:
        """Whether the node would take the pod, were it for its GPUs."""
        return not self._kind_of_room(node)

    def let_in(self, request: Request, node: str) -> bool:
        """Whether quotas, with who is there now, let the pod have GPUs of the node that it would be given whole."""
        units = self.scene.whole_units(request, node)
        return not units or all(self.charged + units <= most for _, most in self.scene.quotas)

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
        """Whether the node would take the pod then, by its GPUs and what quotas say of them; with another ``request``."""
        request = request or self.request
        with self.altered(node, emptied=emptied, kept=kept, **changes):
            return self.let_in(request, node) and self.naive.reason(request, node) is None

    def once(self, node: str, request: Request | None = None, **changes: Any) -> int | None:
        """How many pods have to end for the change to be of use and to take nothing from any: none, or all; ``None`` where it is of no use."""
        if self.would(node, request=request, **changes):
            return self.running(node) if self.loses(node, changes.get("mode")) else 0
        useful = self.would(node, emptied=True, request=request, **changes)
        return self.naive.pods_of(node) if useful else None

    def running(self, node: str) -> int:
        return sum(one.node == node for one in self.naive.holdings.values())

    def loses(self, node: str, mode: NodeMode | None) -> bool:
        """Whether pods that run there are held to their share, and would not be in that mode."""
        now = self.naive.nodes[node].mode
        held = {NodeMode.CGPU: (NodeMode.CGPU, NodeMode.CORE_MEM), NodeMode.CORE_MEM: (NodeMode.CORE_MEM,)}
        if mode is None or now is mode or now not in (*held, NodeMode.MPS) or not self.running(node):
            return False
        return mode not in held.get(now, ())

    def fewest(self, useful: dict[str, int], node: str, mode: NodeMode, once: str) -> None:
        """One that has to be emptied comes after one that has not, and those with the fewest pods are first."""
        pods = {one: self.naive.pods_of(one) if count else 0 for one, count in useful.items()}
        assert pods[node] == min(pods.values()), (pods, node)
        assert useful[node] == sum(map(int, re.findall(r"\d+", once))), (useful, once)
        holds = HOLDS.format(self.naive.nodes[node].mode.value)
        assert once.endswith(holds) == self.loses(node, mode), once

    # --- by the kind of the reason ------------------------------------------------------------------

    def holds(self, category: str, suggestion: str) -> str:
        """Which form the advice has; raises ``AssertionError`` where it is no known form, or not true."""
        now = [node for node in self.asked if self.takes(node)]
        of_nodes = category in ("quota", "memory", "compute", "pods", "kinds", "health", "size", "node")
        if of_nodes and now:
            found = re.fullmatch(ROOM, suggestion)
            assert found, suggestion
            assert found[1] in now
            return "room"
        if of_nodes and category not in self.kinds.values():
            # It is another now than it was when the pod was asked about; where no unit of a policy is left, that.
            category = why_truth.nearest(self.kinds.values() or ["policy"])
        by_kind: dict[str, Callable[[str], str]] = {
            "memory": self._room,
            "compute": self._room,
            "pods": self._pods,
            "kinds": lambda suggestion: of_kinds(self, suggestion),
            "health": lambda suggestion: of_service(self, self.without_elsewhere(suggestion)),
            "size": lambda suggestion: of_size(self, suggestion),
            "node": self._node,
            "policy": self._policy,
            "quota": lambda suggestion: of_whole(self, suggestion),
            "unit": self._unit,
        }
        self.category = category
        # A policy or a quota keeps it off nodes whatever becomes of what is kept there.
        of_all = category in ("policy", "quota")
        return by_kind[category](suggestion if of_all else self._kept_for(suggestion))

    def _kept_for(self, suggestion: str) -> str:
        """Without what is said of room that is kept for another pod."""
        keeping = {
            node
            for node, kind in self.kinds.items()
            if kind in ("memory", "compute", "pods", "kinds") and self.would(node, kept=False)
        }
        found = re.search(f"{KEPT}$", suggestion)
        assert bool(found) == bool(keeping), (suggestion, keeping)
        if found is None:
            return suggestion
        assert found[1] in keeping
        pods = {uid.removeprefix("uid-") for uid, (node, _) in self.naive.kept.items() if node == found[1]}
        assert (found[2] or "").removeprefix("pod default/") in pods or found[2] == "another pod"
        assert ("moved" in pods) >= (found[2] == "another pod")
        self.said_kept = True
        return suggestion[: found.start()]

    def of_kind(self) -> list[str]:
        return [node for node in self.open if self.kinds[node] == self.category]

    def wanted(self) -> str:
        request = self.request
        if request.by_gpu:
            return "a whole GPU" if request.gpu_count == 1 else f"{request.gpu_count} whole GPUs of one node"
        amount = memory(request.memory_units * (request.unit_mib or 1024))
        if request.core_percent:
            amount += f" and {request.core_percent}% compute"
        state = "that nobody uses" if request.whole_device else "free"
        if request.gpu_count == 1:
            return f"a GPU with {amount} {state}"
        return f"{request.gpu_count} GPUs of one node with {amount} {state} each"

    def _room(self, suggestion: str) -> str:
        suggestion = self.without_elsewhere(suggestion)
        assert suggestion.startswith(f"{self.wanted()}: "), suggestion
        rest = suggestion.removeprefix(f"{self.wanted()}: ")
        if self.request.is_ordinary and self.category == "compute":
            return self._nearest_compute(rest)
        if self.request.is_ordinary:
            return self._nearest_memory(rest)
        free = {node: self._would_do(node) for node in self.of_kind()}
        if not free:
            assert rest == FULL
            return "full"
        found = re.fullmatch(SEVERAL, rest)
        assert found, rest
        assert free[found[1]] == max(free.values())
        assert (found[2], False) == self.naive.reason(self.request, found[1])
        return "several, with compute" if self.request.core_percent else "several"

    def without_elsewhere(self, suggestion: str) -> str:
        """Without what is said of a node that is not asked about."""
        others = [node for node in self.naive.nodes if node not in self.asked and self.takes(node)]
        found = re.search(f"{NOT_ASKED}$", suggestion)
        assert bool(found) == bool(others), (suggestion, others)
        if found is None:
            return suggestion
        assert found[1] in others
        return suggestion[: found.start()]

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
        free = {node: self.free_units(node) for node in self.of_kind()}
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
        ends = enough(self, node, gpu, found[5])
        if ends and not found[4] and not scattered:
            return ends
        return "nearest, without compute" if found[4] else "scattered" if scattered else "nearest"

    def _free_core(self, name: str, gpu: int) -> int:
        node = self.naive.nodes[name]
        return self.naive.free_core(node, node.devices[gpu])

    def _nearest_compute(self, rest: str) -> str:
        node_of = {node: self.naive.nodes[node] for node in self.of_kind()}
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
        return enough(self, node, gpu, found[5]) or "compute"

    def _pods(self, suggestion: str) -> str:
        head = (
            "a pod that ends on one of"
            if self.request.gpu_count == 1
            else "pods that end on as many as it asks for of"
        )
        if all(
            self._keeps(node) and not self.would(node, emptied=True, kept=True) for node in self.of_kind()
        ):
            head = "the end of pods for which room is kept on"
        found = re.fullmatch(head + CAPS, suggestion)
        assert found, suggestion
        raised = {
            node: self.would(node, **self._raised(node, CAP_OF_GPU, CAP_OF_NODE)) for node in self.of_kind()
        }
        lifted = {node: self.would(node, max_pods=None, max_node_pods=None) for node in self.of_kind()}
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
            ends = any(self._one_end_helps(node) or self._keeps(node) for node in self.of_kind())
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

    def mode(self) -> NodeMode:
        """In which nodes give what is asked for."""
        if self.request.by_gpu:
            return NodeMode.TOPOLOGY
        return NodeMode.CORE_MEM if self.request.core_percent else NodeMode.SHARE

    def _node(self, suggestion: str) -> str:
        if not self.known:
            assert suggestion == NODE
            return "node of some"
        units = {self.naive.nodes[node].unit.mib for node in self.open}
        if self.request.unit_mib and self.request.unit_mib not in units:
            return self._unit(suggestion)
        wanted = self.mode()
        slips = [node for node in self.open if self.naive.nodes[node].refusal]
        corrected = {node: self.once(node, refusal="") for node in slips}
        if any(once is not None for once in corrected.values()):
            found = re.fullmatch(CORRECTED, suggestion)
            assert found, suggestion
            assert corrected[found[1]] == int(found[2] or 0) + int(found[3] or 0)
            return "corrected"
        wrong = [node for node in self.open if node not in slips]
        labelled = {node: self.once(node, mode=wanted) for node in wrong if self._mode_is_in_the_way(node)}
        useful = {node: once for node, once in labelled.items() if once is not None}
        if useful:
            return self._label(suggestion, wanted, labelled, useful)
        if suggestion == NODE:
            return "node"
        for node in labelled:
            devices = in_service(self.naive.nodes[node])
            assert self.once(node, mode=wanted, devices=devices) is None
        over, places = spread_over(self, {node: {"mode": wanted} for node in labelled})
        divided = re.search(LABELLED, suggestion)
        assert bool(divided) == bool(over), (suggestion, over)
        if divided is None:
            return larger(self, suggestion, mode=f" in mode {wanted.value}")
        assert (int(divided[1]), int(divided[2]), divided[4]) == (over, over, wanted.value)
        self.fewest(places, divided[3], wanted, divided[5])
        larger(self, suggestion[: divided.start()], mode=f" in mode {wanted.value}")
        return "larger, divided"

    def _mode_is_in_the_way(self, name: str) -> bool:
        mode = self.naive.nodes[name].mode
        if self.request.by_gpu:
            return mode is not NodeMode.TOPOLOGY
        if mode in (NodeMode.DEFAULT, NodeMode.TOPOLOGY):
            return True
        if self.request.core_percent:
            return mode is not NodeMode.CORE_MEM
        return self.request.gpu_count > 1 and mode is NodeMode.MPS

    def _label(
        self, suggestion: str, wanted: NodeMode, wrong: Collection[str], useful: dict[str, int]
    ) -> str:
        found = re.fullmatch(LABEL, suggestion)
        assert found, suggestion
        node, mode_of = found["node"], {node: self.naive.nodes[node].mode.value for node in wrong}
        assert found["wanted"] == wanted.value
        self.fewest(useful, node, wanted, found["once"])
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

    def _policy(self, suggestion: str) -> str:
        has_room = any(not self.kind(node) for node in self.asked)
        assert suggestion == (POLICY if has_room else POLICY + NO_ROOM)
        return "policy" if has_room else "policy, and more"

    def _unit(self, suggestion: str) -> str:
        assert suggestion == "delete the pod, so that it is recreated in the unit of the nodes"
        assert all(self.request.unit_mib != self.naive.nodes[node].unit.mib for node in self.open)
        return "unit"
