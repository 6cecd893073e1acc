"""Whether a node's component serves: queried as its clients do."""

from typing import Final

import grpc

from tests.e2e.cluster.hosts import Host
from tests.e2e.cluster.machine import Machine

_KUBELET: Final = (
    "sh",
    "-c",
    "printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' | busybox nc -w 2 127.0.0.1 10248 | grep -q '200 OK'",
)


def serves(component: str, machine: Machine, host: Host) -> bool:
    """Whether ``containerd`` or ``kubelet`` of the machine answers; true for other components."""
    if component == "containerd":
        return _answers_kubelets(machine, host.containerd_socket)
    return component != "kubelet" or machine.run(*_KUBELET, check=False).returncode == 0


def _answers_kubelets(machine: Machine, socket: str) -> bool:
    # Its socket exists a while before the services that kubelets use; a kubelet that connects meanwhile exits.
    address = f"unix:///proc/{machine.init.pid}/root{socket}"
    with grpc.insecure_channel(address) as channel:
        version = channel.unary_unary("/runtime.v1.RuntimeService/Version")
        try:
            version(b"", timeout=2)
        except grpc.RpcError:
            return False
    return True
