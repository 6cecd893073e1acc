"""Admission: rules are in force, the webhook can be called, certificates are valid."""

import base64
import binascii
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from gpushare.doctor.cluster.checks.api_server import server_minor
from gpushare.doctor.cluster.checks.network_policies import shut_webhook
from gpushare.doctor.cluster.checks.services import callable_webhook, meanwhile
from gpushare.doctor.cluster.facts import ClusterFacts, at, name_of
from gpushare.doctor.findings import Result, Unread, fault, fine, unknown, warning
from gpushare.doctor.suggested_commands import INSTALLER, namespace_of, upgrade

#: The first Kubernetes versions whose API server has policies for this.
_VALIDATES: Final = (1, 30)
_MUTATES: Final = (1, 36)
#: Policies of the chart that must exist together.
VALIDATING: Final = (
    "gpushare-requests",
    "gpushare-records",
    "gpushare-records-bindings",
    "gpushare-records-nodes",
)
#: The policy that points pods to our scheduler.
POINTING: Final = "gpushare-scheduler-name"
#: Prefix of policies that only warn.
WARNING: Final = "gpushare-mistakes"
#: Writes to the API server's audit log, and refuses nothing.
AUDITING: Final = "gpushare-audit"
#: The label of the charts' own pods.
_PART_OF: Final = "app.kubernetes.io/part-of"
_OURS: Final = "gpushare"
_SYSTEM: Final = "kube-system"
_SHARED: Final = "default"
_SOON_DAYS: Final = 3


def rules(facts: ClusterFacts) -> Iterator[Result]:
    """Whether wrong requests are refused, records guarded and pods pointed to our scheduler."""
    if facts.playground is not None:
        yield fine("", "a playground always has its rules")
        return
    # Also without the chart: a webhook that a removal left behind is called nevertheless.
    yield from callable_webhook(facts)
    if not isinstance(facts.webhooks, Unread):
        hooks = [hook for configuration in facts.webhooks for hook in configuration.get("webhooks") or ()]
        yield from shut_webhook(facts, meanwhile(hooks))
    if _no_chart(facts):
        return
    server = server_minor(facts)
    if server is None or isinstance(facts.webhooks, Unread):
        reason = (
            facts.webhooks.why
            if isinstance(facts.webhooks, Unread)
            else "the API server's version cannot be read"
        )
        yield unknown("admission", reason)
        return
    named = {
        str(hook.get("name"))
        for configuration in facts.webhooks
        for hook in configuration.get("webhooks") or ()
    }
    validates = any(name.startswith(("requests.", "records.")) for name in named)
    mutates = any(name.startswith("scheduler-name.") for name in named)
    if not validates:
        yield from _policies(facts, server)
    if not mutates and server >= _MUTATES:
        listed = facts.mutating_policies
        if isinstance(listed, Unread):
            yield unknown("MutatingAdmissionPolicies", listed.why)
        else:
            ours = [name for name in map(name_of, listed) if name.startswith("gpushare-")]
            if POINTING not in ours:
                yield _no_rules(facts, "pods that name no scheduler do not get ours")
            for name in ours:
                yield from _bound(facts, name)
    elif not mutates:
        yield _no_rules(facts, "pods that name no scheduler do not get ours")
    if named or _has_policies(facts):
        yield from _pods_not_admitted(facts)


def _has_policies(facts: ClusterFacts) -> bool:
    listed = facts.validating_policies
    return not isinstance(listed, Unread) and any(
        name_of(policy).startswith("gpushare-") for policy in listed
    )


def _pods_not_admitted(facts: ClusterFacts) -> Iterator[Result]:
    """Pods in the charts' own namespace, which admission skips: a namespace for the charts only has none, but a shared one has many."""
    namespace = namespace_of(facts, INSTALLER)
    pods = () if isinstance(facts.pods, Unread) else facts.pods
    if namespace == _SHARED or (
        namespace != _SYSTEM
        and any(
            pod.metadata.namespace == namespace and (pod.metadata.labels or {}).get(_PART_OF) != _OURS
            for pod in pods
        )
    ):
        yield warning(
            f"namespace {namespace}",
            "admission skips pods in it, as it is the charts' own: invalid requests are not rejected there, and pods do not get our scheduler",
            f"create no pods with GPUs in it; or install both charts in {_SYSTEM}",
        )


