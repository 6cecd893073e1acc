"""The room's weight: what is loaded with it counts in every node agent."""

import subprocess
import sys


def loaded_with(module: str) -> set[str]:
    script = f"import {module}, sys; print(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"PYTHONPATH": "src"}
    )
    return set(done.stdout.split())


def test_nothing_heavy_comes_along() -> None:
    modules = ("gpushare.kube.client.client", "gpushare.kube.watch.informer", "gpushare.kube.event_recorder")
    assert not loaded_with(", ".join(modules)) & {"numpy", "grpc", "rich", "yaml", "pynvml", "cryptography"}


def test_access_alone_needs_no_http() -> None:
    assert not loaded_with("gpushare.kube.auth.access") & {"aiohttp", "yaml", "asyncio", "ssl"}
