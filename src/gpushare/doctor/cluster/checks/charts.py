"""Whether the charts are installed, and where; and whether they are being removed."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from gpushare.doctor.cluster.facts import ClusterFacts, at, name_of
from gpushare.doctor.findings import Result, Unread, fault, fine, unknown, warning
from gpushare.doctor.suggested_commands import install


class _Made(NamedTuple):
    """An object of a chart: its field in the facts, and its name."""

    field: str
    what: str
    chart: str


_AGENTS: Final = _Made("daemon_sets", "DaemonSet gpushare-device-plugin-ds", "ack-ai-installer")
_MADE: Final = (
    _AGENTS,
    _Made("deployments", "Deployment ack-co-scheduler", "ack-co-scheduler"),
    _Made("config_maps", "ConfigMap ack-co-scheduler", "ack-co-scheduler"),
    _Made("leases", "Lease ack-co-scheduler", "ack-co-scheduler"),
)


def installed(facts: ClusterFacts) -> Iterator[Result]:
    """Whether both charts are installed, once each."""
    if not facts.namespace_is_there:
        yield fault(
            f"namespace {facts.namespace}",
            "it does not exist, and --namespace limits the search for the charts to it",
            "correct --namespace, or omit it to search all namespaces",
        )
        return
    if facts.playground is not None:
        yield fine("", "a playground: its components are processes, and no chart is needed")
        return
    removed = list(_removal(facts))
    yield from removed
    elsewhere: dict[str, list[str]] = {}
    for made in _MADE:
        objects_read: list[Any] | Unread = getattr(facts, made.field)
        if isinstance(objects_read, Unread):
            yield unknown(made.what, objects_read.why)
        elif objects_read or (removed and made is _AGENTS):
            continue
        elif places := facts.elsewhere.get(made.field):
            elsewhere.setdefault(", ".join(places), []).append(made.what)
        else:
            yield fault(made.what, "it is not there", install(facts, made.chart))
    for namespaces, objects in elsewhere.items():
        yield fault(
            f"namespace {facts.namespace}",
            f"these objects are in namespace {namespaces} instead: {', '.join(objects)}",
            "name that one with --namespace, or omit it to search all namespaces",
        )


def _removal(facts: ClusterFacts) -> Iterator[Result]:
    """Findings about the Deployment that cleans up after ``helm uninstall``; nothing if agents run next to it, because then it ends."""
    if isinstance(facts.removals, Unread) or isinstance(facts.daemon_sets, Unread):
        return
    agents = {str(at(daemon_set, "metadata", "namespace")) for daemon_set in facts.daemon_sets}
    agents |= set(facts.elsewhere.get(_AGENTS.field, ()))
    for deployment in facts.removals:
        namespace, _, name = name_of(deployment).partition("/")
        subject = f"deployment {name_of(deployment)}"
        if not agents:
            yield warning(
                subject,
                "ack-ai-installer is being removed: this removes what the agents wrote on the nodes, takes about six minutes, and then deletes itself",
                f"`kubectl -n {namespace} wait --for=delete deployment/{name} --timeout=600s`; if it stays `kubectl -n {namespace} logs deploy/{name}` says why",
            )
        elif namespace not in agents:
            yield fault(
                subject,
                f"it cleans up after a former release in its namespace, and removes from the nodes what the agents of namespace {', '.join(sorted(agents))} write",
                f"`kubectl -n {namespace} delete deployment {name}`, then `kubectl delete clusterrole {name}`",
            )
