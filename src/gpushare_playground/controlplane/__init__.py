"""The real control plane: etcd, kube-apiserver, kube-controller-manager and kube-scheduler from a folder of binaries.

On loopback, on free ports, unprivileged, with its state in one folder; every component is a part that is
killed with the process that started it, has its own log, and is restarted when it ends.
"""

from gpushare_playground.controlplane.binaries import COMPONENTS
from gpushare_playground.controlplane.errors import ControlPlaneError
from gpushare_playground.controlplane.plane import ControlPlane

__all__ = ["COMPONENTS", "ControlPlane", "ControlPlaneError"]