def _policies(facts: ClusterFacts, server: tuple[int, int]) -> Iterator[Result]:
    if server < _VALIDATES:
        yield _no_rules(facts, "invalid requests are not rejected, and allocation records are not protected")
        return
    listed, bindings = facts.validating_policies, facts.policy_bindings
    if isinstance(listed, Unread) or isinstance(bindings, Unread):
        unread = listed if isinstance(listed, Unread) else bindings
        yield unknown("ValidatingAdmissionPolicies", unread.why if isinstance(unread, Unread) else "")
        return
    by_name = {name_of(policy): policy for policy in listed}
    ours = [name for name in by_name if name.startswith("gpushare-")]
    if not ours:
        yield _no_rules(facts, "invalid requests are not rejected, and allocation records are not protected")
        return
    if AUDITING not in by_name:
        yield warning(
            f"policy {AUDITING}",
            "it does not exist: the API server's audit log does not show admitted GPU requests",
            upgrade(facts, INSTALLER),
        )
    for name in sorted({*VALIDATING, *ours}):
        policy = by_name.get(name)
        if policy is None:
            yield fault(f"policy {name}", "it is not there", upgrade(facts, INSTALLER))
            continue
        yield from _bound(facts, name)
        for wrong in at(policy, "status", "typeChecking", "expressionWarnings") or ():
            yield warning(
                f"policy {name}",
                f"the API server warns about {wrong.get('fieldRef')}: {str(wrong.get('warning'))[:200]}",
                "upgrade the chart to a release that supports this Kubernetes",
            )


def _bound(facts: ClusterFacts, name: str) -> Iterator[Result]:
    if isinstance(facts.policy_bindings, Unread):
        return
    bindings = [binding for binding in facts.policy_bindings if name_of(binding) == name]
    if not bindings:
        yield fault(f"policy {name}", "it has no binding, so it has no effect", upgrade(facts, INSTALLER))
    for binding in bindings:
        actions = at(binding, "spec", "validationActions")
        if actions and "Deny" not in actions and not name.startswith((WARNING, AUDITING)):
            yield fault(
                f"policy {name}",
                f"its binding does not reject invalid requests (validationActions: {', '.join(map(str, actions))})",
                f"{upgrade(facts, INSTALLER)} writes the binding again",
            )


def _no_rules(facts: ClusterFacts, message: str) -> Result:
    return warning(
        "admission",
        message,
        upgrade(facts, INSTALLER, "admission.enabled=true,admission.mode=auto"),
    )


def _no_chart(facts: ClusterFacts) -> bool:
    return not isinstance(facts.daemon_sets, Unread) and not facts.daemon_sets


def certificate(facts: ClusterFacts) -> Iterator[Result]:
    """Whether the certificate authority by which API servers trust the webhook exists, is valid, and will stay so."""
    if isinstance(facts.webhooks, Unread):
        if facts.playground is None:
            yield unknown("webhook", facts.webhooks.why)
        return
    now_s = facts.our_time_s if isinstance(facts.server_time_s, Unread) else facts.server_time_s
    now = datetime.fromtimestamp(now_s, UTC)
    for configuration in facts.webhooks:
        for hook in configuration.get("webhooks") or ():
            subject = f"webhook {hook.get('name')}"
            namespace = at(hook, "clientConfig", "service", "namespace") or namespace_of(facts, INSTALLER)
            suggestion = f"`kubectl -n {namespace} logs deploy/gpushare-admission`: it creates and renews them, and logs what prevents that"
            ends = _ends(str(at(hook, "clientConfig", "caBundle") or ""))
            if ends is None:
                yield fault(
                    subject,
                    f"it has no readable certificate authority, so calls to it fail: {meanwhile([hook])}",
                    suggestion,
                )
            elif ends < now:
                yield fault(
                    subject,
                    f"its certificate authority has expired on {ends:%Y-%m-%d %H:%M} UTC, so calls to it fail: {meanwhile([hook])}",
                    suggestion,
                )
            elif (ends - now).days < _SOON_DAYS:
                yield warning(
                    subject, f"its certificate authority expires on {ends:%Y-%m-%d %H:%M} UTC", suggestion
                )


def _ends(bundle: str) -> datetime | None:
    """When the last of the certificates in a ``caBundle`` expires; ``None`` without any."""
    # The certificate parser is large, and most clusters have no webhook.
    from cryptography import x509

    try:
        certificates = x509.load_pem_x509_certificates(base64.b64decode(bundle, validate=True))
    except (ValueError, binascii.Error):
        return None
    return max((parsed.not_valid_after_utc for parsed in certificates), default=None)
