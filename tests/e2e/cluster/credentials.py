"""Certificates and kubeconfig files of a cluster, all under one authority made for it."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gpushare_playground.certificate_authority import (
    SERVER_NAMES,
    Authority,
    Identity,
    by_certificate,
    kubeconfig_text,
    signing_pair,
    write_private,
)

_USERS: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    "admin": ("kubernetes-admin", ("system:masters",)),
    "kube-controller-manager": ("system:kube-controller-manager", ()),
    "kube-scheduler": ("system:kube-scheduler", ()),
    "kube-proxy": ("system:kube-proxy", ()),
    "kwok": ("system:kwok", ("system:masters",)),
}


def write_credentials(folder: Path, url: str, addresses: Sequence[str], nodes: Mapping[str, str]) -> None:
    """Write what every component needs into ``folder``; ``url`` is the API server's, ``nodes`` name → address.

    ``ca.crt``, ``apiserver.*``, ``apiserver-kubelet.*``, ``front-proxy*``, ``sa.*``, ``NODE.*``, and a kubeconfig
    ``USER.kubeconfig`` for each component and node.
    """
    authority = Authority.new("gpushare-e2e-ca")
    front = Authority.new("gpushare-e2e-front-proxy-ca")
    _pair(folder, "ca", authority.identity)
    _pair(folder, "front-proxy-ca", front.identity)
    _pair(folder, "front-proxy", front.issue("front-proxy-client"))
    _pair(
        folder, "apiserver", authority.issue("kube-apiserver", hosts=(*SERVER_NAMES, "127.0.0.1", *addresses))
    )
    _pair(
        folder,
        "apiserver-kubelet",
        authority.issue("kube-apiserver-kubelet-client", organizations=("system:masters",)),
    )
    private, public = signing_pair()
    write_private(folder / "sa.key", private.decode())
    write_private(folder / "sa.pub", public.decode())

    ca = authority.identity.certificate_pem
    for name, (user, groups) in _USERS.items():
        identity = authority.issue(user, organizations=groups)
        _pair(folder, name, identity)
        write_private(
            folder / f"{name}.kubeconfig", kubeconfig_text(url, ca, user, by_certificate(identity), "e2e")
        )
    for name, address in nodes.items():
        identity = authority.issue(
            f"system:node:{name}",
            organizations=("system:nodes",),
            hosts=(name, "localhost", "127.0.0.1", address),
        )
        _pair(folder, name, identity)
        text = kubeconfig_text(url, ca, f"system:node:{name}", by_certificate(identity), "e2e")
        write_private(folder / f"{name}.kubeconfig", text)


def _pair(folder: Path, name: str, identity: Identity) -> None:
    write_private(folder / f"{name}.crt", identity.certificate_pem.decode())
    write_private(folder / f"{name}.key", identity.key_pem.decode())
    os.chmod(folder / f"{name}.crt", 0o644)
