"""The scheduler's record of its decisions, read through the API server's proxy of its Service.

kube-scheduler calls only the replica that leads, while the proxy picks any replica. So several requests are sent at once. The answer of
the leader is used, or else that of the replica which kube-scheduler called last.
"""

import json
from typing import Any, Final, NamedTuple

from gpushare.api import names
from gpushare.inspect.errors import KubectlFailed
from gpushare.inspect.sources.kubectl import Kubectl

#: Requests per round, and rounds until the leader has answered. With two replicas, one of them is missed once in 500 times.
_PARALLEL_REQUESTS: Final = 3
_ROUNDS: Final = 3
PORT: Final = "health"


class Decision(NamedTuple):
    """The scheduler's answer, or the reason why there is none; ``others``: the outcomes of the other requested paths.

    ``gpushare.scheduler.plugins.explain.decisions_api`` writes the answer.
    """

    answer: "dict[str, Any] | None"
    problem: str
    others: "list[bytes | KubectlFailed]"


def ask(kubectl: Kubectl, scheduler: str, path: str, *others: str) -> Decision:
    """Read ``/gpushare/decisions`` plus ``path`` from the Service ``scheduler`` (``namespace/name``), and the paths ``others``.

    Raises ``KubectlMissing``.
    """
    full = f"{proxy_path(scheduler)}/gpushare/decisions{path}"
    readable: list[dict[str, Any]] = []
    outcomes: list[bytes | KubectlFailed] = []
    with kubectl.start(*others) as begun:
        try:
            with kubectl.reader(scheduler.partition("/")[0]) as reader:
                for _ in range(_ROUNDS):
                    outcomes = reader.outcomes([full] * _PARALLEL_REQUESTS)
                    readable += [answer for answer in map(_read, outcomes) if answer is not None]
                    if not readable or any(map(_leads, readable)):
                        break
        except KubectlFailed as error:
            outcomes = [error]
        rest = begun.outcomes()
    if readable:
        return Decision(max(readable, key=_rank), "", rest)
    return Decision(None, _why_not(outcomes[0], scheduler), rest)


def pending_pods(kubectl: Kubectl, scheduler: str) -> "list[dict[str, Any]]":
    """The scheduler's records of pending pods; none where it does not answer. Raises ``KubectlMissing``."""
    answer = ask(kubectl, scheduler, "").answer
    pods: list[dict[str, Any]] = [] if answer is None else answer["waiting"]
    return pods


def proxy_path(scheduler: str) -> str:
    """The path of the API server's proxy to the scheduler's pods."""
    namespace, _, name = scheduler.partition("/")
    return f"/api/v1/namespaces/{namespace}/services/http:{name}:{PORT}/proxy"


def _read(outcome: "bytes | KubectlFailed") -> "dict[str, Any] | None":
    if isinstance(outcome, KubectlFailed):
        return None
    try:
        answer = json.loads(outcome)
    except ValueError:
        return None
    if not isinstance(answer, dict) or not isinstance(answer.get("scheduler"), dict):
        return None
    waiting = answer.get("waiting") or []
    for record in (*(waiting if isinstance(waiting, list) else [waiting]), *(answer.get("besides") or ())):
        if "remedy" in record:  # the field's name in earlier versions
            record["suggestion"] = record.pop("remedy")
    return answer


def _leads(answer: "dict[str, Any]") -> bool:
    """Whether the replica leads; if it cannot tell, whether kube-scheduler called it. A former leader reports that it no longer leads."""
    scheduler = answer["scheduler"]
    leads = scheduler.get("leads")
    return bool(scheduler.get("lastAsked")) if leads is None else bool(leads)


def _rank(answer: "dict[str, Any]") -> "tuple[bool, float]":
    """Whether the replica reports that it leads, and when kube-scheduler called it last."""
    scheduler = answer["scheduler"]
    return scheduler.get("leads") is True, float(scheduler.get("lastAsked") or 0.0)


def _why_not(outcome: "bytes | KubectlFailed", scheduler: str) -> str:
    namespace, _, name = scheduler.partition("/")
    if not isinstance(outcome, KubectlFailed):
        return f"Service {scheduler} is not a gpushare scheduler; set its Service with --scheduler"
    if "(Forbidden)" in outcome.complaint:
        return (
            f"no permission to query the scheduler: that needs get on services/proxy {name} and http:{name}:{PORT}, and create on "
            f"serviceaccounts/token {names.READER_ACCOUNT}, in namespace {namespace}"
        )
    if outcome.not_found:
        return f"there is no Service {name} in namespace {namespace}; name the scheduler's Service with --scheduler"
    return f"the scheduler does not answer: {outcome.complaint.removeprefix('error: ')}"
