"""Builds the isolation libraries once per test run, and lays out a container's files like the node agent."""

import functools
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.building import ROOT, make
from tests.unit.fakegpu import building as fakegpu

BUILT = ROOT / "build" / "isolation"
#: Libraries that find their container by GPUSHARE_RUN; next to them are the shipped ones.
OPEN = BUILT / "open"
MIB = 1 << 20


@functools.cache
def build(target: str) -> Path:
    """Run ``make TARGET``; several test processes may call it at the same time."""
    # The sanitizers' builds take long and go into folders of their own: other builds do not wait for them.
    make("isolation", target, BUILT / ("lock.sanitize" if target == "sanitize" else "lock"))
    return BUILT


@dataclass(frozen=True)
class Container:
    """A container's directory as the node agent makes it, over the fake driver."""

    run: Path
    node: Path

    @property
    def limits(self) -> Path:
        return self.run / "limits"

    @property
    def usage(self) -> Path:
        return self.run / "usage"

    def limit(self, *gpus: str) -> None:
        """Writes the limits: ``UUID memory_bytes=N ...`` for each GPU."""
        lines = ["gpushare-limits 1.1", "container default/job/main 6f1c", *(f"gpu {gpu}" for gpu in gpus)]
        self.limits.write_text("".join(f"{line}\n" for line in lines))

    def environment(self, libraries: Path = OPEN, **more: str) -> dict[str, str]:
        """Environment in which a program of the container loads our libraries first, and the fake driver behind them."""
        inherited = fakegpu.environment(self.node)
        path = [str(libraries), str(self.run / "driver"), *inherited["LD_LIBRARY_PATH"].split(":")[1:]]
        return inherited | {"LD_LIBRARY_PATH": ":".join(path), "GPUSHARE_RUN": str(self.run), **more}


def lay_out(directory: Path, node: Path) -> Container:
    """A container without limits yet: its usage file, and the fake driver under the names that our libraries look for."""
    size = subprocess.run(
        [build("libraries") / "region-size"], capture_output=True, text=True, timeout=10, check=True
    )
    fakegpu.build("library")
    driver = directory / "driver"
    driver.mkdir(parents=True)
    (driver / "libgpushare-driver-cuda.so").symlink_to(fakegpu.BUILT / "libcuda.so.1")
    (driver / "libgpushare-driver-nvml.so").symlink_to(fakegpu.BUILT / "libnvidia-ml.so.1")
    container = Container(directory, node)
    with container.usage.open("wb") as usage:
        os.truncate(usage.fileno(), int(size.stdout))
    return container
