"""Validation of objects: metadata, labels, and the kinds without a pod spec. Pods: ``pod_validation``."""

from collections.abc import Callable
from typing import Any, Final

from gpushare_playground.apiserver.errors import (
    FieldError,
    Object,
    forbidden_field,
    invalid_value,
    required,
    unsupported,
)
from gpushare_playground.apiserver.kinds.naming import (
    LABEL_TEXT,
    SUBDOMAIN_TEXT,
    is_dns_label,
    is_dns_subdomain,
)
from gpushare_playground.apiserver.kinds.resources import Resource
from gpushare_playground.apiserver.kinds.selectors import is_label_key, is_label_value, selector_requirements
from gpushare_playground.apiserver.writes.pod_validation import (
    check_pod,
    check_pod_update,
    check_template,
)

_ANNOTATIONS_MAX: Final = 256 * 1024
_DEVICES_MAX: Final = 128
_DEVICES_MAX_WITH_TAINTS_OR_COUNTERS: Final = 64
_LABEL_NAMED: Final = ("namespaces", "services")


def check_name(resource: Resource, name: str, path: str = "metadata.name") -> list[FieldError]:
    """Whether an object of this resource may have this name."""
    if resource.group == "rbac.authorization.k8s.io":
        bad = name in (".", "..") or "/" in name or "%" in name
        return [invalid_value(path, name, "may not contain '/' or '%'")] if bad else []
    is_label = resource.storage in _LABEL_NAMED
    longest = 63 if is_label else 253
    if len(name) > longest:
        return [invalid_value(path, name, f"must be no more than {longest} characters")]
    if is_label:
        return [] if is_dns_label(name) else [invalid_value(path, name, LABEL_TEXT)]
    return [] if is_dns_subdomain(name) else [invalid_value(path, name, SUBDOMAIN_TEXT)]


_LABEL_KEY_TEXT: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an"
    " alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is"
    " '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_LABEL_VALUE_TEXT: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must"
    " start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used"
    " for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def check_labels(labels: Any, path: str) -> list[FieldError]:
    """Keys and values of a map of labels."""
    field_errors: list[FieldError] = []
    for key, value in (labels or {}).items():
        if not is_label_key(key):
            field_errors.append(invalid_value(path, key, _LABEL_KEY_TEXT))
        if not isinstance(value, str) or not is_label_value(value):
            detail = "must be no more than 63 bytes" if len(str(value)) > 63 else _LABEL_VALUE_TEXT
            field_errors.append(invalid_value(path, value, detail))
    return field_errors


def check_metadata(resource: Resource, metadata: Object) -> list[FieldError]:
    """Name, labels, annotations, owners and finalizers."""
    name = metadata.get("name", "")
    field_errors = [] if name else [required("metadata.name", "name or generateName is required")]
    if name:
        field_errors += check_name(resource, name)
    field_errors += check_labels(metadata.get("labels"), "metadata.labels")
    annotations = metadata.get("annotations") or {}
    field_errors += [
        invalid_value("metadata.annotations", key, _LABEL_KEY_TEXT)
        for key in annotations
        if not is_label_key(key.lower())
    ]
    size = sum(len(key) + len(value) for key, value in annotations.items() if isinstance(value, str))
    if size > _ANNOTATIONS_MAX:
        field_errors.append(
            FieldError("FieldValueTooLong", "metadata.annotations", "may not be more than 262144 bytes")
        )
    controllers = 0
    for index, owner in enumerate(metadata.get("ownerReferences") or ()):
        path = f"metadata.ownerReferences[{index}]"
        field_errors += [
            invalid_value(f"{path}.{key}", "", f"{key} must not be empty")
            for key in ("apiVersion", "kind", "name", "uid")
            if not owner.get(key)
        ]
        controllers += bool(owner.get("controller"))
    if controllers > 1:
        detail = "Only one reference can have Controller set to true"
        field_errors.append(invalid_value("metadata.ownerReferences", controllers, detail))
    return field_errors


def _check_selector(obj: Object) -> list[FieldError]:
    """A workload's selector is required, must not be empty, and must match its template."""
    spec = obj["spec"]
    selector = spec.get("selector")
    if not selector:
        return [required("spec.selector")]
    field_errors: list[FieldError] = []
    for index, expression in enumerate(selector.get("matchExpressions") or ()):
        if expression.get("operator") not in ("In", "NotIn", "Exists", "DoesNotExist"):
            path = f"spec.selector.matchExpressions[{index}].operator"
            field_errors.append(
                invalid_value(path, expression.get("operator"), "not a valid selector operator")
            )
    if field_errors:
        return field_errors
    requirements = selector_requirements(selector) or ()
    if not requirements:
        detail = f"empty selector is invalid for {obj.get('kind', 'workload').lower()}"
        return [invalid_value("spec.selector", {}, detail)]
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    if not all(expression.matches(labels) for expression in requirements):
        detail = "`selector` does not match template `labels`"
        return [invalid_value("spec.template.metadata.labels", labels, detail)]
    return []


def _not_negative(obj: Object, *names: str) -> list[FieldError]:
    return [
        invalid_value(f"spec.{name}", obj["spec"][name], "must be greater than or equal to 0")
        for name in names
        if isinstance(obj["spec"].get(name), int) and obj["spec"][name] < 0
    ]


