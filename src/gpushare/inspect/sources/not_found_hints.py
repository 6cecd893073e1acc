"""What is said of a pod or a namespace that is not there: what was meant, perhaps. Looked up once nothing was found."""

import json
from typing import Any, Final

from gpushare.inspect.errors import InspectError, KubectlFailed
from gpushare.inspect.sources.kubectl import Kubectl

#: Pods of the namespace that are looked at, and names of them that are told.
_MOST_PODS: Final = 500
_MOST_NAMED: Final = 3


def no_pod(kubectl: Kubectl, namespace: str, name: str) -> InspectError:
    """The error for a pod that does not exist, with the names that are nearest to it. Raises ``KubectlMissing``."""
    with kubectl.start(
        f"/api/v1/namespaces/{namespace}/pods?limit={_MOST_PODS}",
        f"/api/v1/pods?limit={_MOST_NAMED}&fieldSelector=metadata.name%3D{name}",
        f"/api/v1/namespaces/{namespace}",
    ) as begun:
        there, elsewhere, itself = begun.outcomes()
    if isinstance(itself, KubectlFailed) and itself.not_found:
        where = f"not found: there is no namespace {namespace}"
    else:
        where = f"not found in namespace {namespace}"
    meant = _near(name, [one["name"] for one in _names(there)])
    meant += [f"{one['namespace']}/{one['name']}" for one in _names(elsewhere)]
    return InspectError("", f'pod "{name}" {where}{_did_you_mean(meant)}; -n names another')


def within(kubectl: Kubectl, namespace: "str | None") -> str:
    """`` in namespace …`` for a line that says that nothing is there; empty where all namespaces were looked at.

    Raises ``KubectlMissing``.
    """
    if namespace is None:
        return ""
    with kubectl.start(f"/api/v1/namespaces/{namespace}") as begun:
        (itself,) = begun.outcomes()
    # Who may not read namespaces is told what is known.
    there = not (isinstance(itself, KubectlFailed) and itself.not_found)
    return f" in namespace {namespace}" + ("" if there else ": there is no such namespace")


def _names(answer: "bytes | KubectlFailed") -> "list[dict[str, Any]]":
    if isinstance(answer, KubectlFailed):
        return []
    return [one["metadata"] for one in json.loads(answer).get("items") or ()]


def _near(name: str, there: "list[str]") -> "list[str]":
    """Pods of a workload of that name, or else those whose names are nearest."""
    import difflib  # for a slip alone: it takes longer to import than the rest

    return [one for one in there if one.startswith(f"{name}-")] or difflib.get_close_matches(
        name, there, _MOST_NAMED, 0.6
    )


def _did_you_mean(meant: "list[str]") -> str:
    if not meant:
        return ""
    more = len(meant) - _MOST_NAMED
    told = " or ".join(meant[:_MOST_NAMED]) + (f" or one of {more} more" if more > 0 else "")
    return f" (did you mean {told}?)"
