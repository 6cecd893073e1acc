"""From a workload's template to a pod, with its names and hashes."""

import hashlib
from typing import Any, Final

import msgspec

from gpushare_playground.objects import Json, Kind, controller_reference, namespace_of

#: Letters that Kubernetes uses for generated names: they form no words and are not confused with each other.
SAFE_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_MAX_NAME: Final = 63


def safe_suffix(seed: str, length: int) -> str:
    """``length`` letters that depend only on ``seed``."""
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest(), "big")
    letters = []
    for _ in range(length):
        number, index = divmod(number, len(SAFE_LETTERS))
        letters.append(SAFE_LETTERS[index])
    return "".join(letters)


def template_hash(template: Any) -> str:
    """Ten letters that change when the template does."""
    return safe_suffix(msgspec.json.encode(template, order="sorted").decode(), 10)


def generated_name(prefix: str, seed: str) -> str:
    """``prefix`` (cut so that the name fits a label) and five letters from ``seed``."""
    return f"{prefix[: _MAX_NAME - 5]}{safe_suffix(seed, 5)}"


def pod_from(
    kind: Kind, owner: Json, template: Json, name: str, *, labels: Json | None = None, **metadata: Any
) -> Json:
    """A pod named ``name`` as ``template`` describes it, controlled by ``owner``.

    ``labels`` are added to the template's; ``metadata`` may have ``annotations`` (added) and
    ``finalizers``.
    """
    described = template.get("metadata") or {}
    annotations = {**(described.get("annotations") or {}), **(metadata.get("annotations") or {})}
    finalizers = [*(described.get("finalizers") or ()), *(metadata.get("finalizers") or ())]
    made: Json = {
        "name": name,
        "generateName": f"{owner['metadata']['name']}-",
        "namespace": namespace_of(owner),
        "labels": {**(described.get("labels") or {}), **(labels or {})},
        "ownerReferences": [controller_reference(kind, owner)],
    }
    if annotations:
        made["annotations"] = annotations
    if finalizers:
        made["finalizers"] = finalizers
    return {"metadata": made, "spec": dict(template.get("spec") or {})}
