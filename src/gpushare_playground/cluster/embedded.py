"""The embedded control plane: our API server, controllers and kube-scheduler's loop, a process each."""

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gpushare.api.request.unit_conversion import Counting
from gpushare_playground.cluster.control_plane import Place
from gpushare_playground.cluster.definitions import define
from gpushare_playground.cluster.parts import Part
from gpushare_playground.cluster.scheduler_service import publish
from gpushare_playground.unit_file import UnitFile

_USERS: Final = ("controllers", "kubescheduler", "extender", "node-agent", "kubelet", "walk")
#: The users that write allocation records.
_WRITERS: Final = ("extender", "node-agent")


class EmbeddedControl:
    """Keeps all objects in the memory of one process: when that ends, the cluster is lost."""

    contents = "API server, controllers, kube-scheduler's loop"
    last = frozenset({"apiserver"})
    reaches_agents = True

    def __init__(self) -> None:
        self._token = secrets.token_hex(16)

    def enter(self, place: Place) -> None:
        """Attach to ``place``."""
        self._place = place

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self._place.state / "api" / "kubeconfig"

    @property
    def parts(self) -> Mapping[str, Part]:
        """Empty: all belong to the cluster."""
        return {}

    async def count(self, counting: Counting) -> None:
        """Pass it to the API server, which reads it with the next pod."""
        UnitFile(self._counting).write(counting)

    @property
    def _counting(self) -> Path:
        return self._place.state / "counting"

    async def start(self) -> None:
        """Start the API server."""
        token_file = self._place.state / "kubelet.token"
        token_file.touch(0o600)
        token_file.write_text(self._token)
        folder = self._place.state / "api"
        folder.mkdir()
        users = [option for user in _USERS for option in ("--user", user)]
        users += [option for user in _WRITERS for option in ("--record-writer", user)]
        server = self._place.add(
            "apiserver",
            [
                "gpushare_playground.apiserver",
                "--dir",
                str(folder),
                "--counting",
                str(self._counting),
                *users,
            ],
            {"GPUSHARE_KUBELET_TOKEN": self._token},
        )
        server.on_end = self._place.lost

    async def start_controllers(self) -> None:
        """Start the controllers, and create our CRDs."""
        await define(self.kubeconfig)
        kubeconfig = str(self.access("controllers"))
        self._place.add("controllers", ["gpushare_playground.controllers", "--kubeconfig", kubeconfig], {})

    def access(self, user: str) -> Path:
        """The kubeconfig of a user."""
        return self._place.state / "api" / f"{user}.kubeconfig"

    def kubelet_options(self, node: str, address: str) -> list[str]:
        """All kubelets are one user, and authenticate the API server by a token."""
        del node, address
        token_file = self._place.state / "kubelet.token"
        return ["--kubeconfig", str(self.access("kubelet")), "--token-file", str(token_file)]

    async def start_scheduling(self, extender_url: str, ignored: Sequence[str] = ()) -> None:
        """Both profiles are in one process. The extender is behind the Service that its chart creates."""
        await publish(self.kubeconfig, extender_url)
        kubeconfig = str(self.access("kubescheduler"))
        arguments = [
            "gpushare_playground.kubescheduler",
            "--kubeconfig",
            kubeconfig,
            "--extender",
            extender_url,
        ]
        arguments += [option for name in ignored for option in ("--ignored-resource", name)]
        self._place.add("kubescheduler", arguments, {})

    async def stop(self) -> None:
        """The cluster ends its parts."""
