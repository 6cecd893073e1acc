"""Definitions of our kinds: whether they are served, and as complete as those of this release."""

from collections.abc import Iterator
from typing import Any, Final

from gpushare.doctor.cluster.facts import ClusterFacts, Json, at, name_of
from gpushare.doctor.findings import Result, Unread, fault, unknown, warning
from gpushare.doctor.suggested_commands import SCHEDULER, upgrade
from gpushare.kube.crds import MANIFESTS, definition

_MOST_NAMED: Final = 3
_RULES: Final = "x-kubernetes-validations"


def kinds(facts: ClusterFacts) -> Iterator[Result]:
    """Whether the API server serves ResourcePolicy and ElasticQuotaTree as defined by this release."""
    if isinstance(facts.definitions, Unread):
        yield unknown("CustomResourceDefinitions", facts.definitions.why)
        return
    if facts.playground is None and not isinstance(facts.deployments, Unread) and not facts.deployments:
        return
    by_name = {name_of(item): item for item in facts.definitions}
    for name, manifest in MANIFESTS.items():
        existing = by_name.get(name)
        if existing is None:
            yield fault(
                f"crd {name}",
                "it does not exist: the extender waits for it or works without it",
                upgrade(facts, SCHEDULER),
            )
        elif not _is_established(existing):
            yield fault(f"crd {name}", "the API server does not serve it", f"`kubectl describe crd {name}`")
        elif lacks := list(lacking(existing, definition(name))):
            more = f" and {len(lacks) - _MOST_NAMED} more" if len(lacks) > _MOST_NAMED else ""
            chart = f"charts/{SCHEDULER}/templates/crds/{manifest.name}"
            yield warning(
                f"crd {name}",
                f"it is from an older release than this program, and lacks {', '.join(lacks[:_MOST_NAMED])}{more}",
                # Helm compares a definition with the one that it wrote last, not with the actual one.
                f"{upgrade(facts, SCHEDULER)} of this release; if it does not change `kubectl apply --server-side --force-conflicts -f {chart}`",
            )


def lacking(existing: Json, wanted: Json) -> Iterator[str]:
    """What a definition lacks of ``wanted``, as texts: versions, subresources, fields, values, rules.

    Additional parts and other limits are not reported: a newer release has those, too.
    """
    served = {
        version.get("name"): version
        for version in at(existing, "spec", "versions") or ()
        if version.get("served")
    }
    for version in wanted["spec"]["versions"]:
        name = version["name"]
        if name not in served:
            yield f"version {name}"
            continue
        have = served[name]
        yield from (
            f"subresource {subresource}"
            for subresource in version.get("subresources") or {}
            if subresource not in (have.get("subresources") or {})
        )
        schema = at(have, "schema", "openAPIV3Schema") or {}
        yield from _lacking(schema, version["schema"]["openAPIV3Schema"], "")


def _lacking(existing: Json, wanted: Json, path: str) -> Iterator[str]:
    if existing.get("x-kubernetes-preserve-unknown-fields") and not existing.get("properties"):
        return  # it accepts anything
    values = set(map(str, wanted.get("enum") or ())) - set(map(str, existing.get("enum") or ()))
    if existing.get("enum") and values:
        yield f"{path}: {', '.join(sorted(values))}"
    rules = {rule.get("rule") for rule in existing.get(_RULES) or ()}
    if any(rule["rule"] not in rules for rule in wanted.get(_RULES) or ()):
        yield f"a rule of {path}"
    known = existing.get("properties") or {}
    for name, below in (wanted.get("properties") or {}).items():
        inner = f"{path}.{name}" if path else name
        if name in known:
            yield from _lacking(known[name], below, inner)
        else:
            yield f"field {inner}"
    for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
        inner_schema: Any = existing.get(key)
        if isinstance(wanted.get(key), dict) and isinstance(inner_schema, dict):
            yield from _lacking(inner_schema, wanted[key], f"{path}{mark}")


def _is_established(existing: Json) -> bool:
    conditions = at(existing, "status", "conditions") or ()
    return any(
        condition.get("type") == "Established" and condition.get("status") == "True"
        for condition in conditions
    )
