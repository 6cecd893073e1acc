"""Definitions of our kinds: whether they are served, and whether they know what this release does."""

from collections.abc import Iterator
from typing import Any, Final

from gpushare.doctor.cluster.facts import ClusterFacts, Json, at, name_of
from gpushare.doctor.findings import Result, Unread, fault, unknown, warning
from gpushare.doctor.suggested_commands import SCHEDULER, upgrade
from gpushare.kube.crds import MANIFESTS, definition

_MOST_NAMED: Final = 3
_RULES: Final = "x-kubernetes-validations"


def kinds(facts: ClusterFacts) -> Iterator[Result]:
    """Whether the API server serves ResourcePolicy and ElasticQuotaTree, as this release has them."""
    if isinstance(facts.definitions, Unread):
        yield unknown("CustomResourceDefinitions", facts.definitions.why)
        return
    if facts.playground is None and not isinstance(facts.deployments, Unread) and not facts.deployments:
        return
    there = {name_of(one): one for one in facts.definitions}
    for name, manifest in MANIFESTS.items():
        found = there.get(name)
        if found is None:
            yield fault(
                f"crd {name}",
                "it is not there: the extender waits for it or goes without",
                upgrade(facts, SCHEDULER),
            )
        elif not _is_established(found):
            yield fault(f"crd {name}", "the API server does not serve it", f"`kubectl describe crd {name}`")
        elif lacks := list(lacking(found, definition(name))):
            more = f" and {len(lacks) - _MOST_NAMED} more" if len(lacks) > _MOST_NAMED else ""
            chart = f"charts/{SCHEDULER}/templates/crds/{manifest.name}"
            yield warning(
                f"crd {name}",
                f"it is of an older release than this program, and lacks {', '.join(lacks[:_MOST_NAMED])}{more}",
                # Helm compares a definition with the one that it wrote last, not with what is there.
                f"{upgrade(facts, SCHEDULER)} of this release; if it stays as it is `kubectl apply --server-side --force-conflicts -f {chart}`",
            )


def lacking(found: Json, wanted: Json) -> Iterator[str]:
    """What a definition lacks of ``wanted``, each in words: versions, subresources, fields, values, rules.

    What it has besides, and other bounds, are not told: a newer release has these, too.
    """
    served = {one.get("name"): one for one in at(found, "spec", "versions") or () if one.get("served")}
    for version in wanted["spec"]["versions"]:
        name = version["name"]
        if name not in served:
            yield f"version {name}"
            continue
        have = served[name]
        yield from (
            f"subresource {one}"
            for one in version.get("subresources") or {}
            if one not in (have.get("subresources") or {})
        )
        schema = at(have, "schema", "openAPIV3Schema") or {}
        yield from _lacking(schema, version["schema"]["openAPIV3Schema"], "")


def _lacking(found: Json, wanted: Json, path: str) -> Iterator[str]:
    if found.get("x-kubernetes-preserve-unknown-fields") and not found.get("properties"):
        return  # it takes whatever is written
    values = set(map(str, wanted.get("enum") or ())) - set(map(str, found.get("enum") or ()))
    if found.get("enum") and values:
        yield f"{path}: {', '.join(sorted(values))}"
    rules = {one.get("rule") for one in found.get(_RULES) or ()}
    if any(one["rule"] not in rules for one in wanted.get(_RULES) or ()):
        yield f"a rule of {path}"
    known = found.get("properties") or {}
    for name, below in (wanted.get("properties") or {}).items():
        inner = f"{path}.{name}" if path else name
        if name in known:
            yield from _lacking(known[name], below, inner)
        else:
            yield f"field {inner}"
    for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
        there: Any = found.get(key)
        if isinstance(wanted.get(key), dict) and isinstance(there, dict):
            yield from _lacking(there, wanted[key], f"{path}{mark}")


def _is_established(found: Json) -> bool:
    conditions = at(found, "status", "conditions") or ()
    return any(one.get("type") == "Established" and one.get("status") == "True" for one in conditions)
