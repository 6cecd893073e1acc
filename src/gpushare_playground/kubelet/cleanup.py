"""Ends the containers of a node by their records on disk, without its kubelet: how the playground cleans up.

The supervisor calls this when it shuts down, after the kubelets have ended, and before it starts, for the remains of
an earlier playground that was killed.
"""

import os
import select
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from gpushare_playground.kubelet.paths import read_json
from gpushare_playground.kubelet.runtime import shim


def stop_containers(root: Path, grace_s: float = 5.0) -> int:
    """Stop every container recorded under a node's folder ``root``: SIGTERM, ``grace_s`` seconds, SIGKILL.

    Returns their number. A process is touched only if its start time is the recorded one.
    """
    return _stop(list(_running(root.glob("pods/*/*/*/state.json"))), grace_s)


def stop_pod(pod: Path, grace_s: float) -> int:
    """The same for one pod's folder."""
    return _stop(list(_running(pod.glob("*/*/state.json"))), grace_s)


def _stop(running: list[dict[str, int]], grace_s: float) -> int:
    for state in running:
        _signal(state["pid"], state["start_ticks"], signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    for state in running:
        _await_end(state["shim"], state["shim_ticks"], deadline)
    for state in running:
        _signal(state["pid"], state["start_ticks"], signal.SIGKILL)
    deadline = time.monotonic() + grace_s
    for state in running:
        _await_end(state["shim"], state["shim_ticks"], deadline)
        _signal(state["shim"], state["shim_ticks"], signal.SIGKILL)
    return len(running)


def _running(files: Iterable[Path]) -> Iterator[dict[str, int]]:
    for file in sorted(files):
        state = read_json(file)
        if (
            state is not None
            and state["shim_ticks"]
            and shim.start_ticks(state["shim"]) == state["shim_ticks"]
        ):
            yield state


def _signal(pid: int, ticks: int, number: signal.Signals) -> None:
    if ticks and shim.start_ticks(pid) == ticks:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _await_end(pid: int, ticks: int, deadline: float) -> None:
    if shim.start_ticks(pid) != ticks:
        return
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
    finally:
        os.close(fd)
