"""``pods/resize``: changes CPU and memory of an existing pod, and nothing else."""

from typing import Any, Final

from gpushare_playground.apiserver.errors import FieldError, Object, forbidden_field, invalid_value
from gpushare_playground.apiserver.writes.defaults import qos_class

_RESIZED: Final = ("cpu", "memory")
_LISTS: Final = ("containers", "initContainers")


def resized(old: Object, wanted: Object) -> Object:
    """The pod ``old`` with the requests of its containers in ``wanted``, matched by name; everything else is ignored."""
    requested = {
        container.get("name"): container.get("resources")
        for field in _LISTS
        for container in (wanted.get("spec") or {}).get(field) or ()
    }
    spec = dict(old["spec"])
    for field in _LISTS:
        if field in spec:
            spec[field] = [
                {**one, "resources": requested[one["name"]] or {}} if one["name"] in requested else one
                for one in spec[field]
            ]
    return {**old, "spec": spec}


def check_resize(old: Object, new: Object) -> list[FieldError]:
    """Errors of the change from ``old`` to ``new``."""
    if _other_requests(old["spec"]) != _other_requests(new["spec"]):
        return [forbidden_field("spec", "only cpu and memory resources are mutable")]
    kind = qos_class(old["spec"])
    if qos_class(new["spec"]) != kind:
        return [invalid_value("spec", kind, "Pod QOS Class may not change as a result of resizing")]
    return []


def _other_requests(spec: Object) -> list[Object]:
    """The requests of its containers for all other resources."""
    return [
        {
            which: amounts_left
            for which in ("limits", "requests", "claims")
            if (amounts_left := _without_resized((container.get("resources") or {}).get(which)))
        }
        for field in _LISTS
        for container in spec.get(field) or ()
    ]


def _without_resized(amounts: Any) -> Any:
    if not isinstance(amounts, dict):
        return amounts
    return {name: text for name, text in amounts.items() if name not in _RESIZED}
