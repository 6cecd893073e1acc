"""The driver that these tests use: the fake one; or, where ``make gpu-check`` runs them, that of
the machine.

The environment names the libraries and the GPU: ``GPUSHARE_TEST_DRIVER=CUDA:MANAGEMENT`` and
``GPUSHARE_TEST_GPU=UUID:TOTAL_MIB:CONTEXT_MIB``.
"""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.unit.isolation.building import OPEN, Container, build

#: Memory of a context on the fake V100; the tests' sizes are made for it.
STAND_IN_CONTEXT_MIB = 256
#: Tests that do not depend on the fake driver's own sizes and speeds, by their module's name. Others are
#: skipped on a machine's driver.
MEANT_FOR_EVERY_DRIVER = {
    "test_memory_limit": (
        "test_an_allocation_above_the_limit",
        "test_the_last_mebibyte",
        "test_the_primary_context",
        "test_physical_memory",
        "test_host_memory",
    ),
    "test_shared_memory": (
        "test_memory_that_is_exported",
        "test_programs_of_a_container",
        "test_shared_memory_of_a_dead",
        "test_a_mapping_alone",
    ),
    "test_graph_memory": ("test_",),
    "test_reaching_the_driver": (
        "test_cu_get_proc_address",
        "test_rtld_deepbind",
        "test_preloaded",
        "test_the_full_path",
        "test_a_child_of_fork",
        "test_a_process_that_begins_another_program",
        "test_without_limits_or_usage",
        "test_a_gpu_that_was_not_allocated",
    ),
    "test_shared_usage": (
        "test_memory_of_another",
        "test_a_process_that_loses",
        "test_a_usage_file",
        "test_noise",
    ),
    "test_compute_limit": (
        "test_a_container_without",
        "test_every_way_to_launch",
        "test_a_capture_of_another_thread",
        "test_contexts_may_end",
        "test_a_forked_child",
        "test_an_arbiter_that_ends",
        "test_containers_that_come",
    ),
}


def about_the_stand_in(file: str) -> bool:
    """Whether no test of a file is to be run on a machine's driver."""
    return file.startswith("test_") and file.removesuffix(".py") not in MEANT_FOR_EVERY_DRIVER


def meant_for_every_driver(module: str, name: str) -> bool:
    """Whether a test is to be run on a machine's driver."""
    return name.startswith(MEANT_FOR_EVERY_DRIVER.get(module, "nothing"))


@dataclass(frozen=True)
class Machine:
    """A driver and one of its GPUs."""

    cuda: Path
    management: Path
    uuid: str
    total_mib: int
    context_mib: int

    def limit_mib(self, intended_mib: int) -> int:
        """The limit that leaves as much next to a context as the test intends."""
        return intended_mib + max(0, self.context_mib - STAND_IN_CONTEXT_MIB)


def machine() -> Machine | None:
    """None: the tests run on the fake driver."""
    if "GPUSHARE_TEST_DRIVER" not in os.environ:
        return None
    cuda, management = os.environ["GPUSHARE_TEST_DRIVER"].split(":")
    uuid, total, context = os.environ["GPUSHARE_TEST_GPU"].split(":")
    return Machine(Path(cuda), Path(management), uuid, int(total), int(context))


class ContainerOnMachine(Container):
    """A container's directory, over the machine's driver."""

    def environment(self, libraries: Path = OPEN, **more: str) -> dict[str, str]:
        """The environment in which a program in the container loads our libraries first and the
        machine's driver behind them.
        """
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GPUSHARE_")}
        path = [str(libraries), str(self.run / "driver"), *filter(None, [inherited.get("LD_LIBRARY_PATH")])]
        return inherited | {"LD_LIBRARY_PATH": ":".join(path), "GPUSHARE_RUN": str(self.run), **more}


def lay_out_on(here: Machine, directory: Path, node: Path) -> Container:
    """A container without limits yet, over the machine's driver."""
    size = subprocess.check_output([build("libraries") / "region-size"], text=True, timeout=10)
    driver = directory / "driver"
    driver.mkdir(parents=True)
    (driver / "libgpushare-driver-cuda.so").symlink_to(here.cuda)
    (driver / "libgpushare-driver-nvml.so").symlink_to(here.management)
    container = ContainerOnMachine(directory, node)
    with container.usage.open("wb") as usage:
        usage.truncate(int(size))
    return container
