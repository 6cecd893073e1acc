"""A control plane without nodes, and helm."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.asking import Commands
from tests.e2e.plane import control_plane


@pytest.fixture(scope="session")
def helm(binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Commands:
    """helm where no cluster can be reached."""
    return Commands(tmp_path_factory.mktemp("helm") / "none", binaries)


@pytest.fixture(scope="module")
def commands(binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """kubectl and helm for a fresh control plane of etcd, API server and controllers."""
    with control_plane(binaries, tmp_path_factory.mktemp("charts") / "plane") as kubeconfig:
        yield Commands(kubeconfig, binaries)
