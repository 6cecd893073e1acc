"""ResourceQuota: the total requests of a namespace's pods, limited when a pod is created, and counted in its status.

Requests of pods and their number are counted; other objects and quotas with scopes are not.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpushare.api.errors import InvalidQuantity
from gpushare.api.objects import decode_pod
from gpushare.api.request.amounts import amounts_of, thousandths_of, written
from gpushare_playground.apiserver import errors
from gpushare_playground.apiserver.errors import Object
from gpushare_playground.apiserver.store import DELETED, Change, Record, Store

STORAGE: Final = "resourcequotas"
_PODS: Final = "pods"
_COMPUTE: Final = ("cpu", "memory", "ephemeral-storage")
_REQUESTS, _LIMITS = "requests.", "limits."
_ENDED: Final = ("Succeeded", "Failed")

Amounts = dict[str, int]
"""Thousandths by the name that a quota uses."""


class ResourceQuotas:
    """Applies the quotas of ``store`` to new pods, and updates their ``status.used`` at every write."""

    def __init__(self, store: Store) -> None:
        self._store = store
        store.listen(self._changed)

    def admit(self, pod: Object) -> None:
        """Raises ``ApiError`` 403 if a quota of its namespace has no room for a new pod."""
        metadata = pod["metadata"]
        quotas = self._quotas(metadata["namespace"])
        if not quotas:
            return
        requested = _charge(pod)
        used = self._used(metadata["namespace"])
        for quota in quotas:
            hard = _hard(quota.obj)
            missing = [
                f"{name} for: {', '.join(lacking)}"
                for name in sorted(hard)
                if (lacking := _containers_without(pod, name))
            ]
            reason = ""
            if missing:
                reason = f"failed quota: {quota.name}: must specify {'; '.join(missing)}"
            elif passed := [
                name
                for name, limit in hard.items()
                if requested.get(name) and used.get(name, 0) + requested[name] > limit
            ]:
                reason = (
                    f"exceeded quota: {quota.name}, requested: {_list(passed, requested)}, used: {_list(passed, used)}, "
                    f"limited: {_list(passed, hard)}"
                )
            if reason:
                raise errors.forbidden(_PODS, "", metadata.get("name", ""), reason)

    def _quotas(self, namespace: str) -> list[Record]:
        if not self._store.count(STORAGE, namespace):
            return []
        return [
            quota
            for quota in self._store.items(STORAGE, namespace)
            if not any((quota.obj.get("spec") or {}).get(word) for word in ("scopes", "scopeSelector"))
        ]

    def _used(self, namespace: str) -> Amounts:
        used: Amounts = {}
        for pod in self._store.items(_PODS, namespace):
            if (pod.obj.get("status") or {}).get("phase") not in _ENDED:
                for name, amount in _charge(pod.obj).items():
                    used[name] = used.get(name, 0) + amount
        return used

    def _changed(self, collection: str, change: Change) -> None:
        if collection == STORAGE and change.kind == DELETED:
            return
        if collection not in (STORAGE, _PODS) or not (quotas := self._quotas(change.record.namespace)):
            return
        used = self._used(change.record.namespace)
        for quota in quotas:
            hard = _hard(quota.obj)
            used_text = {name: _text(name, used.get(name, 0)) for name in hard}
            status = {
                "hard": {name: (quota.obj["spec"].get("hard") or {})[name] for name in hard},
                "used": used_text,
            }
            if quota.obj.get("status") != status:
                # The store never changes an object in place, and also reports this write: then nothing differs.
                obj = {**quota.obj, "metadata": dict(quota.obj["metadata"]), "status": status}
                self._store.put(STORAGE, quota.namespace, quota.name, obj)


def _hard(quota: Object) -> Amounts:
    amounts: Amounts = {}
    for name, text in ((quota.get("spec") or {}).get("hard") or {}).items():
        try:
            if name in (_PODS, "count/pods", *_COMPUTE) or name.startswith((_REQUESTS, _LIMITS)):
                amounts[name] = thousandths_of(text, name)
        except InvalidQuantity:
            continue
    return amounts


def _charge(pod: Object) -> Amounts:
    """What a pod counts towards quotas."""
    charged = {_PODS: 1000, "count/pods": 1000}
    for name, amount in amounts_of(decode_pod(pod)).items():
        charged[_REQUESTS + name] = amount
        if name in _COMPUTE:
            charged[name] = amount
    limits = {**pod, "spec": _limited(pod["spec"])}
    charged |= {_LIMITS + name: amount for name, amount in amounts_of(decode_pod(limits)).items()}
    return charged


def _limited(spec: Object) -> Object:
    """The spec as if its limits were its requests."""
    made = {**spec, "resources": _limits_of(spec), "overhead": None}
    for field in ("containers", "initContainers"):
        made[field] = [{**one, "resources": _limits_of(one)} for one in spec.get(field) or ()]
    return made


def _limits_of(container_or_spec: Object) -> Object:
    return {"limits": (container_or_spec.get("resources") or {}).get("limits") or {}}


def _containers_without(pod: Object, name: str) -> list[str]:
    """The containers without a CPU or memory request that a quota requires."""
    which = "limits" if name.startswith(_LIMITS) else "requests"
    resource = name.removeprefix(_REQUESTS).removeprefix(_LIMITS)
    if resource not in ("cpu", "memory") or resource in _requests_or_limits(pod["spec"], which):
        return []
    return sorted(
        container["name"]
        for field in ("containers", "initContainers")
        for container in pod["spec"].get(field) or ()
        if resource not in _requests_or_limits(container, which)
    )


def _requests_or_limits(container_or_spec: Object, which: str) -> Mapping[str, Any]:
    """The requests, with limits in place of those that are not set."""
    resources = container_or_spec.get("resources") or {}
    explicit = resources.get(which) or {}
    return {**(resources.get("limits") or {}), **explicit} if which == "requests" else explicit


def _list(which: Iterable[str], amounts: Mapping[str, int]) -> str:
    return ",".join(f"{name}={_text(name, amounts.get(name, 0))}" for name in sorted(which))


def _text(name: str, thousandths: int) -> str:
    return written(name.removeprefix(_REQUESTS).removeprefix(_LIMITS), thousandths)
