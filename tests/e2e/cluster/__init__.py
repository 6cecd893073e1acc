"""A real Kubernetes cluster on one machine: etcd, API server, controllers, scheduler, kubelets, containerd, runc.

See ``docs/developer/test-cluster.md``. For tests: :class:`Cluster`, :class:`Node`, :func:`up`, :func:`down`,
:func:`build`, :func:`wait_for`.
"""

from tests.e2e.cluster.binaries import CannotBuild, build
from tests.e2e.cluster.cluster import Cluster, CommandFailed, Node
from tests.e2e.cluster.lifecycle import THREE_NODES, down, up
from tests.e2e.cluster.record import NodeRecord
from tests.e2e.cluster.waiting import NotReached, wait_for

__all__ = [
    "THREE_NODES",
    "CannotBuild",
    "Cluster",
    "CommandFailed",
    "Node",
    "NodeRecord",
    "NotReached",
    "build",
    "down",
    "up",
    "wait_for",
]
