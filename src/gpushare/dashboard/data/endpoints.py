"""Addresses of gpushare's components: node agents by node, schedulers by pod name."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from gpushare.dashboard.errors import InvalidSetting

#: Label of all pods of both charts.
SELECTOR: Final = "app.kubernetes.io/part-of=gpushare"
_NAME: Final = "app.kubernetes.io/name"
_AGENT: Final = "gpushare-device-plugin"
_SCHEDULER: Final = "ack-co-scheduler"
#: Names of the ports that serve agents' figures and schedulers' decisions in the charts; the first existing one is used.
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
    """A pod of gpushare: its program, node, and ``HOST:PORT`` (empty: not available)."""

    pod: str
    program: str
    node: str
    address: str


_decode: Final = msgspec.json.Decoder(_Pod).decode


def decode_place(raw: bytes) -> tuple[str, Place] | None:
    """A pod's JSON as a place; ``None`` for other programs than agents and schedulers."""
    pod = _decode(raw)
    program = (pod.metadata.labels or {}).get(_NAME, "")
    if program not in _PORTS:
        return None
    named = {
        port.name: port.container_port for container in pod.spec.containers for port in container.ports or ()
    }
    ports = [named[name] for name in _PORTS[program] if name in named]
    address = ""
    if ports and pod.status.pod_ip and pod.status.phase == "Running":
        address = host_port(pod.status.pod_ip, ports[0])
    key = f"{pod.metadata.namespace}/{pod.metadata.name}"
    return key, Place(key, program, pod.spec.node_name, address)


def host_port(host: str, port: int) -> str:
    """Host and port as in a URL, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Places:
    """Addresses by node or pod, fed by informers of pods; empty if unknown."""

    def __init__(self) -> None:
        # By node, then pod: during a rollout a node has two agents, and the newer one counts.
        self._agents: dict[str, dict[str, str]] = {}
        self._schedulers: dict[str, str] = {}

    def synced(self) -> None:
        """The first list is complete."""

    def upsert(self, item: Place) -> None:
        """A pod was added or changed."""
        if item.program == _SCHEDULER:
            self._schedulers[item.pod] = item.address
        elif item.address:
            self._agents.setdefault(item.node, {})[item.pod] = item.address
        else:
            self._forget_agent(item)

    def remove(self, key: str, last: Place) -> None:
        """A pod was deleted; its node may already have another agent."""
        self._schedulers.pop(key, None)
        self._forget_agent(last)

    def _forget_agent(self, place: Place) -> None:
        agents = self._agents.get(place.node, {})
        if agents.pop(place.pod, None) is not None and not agents:
            del self._agents[place.node]

    def agent(self, node: str) -> str:
        """Address of the node's agent."""
        return next(reversed(self._agents.get(node, {}).values()), "")

    def scheduler(self, pod: str) -> str:
        """Address of the scheduler's pod ``NAMESPACE/NAME``."""
        return self._schedulers.get(pod, "")


#: Node → ``HOST:PORT`` of its agent; empty if unknown.
AgentAddressFn = Callable[[str], str]


class AgentsFile:
    """Addresses of agents that do not run as pods: lines ``NODE HOST:PORT`` of a file, read again when it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._agents: dict[str, str] = {}
        self._read()

    def agent(self, node: str) -> str:
        """Address of the node's agent; empty if the file does not list it."""
        with suppress(InvalidSetting):  # the file is being written: keep the previous content
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
