"""GPUs and nodes by name. Memory is what NVML reports for the real models; the other values are typical for them."""

import hashlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

from gpushare_playground.gpus.description import Gpu, GpuNode, Instance, UnknownPreset

DRIVER: Final = "580.95.05"
CUDA: Final = "13.0"
#: The first driver that limits the GPU memory of cgroups.
DRIVER_WITH_LIMITS: Final = ("615.71.05", "13.4")
_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_DNS, "gpushare.dev")


@dataclass(frozen=True, slots=True)
class _Model:
    """What all GPUs of a model have in common."""

    name: str
    total_mib: int
    compute: str
    pcie_generation: int
    power_w: tuple[int, int]
    limits_c: tuple[int, int]
    clocks_mhz: dict[str, tuple[int, int]]
    reserved_mib: int = 0
    context_mib: int | None = None
    growth: tuple[int, int, int] | None = None

    def gpu(self, node: str, index: int, pci: str) -> Gpu:
        """The GPU of this model at an index of a node; UUID and serial number follow from both."""
        digest = hashlib.sha256(f"{node}/{index}".encode()).digest()
        return Gpu(
            model=self.name,
            uuid=f"GPU-{uuid.uuid5(_NAMESPACE, f'{node}/{index}')}",
            pci=pci,
            total_mib=self.total_mib,
            compute=self.compute,
            reserved_mib=self.reserved_mib,
            context_mib=self.context_mib,
            growth=self.growth,
            serial=f"{int.from_bytes(digest[:8]) % 10**13:013}",
            pcie=(self.pcie_generation, 16),
            temperature_c=30 + digest[8] % 8,
            temperature_limits_c=self.limits_c,
            power_w=self.power_w,
            clocks_mhz=dict(self.clocks_mhz),
            utilization_percent=(0, 0),
            persistence="on",
            ecc="on",
        )


def _clocks(
    now: int, maximum: int, memory: tuple[int, int], video: tuple[int, int]
) -> dict[str, tuple[int, int]]:
    return {"graphics": (now, maximum), "sm": (now, maximum), "memory": memory, "video": video}


_V100_CLOCKS: Final = _clocks(135, 1530, (877, 877), (555, 1372))
_MODELS: Final = {
    # Drivers before 510 subtracted their reserved memory from the total; later ones report it separately.
    "v100-16160": _Model("Tesla V100-SXM2-16GB", 16160, "7.0", 3, (42, 300), (87, 90), _V100_CLOCKS),
    "v100-16384": _Model("Tesla V100-SXM2-16GB", 16384, "7.0", 3, (42, 300), (87, 90), _V100_CLOCKS, 224),
    "t4": _Model(
        "Tesla T4", 15360, "7.5", 3, (9, 70), (93, 96), _clocks(300, 1590, (405, 5001), (540, 1470))
    ),
    "a100-80gb": _Model(
        "NVIDIA A100-SXM4-80GB",
        81920,
        "8.0",
        4,
        (60, 400),
        (89, 92),
        _clocks(210, 1410, (1593, 1593), (585, 1290)),
    ),
    "h100-80gb": _Model(
        "NVIDIA H100 80GB HBM3",
        81559,
        "9.0",
        5,
        (70, 700),
        (87, 92),
        _clocks(345, 1980, (2619, 2619), (765, 1545)),
    ),
    "h200-141gb": _Model(
        "NVIDIA H200",
        143771,
        "9.0",
        5,
        (75, 700),
        (87, 92),
        _clocks(345, 1980, (3201, 3201), (765, 1545)),
        616,
        # As measured on one with driver 580: docs/measurements/2026-11-h200.md.
        context_mib=518,
        growth=(92, 512, 5734),
    ),
}


def _row(node: str, models: list[str]) -> tuple[Gpu, ...]:
    """GPUs in a row on one bus, without anything between them."""
    return tuple(
        _MODELS[model].gpu(node, index, f"00000000:{0x3B + index:02X}:00.0")
        for index, model in enumerate(models)
    )


