"""Where distributions of Kubernetes keep what a device plugin and its test need on a node. Pure."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Host:
    """Paths of a node."""

    kubelet_root: str = "/var/lib/kubelet"
    """The kubelet's ``--root-dir``."""
    containerd_config: str = "/etc/containerd/config.toml"
    containerd_root: str = "/var/lib/containerd"
    containerd_state: str = "/run/containerd"
    containerd_socket: str = "/run/containerd/containerd.sock"
    cdi_dirs: tuple[str, ...] = ("/etc/cdi", "/var/run/cdi")
    """Where containerd looks for CDI specs; NVIDIA's is written to the last one."""
    containerd: str = "2"
    """Its version, which decides the form of its configuration: ``2`` or ``1.7``."""
    cdi: bool = True
    """Whether containerd resolves CDI devices. Version 2 always does."""
    runtime: str = "runc"
    """The program with which containerd starts containers by default."""


_SNAP: Final = "/var/snap/microk8s"
_RANCHER: Final = "/var/lib/rancher/k3s/agent"

HOSTS: Final = {
    "kubeadm": Host(),
    # RKE2 differs in the folder of the configuration alone.
    "k3s": Host(
        containerd_config=f"{_RANCHER}/etc/containerd/config.toml",
        containerd_root=f"{_RANCHER}/containerd",
        containerd_state="/run/k3s/containerd",
        containerd_socket="/run/k3s/containerd/containerd.sock",
    ),
    "microk8s": Host(
        kubelet_root=f"{_SNAP}/common/var/lib/kubelet",
        containerd_config=f"{_SNAP}/current/args/containerd.toml",
        containerd_root=f"{_SNAP}/common/var/lib/containerd",
        containerd_state=f"{_SNAP}/common/run/containerd",
        containerd_socket=f"{_SNAP}/common/run/containerd.sock",
    ),
    # /etc cannot be written there.
    "talos": Host(
        containerd_config="/etc/cri/containerd.toml",
        cdi_dirs=("/var/cdi/static", "/var/cdi/dynamic"),
    ),
    "containerd-1.7": Host(containerd="1.7"),
    # As NVIDIA's toolkit configures it: `nvidia-ctk runtime configure --set-as-default`.
    "nvidia-runtime": Host(containerd="1.7", cdi=False, runtime="nvidia-container-runtime"),
    "without-cdi": Host(containerd="1.7", cdi=False),
}
"""By name; ``kubeadm`` has the defaults of kubelet and containerd."""
