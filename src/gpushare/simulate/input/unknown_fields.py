"""Fields of manifests that Kubernetes does not have (``replicaz``): nobody reads them, and kubectl would refuse them.

The table beside this module says which fields each type has, ``field:Type`` where there is more below it. It is of one version of
Kubernetes, so what is not in it is warned of and not refused: a newer API server may have it.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from typing import Any, Final

from gpushare.api.json_objects import Json
from gpushare.kube.crds import MANIFESTS, definition

VERSION: Final = "1.36"
#: The types of the table that are kinds, each with the group and version that has it: others may have a kind of the same name.
KINDS: Final = {
    "Pod": "v1",
    "Namespace": "v1",
    "Deployment": "apps/v1",
    "ReplicaSet": "apps/v1",
    "StatefulSet": "apps/v1",
    "Job": "batch/v1",
    "ReplicationController": "v1",
    "PodDisruptionBudget": "policy/v1",
    "PriorityClass": "scheduling.k8s.io/v1",
}
#: What the playground's table has not, whence the other one is made: it knows this kind by no schema.
_MORE: Final = {
    "ReplicationController": {
        "apiVersion": "", "kind": "", "metadata": "ObjectMeta", "spec": "ReplicationControllerSpec", "status": "",
    },
    "ReplicationControllerSpec": {
        "replicas": "", "minReadySeconds": "", "selector": "", "template": "PodTemplateSpec",
    },
}  # fmt: skip
_HAS_NONE: Final = "has none, kubectl would refuse it, and it is passed over here"
#: Of one object: somebody who writes more of them has another format.
_MOST_TOLD: Final = 8
#: How alike a field must be to one that there is to be taken for a slip.
_ALIKE: Final = 0.7


def unknown_fields(document: Json) -> list[str]:
    """A sentence for each field of the object that no such object has; none for kinds that are neither in the table nor ours."""
    kind, version = document.get("kind"), document.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(version, str):
        return []
    if KINDS.get(kind) == version:
        found = _below(kind, document, "")
    elif (schema := _ours().get((version, kind))) is not None:
        found = _of_ours(schema, document, "")
    else:
        return []
    return [text for text, _ in zip(found, range(_MOST_TOLD), strict=False)]


def _below(of: str, value: Any, path: str) -> Iterator[str]:
    """``of``: the type of ``value``; one that is not of its form is for others to refuse."""
    if not of:
        return
    if of[0] == "[":
        for number, item in enumerate(value if isinstance(value, list) else ()):
            yield from _below(of[1:-1], item, f"{path}[{number}]")
    elif of[0] == "{":
        for key, item in value.items() if isinstance(value, dict) else ():
            yield from _below(of[1:-1], item, f"{path}.{key}")
    elif isinstance(value, dict):
        fields = _types()[of]
        for name, item in value.items():
            here = f"{path}.{name}" if path else str(name)
            if name in fields:
                yield from _below(fields[name], item, here)
            else:
                yield f"{_unknown(here, _near(str(name), fields))}: Kubernetes {VERSION} {_HAS_NONE}"


def _of_ours(schema: Json, value: Any, path: str) -> Iterator[str]:
    """``schema``: as a definition has it; where it names no fields any may stand."""
    fields = schema.get("properties")
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _of_ours(schema.get("items") or {}, item, f"{path}[{number}]")
    elif isinstance(value, dict) and fields:
        for name, item in value.items():
            here = f"{path}.{name}" if path else str(name)
            if name in fields:
                yield from _of_ours(fields[name], item, here)
            elif not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield f"{_unknown(here, _near(str(name), fields))}: the kind {_HAS_NONE}"


def _unknown(path: str, near: str) -> str:
    return f'unknown field "{path}"{f" (did you mean {near}?)" if near else ""}'


def _near(name: str, fields: Iterable[str]) -> str:
    from difflib import get_close_matches

    alike = {one.lower(): one for one in fields}
    return next((alike[one] for one in get_close_matches(name.lower(), alike, 1, _ALIKE)), "")


@cache
def _types() -> dict[str, dict[str, str]]:
    """Type → field → the type of what is below it, empty where nothing is looked at there."""
    text = (resources.files(__package__) / "fields.txt").read_text(encoding="utf-8")
    found: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        name, *fields = line.split()
        found[name] = {field: of for field, _, of in (one.partition(":") for one in fields)}
    return found | _MORE


@cache
def _ours() -> dict[tuple[str, str], Json]:
    """(apiVersion, kind) → the schema of each version of our own kinds."""
    found: dict[tuple[str, str], Json] = {}
    for spec in (definition(name)["spec"] for name in MANIFESTS):
        for version in spec["versions"]:
            named = f"{spec['group']}/{version['name']}", spec["names"]["kind"]
            found[named] = version["schema"]["openAPIV3Schema"]
    return found
