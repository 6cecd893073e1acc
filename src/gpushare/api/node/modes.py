"""What a node's GPUs are used as: one object a mode, with all that is the same wherever it is asked. Pure.

A new mode is one ``add`` at the end of this module. Where the node agent does something else in it than in modes that are there,
it has rules in ``nodeagent/modes/`` besides.
"""

from collections.abc import Collection
from typing import ClassVar, Final, Literal

import msgspec

from gpushare.api import names
from gpushare.api.quantity import MemoryUnit

#: What holds a container to its share: nothing, our libraries, NVIDIA's MPS, the driver's own limits.
BackendKind = Literal["none", "preload", "mps", "driver"]


class NodeMode(msgspec.Struct, frozen=True, eq=False):
    """A value of the node label ``ack.node.gpu.schedule``, and what holds on nodes that have it."""

    DEFAULT: ClassVar["NodeMode"]
    """That of nodes without the label."""
    SHARE: ClassVar["NodeMode"]
    CGPU: ClassVar["NodeMode"]
    CORE_MEM: ClassVar["NodeMode"]
    MPS: ClassVar["NodeMode"]
    TOPOLOGY: ClassVar["NodeMode"]
    DRA: ClassVar["NodeMode"]

    value: str
    """The label's value."""
    resources: tuple[str, ...] = ()
    """The extended resources that such a node advertises."""
    backend: BackendKind = "none"
    """What holds a container to its share, unless the node agent is set to another."""
    fallback: "NodeMode | None" = None
    """The mode that is advised where ``backend`` cannot work."""
    one_gpu: str = ""
    """Why a pod gets one GPU alone; empty where it can have several."""
    needs: str = ""
    """What has to be on the node besides the driver."""
    claims: bool = False
    """Whether shares of its GPUs are allocated through ResourceClaims, by kube-scheduler itself (DRA)."""

    def __repr__(self) -> str:
        return f"<mode {self.value}>"

    @property
    def shares_memory(self) -> bool:
        """Whether the node advertises ``aliyun.com/gpu-mem``."""
        return names.GPU_MEM in self.resources

    @property
    def gives_core(self) -> bool:
        """Whether the node advertises ``aliyun.com/gpu-core.percentage``, and holds containers to it."""
        return names.GPU_CORE in self.resources

    @property
    def gives_whole(self) -> bool:
        """Whether the node advertises ``aliyun.com/gpu``."""
        return names.GPU_WHOLE in self.resources

    @property
    def offers_gpus(self) -> bool:
        """Whether pods get GPUs of the node from us at all."""
        return bool(self.resources) or self.claims

    @property
    def limits_compute(self) -> bool:
        """Whether containers may be held to a share of compute."""
        return self.gives_core or self.claims

    @property
    def gives_several(self) -> bool:
        """Whether a pod can have several of its GPUs."""
        return not self.one_gpu

    @property
    def isolated(self) -> bool:
        """Whether a container is held to its share of memory (in mode ``mps`` by NVIDIA's own server)."""
        return self.backend != "none"

    def serves(self, *, whole: bool, core: bool, gpus: int) -> bool:
        """Whether the node gives what a pod asks for: GPUs by number or shares of them, with compute, of so many GPUs."""
        given = self.gives_whole if whole else self.shares_memory
        return given and (self.gives_core or not core) and (self.gives_several or gpus == 1)

    def keeps_held(self, after: "NodeMode") -> bool:
        """Whether the node goes on holding to their share those that it holds now, once its mode is ``after``."""
        alike = self.backend == after.backend and (after.limits_compute or not self.limits_compute)
        return alike or not self.isolated

    def capacity(self, gpus_mib: Collection[int], unit: MemoryUnit) -> dict[str, int]:
        """How much of each of ``resources`` a node advertises whose GPUs in service have so many MiB each."""
        return {one: _amount(one, gpus_mib, unit) for one in self.resources}

    @property
    def trusts_text(self) -> str:
        """What is said of containers that nothing holds to their share, as the mode wants it."""
        return f"mode {self.value} trusts containers to keep to their share"

    @property
    def no_memory_text(self) -> str:
        """Why the node takes no request for memory, where it shares none."""
        return f"node shares no GPU memory (it is in mode {self.value}, label {names.LABEL_MODE})"

    @property
    def no_core_text(self) -> str:
        """Why the node takes no request for compute, where it gives none."""
        return f"node gives out no compute ({self._needs_other(names.GPU_CORE)})"

    @property
    def no_whole_text(self) -> str:
        """Why the node takes no request for a number of GPUs, where it gives none."""
        return f"node gives no GPUs by number ({self._needs_other(names.GPU_WHOLE)})"

    @property
    def one_gpu_text(self) -> str:
        """Why the node takes no request for shares of several GPUs; empty where it does."""
        return self.one_gpu and f"node gives a pod one GPU: in mode {self.value} {self.one_gpu}"

    def _needs_other(self, resource: str) -> str:
        label = f"{names.LABEL_MODE}={mode_giving(resource).value}"
        return f"it is in mode {self.value}; {resource} needs label {label}"


def _amount(resource: str, gpus_mib: Collection[int], unit: MemoryUnit) -> int:
    if resource == names.GPU_MEM:
        return sum(map(unit.count_in, gpus_mib))
    return len(gpus_mib) * (100 if resource == names.GPU_CORE else 1)


#: Every mode by its label's value. Of modes that give the same, the first is advised.
MODES: Final[dict[str, NodeMode]] = {}


def add(mode: NodeMode) -> NodeMode:
    """Let nodes have ``mode``."""
    MODES[mode.value] = mode
    return mode


def mode_giving(resource: str) -> NodeMode:
    """The mode that is advised to whoever asks for ``resource``."""
    return next(mode for mode in MODES.values() if resource in mode.resources)


_SHARES: Final = (names.GPU_MEM, names.GPU_COUNT)

NodeMode.DEFAULT = add(NodeMode("default"))
NodeMode.SHARE = add(NodeMode("share", _SHARES))
NodeMode.CGPU = add(NodeMode("cgpu", _SHARES, "preload", fallback=NodeMode.SHARE))
NodeMode.CORE_MEM = add(NodeMode("core_mem", (*_SHARES, names.GPU_CORE), "preload", fallback=NodeMode.SHARE))
NodeMode.MPS = add(
    NodeMode(
        "mps",
        _SHARES,
        "mps",
        fallback=NodeMode.CGPU,
        one_gpu="each has a server of its own, and a program speaks to one",
        needs="NVIDIA's MPS daemon, nvidia-cuda-mps-control,",
    )
)
NodeMode.TOPOLOGY = add(NodeMode("topology", (names.GPU_WHOLE,)))
NodeMode.DRA = add(NodeMode("dra", backend="preload", claims=True))
