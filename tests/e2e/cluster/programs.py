"""Which programs make up a cluster, and how each is built: pure descriptions."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.e2e.cluster.hosts import Host

MODULES: Final = Path(__file__).parent / "modules"
KUBERNETES: Final = ("1.37", "1.36", "1.28")
"""The versions of Kubernetes for which there is a folder in ``modules/``."""

_VERSION = "k8s.io/component-base/version"
_TOOLKIT = "github.com/NVIDIA/nvidia-container-toolkit"


@dataclass(frozen=True, slots=True)
class Program:
    """One program: built from ``package`` within ``modules/MODULE``.

    ``version`` (``v1.36.3``) is stamped into programs of Kubernetes only.
    """

    name: str
    module: str
    package: str
    tags: str = ""
    ldflags: str = "-s -w"
    cgo: bool = False

    @property
    def folder(self) -> Path:
        """Where its go.mod is."""
        return MODULES / self.module

    @property
    def made(self) -> str:
        """What ``go`` calls it: the last part of the package that is no version."""
        parts = self.package.split("/")
        return parts[-2] if re.fullmatch(r"v\d+", parts[-1]) else parts[-1]


def arguments(alike: Sequence[Program], out: str) -> list[str]:
    """The arguments of ``go`` that build programs with the same module, tags and flags into the folder ``out``.

    Debugging information is left out where it is made: ``-s -w`` would drop it in the end.
    """
    one = alike[0]
    tags = ["-tags", one.tags] if one.tags else []
    flags = ["-trimpath", "-gcflags=all=-dwarf=false", *tags, "-ldflags", one.ldflags]
    return ["build", *flags, "-o", out, *(each.package for each in alike)]


def kubernetes_version(k8s: str) -> str:
    """The full version that ``modules/kubernetes-K8S`` pins, such as ``v1.36.3``.

    Raises ``ValueError`` for a version without a folder.
    """
    if k8s not in KUBERNETES:
        raise ValueError(f"Kubernetes {k8s}: choose one of {', '.join(KUBERNETES)}")
    return "v" + _pinned(f"kubernetes-{k8s}", "k8s.io/kubernetes")


def _pinned(module: str, required: str) -> str:
    """The version, without its ``v``, at which ``modules/MODULE/go.mod`` requires ``required``."""
    text = (MODULES / module / "go.mod").read_text()
    found = re.search(rf"^\s*(?:require )?{re.escape(required)} v(\S+)", text, re.MULTILINE)
    if not found:
        raise ValueError(f"modules/{module}/go.mod requires no {required}")
    return found[1]


def programs(k8s: str) -> dict[str, Program]:
    """Every program of a cluster of this version, by name."""
    module = f"kubernetes-{k8s}"
    version = kubernetes_version(k8s)
    major, minor = k8s.split(".")
    stamped = f"-s -w -X {_VERSION}.gitVersion={version} -X {_VERSION}.gitMajor={major} -X {_VERSION}.gitMinor={minor}"
    found = [
        Program(name, module, f"k8s.io/kubernetes/cmd/{name}", ldflags=stamped)
        for name in (
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kubelet",
            "kubectl",
            "kube-proxy",
        )
    ]
    found.append(Program("etcd", "kubernetes-1.37", "go.etcd.io/etcd/server/v3"))
    found += [
        Program(
            name,
            "containerd",
            f"github.com/containerd/containerd/v2/cmd/{name}",
            tags="no_btrfs no_devmapper no_zfs",
        )
        for name in ("containerd", "containerd-shim-runc-v2", "ctr")
    ]
    found.append(
        Program(
            "runc",
            "runc",
            "github.com/opencontainers/runc",
            tags="seccomp netgo osusergo",
            ldflags=f"-s -w -X main.version={_pinned('runc', 'github.com/opencontainers/runc')} -linkmode external -extldflags -static",
            cgo=True,
        )
    )
    found += [
        Program(part.rpartition("/")[2], "cni", f"github.com/containernetworking/plugins/plugins/{part}")
        for part in ("main/bridge", "main/loopback", "ipam/host-local", "meta/portmap")
    ]
    found.append(Program("helm", "helm", "helm.sh/helm/v4/cmd/helm"))
    found.append(Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok"))
    toolkit_version = _pinned("nvidia-ctk", _TOOLKIT)
    found += [
        Program(
            name,
            "nvidia-ctk",
            f"{_TOOLKIT}/cmd/{name}",
            ldflags=f"-s -w -X {_TOOLKIT}/internal/info.version={toolkit_version}",
            cgo=True,
        )
        for name in ("nvidia-ctk", "nvidia-cdi-hook")
    ]
    return {program.name: program for program in found}


def of_host(host: Host) -> list[Program]:
    """Programs that nodes of this host have instead of, or in addition to, those of :func:`programs`."""
    found = []
    if host.containerd == "1.7":
        module = "github.com/containerd/containerd/cmd"
        off = "no_btrfs no_devmapper no_zfs no_aufs"
        found += [
            Program(name, "containerd-1.7", f"{module}/{name}", tags=off)
            for name in ("containerd", "containerd-shim-runc-v2", "ctr")
        ]
    if host.runtime != "runc":
        found.append(Program(host.runtime, "nvidia-ctk", f"{_TOOLKIT}/cmd/{host.runtime}", cgo=True))
    return found


def chosen(k8s: str, names: Iterable[str]) -> list[Program]:
    """The programs called ``names`` (of programs or of module folders); all when there is none.

    Raises ``ValueError`` for an unknown name.
    """
    known = programs(k8s)
    picked: dict[str, Program] = {}
    for name in names:
        some = [p for p in known.values() if name in (p.name, p.module)]
        if not some:
            raise ValueError(f"{name}: no such program; known are {', '.join(sorted(known))}")
        picked |= {p.name: p for p in some}
    return list((picked or known).values())
