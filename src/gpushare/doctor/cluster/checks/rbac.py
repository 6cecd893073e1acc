"""What the accounts of our processes may: the roles that the charts make, and whom these are bound to."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from gpushare.doctor.cluster.facts import ClusterFacts, Json, at, name_of
from gpushare.doctor.findings import Result, Unread, fault, unknown
from gpushare.doctor.suggested_commands import INSTALLER, SCHEDULER, upgrade

_OWN: Final = ""


class _Needed(NamedTuple):
    """A role of ``chart`` that must be bound to the account of what ``field`` of the facts holds.

    ``namespace``: of a Role, empty for that of the release; ``None``: a ClusterRole. ``allows``: VERB RESOURCE.GROUP, at the least, to
    objects of the name ``only`` where the role names any; nothing where the role is Kubernetes' own.
    """

    field: str
    chart: str
    binding: str
    role: str
    namespace: str | None
    allows: tuple[str, ...] = ()
    only: str = ""


RIGHTS: Final = (
    _Needed(
        "daemon_sets", INSTALLER, "gpushare-device-plugin", "gpushare-device-plugin", None,
        (
            "list nodes", "watch nodes", "patch nodes", "patch nodes/status", "list pods", "watch pods", "patch pods",
            "create events.events.k8s.io", "patch events.events.k8s.io",
        ),
    ),
    _Needed(
        "deployments", SCHEDULER, "ack-co-scheduler", "ack-co-scheduler", None,
        (
            "list nodes", "watch nodes", "list pods", "watch pods", "get pods", "patch pods", "create pods/binding",
            "create pods/eviction", "patch pods/status", "create events.events.k8s.io",
            "list resourcepolicies.scheduling.alibabacloud.com",
        ),
    ),
    _Needed("deployments", SCHEDULER, "ack-co-scheduler:kube-scheduler", "system:kube-scheduler", None),
    _Needed("deployments", SCHEDULER, "ack-co-scheduler:volume-scheduler", "system:volume-scheduler", None),
    _Needed(
        "deployments", SCHEDULER, "ack-co-scheduler", "ack-co-scheduler", _OWN,
        ("get leases.coordination.k8s.io", "update leases.coordination.k8s.io"), "ack-co-scheduler",
    ),
    _Needed(
        "deployments", SCHEDULER, "ack-co-scheduler:elastic-quotas", "ack-co-scheduler:elastic-quotas", "kube-system",
        (
            "list elasticquotatrees.scheduling.sigs.k8s.io", "watch elasticquotatrees.scheduling.sigs.k8s.io",
            "patch elasticquotatrees/status.scheduling.sigs.k8s.io",
        ),
    ),
    _Needed(
        "deployments", SCHEDULER, "ack-co-scheduler:authentication-reader", "extension-apiserver-authentication-reader",
        "kube-system",
    ),
    _Needed(
        "dashboards", SCHEDULER, "gpushare-dashboard", "gpushare-dashboard", None,
        ("list nodes", "watch nodes", "list pods", "watch pods"),
    ),
    _Needed(
        "dashboards", SCHEDULER, "gpushare-dashboard", "gpushare-dashboard", _OWN,
        ("get leases.coordination.k8s.io",), "ack-co-scheduler",
    ),
    _Needed(
        "webhook_deployments", INSTALLER, "gpushare-admission", "gpushare-admission", None,
        (
            "get mutatingwebhookconfigurations.admissionregistration.k8s.io",
            "patch mutatingwebhookconfigurations.admissionregistration.k8s.io",
            "get validatingwebhookconfigurations.admissionregistration.k8s.io",
            "patch validatingwebhookconfigurations.admissionregistration.k8s.io",
        ),
        "gpushare-admission",
    ),
    _Needed(
        "webhook_deployments", INSTALLER, "gpushare-admission", "gpushare-admission", _OWN, ("get secrets", "patch secrets"),
        "gpushare-admission",
    ),
)  # fmt: skip


def process_rights(facts: ClusterFacts) -> Iterator[Result]:
    """Whether the accounts of our processes are given what they need."""
    unread = (
        ("ClusterRoles", facts.roles), ("ClusterRoles", facts.bindings),
        ("Roles", facts.own_roles), ("Roles", facts.own_bindings),
    )  # fmt: skip
    for what, found in unread:
        if isinstance(found, Unread) and facts.playground is None:
            yield unknown(what, found.why)
            return
    for needed in RIGHTS:
        there = getattr(facts, needed.field)
        if isinstance(there, Unread):
            continue
        # Of two releases one has what the other lacks; that there are two is told elsewhere.
        if len(there) == 1 or (there and needed.namespace is None):
            yield from _given(facts, needed, there)


def _given(facts: ClusterFacts, needed: _Needed, workloads: Sequence[Json]) -> Iterator[Result]:
    home = str(at(workloads[0], "metadata", "namespace") or "")
    wide = needed.namespace is None
    namespace = "" if wide else needed.namespace or home
    roles, bindings = (facts.roles, facts.bindings) if wide else (facts.own_roles, facts.own_bindings)
    if isinstance(roles, Unread) or isinstance(bindings, Unread):
        return
    role_word, binding_word = ("clusterrole", "clusterrolebinding") if wide else ("role", "rolebinding")
    place = f"{namespace}/" if namespace else ""
    suggestion = f"{upgrade(facts, needed.chart)} writes the rights again"
    if needed.allows:
        role = next((one for one in roles if name_of(one) == f"{place}{needed.role}"), None)
        if role is None:
            yield fault(f"{role_word} {place}{needed.role}", "it is not there", suggestion)
            return
        missing = [right for right in needed.allows if not _allows(role, right, needed.only)]
        if missing:
            yield fault(
                f"{role_word} {place}{needed.role}", f"it does not allow to {', '.join(missing)}", suggestion
            )
    subject = f"{binding_word} {place}{needed.binding}"
    binding = next((one for one in bindings if name_of(one) == f"{place}{needed.binding}"), None)
    if binding is None or at(binding, "roleRef", "name") != needed.role or not at(binding, "subjects"):
        yield fault(subject, "it is not there, or binds nobody to the role", suggestion)
        return
    account = str(at(workloads[0], "spec", "template", "spec", "serviceAccountName") or "default")
    if len(workloads) == 1 and not any(_is(one, home, account) for one in binding["subjects"]):
        bound = ", ".join(map(_named, binding["subjects"]))
        yield fault(
            subject, f"it binds {bound}, and our pods are serviceaccount {home}/{account}", suggestion
        )


def _is(subject: Json, namespace: str, account: str) -> bool:
    """Whether a binding's subject is the account, or a group that it is in."""
    name = subject.get("name")
    match subject.get("kind"):
        case "ServiceAccount":
            return (subject.get("namespace"), name) == (namespace, account)
        case "User":
            return bool(name == f"system:serviceaccount:{namespace}:{account}")
        case "Group":
            return name in (
                "system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{namespace}",
            )  # fmt: skip
    return False


def _named(subject: Json) -> str:
    namespace = subject.get("namespace")
    place = f"{namespace}/" if namespace else ""
    return f"{str(subject.get('kind')).lower()} {place}{subject.get('name')}"


def _allows(role: Json, right: str, only: str) -> bool:
    verb, _, what = right.partition(" ")
    resource, _, group = what.partition(".")
    return any(
        {verb, "*"} & set(rule.get("verbs") or ())
        and {resource, "*"} & set(rule.get("resources") or ())
        and {group, "*"} & set(rule.get("apiGroups") or ())
        and (not rule.get("resourceNames") or only in rule["resourceNames"])
        for rule in role.get("rules") or ()
    )
