"""Creating and deleting pods for an owner, never two if one was wanted.

A name is chosen before the request is sent. If the response is lost, the same name is used again,
and ``AlreadyExists`` then means that the first attempt had reached the server.
"""

from collections.abc import Callable
from typing import Final, Literal

from gpushare.api.objects import ObjectReference
from gpushare.kube.client.errors import ApiError
from gpushare.kube.event_recorder import Recorder
from gpushare_playground.cache import Cache, Expectations
from gpushare_playground.controllers.podtemplate import generated_name
from gpushare_playground.objects import (
    PODS,
    Json,
    Kind,
    Objects,
    controller_of,
    name_of,
    namespace_of,
    uid_of,
)

#: The event messages of kube-controller-manager about created and deleted pods, by kind of their owner.
_NOTES: Final = {
    "": ("Created pod: {pod}", "Deleted pod: {pod}"),
    "StatefulSet": (
        "Create Pod {pod} in StatefulSet {owner} successful",
        "Delete Pod {pod} in StatefulSet {owner} successful",
    ),
}


def reference_to(kind: Kind, item: Json) -> ObjectReference:
    """A reference for an event about ``item``."""
    return ObjectReference(kind.name, name_of(item), namespace_of(item), uid_of(item), kind.api_version)


class PodControl:
    """Pods of owners of one kind."""

    def __init__(
        self, kind: Kind, objects: Objects, pods: Cache, expectations: Expectations, recorder: Recorder
    ) -> None:
        self.kind = kind
        self._objects = objects
        self._pods = pods
        self._expectations = expectations
        self._recorder = recorder
        self._name_attempts: dict[str, int] = {}
        self._created_note = _NOTES.get(kind.name, _NOTES[""])[0]
        self._deleted_note = _NOTES.get(kind.name, _NOTES[""])[1]

    def owned(self, owner: Json) -> list[Json]:
        """The owner's pods, including our own writes that the watch has not delivered yet."""
        return self._expectations.owned(uid_of(owner))

    def is_going(self, pod: Json) -> bool:
        """Whether the pod's deletion has begun."""
        return self._expectations.is_going(pod)

    async def create_generated(self, owner: Json, prefix: str, make: Callable[[str], Json]) -> None:
        """Create the pod that ``make(name)`` returns, under a new name that begins with ``prefix``."""
        uid = uid_of(owner)
        while True:
            number = self._name_attempts.get(uid, 0)
            name = generated_name(prefix, f"{uid}/{number}")
            taken = self._pods.get(f"{namespace_of(owner)}/{name}") is not None
            if not taken and await self._create(owner, make(name)):
                self._name_attempts[uid] = number + 1
                return
            self._name_attempts[uid] = number + 1

    async def create_named(self, owner: Json, pod: Json) -> None:
        """Create ``pod`` under its own name; an existing pod of the owner with that name is accepted."""
        if not await self._create(owner, pod):
            note = f"pod {name_of(pod)} exists and belongs to someone else; delete or rename it"
            self._record(owner, "Warning", "FailedCreate", note)

    async def _create(self, owner: Json, pod: Json) -> bool:
        """Whether the pod exists now, belongs to the owner, and was not known before."""
        try:
            made = await self._objects.create(PODS, namespace_of(owner), pod)
        except ApiError as error:
            if not error.conflict:
                self._record(owner, "Warning", "FailedCreate", f"Error creating: {error.message}")
                raise
            made = await self._objects.get(PODS, namespace_of(owner), name_of(pod))
            if (controller_of(made) or {}).get("uid") != uid_of(owner):
                return False
        else:
            note = self._created_note.format(pod=name_of(made), owner=name_of(owner))
            self._record(owner, "Normal", "SuccessfulCreate", note)
        self._expectations.created(uid_of(owner), made)
        return True

    async def delete(self, owner: Json, pod: Json) -> None:
        """Delete one of the owner's pods with its own grace period."""
        await self._objects.delete(PODS, pod)
        self._expectations.deleted(pod)
        note = self._deleted_note.format(pod=name_of(pod), owner=name_of(owner))
        self._record(owner, "Normal", "SuccessfulDelete", note)

    def forget(self, owner_uid: str) -> None:
        """The owner is gone."""
        self._name_attempts.pop(owner_uid, None)

    def _record(self, owner: Json, kind: Literal["Normal", "Warning"], reason: str, note: str) -> None:
        self._recorder.record(
            reference_to(self.kind, owner), kind=kind, reason=reason, action=reason, note=note
        )


def owner_key(kind: Kind, pod: Json) -> str | None:
    """The key of the pod's controller, if that is of ``kind``."""
    owner = controller_of(pod)
    if owner is None or owner.get("kind") != kind.name:
        return None
    # Only the group is compared: another version of the same kind is the same object.
    if str(owner.get("apiVersion")).partition("/")[0] != kind.api_version.partition("/")[0]:
        return None
    return f"{namespace_of(pod)}/{owner.get('name')}"
