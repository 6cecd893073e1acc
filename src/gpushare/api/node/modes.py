"""Node modes: one object per mode with its properties. No I/O.

To add a mode, call ``add`` at the end of this module. If the node agent needs to behave differently in it, add rules in
``nodeagent/modes/``.
"""

from collections.abc import Collection
from typing import ClassVar, Final, Literal

import msgspec

from gpushare.api import names
from gpushare.api.quantity import MemoryUnit

#: What enforces a container's share: nothing, our libraries, NVIDIA's MPS, or the driver's own limits.
BackendKind = Literal["none", "preload", "mps", "driver"]


class NodeMode(msgspec.Struct, frozen=True, eq=False):
    """A value of the node label ``ack.node.gpu.schedule``, and the properties of such nodes."""

    DEFAULT: ClassVar["NodeMode"]
    """The mode of nodes without the label."""
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
    """What enforces shares, unless the node agent is configured otherwise."""
    fallback: "NodeMode | None" = None
    """The mode suggested for nodes on which ``backend`` cannot work."""
    one_gpu: str = ""
    """Why a pod gets only one GPU; empty if it can have several."""
    needs: str = ""
    """What the node needs in addition to the driver."""
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
        """Whether the node advertises ``aliyun.com/gpu-core.percentage``, and enforces it."""
        return names.GPU_CORE in self.resources

    @property
    def gives_whole(self) -> bool:
        """Whether the node advertises ``aliyun.com/gpu``."""
        return names.GPU_WHOLE in self.resources

    @property
    def offers_gpus(self) -> bool:
        """Whether gpushare allocates GPUs of the node at all."""
        return bool(self.resources) or self.claims

    @property
    def limits_compute(self) -> bool:
        """Whether the node can enforce shares of compute."""
        return self.gives_core or self.claims

    @property
    def gives_several(self) -> bool:
        """Whether a pod can have several GPUs of the node."""
        return not self.one_gpu

    @property
    def may_burst(self) -> bool:
        """Whether containers may use more memory than their share while the GPU has it free: our libraries hold them to it."""
        return self.shares_memory and self.backend == "preload"

    @property
    def isolated(self) -> bool:
        """Whether shares of memory are enforced (in mode ``mps`` by NVIDIA's server)."""
        return self.backend != "none"

    def serves(self, *, whole: bool, core: bool, gpus: int) -> bool:
        """Whether the mode supports a request: ``whole`` GPUs or shares, with compute (``core``), on ``gpus`` GPUs."""
        allocates = self.gives_whole if whole else self.shares_memory
        return allocates and (self.gives_core or not core) and (self.gives_several or gpus == 1)

    def keeps_isolation(self, after: "NodeMode") -> bool:
        """Whether running containers stay isolated when the node's mode changes to ``after``."""
        same_isolation = self.backend == after.backend and (after.limits_compute or not self.limits_compute)
        return same_isolation or not self.isolated

    def capacity(self, gpus_mib: Collection[int], unit: MemoryUnit) -> dict[str, int]:
        """The amounts of ``resources`` that a node advertises; ``gpus_mib``: MiB of each GPU in service."""
        return {resource: _amount(resource, gpus_mib, unit) for resource in self.resources}

    @property
    def trusts_text(self) -> str:
        """The message that the mode does not enforce shares."""
        return f"mode {self.value} does not enforce shares"

    @property
    def no_memory_text(self) -> str:
        """The reason of a node that does not share memory."""
        return f"node shares no GPU memory (it is in mode {self.value}, label {names.LABEL_MODE})"

    @property
    def no_core_text(self) -> str:
        """The reason of a node that does not allocate compute."""
        return f"node offers no compute ({self._needs_other(names.GPU_CORE)})"

    @property
    def no_whole_text(self) -> str:
        """The reason of a node that does not allocate whole GPUs."""
        return f"node offers no whole GPUs ({self._needs_other(names.GPU_WHOLE)})"

    @property
    def one_gpu_text(self) -> str:
        """The reason of a node that allocates only one GPU per pod; empty if it allocates several."""
        return self.one_gpu and f"node offers only one GPU per pod: in mode {self.value} {self.one_gpu}"

    def _needs_other(self, resource: str) -> str:
        label = f"{names.LABEL_MODE}={mode_giving(resource).value}"
        return f"it is in mode {self.value}; {resource} needs label {label}"


def _amount(resource: str, gpus_mib: Collection[int], unit: MemoryUnit) -> int:
    if resource == names.GPU_MEM:
        return sum(map(unit.count_in, gpus_mib))
    return len(gpus_mib) * (100 if resource == names.GPU_CORE else 1)


#: All modes by label value. Of modes with the same resources, the first is suggested.
MODES: Final[dict[str, NodeMode]] = {}


def add(mode: NodeMode) -> NodeMode:
    """Register ``mode``."""
    MODES[mode.value] = mode
    return mode


def mode_giving(resource: str) -> NodeMode:
    """The mode to suggest for nodes that should allocate ``resource``."""
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
        one_gpu="each GPU has its own MPS server, and a program can use only one",
        needs="NVIDIA's MPS daemon, nvidia-cuda-mps-control,",
    )
)
NodeMode.TOPOLOGY = add(NodeMode("topology", (names.GPU_WHOLE,)))
NodeMode.DRA = add(NodeMode("dra", backend="preload", claims=True))
