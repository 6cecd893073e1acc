"""Imports of the package: what is loaded with it takes memory in every node agent."""

import subprocess
import sys


def loaded_with(module: str) -> set[str]:
    script = f"import {module}, sys; print(' '.join(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"PYTHONPATH": "src"}
    )
    return set(result.stdout.split())


def test_no_heavy_modules_are_imported() -> None:
    modules = ("gpushare.kube.client.client", "gpushare.kube.watch.informer", "gpushare.kube.event_recorder")
    assert not loaded_with(", ".join(modules)) & {"numpy", "grpc", "rich", "yaml", "pynvml", "cryptography"}


def test_access_alone_imports_no_http() -> None:
    assert not loaded_with("gpushare.kube.auth.access") & {"aiohttp", "yaml", "asyncio", "ssl"}
