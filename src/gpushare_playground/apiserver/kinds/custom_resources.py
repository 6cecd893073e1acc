"""CustomResourceDefinitions: a kind is served as soon as its definition is created, until it is deleted."""

from typing import Final

from gpushare_playground.apiserver.errors import Object, qualified
from gpushare_playground.apiserver.kinds.naming import WallClock, timestamp
from gpushare_playground.apiserver.kinds.resources import Registry, Resource
from gpushare_playground.apiserver.store import DELETED, Change, Store

STORAGE: Final = "customresourcedefinitions.apiextensions.k8s.io"


def resources_of(definition: Object) -> list[Resource]:
    """The resources that a definition serves, one per served version; the stored version names the stored form."""
    spec = definition["spec"]
    group, names = spec["group"], spec["names"]
    stored = next(
        (candidate["name"] for candidate in spec["versions"] if candidate.get("storage")),
        spec["versions"][0]["name"],
    )
    resources: list[Resource] = []
    for version in spec["versions"]:
        if not version.get("served"):
            continue
        parts = version.get("subresources") or {}
        resources.append(
            Resource(
                group=group,
                version=version["name"],
                kind=names["kind"],
                plural=names["plural"],
                singular=names.get("singular") or names["kind"].lower(),
                storage=qualified(names["plural"], group),
                storage_version=f"{group}/{stored}",
                namespaced=spec.get("scope") == "Namespaced",
                short_names=tuple(names.get("shortNames") or ()),
                categories=tuple(names.get("categories") or ()),
                subresources=frozenset(("status",) if "status" in parts else ()),
                generation=True,
                custom=True,
                columns=tuple(version.get("additionalPrinterColumns") or ()),
                validation=(version.get("schema") or {}).get("openAPIV3Schema"),
                selectable=tuple(
                    field["jsonPath"].lstrip(".") for field in version.get("selectableFields") or ()
                ),
            )
        )
    return resources


class CustomResources:
    """Keeps ``registry`` in line with the definitions in ``store``, from construction on."""

    def __init__(self, store: Store, registry: Registry, now: WallClock) -> None:
        self._store = store
        self._registry = registry
        self._now = now
        store.listen(self._note)

    def _note(self, collection: str, change: Change) -> None:
        if collection != STORAGE:
            return
        definition = change.record.obj
        group, plural = definition["spec"]["group"], definition["spec"]["names"]["plural"]
        self._registry.remove_group_plural(group, plural)
        storage = qualified(plural, group)
        if change.kind == DELETED:
            for record in self._store.items(storage):
                self._store.remove(storage, record.namespace, record.name)
            return
        for resource in resources_of(definition):
            self._registry.add(resource)

    def establish(self, name: str) -> None:
        """Record in a definition's status that it is served, as the real server does shortly after creation."""
        record = self._store.get(STORAGE, "", name)
        if record is None or (record.obj.get("status") or {}).get("conditions"):
            return
        spec, now = record.obj["spec"], timestamp(self._now())
        status = {
            "conditions": [
                _condition(now, "NamesAccepted", "NoConflicts", "no conflicts found"),
                _condition(
                    now, "Established", "InitialNamesAccepted", "the initial names have been accepted"
                ),
            ],
            "acceptedNames": spec["names"],
            "storedVersions": [one["name"] for one in spec["versions"] if one.get("storage")],
        }
        obj = {**record.obj, "metadata": dict(record.obj["metadata"]), "status": status}
        self._store.put(STORAGE, "", name, obj)


def _condition(now: str, kind: str, reason: str, message: str) -> Object:
    return {"type": kind, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message}
