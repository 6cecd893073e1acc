"""Configuration files of the components, as the components read them. Pure: texts from values."""

import json
from pathlib import Path
from typing import Any, Final

from tests.e2e.cluster.hosts import Host
from tests.e2e.cluster.network import Plan

PAUSE_IMAGE: Final = "e2e.local/pause:1"
Version = tuple[int, int]


def containerd(binaries: Path, host: Host, *, selinux: bool) -> str:
    """containerd's ``config.toml``: its own defaults except for the host's paths and what a machine of
    namespaces needs.
    """
    return (
        _containerd_1(binaries, host)
        if host.containerd == "1.7"
        else _containerd_2(binaries, host, selinux=selinux)
    )


def _containerd_1(binaries: Path, host: Host) -> str:
    off = ("btrfs", "zfs", "devmapper", "blockfile", "aufs")
    disabled = [f"io.containerd.snapshotter.v1.{name}" for name in off]
    disabled += ["io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
    cri = "plugins.'io.containerd.grpc.v1.cri'"
    return f"""version = 2
root = '{host.containerd_root}'
state = '{host.containerd_state}'
disabled_plugins = {json.dumps(disabled)}
[grpc]
  address = '{host.containerd_socket}'
[{cri}]
  sandbox_image = '{PAUSE_IMAGE}'
  # Machines without CAP_SYS_RESOURCE may not lower it.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  enable_cdi = {json.dumps(host.cdi)}
  cdi_spec_dirs = {json.dumps(host.cdi_dirs)}
  [{cri}.containerd]
    default_runtime_name = 'default'
    [{cri}.containerd.runtimes.default]
      runtime_type = 'io.containerd.runc.v2'
      [{cri}.containerd.runtimes.default.options]
        BinaryName = '{binaries}/{host.runtime}'
        SystemdCgroup = false
  [{cri}.cni]
    bin_dir = '{binaries}'
    conf_dir = '/etc/cni/net.d'
"""


def _containerd_2(binaries: Path, host: Host, *, selinux: bool) -> str:
    off = ("btrfs", "zfs", "devmapper", "blockfile", "erofs")
    disabled = [f"io.containerd.snapshotter.v1.{name}" for name in off]
    disabled += ["io.containerd.differ.v1.erofs", "io.containerd.tracing.processor.v1.otlp"]
    disabled += ["io.containerd.internal.v1.tracing"]
    return f"""version = 3
root = '{host.containerd_root}'
state = '{host.containerd_state}'
imports = []
disabled_plugins = {json.dumps(disabled)}
[grpc]
  address = '{host.containerd_socket}'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '{PAUSE_IMAGE}'
[plugins.'io.containerd.cri.v1.runtime']
  # Machines without CAP_SYS_RESOURCE may not lower it.
  restrict_oom_score_adj = true
  enable_selinux = {json.dumps(selinux)}
  netns_mounts_under_state_dir = true
  cdi_spec_dirs = {json.dumps(host.cdi_dirs)}
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = 'runc'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = 'io.containerd.runc.v2'
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = '{binaries}/runc'
        SystemdCgroup = false
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['{binaries}']
    conf_dir = '/etc/cni/net.d'
[plugins.'io.containerd.nri.v1.nri']
  disable = true
"""


def cni(pods: str) -> dict[str, Any]:
    """A bridge in each node; no masquerading, since every machine of the cluster has a route to every pod."""
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipam": addresses}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, ports]}


def kubelet(node: str, credentials: Path, plan: Plan, version: Version, host: Host) -> dict[str, Any]:
    """A ``KubeletConfiguration``."""
    found: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        "failSwapOn": False,
        "containerRuntimeEndpoint": f"unix://{host.containerd_socket}",
        "address": "0.0.0.0",
        "tlsCertFile": f"{credentials}/{node}.crt",
        "tlsPrivateKeyFile": f"{credentials}/{node}.key",
        "authentication": {
            "anonymous": {"enabled": False},
            "x509": {"clientCAFile": f"{credentials}/ca.crt"},
            "webhook": {"enabled": True},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDomain": "cluster.local",
        "clusterDNS": [plan.dns_service],
        "resolvConf": "",
        "enforceNodeAllocatable": ["pods"],
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
            "nodefs.inodesFree": "1%",
        },
        # Images come from archives only: a collected one could not be pulled again.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "serializeImagePulls": False,
    }
    if version >= (1, 31):
        found["failCgroupV1"] = False
    return found


def kube_proxy(node: str, credentials: Path, plan: Plan, mode: str) -> dict[str, Any]:
    """A ``KubeProxyConfiguration``; ``mode`` is ``nftables`` or ``iptables``."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": mode,
        "clusterCIDR": plan.pods,
        "hostnameOverride": node,
        "clientConnection": {"kubeconfig": f"{credentials}/kube-proxy.kubeconfig"},
        # The whole kernel's table is not ours to size.
        "conntrack": {"maxPerCore": 0, "min": 0},
        "metricsBindAddress": "0.0.0.0:10249",
    }


def kube_scheduler(credentials: Path) -> dict[str, Any]:
    """A ``KubeSchedulerConfiguration``: the defaults, without a lease, for there is one scheduler."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {
            "kubeconfig": f"{credentials}/kube-scheduler.kubeconfig",
            "qps": 1000,
            "burst": 2000,
        },
        "leaderElection": {"leaderElect": False},
    }


def audit_policy() -> dict[str, Any]:
    """Every request, once, with verb, object and user, without bodies."""
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata"}],
    }
