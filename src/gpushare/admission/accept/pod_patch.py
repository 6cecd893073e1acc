"""The JSON patch between a submitted pod and what admission makes of it. Pure.

Only what translations change is compared: labels, annotations, resources of containers, claims, and the scheduler's name.
"""

from typing import Any

import msgspec

from gpushare.api.objects import Container, Pod, ResourceRequirements

Patch = list[dict[str, Any]]


def changes(before: Pod, after: Pod) -> Patch:
    """The patch from ``before`` to ``after``: maps that differ, as wholes, and claims that were added."""
    patch: Patch = []
    for field in ("labels", "annotations"):
        now = getattr(after.metadata, field) or {}
        if now != (getattr(before.metadata, field) or {}):
            patch.append(_add(f"/metadata/{field}", now))
    for place, old, new in (
        ("containers", before.spec.containers, after.spec.containers),
        ("initContainers", before.spec.init_containers or [], after.spec.init_containers or []),
    ):
        for index, (container, changed) in enumerate(zip(old, new, strict=True)):
            if container is not changed:
                patch += _resource_changes(f"/spec/{place}/{index}/resources", container, changed)
    patch += _appended("/spec/resourceClaims", before.spec.resource_claims, after.spec.resource_claims)
    if before.spec.scheduler_name != after.spec.scheduler_name:
        patch.append(_add("/spec/schedulerName", after.spec.scheduler_name))
    return patch


def _resource_changes(path: str, before: Container, after: Container) -> Patch:
    assert after.resources is not None, "it has a request or a claim"
    old, new = before.resources or ResourceRequirements(), after.resources
    patch = [] if before.resources is not None else [_add(path, {})]
    patch += [
        _add(f"{path}/{field}", getattr(new, field))
        for field in ("limits", "requests")
        if getattr(new, field) != getattr(old, field)
    ]
    return patch + _appended(f"{path}/claims", old.claims, new.claims)


def _appended(path: str, before: list[Any] | None, after: list[Any] | None) -> Patch:
    """Elements that ``after`` has beyond ``before``, one by one: existing ones may have fields that are not read here."""
    existing = before or []
    patch = [_add(path, [])] if after and before is None else []
    return patch + [_add(f"{path}/-", _plain(one)) for one in (after or [])[len(existing) :]]


def _plain(value: Any) -> Any:
    return {name: text for name, text in msgspec.to_builtins(value).items() if text is not None}


def _add(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}
