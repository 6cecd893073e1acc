"""Server-side apply."""

from typing import Any

from gpushare.playground.apiserver import errors
from gpushare.playground.apiserver.patching import merge_patch
from gpushare.playground.apiserver.resources import Resource
from gpushare.playground.apiserver.store import Store
from gpushare.playground.apiserver.strategic_merge import strategic_merge
from gpushare.playground.apiserver.writing import Outcome, WriteOptions, Writer


def apply_object(
    writer: Writer,
    store: Store,
    resource: Resource,
    namespace: str,
    name: str,
    wanted: Any,
    options: WriteOptions,
    *,
    subresource: str,
    manager_given: bool,
    force: bool,
    now: str,
) -> Outcome:
    """Create or merge."""
    if not isinstance(wanted, dict):
        raise errors.bad_request("an applied configuration is an object")
    if store.get(resource.storage, namespace, name) is None:
        return writer.create(resource, namespace, wanted, options)
    if resource.schema is None:
        return writer.patch(
            resource, namespace, name, lambda obj: merge_patch(obj, wanted), options, subresource
        )
    return writer.patch(
        resource,
        namespace,
        name,
        lambda obj: strategic_merge(resource.schema, obj, wanted),
        options,
        subresource,
    )
