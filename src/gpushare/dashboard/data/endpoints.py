"""Where parts of ours can be asked: node agents by their node, schedulers by their pod's name."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from gpushare.dashboard.errors import InvalidSetting

#: What both charts write on all of their pods.
SELECTOR: Final = "app.kubernetes.io/part-of=gpushare"
_NAME: Final = "app.kubernetes.io/name"
_AGENT: Final = "gpushare-device-plugin"
_SCHEDULER: Final = "ack-co-scheduler"
#: The names of their ports in the charts, the first that is there: where agents tell figures and schedulers decisions.
_PORTS: Final = {_AGENT: ("health",), _SCHEDULER: ("decisions", "health")}


class _Meta(msgspec.Struct, gc=False):
    name: str = ""
    namespace: str = ""
    labels: dict[str, str] | None = None


class _Port(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    container_port: int = 0


class _Container(msgspec.Struct, gc=False):
    ports: list[_Port] | None = None


class _Spec(msgspec.Struct, rename="camel", gc=False):
    node_name: str = ""
    containers: list[_Container] = []


class _Status(msgspec.Struct, rename={"pod_ip": "podIP"}, gc=False):
    phase: str = ""
    pod_ip: str = ""


class _Pod(msgspec.Struct, gc=False):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class Place(msgspec.Struct, frozen=True, gc=False):
    """A pod of ours: which program, on which node, and its ``HOST:PORT`` (empty: not at present)."""

    pod: str
    program: str
    node: str
    address: str


_decode: Final = msgspec.json.Decoder(_Pod).decode


def decode_place(raw: bytes) -> tuple[str, Place] | None:
    """A pod's JSON as a place; ``None`` for pods that are not asked anything."""
    pod = _decode(raw)
    program = (pod.metadata.labels or {}).get(_NAME, "")
    if program not in _PORTS:
        return None
    named = {port.name: port.container_port for one in pod.spec.containers for port in one.ports or ()}
    ports = [named[name] for name in _PORTS[program] if name in named]
    address = ""
    if ports and pod.status.pod_ip and pod.status.phase == "Running":
        address = host_port(pod.status.pod_ip, ports[0])
    key = f"{pod.metadata.namespace}/{pod.metadata.name}"
    return key, Place(key, program, pod.spec.node_name, address)


def host_port(host: str, port: int) -> str:
    """As it stands in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Places:
    """Fed by informers of pods; asked for addresses, empty where there is none."""

    def __init__(self) -> None:
        # By node, and by pod: in a roll-out there are two, of which the one that came last stays.
        self._agents: dict[str, dict[str, str]] = {}
        self._schedulers: dict[str, str] = {}

    def synced(self) -> None:
        """The first list is complete."""

    def upsert(self, item: Place) -> None:
        """A pod of ours was added or changed."""
        if item.program == _SCHEDULER:
            self._schedulers[item.pod] = item.address
        elif item.address:
            self._agents.setdefault(item.node, {})[item.pod] = item.address
        else:
            self._forget_agent(item)

    def remove(self, key: str, last: Place) -> None:
        """A pod of ours is gone; another may have taken its node's place already."""
        self._schedulers.pop(key, None)
        self._forget_agent(last)

    def _forget_agent(self, one: Place) -> None:
        there = self._agents.get(one.node, {})
        if there.pop(one.pod, None) is not None and not there:
            del self._agents[one.node]

    def agent(self, node: str) -> str:
        """Where the node's agent tells its figures."""
        return next(reversed(self._agents.get(node, {}).values()), "")

    def scheduler(self, pod: str) -> str:
        """Where the scheduler's pod ``NAMESPACE/NAME`` can be asked."""
        return self._schedulers.get(pod, "")


#: Node → ``HOST:PORT`` of its agent, empty where nobody knows one.
AgentAddressFn = Callable[[str], str]


class AgentsFile:
    """Addresses of agents that are no pods: lines ``NODE HOST:PORT`` of a file, read anew when it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._agents: dict[str, str] = {}
        self._read()

    def agent(self, node: str) -> str:
        """Where the node's agent tells its figures; empty where the file does not say."""
        with suppress(InvalidSetting):  # it is being written: what it said before holds
            self._read()
        return self._agents.get(node, "")

    def _read(self) -> None:
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp == self._stamp:
                return
            lines = [line.split() for line in self._path.read_text().splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSetting(f"--agents-file {self._path}: {error}") from error
        agents = {}
        for words in filter(None, lines):
            if len(words) != 2 or ":" not in words[1]:
                raise InvalidSetting(
                    f"--agents-file {self._path}: {' '.join(words)}: write NODE HOST:PORT in each line"
                )
            agents[words[0]] = words[1]
        self._agents = agents
        self._stamp = stamp
