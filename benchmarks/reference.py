"""How long this machine takes for work like the product's, so that budgets of time hold on faster and slower machines.

The work is fixed and uses nothing of the product: encode and decode JSON, pass it through a socket, update and sort a table. It
is measured before and after each part of a benchmark; the budgets are for a machine that takes ``REFERENCE_MS``.
"""

import json
import socket
import time
from typing import Final

#: Of the machine for which the times in budgets.json are: docs/measurements/nightly.md, "An earlier commit beside this one".
REFERENCE_MS: Final = 15.0
_ROUNDS: Final = 5
_REQUESTS: Final = 400
_POD: Final = {
    "metadata": {"name": "pod", "namespace": "default", "uid": "0", "labels": {"app": "web"}},
    "spec": {"containers": [{"name": "main", "resources": {"limits": {"aliyun.com/gpu-mem": "3"}}}]},
    "nodes": [f"node-{number}" for number in range(100)],
}


def slowness(*measured_ms: float) -> float:
    """How many times as long this machine takes; at least 1, as budgets do not become tighter on a faster one."""
    return max(1.0, sum(measured_ms) / len(measured_ms) / REFERENCE_MS)


def reference_ms() -> float:
    """The fastest of a few rounds: what disturbs a moment is not the machine's speed."""
    return min(_round_ms() for _ in range(_ROUNDS))


def _round_ms() -> float:
    here, there = socket.socketpair()
    with here, there:
        started = time.perf_counter()
        table: dict[str, float] = {}
        for number in range(_REQUESTS):
            here.sendall(json.dumps(_POD | {"number": number}).encode())
            pod = json.loads(there.recv(1 << 16))
            for at, node in enumerate(pod["nodes"]):
                table[node] = table.get(node, 0.0) * 0.5 + (at * number) % 7
            there.sendall(min(table, key=table.__getitem__).encode())
            here.recv(1 << 10)
            sorted(table.values())
        return (time.perf_counter() - started) * 1e3
