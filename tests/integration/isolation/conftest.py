from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare_playground import gpus
from tests.integration.isolation.machine import (
    about_the_stand_in,
    lay_out_on,
    machine,
    meant_for_every_driver,
)
from tests.unit.isolation.building import MIB, Container, lay_out

LimitedContainer = Callable[..., Container]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """On a machine's driver: files without such tests may need what that machine does not have."""
    return True if machine() and about_the_stand_in(collection_path.name) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a machine's driver: only tests that do not depend on the fake driver."""
    if not machine():
        return
    skip = pytest.mark.skip(reason="it is about the stand-in driver's sizes, speeds or programs")
    for item in items:
        if item.path.parent == Path(__file__).parent and not meant_for_every_driver(
            item.path.stem, item.name
        ):
            item.add_marker(skip)


@pytest.fixture
def node(tmp_path: Path) -> gpus.GpuNode:
    """One V100 of 16160 MiB, as in the documented example; on a machine's driver: its libraries."""
    described = gpus.preset("v100-16160", "n1")
    if here := machine():
        return replace(described, gpus=(replace(described.gpus[0], uuid=here.uuid),))
    gpus.write(tmp_path / "node.gpus", described)
    return described


@pytest.fixture
def container(tmp_path: Path, node: gpus.GpuNode) -> LimitedContainer:
    """Makes a container with that many MiB of the GPU."""
    made = 0
    here = machine()

    def make(memory_mib: int = 2154, more: str = "") -> Container:
        nonlocal made
        made += 1
        directory, description = tmp_path / f"c{made}", tmp_path / "node.gpus"
        laid_out = lay_out_on(here, directory, description) if here else lay_out(directory, description)
        limit_mib = here.limit_mib(memory_mib) if here else memory_mib
        laid_out.limit(f"{node.gpus[0].uuid} memory_bytes={limit_mib * MIB}{more}")
        return laid_out

    return make
