"""The components' command lines, as pure functions. Only flags that all versions from 1.28 to 1.37 have."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpushare_playground.controlplane.layout import Layout
from gpushare_playground.controlplane.ports import LOOPBACK

CLUSTER_IPS: Final = "10.96.0.0/16"
API_SERVICE_IP: Final = "10.96.0.1"
ISSUER: Final = "https://kubernetes.default.svc.cluster.local"
#: etcd's default limit is 2 GiB; thousands of nodes with a stream of pods leave that much history between compactions.
_ETCD_BYTES: Final = 4 << 30


def etcd(binary: Path, layout: Layout) -> list[str]:
    """One member that survives everything except a power cut: it does not wait for the disk."""
    name = "playground"
    command = [str(binary), f"--name={name}", f"--data-dir={layout.state / 'etcd'}", "--unsafe-no-fsync"]
    command += [f"--listen-client-urls={layout.url('etcd')}", f"--advertise-client-urls={layout.url('etcd')}"]
    command += [f"--listen-peer-urls={layout.peers_url}", f"--initial-advertise-peer-urls={layout.peers_url}"]
    command += [f"--initial-cluster={name}={layout.peers_url}", "--log-level=warn"]
    command += [f"--quota-backend-bytes={_ETCD_BYTES}"]
    for side in ("", "peer-"):
        command += [
            f"--{side}cert-file={layout.certificate('etcd')}",
            f"--{side}key-file={layout.key('etcd')}",
        ]
        command += [f"--{side}trusted-ca-file={layout.certificate('ca')}", f"--{side}client-cert-auth"]
    return command


def kube_apiserver(binary: Path, layout: Layout, extra: Sequence[str] = ()) -> list[str]:
    """Users by client certificate or token; RBAC, and each kubelet on its own node's objects only."""
    command = [str(binary), f"--etcd-servers={layout.url('etcd')}"]
    command += [f"--etcd-cafile={layout.certificate('ca')}"]
    command += [f"--etcd-certfile={layout.certificate('etcd')}", f"--etcd-keyfile={layout.key('etcd')}"]
    command += _serving("kube-apiserver", layout)
    # No other machine can reach loopback, and the endpoints of the Service "kubernetes" may not contain it.
    command += [f"--advertise-address={LOOPBACK}", "--endpoint-reconciler-type=none"]
    command += [f"--client-ca-file={layout.certificate('ca')}"]
    # Without these the other components log that they cannot verify aggregated requests.
    command += [f"--requestheader-client-ca-file={layout.certificate('ca')}"]
    command += ["--requestheader-allowed-names=front-proxy-client"]
    command += [f"--kubelet-client-certificate={layout.certificate('kubelet-client')}"]
    command += [f"--kubelet-client-key={layout.key('kubelet-client')}"]
    command += [f"--kubelet-certificate-authority={layout.certificate('ca')}"]
    command += ["--kubelet-preferred-address-types=InternalIP"]
    command += [f"--service-account-issuer={ISSUER}", f"--service-cluster-ip-range={CLUSTER_IPS}"]
    command += [f"--service-account-key-file={layout.pki / 'accounts.pub'}"]
    command += [f"--service-account-signing-key-file={layout.key('accounts')}"]
    command += ["--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"]
    command += ["--allow-privileged=true", *extra]
    return command


def kube_controller_manager(binary: Path, layout: Layout, extra: Sequence[str] = ()) -> list[str]:
    """All its controllers, each with its own account."""
    command = [str(binary), *_serving("kube-controller-manager", layout)]
    command += _asking(layout.kubeconfig("system:kube-controller-manager"))
    command += [f"--kubeconfig={layout.kubeconfig('system:kube-controller-manager')}", "--leader-elect=false"]
    command += ["--use-service-account-credentials=true", f"--root-ca-file={layout.certificate('ca')}"]
    command += [f"--service-account-private-key-file={layout.key('accounts')}"]
    command += [f"--cluster-signing-cert-file={layout.certificate('ca')}"]
    command += [f"--cluster-signing-key-file={layout.key('ca')}"]
    command += ["--kube-api-qps=200", "--kube-api-burst=400", *extra]
    return command


def kube_scheduler(
    binary: Path, layout: Layout, part: str, config: Path, extra: Sequence[str] = ()
) -> list[str]:
    """A scheduler that serves as ``part`` and reads ``config`` (KubeSchedulerConfiguration)."""
    command = [str(binary), *_serving(part, layout), f"--config={config}"]
    return [*command, *_asking(layout.kubeconfig("system:kube-scheduler")), *extra]


def _serving(part: str, layout: Layout) -> list[str]:
    options = [f"--bind-address={LOOPBACK}", f"--secure-port={layout.ports[part]}"]
    return [
        *options,
        f"--tls-cert-file={layout.certificate('server')}",
        f"--tls-private-key-file={layout.key('server')}",
    ]


def _asking(kubeconfig: Path) -> list[str]:
    """How a component lets the API server authorize its callers."""
    return [f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}"]