def _check_replicated(obj: Object) -> list[FieldError]:
    field_errors = _not_negative(obj, "replicas", "minReadySeconds", "revisionHistoryLimit")
    field_errors += _check_selector(obj)
    field_errors += check_template(obj["spec"]["template"], "spec.template", ("Always",))
    return field_errors


def _check_job(obj: Object) -> list[FieldError]:
    field_errors = _not_negative(obj, "parallelism", "completions", "backoffLimit", "ttlSecondsAfterFinished")
    template = obj["spec"]["template"]
    if (template.get("spec") or {}).get("restartPolicy") == "Always":
        field_errors.append(unsupported("spec.template.spec.restartPolicy", "Always", ("OnFailure", "Never")))
    field_errors += check_template(template, "spec.template", ("OnFailure", "Never", "Always"))
    if obj["spec"].get("completionMode") not in ("NonIndexed", "Indexed"):
        mode = obj["spec"].get("completionMode")
        field_errors.append(unsupported("spec.completionMode", mode, ("NonIndexed", "Indexed")))
    return field_errors


def _check_lease(obj: Object) -> list[FieldError]:
    seconds = (obj.get("spec") or {}).get("leaseDurationSeconds")
    if isinstance(seconds, int) and seconds <= 0:
        return [invalid_value("spec.leaseDurationSeconds", seconds, "must be greater than 0")]
    return []


def _check_slice(obj: Object) -> list[FieldError]:
    devices = (obj.get("spec") or {}).get("devices") or ()
    special = any(one.get("taints") or one.get("consumesCounters") for one in devices)
    most = _DEVICES_MAX_WITH_TAINTS_OR_COUNTERS if special else _DEVICES_MAX
    if len(devices) > most:
        detail = f"must have at most {most} items"
        return [FieldError("FieldValueTooMany", "spec.devices", detail, len(devices))]
    return []


def _check_custom_definition(obj: Object) -> list[FieldError]:
    spec = obj["spec"]
    wanted = spec.get("names") or {}
    field_errors = [required(f"spec.{key}") for key in ("group", "scope") if not spec.get(key)]
    field_errors += [required(f"spec.names.{key}") for key in ("plural", "kind") if not wanted.get(key)]
    versions = spec.get("versions") or []
    if not versions:
        field_errors.append(required("spec.versions"))
    elif sum(bool(version.get("storage")) for version in versions) != 1:
        detail = "must have exactly one version marked as storage version"
        field_errors.append(invalid_value("spec.versions", [one.get("name") for one in versions], detail))
    if spec.get("scope") not in (None, "", "Namespaced", "Cluster"):
        field_errors.append(unsupported("spec.scope", spec["scope"], ("Cluster", "Namespaced")))
    if not field_errors and obj["metadata"].get("name") != f"{wanted['plural']}.{spec['group']}":
        detail = 'must be spec.names.plural+"."+spec.group'
        field_errors.append(invalid_value("metadata.name", obj["metadata"].get("name"), detail))
    return field_errors


_BY_STORAGE: Final[dict[str, Callable[[Object], list[FieldError]]]] = {
    "pods": check_pod,
    "deployments.apps": _check_replicated,
    "statefulsets.apps": _check_replicated,
    "replicasets.apps": _check_replicated,
    "jobs.batch": _check_job,
    "leases.coordination.k8s.io": _check_lease,
    "resourceslices.resource.k8s.io": _check_slice,
    "customresourcedefinitions.apiextensions.k8s.io": _check_custom_definition,
}


def check_new(resource: Resource, obj: Object) -> list[FieldError]:
    """All errors of an object that is to be created or to replace another."""
    field_errors = check_metadata(resource, obj["metadata"])
    function = _BY_STORAGE.get(resource.storage)
    return field_errors if function is None else field_errors + function(obj)


_IMMUTABLE: Final = "field is immutable"
_FROZEN: Final[dict[str, tuple[str, ...]]] = {
    "deployments.apps": ("selector",),
    "replicasets.apps": ("selector",),
    "jobs.batch": ("selector", "template", "completionMode"),
}
_STATEFUL_SET_FREE: Final = frozenset(
    (
        "replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy", "minReadySeconds",
    )
)  # fmt: skip


def check_update(resource: Resource, old: Object, new: Object) -> list[FieldError]:
    """All errors of the change from ``old`` to ``new``; only those that concern the change itself."""
    storage = resource.storage
    if storage == "pods":
        return check_pod_update(old, new)
    old_spec, new_spec = old.get("spec") or {}, new.get("spec") or {}
    field_errors = [
        invalid_value(f"spec.{name}", new_spec.get(name), _IMMUTABLE)
        for name in _FROZEN.get(storage, ())
        if old_spec.get(name) != new_spec.get(name)
    ]
    if storage == "statefulsets.apps":
        changed = {
            name
            for name in {*old_spec, *new_spec} - _STATEFUL_SET_FREE
            if old_spec.get(name) != new_spec.get(name)
        }
        if changed:
            allowed = ", ".join(f"'{name}'" for name in sorted(_STATEFUL_SET_FREE - {"minReadySeconds"}))
            detail = f"updates to statefulset spec for fields other than {allowed} and 'minReadySeconds' are forbidden"
            field_errors.append(forbidden_field("spec", detail))
    return field_errors
