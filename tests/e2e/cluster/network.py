"""Addresses of a cluster, and the links between its machines and this one.

Everything but one link on this machine lies in namespaces of the cluster and goes with them.
"""

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tests.e2e.cluster import record

SLOTS: Final = 12
"""How many clusters can be up side by side."""

BRIDGE: Final = "br0"


class NoSlot(RuntimeError):
    """No more clusters can run next to the others."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Addresses of the cluster in ``slot``; no two slots share one, so that this machine can reach all."""

    slot: int

    @property
    def link(self) -> str:
        """The link of this machine to the cluster."""
        return f"gpushare{self.slot}"

    @property
    def machines(self) -> str:
        """The network of machines, CIDR."""
        return f"10.240.{self.slot}.0/24"

    @property
    def host(self) -> str:
        """This machine, as the cluster sees it."""
        return f"10.240.{self.slot}.254"

    @property
    def control(self) -> str:
        """The machine of the API server."""
        return f"10.240.{self.slot}.1"

    def node(self, index: int) -> str:
        """The node's address; indices begin with 0."""
        return f"10.240.{self.slot}.{index + 11}"

    @property
    def pods(self) -> str:
        """The range of all pods' addresses, CIDR."""
        return f"10.{244 + self.slot}.0.0/16"

    def pods_of(self, index: int) -> str:
        """The pods of one node, CIDR."""
        return f"10.{244 + self.slot}.{index}.0/24"

    @property
    def services(self) -> str:
        """ClusterIPs, CIDR."""
        return f"10.{96 + self.slot}.0.0/16"

    @property
    def api_service(self) -> str:
        """The ClusterIP of ``kubernetes.default``."""
        return f"10.{96 + self.slot}.0.1"

    @property
    def dns_service(self) -> str:
        """The ClusterIP of the pods' name server."""
        return f"10.{96 + self.slot}.0.10"


def take_slot() -> Plan:
    """Find a free slot and take it by making its link, which only one process can.

    The far end lies in this namespace until :func:`connect` moves it. Raises :class:`NoSlot`.
    """
    routes = _run("ip", "-4", "route", "show").stdout
    for slot in range(SLOTS):
        plan = Plan(slot)
        wanted = (plan.machines, plan.pods, plan.services)
        if any(f"{net} " in routes for net in wanted):
            continue
        made = _run(
            "ip",
            "link",
            "add",
            "name",
            plan.link,
            "type",
            "veth",
            "peer",
            "name",
            f"{plan.link}c",
            check=False,
        )
        if made.returncode == 0:
            return plan
        if "File exists" not in made.stderr:
            raise NoSlot(f"cannot make the link {plan.link}: {made.stderr.strip()}; network links need root")
    raise NoSlot(
        f"{SLOTS} clusters are up already; end one of those in {record.STATES} with: {record.to_type('down')}"
    )


def give_back(plan: Plan) -> None:
    """Remove the link, if it still exists."""
    _run("ip", "link", "del", plan.link, check=False)


def connect(plan: Plan, control: int, nodes: Iterable[int]) -> None:
    """Link this machine, the control machine and the nodes; processes by whose namespaces they are found."""
    nodes = list(nodes)
    _batch(
        None,
        [
            f"link set {plan.link}c netns {control} name host0",
            f"addr add {plan.host}/24 dev {plan.link}",
            f"link set {plan.link} up",
            *(
                f"link add name node{i} netns {control} type veth peer name eth0 netns {pid}"
                for i, pid in enumerate(nodes)
            ),
        ],
    )
    _batch(
        control,
        [
            f"link add name {BRIDGE} type bridge",
            f"addr add {plan.control}/24 dev {BRIDGE}",
            f"link set {BRIDGE} up",
            *(
                f"link set {port} master {BRIDGE} up"
                for port in ("host0", *(f"node{i}" for i in range(len(nodes))))
            ),
        ],
    )
    for i, pid in enumerate(nodes):
        _batch(pid, [f"addr add {plan.node(i)}/24 dev eth0", "link set eth0 up"])
    routes = [f"route add {plan.pods_of(i)} via {plan.node(i)}" for i in range(len(nodes))]
    services = [f"route add {plan.services} via {plan.node(0)}"] if nodes else []
    _batch(None, [*routes, *services])
    _batch(control, [*routes, *services])
    for i, pid in enumerate(nodes):
        _batch(
            pid,
            [*(route for j, route in enumerate(routes) if j != i), f"route add default via {plan.control}"],
        )


def _batch(pid: int | None, lines: list[str]) -> None:
    enter = ["nsenter", "-t", str(pid), "-n"] if pid else []
    done = subprocess.run(
        [*enter, "ip", "-batch", "-"], input="\n".join(lines), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise OSError(f"ip in the namespace of {pid or 'this process'}: {done.stderr.strip()}")


def _run(*argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, check=check, capture_output=True, text=True)
