"""Starts a complete cluster as a process tree and keeps it running: the playground's supervisor.

Every part is a process with its own log in the state folder. A part that ends is restarted, with a back-off;
when the supervisor ends, however it ends, everything ends with it: parts by the
kernel's parent-death signal, containers by the kubelets' lifeline.
"""

from gpushare_playground.cluster.cluster import EXTENDER_COUNTS, Cluster
from gpushare_playground.cluster.errors import ClusterError
from gpushare_playground.cluster.nodes import DEFAULT_NODES, NodeDescription

__all__ = ["DEFAULT_NODES", "EXTENDER_COUNTS", "Cluster", "ClusterError", "NodeDescription"]
