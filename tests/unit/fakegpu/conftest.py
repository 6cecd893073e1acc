import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from gpushare_playground import gpus
from tests.unit.fakegpu.building import LIBRARY, build


@pytest.fixture(scope="session")
def library() -> ctypes.CDLL:
    """The fake library, which nvidia-ml-py uses in this process."""
    build("programs")
    loaded = ctypes.CDLL(str(LIBRARY))
    pynvml.nvmlLib = loaded
    return loaded


@pytest.fixture
def described(
    library: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., None]]:
    """Writes (or rewrites) the description; the first time opens NVML on it."""
    path = tmp_path / "node.gpus"
    opened = False
    monkeypatch.delenv("FAKEGPU_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("FAKEGPU_NODE", str(path))

    def write(node: gpus.GpuNode, *, visible: str | None = None) -> None:
        nonlocal opened
        gpus.write(path, node)
        if visible is not None:
            monkeypatch.setenv("FAKEGPU_VISIBLE_DEVICES", visible)
        if not opened:
            pynvml.nvmlInit()
            opened = True

    yield write
    if opened:
        pynvml.nvmlShutdown()
