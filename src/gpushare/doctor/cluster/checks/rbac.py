"""Permissions of our processes' accounts: the roles of the charts, and their bindings."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from gpushare.doctor.cluster.facts import ClusterFacts, Json, at, name_of
from gpushare.doctor.findings import Result, Unread, fault, unknown
from gpushare.doctor.suggested_commands import INSTALLER, SCHEDULER, upgrade

_OWN: Final = ""


class _Needed(NamedTuple):
    """A role of ``chart`` that must be bound to the account of the workload in ``field`` of the facts.

    ``namespace``: of a Role, empty for that of the release; ``None``: a ClusterRole. ``allows``: the least permissions, as VERB
    RESOURCE.GROUP, on objects with the name ``only`` if the role names any; empty if it is a role of Kubernetes.
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
    """Whether the accounts of our processes have the permissions that they need."""
    unread = (
        ("ClusterRoles", facts.roles), ("ClusterRoles", facts.bindings),
        ("Roles", facts.own_roles), ("Roles", facts.own_bindings),
    )  # fmt: skip
    for kind, objects in unread:
        if isinstance(objects, Unread) and facts.playground is None:
            yield unknown(kind, objects.why)
            return
    for needed in RIGHTS:
        workloads = getattr(facts, needed.field)
        if isinstance(workloads, Unread):
            continue
        # Of two releases one has what the other lacks; that there are two is another finding.
        if len(workloads) == 1 or (workloads and needed.namespace is None):
            yield from _missing_rights(facts, needed, workloads)


def _missing_rights(facts: ClusterFacts, needed: _Needed, workloads: Sequence[Json]) -> Iterator[Result]:
    home = str(at(workloads[0], "metadata", "namespace") or "")
    wide = needed.namespace is None
    namespace = "" if wide else needed.namespace or home
    roles, bindings = (facts.roles, facts.bindings) if wide else (facts.own_roles, facts.own_bindings)
    if isinstance(roles, Unread) or isinstance(bindings, Unread):
        return
    role_kind, binding_kind = ("clusterrole", "clusterrolebinding") if wide else ("role", "rolebinding")
    place = f"{namespace}/" if namespace else ""
    suggestion = f"{upgrade(facts, needed.chart)} restores the permissions"
    if needed.allows:
        role = next((item for item in roles if name_of(item) == f"{place}{needed.role}"), None)
        if role is None:
            yield fault(f"{role_kind} {place}{needed.role}", "it is not there", suggestion)
            return
        missing = [right for right in needed.allows if not _allows(role, right, needed.only)]
        if missing:
            yield fault(
                f"{role_kind} {place}{needed.role}", f"it does not allow to {', '.join(missing)}", suggestion
            )
    subject = f"{binding_kind} {place}{needed.binding}"
    binding = next((item for item in bindings if name_of(item) == f"{place}{needed.binding}"), None)
    if binding is None or at(binding, "roleRef", "name") != needed.role or not at(binding, "subjects"):
        yield fault(subject, "it does not exist, or binds no subject to the role", suggestion)
        return
    account = str(at(workloads[0], "spec", "template", "spec", "serviceAccountName") or "default")
    if len(workloads) == 1 and not any(_is(entry, home, account) for entry in binding["subjects"]):
        bound = ", ".join(map(_named, binding["subjects"]))
        yield fault(
            subject, f"it binds {bound}, but our pods use serviceaccount {home}/{account}", suggestion
        )


def _is(subject: Json, namespace: str, account: str) -> bool:
    """Whether a binding's subject is the account, or one of its groups."""
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
    verb, _, target = right.partition(" ")
    resource, _, group = target.partition(".")
    return any(
        {verb, "*"} & set(rule.get("verbs") or ())
        and {resource, "*"} & set(rule.get("resources") or ())
        and {group, "*"} & set(rule.get("apiGroups") or ())
        and (not rule.get("resourceNames") or only in rule["resourceNames"])
        for rule in role.get("rules") or ()
    )
