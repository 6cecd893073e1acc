"""Validation of pods and pod templates, and of changes to existing pods."""

from typing import Any, Final

from gpushare.api.quantity import parse_quantity
from gpushare_playground.apiserver.errors import (
    FieldError,
    Object,
    duplicate,
    forbidden_field,
    invalid_value,
    required,
    unsupported,
)
from gpushare_playground.apiserver.kinds.naming import LABEL_TEXT, is_dns_label

_RESTART: Final = ("Always", "Never", "OnFailure")
_PULL: Final = ("Always", "IfNotPresent", "Never")
_DNS: Final = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
_NATIVE: Final = ("cpu", "memory", "ephemeral-storage")
_WHOLE_POD: Final = ("cpu", "hugepages-", "memory")
_EFFECTS: Final = ("NoExecute", "NoSchedule", "PreferNoSchedule")


def is_extended(name: str) -> bool:
    """Whether a resource name belongs to a device plugin or an operator, not to Kubernetes."""
    return "/" in name and not name.startswith("kubernetes.io/") and not name.startswith("requests.")


def _check_resources(resources: Object, path: str) -> list[FieldError]:
    field_errors: list[FieldError] = []
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for word, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            where = f"{path}.{word}[{name}]"
            if "/" not in name and name not in _NATIVE and not name.startswith("hugepages-"):
                detail = "must be a standard resource type or fully qualified"
                field_errors += [invalid_value(where, name, detail)]
                continue
            value = parse_quantity(amount)
            if value < 0:
                field_errors.append(invalid_value(where, amount, "must be greater than or equal to 0"))
            if is_extended(name) and value.denominator != 1:
                field_errors.append(invalid_value(where, amount, "must be an integer"))
    for name, amount in requests.items():
        where = f"{path}.requests"
        if is_extended(name) and name not in limits:
            field_errors.append(
                required(f"{path}.limits", "Limit must be set for non overcommitable resources")
            )
        elif is_extended(name) and amount != limits[name]:
            field_errors.append(
                invalid_value(where, amount, f"must be equal to {name} limit of {limits[name]}")
            )
        elif name in limits and parse_quantity(amount) > parse_quantity(limits[name]):
            detail = f"must be less than or equal to {name} limit of {limits[name]}"
            field_errors.append(invalid_value(where, amount, detail))
    return field_errors


def _check_pod_level(resources: Object, path: str) -> list[FieldError]:
    """Requests at pod level do not include extended resources."""
    return [
        unsupported(f"{path}.{word}[{name}]", name, _WHOLE_POD)
        for word in ("limits", "requests")
        for name in resources.get(word) or {}
        if name not in _WHOLE_POD and not name.startswith("hugepages-")
    ]


def _check_env(container: Object, path: str) -> list[FieldError]:
    field_errors: list[FieldError] = []
    for index, variable in enumerate(container.get("env") or ()):
        where, name = f"{path}.env[{index}]", variable.get("name", "")
        if not name:
            field_errors.append(required(f"{where}.name"))
        elif "=" in name:
            field_errors.append(
                invalid_value(f"{where}.name", name, "a valid environment variable name has no '='")
            )
        if variable.get("value") and variable.get("valueFrom"):
            detail = "may not be specified when `value` is not empty"
            field_errors.append(invalid_value(f"{where}.valueFrom", "", detail))
    return field_errors


def _check_container(container: Object, path: str, volumes: set[str], *, init: bool) -> list[FieldError]:
    field_errors = _check_env(container, path)
    name = container.get("name", "")
    if not name:
        field_errors.append(required(f"{path}.name"))
    elif not is_dns_label(name):
        field_errors.append(invalid_value(f"{path}.name", name, LABEL_TEXT))
    image = container.get("image", "")
    if not image:
        field_errors.append(required(f"{path}.image"))
    elif image != image.strip():
        field_errors.append(
            invalid_value(f"{path}.image", image, "must not have leading or trailing whitespace")
        )
    policy = container.get("imagePullPolicy")
    if policy is not None and policy not in _PULL:
        field_errors.append(unsupported(f"{path}.imagePullPolicy", policy, _PULL))
    restart = container.get("restartPolicy")
    if restart is not None and init and restart != "Always":
        field_errors.append(unsupported(f"{path}.restartPolicy", restart, ("Always",)))
    mounted: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        where = f"{path}.volumeMounts[{index}]"
        if not mount.get("mountPath"):
            field_errors.append(required(f"{where}.mountPath"))
        elif mount["mountPath"] in mounted:
            field_errors.append(invalid_value(f"{where}.mountPath", mount["mountPath"], "must be unique"))
        mounted.add(mount.get("mountPath", ""))
        if mount.get("name") not in volumes:
            field_errors.append(FieldError("FieldValueNotFound", f"{where}.name", "", mount.get("name", "")))
    for index, port in enumerate(container.get("ports") or ()):
        where, number = f"{path}.ports[{index}]", port.get("containerPort", 0)
        if not 1 <= number <= 65535:
            detail = "must be between 1 and 65535, inclusive"
            field_errors.append(invalid_value(f"{where}.containerPort", number, detail))
        if port.get("protocol") not in ("TCP", "UDP", "SCTP"):
            field_errors.append(
                unsupported(f"{where}.protocol", port.get("protocol"), ("SCTP", "TCP", "UDP"))
            )
    return field_errors + _check_resources(container.get("resources") or {}, f"{path}.resources")


