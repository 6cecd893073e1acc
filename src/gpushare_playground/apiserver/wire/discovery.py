"""The discovery documents that kubectl and client-go read: all groups with their resources in one document, and the version.

The older form, one document per group and version, is not served: clients use it only if this one is missing.
"""

from typing import Final

from gpushare_playground.apiserver.errors import Object
from gpushare_playground.apiserver.kinds.resources import Registry, Resource
from gpushare_playground.apiserver.wire.reviews import REVIEWS

VERSION: Final[Object] = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.3+gpushare-playground",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "cpython",
    "platform": "linux/amd64",
}
AGGREGATED_TYPE: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_SUBRESOURCE_KINDS: Final[dict[str, tuple[str, str, str, tuple[str, ...]]]] = {
    # subresource → group, version, kind ("" = that of the resource), verbs
    "status": ("", "", "", ("get", "patch", "update")),
    "finalize": ("", "", "", ("update",)),
    "resize": ("", "", "", ("get", "patch", "update")),
    "scale": ("autoscaling", "v1", "Scale", ("get", "patch", "update")),
    "binding": ("", "v1", "Binding", ("create",)),
    "eviction": ("policy", "v1", "Eviction", ("create",)),
    "token": ("authentication.k8s.io", "v1", "TokenRequest", ("create",)),
    "log": ("", "", "", ("get",)),
    "exec": ("", "v1", "PodExecOptions", ("create", "get")),
}


def _groups(registry: Registry) -> dict[str, list[str]]:
    groups = registry.groups()
    for group, version in REVIEWS:
        groups.setdefault(group, [version])
    return groups


def aggregated(registry: Registry, *, core: bool) -> Object:
    """``APIGroupDiscoveryList`` of the core group, or of all others."""
    items = []
    for group, versions in _groups(registry).items():
        if (group == "") is core:
            items.append(
                {
                    "metadata": {"name": group, "creationTimestamp": None}
                    if group
                    else {"creationTimestamp": None},
                    "versions": [
                        {
                            "version": version,
                            "resources": [
                                _aggregated_resource(resource)
                                for resource in registry.serving(group, version)
                            ]
                            + [
                                _aggregated_review(group, version, plural, kind)
                                for plural, kind in REVIEWS.get((group, version), ())
                            ],
                            "freshness": "Current",
                        }
                        for version in versions
                    ],
                }
            )
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }


def _kind(group: str, version: str, kind: str) -> Object:
    return {"group": group, "version": version, "kind": kind}


def _aggregated_review(group: str, version: str, plural: str, kind: str) -> Object:
    return {
        "resource": plural,
        "responseKind": _kind(group, version, kind),
        "scope": "Cluster",
        "singularResource": kind.lower(),
        "verbs": ["create"],
    }


def _aggregated_resource(resource: Resource) -> Object:
    own = _kind(resource.group, resource.version, resource.kind)
    document: Object = {
        "resource": resource.plural,
        "responseKind": own,
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        document["shortNames"] = list(resource.short_names)
    if resource.categories:
        document["categories"] = list(resource.categories)
    subresources = []
    for name in sorted(resource.subresources):
        group, version, kind, verbs = _SUBRESOURCE_KINDS[name]
        subresources.append(
            {
                "subresource": name,
                "responseKind": _kind(group, version, kind) if kind else own,
                "verbs": list(verbs),
            }
        )
    if subresources:
        document["subresources"] = subresources
    return document
