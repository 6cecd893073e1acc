"""One cluster for the whole run."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import THREE_NODES, Cluster, build, down, up
from tests.e2e.cluster.programs import KUBERNETES


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files run concurrently, each on what it starts itself; the bed is tested on the cluster that is
    changed later.
    """
    for item in items:
        if item.path.parent == Path(__file__).parent:
            group = "changed" if item.path.name == "test_cluster.py" else item.path.stem
            item.add_marker(pytest.mark.xdist_group(group))
        elif item.path.parent.name == "charts":
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.fixture(scope="session")
def k8s() -> str:
    """The version of this run: ``$GPUSHARE_E2E_K8S``, else the newest; that of the running cluster if there
    is one.
    """
    up_already = os.environ.get("GPUSHARE_E2E_STATE")
    if up_already:
        return Cluster(Path(up_already)).record.k8s
    return os.environ.get("GPUSHARE_E2E_K8S") or KUBERNETES[0]


@pytest.fixture(scope="session")
def binaries(k8s: str) -> Path:
    """The folder of the components' programs; built when the cache lacks some."""
    folder = os.environ.get("GPUSHARE_E2E_BINARIES")
    return build(k8s, ready=Path(folder) if folder else None)


@pytest.fixture(scope="session")
def states() -> Iterator[Path]:
    """A folder for the states of this run's clusters; on disk, for overlayfs takes no overlayfs below it."""
    Path("/var/tmp").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpushare-e2e-", dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, k8s: str) -> Iterator[Cluster]:
    """Three real nodes, ready; ``$GPUSHARE_E2E_STATE`` names the state folder of a cluster that is up already."""
    state = os.environ.get("GPUSHARE_E2E_STATE")
    if state:
        yield Cluster(Path(state))
        return
    state = request.getfixturevalue("states") / "session"
    made = up(state, request.getfixturevalue("binaries"), k8s=k8s, nodes=THREE_NODES)
    try:
        yield made
    finally:
        down(state)