def _check_volumes(spec: Object, path: str) -> tuple[set[str], list[FieldError]]:
    names: set[str] = set()
    field_errors: list[FieldError] = []
    for index, volume in enumerate(spec.get("volumes") or ()):
        where, name = f"{path}.volumes[{index}]", volume.get("name", "")
        if not name:
            field_errors.append(required(f"{where}.name"))
        elif not is_dns_label(name):
            field_errors.append(invalid_value(f"{where}.name", name, LABEL_TEXT))
        elif name in names:
            field_errors.append(duplicate(f"{where}.name", name))
        names.add(name)
        if len(volume) > 2:
            field_errors.append(forbidden_field(where, "may not specify more than 1 volume type"))
    return names, field_errors


def _check_tolerations(tolerations: Any, path: str) -> list[FieldError]:
    field_errors: list[FieldError] = []
    for index, toleration in enumerate(tolerations or ()):
        where, operator = f"{path}[{index}]", toleration.get("operator") or "Equal"
        if operator not in ("Equal", "Exists", "Lt", "Gt"):
            field_errors.append(unsupported(f"{where}.operator", operator, ("Equal", "Exists")))
        if operator == "Exists" and toleration.get("value"):
            detail = "value must be empty when `operator` is 'Exists'"
            field_errors.append(invalid_value(f"{where}.operator", toleration, detail))
        if not toleration.get("key") and operator != "Exists":
            detail = (
                'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            )
            field_errors.append(invalid_value(f"{where}.operator", operator, detail))
        if toleration.get("effect") and toleration["effect"] not in _EFFECTS:
            field_errors.append(unsupported(f"{where}.effect", toleration["effect"], _EFFECTS))
    return field_errors


def check_pod_spec(spec: Object, path: str, restart: tuple[str, ...] = _RESTART) -> list[FieldError]:
    """All errors of a pod spec; ``restart`` are the restart policies that are allowed here."""
    volumes, field_errors = _check_volumes(spec, path)
    field_errors += _check_pod_level(spec.get("resources") or {}, f"{path}.resources")
    if not spec.get("containers"):
        field_errors.append(required(f"{path}.containers"))
    names: set[str] = set()
    for field, init in (("containers", False), ("initContainers", True)):
        for index, container in enumerate(spec.get(field) or ()):
            where = f"{path}.{field}[{index}]"
            field_errors += _check_container(container, where, volumes, init=init)
            if container.get("name") in names:
                field_errors.append(duplicate(f"{where}.name", container["name"]))
            names.add(container.get("name", ""))
    if spec.get("restartPolicy") not in restart:
        field_errors.append(unsupported(f"{path}.restartPolicy", spec.get("restartPolicy"), restart))
    if spec.get("dnsPolicy") not in _DNS:
        field_errors.append(unsupported(f"{path}.dnsPolicy", spec.get("dnsPolicy"), _DNS))
    for name in ("terminationGracePeriodSeconds",):
        if spec.get(name, 0) < 0:
            field_errors.append(
                invalid_value(f"{path}.{name}", spec[name], "must be greater than or equal to 0")
            )
    seconds = spec.get("activeDeadlineSeconds")
    if seconds is not None and not 1 <= seconds <= 2**31 - 1:
        detail = "must be between 1 and 2147483647, inclusive"
        field_errors.append(invalid_value(f"{path}.activeDeadlineSeconds", seconds, detail))
    return field_errors + _check_tolerations(spec.get("tolerations"), f"{path}.tolerations")


def check_template(template: Object, path: str, restart: tuple[str, ...]) -> list[FieldError]:
    """All errors of the pod template of a workload."""
    return check_pod_spec(template.get("spec") or {}, f"{path}.spec", restart)


def check_pod(pod: Object) -> list[FieldError]:
    """All errors of a pod."""
    field_errors = check_pod_spec(pod["spec"], "spec")
    if pod["spec"].get("schedulingGates") and pod["spec"].get("nodeName"):
        field_errors.append(
            forbidden_field("spec.nodeName", "cannot be set until all schedulingGates have been cleared")
        )
    return field_errors


_CHANGEABLE_TEXT: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def _without_changeable(spec: Object) -> Object:
    others = {
        key: value
        for key, value in spec.items()
        if key not in ("activeDeadlineSeconds", "tolerations", "schedulingGates")
    }
    for field in ("containers", "initContainers"):
        others[field] = [
            {key: value for key, value in container.items() if key not in ("image", "imagePullPolicy")}
            for container in spec.get(field) or ()
        ]
    return others


def check_pod_update(old: Object, new: Object) -> list[FieldError]:
    """A pod's spec is final: only a few fields may still change."""
    before, after = old["spec"], new["spec"]
    if before == after:
        return []
    field_errors: list[FieldError] = []
    remaining = list(after.get("tolerations") or ())
    if any(one not in remaining for one in before.get("tolerations") or ()):
        detail = "existing toleration can not be modified except its tolerationSeconds"
        field_errors.append(forbidden_field("spec.tolerations", detail))
    gates = {one.get("name") for one in before.get("schedulingGates") or ()}
    for index, gate in enumerate(after.get("schedulingGates") or ()):
        if gate.get("name") not in gates:
            detail = f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            field_errors.append(forbidden_field(f"spec.schedulingGates[{index}].name", detail))
    rest_before, rest_after = _without_changeable(before), _without_changeable(after)
    if gates:
        # While a pod is gated, its node selection may still be narrowed.
        for key in ("nodeSelector", "affinity"):
            rest_before.pop(key, None)
            rest_after.pop(key, None)
    if rest_before != rest_after:
        field_errors.append(forbidden_field("spec", _CHANGEABLE_TEXT))
    return field_errors
