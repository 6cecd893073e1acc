"""Writing a description, and replacing one while processes read it."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from gpushare_playground.gpus.description import Gpu, GpuNode


def _switches(gpu: Gpu) -> Iterator[str]:
    if gpu.fault:
        yield f"fault {gpu.fault}"
    if gpu.recovery:
        yield f"fault recovery {gpu.recovery}"
    for xid, times in gpu.xids.items():
        yield f"fault xid {xid} {times}"
    if gpu.ecc_corrected:
        yield f"fault ecc-corrected {gpu.ecc_corrected}"
    if gpu.ecc_uncorrected:
        yield f"fault ecc-uncorrected {gpu.ecc_uncorrected}"
    for process in gpu.processes:
        yield f"process {process.pid} {process.used_mib} {process.kind} {process.name}".rstrip()


def _gpu(gpu: Gpu) -> Iterator[str]:
    properties: tuple[tuple[str, object], ...] = (
        ("model", gpu.model),
        ("uuid", gpu.uuid),
        ("pci", gpu.pci),
        ("memory", gpu.total_mib),
        ("compute", gpu.compute),
        ("reserved", gpu.reserved_mib or None),
        ("context", gpu.context_mib),
        ("growth", gpu.growth),
        ("serial", gpu.serial),
        ("vbios", gpu.vbios),
        ("minor", gpu.minor),
        ("numa", gpu.numa),
        ("cpus", gpu.cpus),
        ("pcie", gpu.pcie),
        ("temperature", gpu.temperature_c),
        ("temperature-limits", gpu.temperature_limits_c),
        ("power", gpu.power_w),
        *(("clock", (kind, *mhz)) for kind, mhz in gpu.clocks_mhz.items()),
        ("fan", gpu.fan_percent),
        ("utilization", gpu.utilization_percent),
        ("persistence", gpu.persistence),
        ("ecc", gpu.ecc),
        ("nvswitch", gpu.nvswitch or None),
        ("mig", gpu.mig),
        *(("instance", f"{one.profile} {one.start} {one.compute}".rstrip()) for one in gpu.instances),
    )
    for key, value in properties:
        if value is not None and value != "":
            yield f"{key} {' '.join(map(str, value)) if isinstance(value, tuple) else value}"
    yield from _switches(gpu)


def render(node: GpuNode) -> str:
    """The description of a node, in the driver's format."""
    lines = ["fakegpu 1", f"driver {node.driver}", f"cuda {node.cuda}"]
    if node.fault:
        lines.append(f"fault {node.fault}")
    for index, gpu in enumerate(node.gpus):
        lines += ["", f"gpu {index}", *(f"  {line}" for line in _gpu(gpu))]
    if node.paths or node.nvlinks:
        lines.append("")
    lines += [f"path {a} {b} {path}" for (a, b), path in node.paths.items()]
    lines += [f"nvlink {a} {b} {links}" for (a, b), links in node.nvlinks.items()]
    return "\n".join(lines) + "\n"


def write(path: Path, node: GpuNode) -> None:
    """Replace the file atomically, so that no reader ever sees a part of it.

    The library recognises a new version by inode and time; the kernel's own time stamps may be as coarse as its timer tick, so
    the time is set.
    """
    text = render(node)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="ascii")
    now_ns = time.time_ns()
    os.utime(beside, ns=(now_ns, now_ns))
    beside.replace(path)
