"""How each component is started: command lines from the layout of the state folder."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.e2e.cluster import settings
from tests.e2e.cluster.hosts import Host
from tests.e2e.cluster.network import Plan

CONTROL: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")
"""What runs on the control machine; ``kwok`` only where it was asked for."""

ON_NODES: Final = ("containerd", "kubelet", "kube-proxy")
"""What runs on each node."""

#: There where this machine's kernel uses SELinux.
_SELINUX: Final = Path("/sys/fs/selinux")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything of a cluster lies: ``state`` is seen at the same path here and in every machine."""

    state: Path
    binaries: Path
    plan: Plan
    version: settings.Version
    host: Host

    @property
    def credentials(self) -> Path:
        """Certificates, keys, kubeconfig files of components."""
        return self.state / "credentials"

    @property
    def config(self) -> Path:
        """Configuration files of components."""
        return self.state / "config"

    @property
    def audit_log(self) -> Path:
        """The API server's audit log: one JSON event a line."""
        return self.state / "log" / "audit.log"

    @property
    def url(self) -> str:
        """The API server's, from here and from every machine."""
        return f"https://{self.plan.control}:6443"

    def log(self, component: str, node: str | None = None) -> Path:
        """The component's output."""
        return self.state / "log" / (f"{node}.{component}.log" if node else f"{component}.log")

    def argv(
        self, component: str, node: str | None = None, index: int = 0, extra: Sequence[str] = ()
    ) -> list[str]:
        """The component's command line. Raises ``ValueError`` for one that is not known."""
        known = _NODE if node else _CONTROL
        if component not in known:
            where = f"node {node}" if node else "the control machine"
            raise ValueError(f"{component}: not on {where}; there are {', '.join(known)}")
        made = _NODE[component](self, node, index) if node else _CONTROL[component](self)
        return [f"{self.binaries}/{component}", *made, *extra]

    def write_config(self, nodes: Sequence[str]) -> None:
        """Write every configuration file."""
        mode = "nftables" if self.version >= (1, 31) else "iptables"
        files: dict[str, object] = {
            "audit.yaml": settings.audit_policy(),
            "kube-scheduler.yaml": settings.kube_scheduler(self.credentials),
        }
        for i, node in enumerate(nodes):
            files[f"{node}.kubelet.yaml"] = settings.kubelet(
                node, self.credentials, self.plan, self.version, self.host
            )
            files[f"{node}.kube-proxy.yaml"] = settings.kube_proxy(node, self.credentials, self.plan, mode)
            files[f"{node}.cni.conflist"] = settings.cni(self.plan.pods_of(i))
        self.config.mkdir(parents=True)
        (self.state / "log").mkdir()
        for name, content in files.items():
            (self.config / name).write_text(json.dumps(content, indent=1))
        (self.config / "containerd.toml").write_text(
            settings.containerd(self.binaries, self.host, selinux=_SELINUX.is_dir())
        )


def _etcd(at: Layout) -> list[str]:
    return [
        "--name=e2e",
        "--data-dir=/var/lib/etcd",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--initial-advertise-peer-urls=http://127.0.0.1:2380",
        "--initial-cluster=e2e=http://127.0.0.1:2380",
        "--unsafe-no-fsync",
        f"--quota-backend-bytes={4 << 30}",
        "--log-level=warn",
    ]


def _apiserver(at: Layout) -> list[str]:
    pki = at.credentials
    return [
        "--etcd-servers=http://127.0.0.1:2379",
        "--secure-port=6443",
        "--bind-address=0.0.0.0",
        f"--advertise-address={at.plan.control}",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki}/front-proxy.crt",
        f"--proxy-client-key-file={pki}/front-proxy.key",
        f"--kubelet-client-certificate={pki}/apiserver-kubelet.crt",
        f"--kubelet-client-key={pki}/apiserver-kubelet.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        f"--service-cluster-ip-range={at.plan.services}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        # No kube-proxy runs here: webhooks are reached at the pods behind their Services.
        "--enable-aggregator-routing=true",
        "--allow-privileged=true",
        # Otherwise an API server waits a minute after SIGTERM for its watchers to leave.
        "--shutdown-watch-termination-grace-period=2s",
        "--endpoint-reconciler-type=lease",
        f"--audit-policy-file={at.config}/audit.yaml",
        f"--audit-log-path={at.audit_log}",
        "--audit-log-maxsize=4096",
    ]


def _controller_manager(at: Layout) -> list[str]:
    pki = at.credentials
    own = f"{pki}/kube-controller-manager.kubeconfig"
    return [
        f"--kubeconfig={own}",
        f"--authentication-kubeconfig={own}",
        f"--authorization-kubeconfig={own}",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={pki}/sa.key",
        f"--root-ca-file={pki}/ca.crt",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        "--controllers=*",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    ]


def _scheduler(at: Layout) -> list[str]:
    own = f"{at.credentials}/kube-scheduler.kubeconfig"
    return [
        f"--config={at.config}/kube-scheduler.yaml",
        f"--authentication-kubeconfig={own}",
        f"--authorization-kubeconfig={own}",
    ]


def _kwok(at: Layout) -> list[str]:
    return [
        f"--kubeconfig={at.credentials}/kwok.kubeconfig",
        f"--config={at.config}/kwok.yaml",
        "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        f"--node-ip={at.plan.control}",
        "--node-lease-duration-seconds=40",
    ]


def _containerd(at: Layout, node: str, index: int) -> list[str]:
    return ["-c", at.host.containerd_config, "-l", "info"]


def _kubelet(at: Layout, node: str, index: int) -> list[str]:
    return [
        f"--config={at.config}/{node}.kubelet.yaml",
        f"--kubeconfig={at.credentials}/{node}.kubeconfig",
        f"--hostname-override={node}",
        f"--node-ip={at.plan.node(index)}",
        f"--root-dir={at.host.kubelet_root}",
        "--v=2",
    ]


def _kube_proxy(at: Layout, node: str, index: int) -> list[str]:
    return [f"--config={at.config}/{node}.kube-proxy.yaml"]


_CONTROL = {
    "etcd": _etcd,
    "kube-apiserver": _apiserver,
    "kube-controller-manager": _controller_manager,
    "kube-scheduler": _scheduler,
    "kwok": _kwok,
}
_NODE = {"containerd": _containerd, "kubelet": _kubelet, "kube-proxy": _kube_proxy}
