"""ElasticQuotaTrees: one is in force, and its namespaces exist."""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final

import msgspec

from gpushare.api import names
from gpushare.api.crd.elastic_quota_tree import QuotaTree, QuotaTreeRecord, counting, decode_quota_tree
from gpushare.doctor.cluster.facts import ClusterFacts, at, name_of
from gpushare.doctor.findings import Result, Unread, fault, warning

#: Similarity to an existing namespace from which a name is taken for a misspelling.
_ALIKE: Final = 0.7
_MOST_NAMED: Final = 5


def elastic_quotas(facts: ClusterFacts) -> Iterator[Result]:
    """Whether a tree is in force and names existing namespaces, and whether other trees have no effect."""
    if isinstance(facts.quota_trees, Unread):
        return
    records: list[QuotaTreeRecord] = []
    for raw in facts.quota_trees:
        namespace, name = (str(at(raw, "metadata", key) or "") for key in ("namespace", "name"))
        if namespace != names.QUOTA_NAMESPACE:
            yield warning(
                f"elasticquotatree {name_of(raw)}",
                f"it has no effect: only trees in namespace {names.QUOTA_NAMESPACE} count",
                f"create it there, and `kubectl -n {namespace} delete elasticquotatree {name}`",
            )
            continue
        try:
            records.append(decode_quota_tree(msgspec.json.encode(raw)))
        except msgspec.MsgspecError:
            continue  # the schema rejects such objects
    chosen = counting(records)
    for record in records:
        if record is not chosen and chosen is not None:
            yield warning(
                _subject(record),
                f"it has no effect: tree {chosen.name} is older, and only one tree counts",
                f"delete one of the two: `kubectl -n {names.QUOTA_NAMESPACE} delete elasticquotatree {record.name}`",
            )
    if chosen is None:
        return
    if chosen.tree is None and chosen.earlier is None:
        yield fault(
            _subject(chosen),
            f"it is rejected, and no quota is in force: {chosen.problem}",
            "correct it: it takes effect immediately",
        )
    elif chosen.tree is None:
        yield warning(
            _subject(chosen),
            f"it is rejected, and the previous quotas stay in force: {chosen.problem}",
            "correct it: it takes effect immediately",
        )
    in_force = chosen.tree or chosen.earlier
    if in_force is not None and not isinstance(facts.namespaces, Unread):
        yield from _missing_namespaces(_subject(chosen), in_force, facts.namespaces)


def _subject(record: QuotaTreeRecord) -> str:
    return f"elasticquotatree {names.QUOTA_NAMESPACE}/{record.name}"


def _missing_namespaces(subject: str, tree: QuotaTree, existing: frozenset[str]) -> Iterator[Result]:
    for quota in tree.quotas:
        missing = [name for name in quota.namespaces if name not in existing]
        if not missing:
            continue
        listed = ", ".join(_with_near(name, existing) for name in missing[:_MOST_NAMED])
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        yield warning(
            subject,
            f"quota {quota.name} names namespaces that do not exist: {listed}{more}",
            "correct the name in the tree, or create the namespace",
        )


def _with_near(name: str, existing: frozenset[str]) -> str:
    near = next(iter(get_close_matches(name, sorted(existing), 1, _ALIKE)), "")
    return f"{name} (there is {near})" if near else name
