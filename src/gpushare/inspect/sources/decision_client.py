"""The scheduler's own record of its decisions, read through the API server's proxy of its Service.

Of several replicas one leads, and it alone is asked by kube-scheduler; the proxy takes any. So a few are asked at once, and the
one that says that it leads counts, else the one that was asked last.
"""

import json
from typing import Any, Final, NamedTuple

from gpushare.api import names
from gpushare.inspect.errors import KubectlFailed
from gpushare.inspect.sources.kubectl import Kubectl

#: Requests of one round, and rounds, until one that leads has answered: of two replicas each is missed once in 500 times.
_AT_ONCE: Final = 3
_ROUNDS: Final = 3
PORT: Final = "health"


class Decided(NamedTuple):
    """What the scheduler told (as ``gpushare.scheduler.plugins.explain.decisions_api`` writes it), or why it told nothing, and what else was asked for."""

    told: "dict[str, Any] | None"
    problem: str
    others: "list[bytes | KubectlFailed]"


def ask(kubectl: Kubectl, scheduler: str, path: str, *others: str) -> Decided:
    """Read ``/gpushare/decisions`` and ``path`` of the Service ``scheduler`` (``namespace/name``), and ``others`` beside it.

    Raises ``KubectlMissing``.
    """
    full = f"{proxy_path(scheduler)}/gpushare/decisions{path}"
    found: list[dict[str, Any]] = []
    answers: list[bytes | KubectlFailed] = []
    with kubectl.start(*others) as begun:
        try:
            with kubectl.reader(scheduler.partition("/")[0]) as reader:
                for _ in range(_ROUNDS):
                    answers = reader.outcomes([full] * _AT_ONCE)
                    found += [one for one in map(_read, answers) if one is not None]
                    if not found or any(map(_leads, found)):
                        break
        except KubectlFailed as error:
            answers = [error]
        rest = begun.outcomes()
    if found:
        return Decided(max(found, key=_rank), "", rest)
    return Decided(None, _why_not(answers[0], scheduler), rest)


def all_waiting(kubectl: Kubectl, scheduler: str) -> "list[dict[str, Any]]":
    """The pods that wait, as the scheduler tells of them; none where it does not answer. Raises ``KubectlMissing``."""
    told = ask(kubectl, scheduler, "").told
    found: list[dict[str, Any]] = [] if told is None else told["waiting"]
    return found


def proxy_path(scheduler: str) -> str:
    """Where the API server passes requests on to the scheduler's pods."""
    namespace, _, name = scheduler.partition("/")
    return f"/api/v1/namespaces/{namespace}/services/http:{name}:{PORT}/proxy"


def _read(answer: "bytes | KubectlFailed") -> "dict[str, Any] | None":
    if isinstance(answer, KubectlFailed):
        return None
    try:
        told = json.loads(answer)
    except ValueError:
        return None
    if not isinstance(told, dict) or not isinstance(told.get("scheduler"), dict):
        return None
    waiting = told.get("waiting") or []
    for one in (*(waiting if isinstance(waiting, list) else [waiting]), *(told.get("besides") or ())):
        if "remedy" in one:  # as earlier schedulers call it
            one["suggestion"] = one.pop("remedy")
    return told


def _leads(told: "dict[str, Any]") -> bool:
    """Whether it leads; of one that cannot tell, whether it was asked. One that led before knows that another leads now."""
    scheduler = told["scheduler"]
    leads = scheduler.get("leads")
    return bool(scheduler.get("lastAsked")) if leads is None else bool(leads)


def _rank(told: "dict[str, Any]") -> "tuple[bool, float]":
    """Whether it leads, as far as it knows and its version tells, and when it was asked last."""
    scheduler = told["scheduler"]
    return scheduler.get("leads") is True, float(scheduler.get("lastAsked") or 0.0)


def _why_not(answer: "bytes | KubectlFailed", scheduler: str) -> str:
    namespace, _, name = scheduler.partition("/")
    if not isinstance(answer, KubectlFailed):
        return f"what answers at Service {scheduler} is no gpushare scheduler; --scheduler names another"
    if "(Forbidden)" in answer.complaint:
        return (
            f"the scheduler may not be asked: that needs the rights to get services/proxy {name} and http:{name}:{PORT}, and to create "
            f"serviceaccounts/token {names.READER_ACCOUNT}, in namespace {namespace}"
        )
    if answer.not_found:
        return f"there is no Service {name} in namespace {namespace}; --scheduler names another"
    return f"the scheduler does not answer: {answer.complaint.removeprefix('error: ')}"
