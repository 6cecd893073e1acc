"""Services of webhook and scheduler: whether they have endpoints, and the consequences if not."""

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from gpushare.api import names
from gpushare.doctor.cluster.facts import (
    ClusterFacts,
    Json,
    at,
    first_unready,
    first_why,
    name_of,
    ready_endpoints,
    webhook_places,
)
from gpushare.doctor.findings import Result, Unread, fault, warning
from gpushare.doctor.suggested_commands import INSTALLER, SCHEDULER, install, pull, upgrade

_APP: Final = "gpushare-admission"
_NO_SCHEDULER: Final = (
    "it has no ready endpoint, and `kubectl inspect cgpu --why POD` needs it; pods are placed nevertheless"
)


class _Effect(NamedTuple):
    """Consequences of a hook that cannot be called: with ``failurePolicy: Fail``, and with ``Ignore``. Empty: none that matter."""

    fail: str
    ignore: str


#: By the first part of the hook's name.
_EFFECTS: Final = {
    "requests": _Effect("pods that request GPUs are rejected", "invalid requests are admitted"),
    "scheduler-name": _Effect(
        "pods that request GPUs and name no scheduler are rejected",
        "pods that name no scheduler are admitted unchanged, and use the default scheduler",
    ),
    "memory-amounts": _Effect(
        "pods that request gpushare.dev/gpu-memory are rejected",
        "pods that request gpushare.dev/gpu-memory are admitted unchanged, and stay pending",
    ),
    "accept": _Effect(
        "pods whose requests it replaces (of HAMi or KAI, or by ResourceClaims) are rejected", ""
    ),
    "records": _Effect("", "anyone may change allocation records"),
    "node-agent": _Effect(
        "writes of node agents are rejected", "a node agent's token is valid for other nodes, too"
    ),
}
#: If requests are refused the consequences of these for pods do not matter.
_OF_PODS: Final = frozenset({"scheduler-name", "memory-amounts"})


def meanwhile(hooks: Collection[Json]) -> str:
    """What happens to pods, records and nodes while ``hooks`` cannot be called, by their ``failurePolicy``."""
    # The API server's default.
    policies = {str(hook.get("name")).partition(".")[0]: hook.get("failurePolicy", "Fail") for hook in hooks}
    refused = policies.get("requests") == "Fail"
    effects = [
        effect.ignore if policies[kind] == "Ignore" else effect.fail
        for kind, effect in _EFFECTS.items()
        if kind in policies and not (refused and kind in _OF_PODS)
    ]
    fate = "rejected" if "Fail" in policies.values() else "admitted unchanged"
    return ", ".join(filter(None, effects)) or f"its requests are {fate}"


def callable_webhook(facts: ClusterFacts) -> Iterator[Result]:
    """Whether the webhook responds where API servers call it."""
    if isinstance(facts.webhooks, Unread):
        return
    for (namespace, name), hooks in webhook_places(facts.webhooks).items():
        yield from _answers(facts, namespace, name, meanwhile(hooks))


def _answers(facts: ClusterFacts, namespace: str, name: str, effect: str) -> Iterator[Result]:
    place = f"{namespace}/{name}"
    describe = f"`kubectl -n {namespace} describe pods -l app.kubernetes.io/name={_APP}`"
    if not isinstance(facts.webhook_deployments, Unread):
        deployment = next((item for item in facts.webhook_deployments if name_of(item) == place), None)
        if deployment is None:
            yield fault(
                f"deployment {place}",
                f"it does not exist, but the API server is configured to call it; until it answers: {effect}",
                f"{install(facts, INSTALLER)}; after a removal `kubectl delete mutatingwebhookconfiguration,validatingwebhookconfiguration {_APP}`",
            )
            return
        wanted = at(deployment, "spec", "replicas") or 0
        ready = at(deployment, "status", "readyReplicas") or 0
        describe = "; ".join(filter(None, (describe, pull(facts, INSTALLER, first_unready(facts, _APP)))))
        readiness = f"{ready} of {wanted} pods of the webhook are ready{first_why(facts, _APP)}"
        if wanted and not ready:
            yield fault(f"deployment {place}", f"{readiness}; until one is: {effect}", describe)
            return
        if ready < wanted:
            yield warning(f"deployment {place}", readiness, describe)
    if not isinstance(facts.endpoint_slices, Unread) and not ready_endpoints(
        facts.endpoint_slices, namespace, name
    ):
        yield fault(
            f"service {place}",
            f"it has no ready endpoint, but the API server calls the webhook there; until then: {effect}",
            f"`kubectl -n {namespace} describe service,deployment {name}`",
        )


def asked_scheduler(facts: ClusterFacts, namespace: str) -> Iterator[Result]:
    """Whether ``kubectl inspect cgpu`` can reach a running scheduler: kube-scheduler itself needs no Service."""
    if isinstance(facts.endpoint_slices, Unread):
        return
    if not ready_endpoints(facts.endpoint_slices, namespace, names.SCHEDULER_NAME):
        yield warning(
            f"service {namespace}/{names.SCHEDULER_NAME}",
            _NO_SCHEDULER,
            f"`kubectl -n {namespace} describe service {names.SCHEDULER_NAME}`; {upgrade(facts, SCHEDULER)} if it does not exist",
        )
