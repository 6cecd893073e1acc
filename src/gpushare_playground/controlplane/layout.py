"""A control plane's files and ports."""

from dataclasses import dataclass
from pathlib import Path

from gpushare_playground.controlplane.binaries import COMPONENTS
from gpushare_playground.controlplane.ports import LOOPBACK, free_ports

_PEERS = "etcd peers"


@dataclass(frozen=True, slots=True)
class Layout:
    """``state`` is the folder of all files; ``ports`` by component."""

    state: Path
    ports: dict[str, int]

    @classmethod
    def chosen(cls, state: Path) -> "Layout":
        """A layout on free ports."""
        names = [*COMPONENTS, _PEERS]
        return cls(state.absolute(), dict(zip(names, free_ports(len(names)), strict=True)))

    def url(self, component: str) -> str:
        """The URL at which a component serves."""
        return f"https://{LOOPBACK}:{self.ports[component]}"

    @property
    def peers_url(self) -> str:
        """The URL for further members of etcd."""
        return f"https://{LOOPBACK}:{self.ports[_PEERS]}"

    @property
    def pki(self) -> Path:
        """Certificates and keys."""
        return self.state / "pki"

    def certificate(self, name: str) -> Path:
        """A certificate file, PEM."""
        return self.pki / f"{name}.crt"

    def key(self, name: str) -> Path:
        """Its private key's file, PEM."""
        return self.pki / f"{name}.key"

    def kubeconfig(self, user: str) -> Path:
        """The kubeconfig of a user; a user's name may be any text, which is converted to a file name."""
        return self.state / "kubeconfig" / f"{user.replace(':', '-').replace('/', '-')}.kubeconfig"

    def log(self, part: str) -> Path:
        """The log of a part."""
        return self.state / "log" / f"{part.replace(' ', '-')}.log"
