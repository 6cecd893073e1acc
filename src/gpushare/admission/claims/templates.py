"""Creates the ResourceClaimTemplates that pods name, before the pods exist."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gpushare.kube.client.errors import ApiError, KubeError, MalformedAnswer
from gpushare.kube.client.session import Session, segment

Json = dict[str, Any]

#: The value of ``app.kubernetes.io/managed-by``.
MANAGED_BY: Final = "gpushare-admission"
_LABEL: Final = "app.kubernetes.io/managed-by"
#: Per namespace: pods of ever new sizes, or reviews that no API server sent, must not fill etcd.
MOST_TEMPLATES: Final = 200


class TemplateUnavailable(Exception):
    """A template that a pod needs is not there; ``str()`` names it and says why."""


class Templates:
    """The ResourceClaimTemplates of a cluster. Their names follow from their specs, so that pods with equal requests share one.

    ``within_s``: for all templates of a pod, in seconds; less than API servers wait for the webhook (chart value ``webhook.timeoutSeconds``).
    """

    def __init__(self, session: Session, *, within_s: float = 3.0) -> None:
        self._session = session
        self._within_s = within_s

    async def provide(self, namespace: str, templates: Mapping[str, Json]) -> None:
        """Create the templates (specs by name) that the namespace does not have; raises ``TemplateUnavailable``."""
        name = ""
        try:
            async with asyncio.timeout(self._within_s):
                for name, spec in templates.items():
                    await self._provide(namespace, name, spec)
        except TimeoutError:
            raise TemplateUnavailable(
                f"ResourceClaimTemplate {namespace}/{name}, from which the pod gets its share, was not created within {self._within_s:.0f} s: "
                "the API server is slow; try again"
            ) from None
        except KubeError as error:
            raise TemplateUnavailable(
                f"ResourceClaimTemplate {namespace}/{name}, from which the pod gets its share, cannot be created: {error.problem}"
            ) from error

    async def _provide(self, namespace: str, name: str, spec: Json) -> None:
        path = f"/apis/resource.k8s.io/v1/namespaces/{segment(namespace)}/resourceclaimtemplates"
        found = await self._get(f"{path}/{segment(name)}")
        if found is None:
            await self._check_number(namespace, path)
            body = {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaimTemplate",
                "metadata": {
                    "name": name,
                    "namespace": namespace,
                    "labels": {_LABEL: MANAGED_BY},
                },
                "spec": spec,
            }
            try:
                await self._session.request(
                    "POST", path, body=msgspec.json.encode(body), timeout_s=self._within_s
                )
            except ApiError as error:
                # Another replica created it in between.
                if not error.conflict:
                    raise
            else:
                return
            found = await self._get(f"{path}/{segment(name)}")
        if not _has(found, {"spec": spec}):
            raise TemplateUnavailable(
                f"ResourceClaimTemplate {namespace}/{name} is not the one that gpushare creates under this name: delete it"
            )

    async def _check_number(self, namespace: str, path: str) -> None:
        params = {"labelSelector": f"{_LABEL}={MANAGED_BY}", "limit": str(MOST_TEMPLATES)}
        listed = await self._get(path, params)
        if len((listed or {}).get("items") or ()) >= MOST_TEMPLATES:
            raise TemplateUnavailable(
                f"namespace {namespace} has {MOST_TEMPLATES} ResourceClaimTemplates of gpushare, one for each kind of request, and no more are "
                "created: remove those that no pod needs"
            )

    async def _get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        """The object or list; ``None`` if there is none."""
        try:
            raw = await self._session.request("GET", path, params=params, timeout_s=self._within_s)
        except ApiError as error:
            if error.not_found:
                return None
            raise
        try:
            return msgspec.json.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise MalformedAnswer(path, f"unexpected response ({error})") from error


def _has(found: Any, wanted: Any) -> bool:
    """Whether ``found`` has all of ``wanted``; the API server adds defaults to objects."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(_has(found.get(key), wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(_has, found, wanted))
    return bool(found == wanted)