def _mixed(node: str) -> GpuNode:
    """Two T4 and two A100 that are linked; each pair on its own NUMA node."""
    gpus = _row(node, ["t4", "t4", "a100-80gb", "a100-80gb"])
    placed = tuple(
        replace(gpu, numa=index // 2, cpus=("0-15", "16-31")[index // 2]) for index, gpu in enumerate(gpus)
    )
    return GpuNode(
        driver=DRIVER, cuda=CUDA, gpus=placed, paths={(0, 1): "phb", (2, 3): "pxb"}, nvlinks={(2, 3): 12}
    )


def _core_mem_4(node: str) -> GpuNode:
    """Four V100 that are all linked, some pairs twice, on one NUMA node."""
    gpus = tuple(replace(gpu, numa=0, cpus="0-31") for gpu in _row(node, ["v100-16160"] * 4))
    links = {(0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 1}
    return GpuNode(driver=DRIVER, cuda=CUDA, gpus=gpus, paths=dict.fromkeys(links, "phb"), nvlinks=links)


def _t4_r615(node: str) -> GpuNode:
    """One T4, with a driver that limits cgroups itself."""
    driver, cuda = DRIVER_WITH_LIMITS
    return GpuNode(driver=driver, cuda=cuda, gpus=_row(node, ["t4"]))


def _dgx_h200(node: str) -> GpuNode:
    """Eight H200 behind NVSwitch, four on each of two NUMA nodes."""
    buses = ("1B", "43", "52", "61", "9D", "C3", "D1", "DF")
    gpus = tuple(
        replace(
            _MODELS["h200-141gb"].gpu(node, index, f"00000000:{bus}:00.0"),
            numa=index // 4,
            cpus=("0-55,112-167", "56-111,168-223")[index // 4],
            nvswitch=18,
        )
        for index, bus in enumerate(buses)
    )
    return GpuNode(driver=DRIVER, cuda=CUDA, gpus=gpus)


def _two_islands(node: str) -> GpuNode:
    """Eight A100 on two boards of four; NVLink connects those of a board, each two by four links, and each socket has one board."""
    gpus = tuple(
        replace(gpu, numa=index // 4, cpus=("0-31", "32-63")[index // 4])
        for index, gpu in enumerate(_row(node, ["a100-80gb"] * 8))
    )
    boards = (range(4), range(4, 8))
    links = {pair: 4 for board in boards for pair in combinations(board, 2)}
    return GpuNode(driver=DRIVER, cuda=CUDA, gpus=gpus, paths=dict.fromkeys(links, "node"), nvlinks=links)


def _mig(node: str) -> GpuNode:
    """Two A100, one of them divided into three MIG instances, with a slice of it left."""
    first, second = _row(node, ["a100-80gb"] * 2)
    instances = (Instance("3g.40gb", 4), Instance("2g.20gb", 0), Instance("1g.10gb", 2))
    return GpuNode(driver=DRIVER, cuda=CUDA, gpus=(replace(first, mig="on", instances=instances), second))


_NODES: Final[dict[str, Callable[[str], GpuNode]]] = {
    "mixed": _mixed,
    "core-mem-4": _core_mem_4,
    "t4-r615": _t4_r615,
    "dgx-h200": _dgx_h200,
    "two-islands": _two_islands,
    "mig": _mig,
}
PRESETS: Final = (*_MODELS, *_NODES)
"""Models first (a node with one such GPU), then whole nodes."""


def preset(name: str, node: str, *, count: int | None = None) -> GpuNode:
    """The node that a preset describes.

    The same ``node`` name always results in the same UUIDs, and different names in different ones. ``count`` is
    the number of GPUs if the preset is a model (default 1).
    Raises `UnknownPreset`, and `ValueError` for a count that does not fit.
    """
    if name in _NODES:
        if count is not None:
            raise ValueError(f"{name}: is a whole node, whose number of GPUs is its own; leave the count out")
        return _NODES[name](node)
    if name not in _MODELS:
        raise UnknownPreset(name, PRESETS)
    if count is not None and not 0 <= count <= 32:
        raise ValueError(f"{name}: a node has 0 to 32 GPUs, not {count}")
    return GpuNode(driver=DRIVER, cuda=CUDA, gpus=_row(node, [name] * (1 if count is None else count)))
