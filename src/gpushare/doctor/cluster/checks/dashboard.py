"""The dashboard, if it is switched on: whether it runs, and its Service has an endpoint."""

from collections.abc import Iterator
from typing import Final

from gpushare.doctor.cluster.checks.container_states import why_of
from gpushare.doctor.cluster.facts import ClusterFacts, Json, at, name_of, ready_endpoints
from gpushare.doctor.findings import Result, Unread, fine, warning
from gpushare.doctor.suggested_commands import SCHEDULER, diagnosis_command, upgrade

#: Names in the chart.
SERVICE: Final = "gpushare-dashboard"
_CONTAINER: Final = "dashboard"
_VOLUME: Final = "dashboard-token"


def dashboard(facts: ClusterFacts) -> Iterator[Result]:
    """Whether the page can be opened, and what prevents it; Secrets are not read."""
    if isinstance(facts.dashboards, Unread):
        return
    if not facts.dashboards and not facts.deployments and facts.playground is None:
        return
    if not facts.dashboards:
        yield fine("", "it is disabled, or a process of a playground")
    for deployment in facts.dashboards:
        yield from _of(facts, deployment)


def _of(facts: ClusterFacts, deployment: Json) -> Iterator[Result]:
    namespace = name_of(deployment).partition("/")[0]
    down = [
        (pod, status)
        for pod in (() if isinstance(facts.part_pods, Unread) else facts.part_pods)
        if at(pod, "metadata", "namespace") == namespace
        for status in at(pod, "status", "containerStatuses") or ()
        if _is_it(status) and not status.get("ready")
    ]
    secret = _secret(deployment)
    for pod, status in down:
        yield warning(
            f"pod {name_of(pod)}",
            f"it does not run or is not ready{why_of(status)}",
            f"{diagnosis_command(pod, _CONTAINER)} says why; if the token is missing "
            f'`kubectl -n {namespace} create secret generic {secret} --from-literal=token="$(openssl rand -hex 32)"`',
        )
    # A pod that is down is no endpoint either, which is not a second fault.
    if (
        not down
        and not isinstance(facts.endpoint_slices, Unread)
        and not ready_endpoints(facts.endpoint_slices, namespace, SERVICE)
    ):
        yield warning(
            f"service {namespace}/{SERVICE}",
            "it has no ready endpoint, so the page cannot be opened through it",
            f"`kubectl -n {namespace} describe service {SERVICE}`; {upgrade(facts, SCHEDULER)} if it does not exist",
        )


def _is_it(container: Json) -> bool:
    return container.get("name") == _CONTAINER


def _secret(deployment: Json) -> str:
    """The Secret with the token for signing in."""
    for volume in at(deployment, "spec", "template", "spec", "volumes") or ():
        if volume.get("name") == _VOLUME:
            return str(at(volume, "secret", "secretName") or SERVICE)
    return SERVICE
