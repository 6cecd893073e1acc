"""Errors for a pod or namespace that does not exist, with similar names. Looked up only after nothing was found."""

import json
from typing import Any, Final

from gpushare.inspect.errors import InspectError, KubectlFailed
from gpushare.inspect.sources.kubectl import Kubectl

#: Pods of the namespace that are read, and names that a message lists.
_MAX_PODS: Final = 500
_MAX_NAMED: Final = 3


def no_pod(kubectl: Kubectl, namespace: str, name: str) -> InspectError:
    """The error for a pod that does not exist, with the most similar names. Raises ``KubectlMissing``."""
    with kubectl.start(
        f"/api/v1/namespaces/{namespace}/pods?limit={_MAX_PODS}",
        f"/api/v1/pods?limit={_MAX_NAMED}&fieldSelector=metadata.name%3D{name}",
        f"/api/v1/namespaces/{namespace}",
    ) as begun:
        pods, elsewhere, namespace_answer = begun.outcomes()
    if isinstance(namespace_answer, KubectlFailed) and namespace_answer.not_found:
        where = f"not found: there is no namespace {namespace}"
    else:
        where = f"not found in namespace {namespace}"
    meant = _similar(name, [pod["name"] for pod in _metadata(pods)])
    meant += [f"{pod['namespace']}/{pod['name']}" for pod in _metadata(elsewhere)]
    return InspectError("", f'pod "{name}" {where}{_did_you_mean(meant)}; -n names another')


def within(kubectl: Kubectl, namespace: "str | None") -> str:
    """`` in namespace …`` for a message that there are no pods; empty where all namespaces were read.

    Raises ``KubectlMissing``.
    """
    if namespace is None:
        return ""
    with kubectl.start(f"/api/v1/namespaces/{namespace}") as begun:
        (answer,) = begun.outcomes()
    # A user without the right to read namespaces still gets an answer.
    exists = not (isinstance(answer, KubectlFailed) and answer.not_found)
    return f" in namespace {namespace}" + ("" if exists else ": there is no such namespace")


def _metadata(answer: "bytes | KubectlFailed") -> "list[dict[str, Any]]":
    if isinstance(answer, KubectlFailed):
        return []
    return [item["metadata"] for item in json.loads(answer).get("items") or ()]


def _similar(name: str, pods: "list[str]") -> "list[str]":
    """Pods of a workload of that name, or else those with the most similar names."""
    import difflib  # slow to import, and needed for a misspelt name only

    return [pod for pod in pods if pod.startswith(f"{name}-")] or difflib.get_close_matches(
        name, pods, _MAX_NAMED, 0.6
    )


def _did_you_mean(meant: "list[str]") -> str:
    if not meant:
        return ""
    more = len(meant) - _MAX_NAMED
    text = " or ".join(meant[:_MAX_NAMED]) + (f" or one of {more} more" if more > 0 else "")
    return f" (did you mean {text}?)"
