"""The API server: permissions, versions, and clocks."""

import re
from collections.abc import Iterator
from typing import Final

from gpushare.doctor.cluster.facts import ClusterFacts, at, gpu_nodes, name_of
from gpushare.doctor.cluster.reader import renewed_s
from gpushare.doctor.findings import Result, Unread, fault, unknown, warning
from gpushare.doctor.suggested_commands import INSTALLER, SCHEDULER, upgrade

#: The oldest Kubernetes that the charts support, and how many minor versions kubelets may be behind.
OLDEST: Final = (1, 28)
_KUBELETS_BEHIND: Final = 3
#: Tolerated difference of clocks: the header has whole seconds, and a response takes time.
_CLOCKS_S: Final = 5.0
#: Kubelets renew their Lease every 10 s, and are considered dead after 40.
_SILENT_S: Final = 60.0
_MINOR: Final = re.compile(r"v?(\d+)\.(\d+)")


def minor_of(text: str) -> tuple[int, int] | None:
    """(1, 36) of ``v1.36.2-gke.1``."""
    match = _MINOR.match(text)
    return None if match is None else (int(match[1]), int(match[2]))


def server_minor(facts: ClusterFacts) -> tuple[int, int] | None:
    """The API server's version."""
    return None if isinstance(facts.version, Unread) else minor_of(str(facts.version.get("gitVersion", "")))


def permissions(facts: ClusterFacts) -> Iterator[Result]:
    """Whether the user may read everything that is examined."""
    if isinstance(facts.rights, Unread):
        # A playground's own API server has no permissions, and denies none.
        if not (facts.playground is not None and facts.rights.absent):
            yield unknown("you", f"your permissions are unknown: {facts.rights.why}")
        denied = []
    else:
        denied = sorted(name for name, allowed in facts.rights.items() if not allowed)
    if denied:
        yield warning(
            "you",
            f"you may not {', '.join(denied)}; checks that need it are incomplete",
            "ask for the ClusterRole view and for the named permissions",
        )
        return
    # An access review may be wrong, or be refused itself: what was really refused counts, too.
    values = [getattr(facts, field) for field in facts.__struct_fields__]
    for why in dict.fromkeys(value.why for value in values if isinstance(value, Unread) and value.refused):
        yield warning(
            "you",
            f"the API server denies: {why}; checks that need it are incomplete",
            "ask for the named permission",
        )


def versions(facts: ClusterFacts) -> Iterator[Result]:
    """Whether the versions of API server, kubelets, kube-scheduler and our own components are compatible."""
    server = server_minor(facts)
    if server is None:
        yield unknown("API server", "its version cannot be read")
        return
    server_text = f"{server[0]}.{server[1]}"
    if server < OLDEST:
        yield fault("API server", f"it is {server_text}, and the charts need 1.28", "upgrade the cluster")
    if not isinstance(facts.nodes, Unread):
        for node in facts.nodes:
            kubelet = minor_of(node.details.status.node_info.kubelet_version)
            if kubelet is not None and not 0 <= server[1] - kubelet[1] <= _KUBELETS_BEHIND:
                yield warning(
                    node.subject,
                    f"its kubelet is {kubelet[0]}.{kubelet[1]}, the API server {server_text}",
                    "upgrade the node: kubelets may be three minor versions older, and never newer",
                )
    yield from _parts_versions(facts, server)


def _parts_versions(facts: ClusterFacts, server: tuple[int, int]) -> Iterator[Result]:
    if isinstance(facts.daemon_sets, Unread) or isinstance(facts.deployments, Unread):
        return
    parts = {
        name_of(part): str(at(part, "metadata", "labels", "app.kubernetes.io/version") or "")
        for part in (*facts.daemon_sets, *facts.deployments)
    }
    if len(set(parts.values())) > 1:
        listed = ", ".join(f"{name} {version or 'of unknown version'}" for name, version in parts.items())
        yield warning(
            "the charts",
            f"their versions differ: {listed}",
            f"{upgrade(facts, INSTALLER)} or {upgrade(facts, SCHEDULER)}, whichever is older",
        )
    for deployment in facts.deployments:
        for container in at(deployment, "spec", "template", "spec", "containers") or ():
            if container.get("name") != "kube-scheduler":
                continue
            own = minor_of(str(container.get("image", "")).rpartition(":")[2])
            if own is not None and not 0 <= server[1] - own[1] <= 1:
                yield warning(
                    f"deployment {name_of(deployment)}",
                    f"its kube-scheduler is {own[0]}.{own[1]}, the API server {server[0]}.{server[1]}",
                    f"{upgrade(facts, SCHEDULER, 'kubeScheduler.image.tag=')}: if empty, it follows the cluster",
                )


def clocks(facts: ClusterFacts) -> Iterator[Result]:
    """Whether this machine, the API server and the kubelets agree on the time."""
    if isinstance(facts.server_time_s, Unread):
        yield unknown("API server", facts.server_time_s.why)
        return
    now_s = facts.server_time_s
    ahead_s = facts.our_time_s - now_s
    if abs(ahead_s) > _CLOCKS_S:
        yield warning(
            "this machine",
            f"its clock is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} the API server's",
            "synchronize it by NTP: tokens and certificates depend on it",
        )
    if isinstance(facts.node_leases, Unread):
        yield unknown("kubelets", f"their Leases cannot be read: {facts.node_leases.why}")
        return
    gpu_node_names = {node.name for node in gpu_nodes(facts)}
    for name, renewed in sorted(facts.node_leases.items()):
        if name in gpu_node_names and renewed - now_s > _CLOCKS_S:
            yield warning(
                f"node {name}",
                f"its clock is at least {renewed - now_s:.0f} s ahead of the API server's",
                "synchronize it by NTP",
            )
        elif name in gpu_node_names and now_s - renewed > _SILENT_S:
            yield fault(
                f"node {name}",
                f"its kubelet has not renewed its Lease for {now_s - renewed:.0f} s",
                "check the kubelet (`journalctl -u kubelet` there) and the node's clock",
            )
    for lease in () if isinstance(facts.leases, Unread) else facts.leases:
        at_s = renewed_s(lease)
        if at_s is not None and at_s - now_s > _CLOCKS_S:
            yield warning(
                f"lease {name_of(lease)}",
                f"it was renewed {at_s - now_s:.0f} s in the future",
                "synchronize the clock of the leading scheduler's node by NTP",
            )
