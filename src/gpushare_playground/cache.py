"""An informer's last state of one kind, with the indexes and the listeners that controllers need."""

from collections.abc import Callable, Iterable, Iterator

from gpushare_playground.objects import Json, controller_of, is_deleting, key_of, uid_of

#: Called with every change, in the order of the watch: created (old None), changed, deleted (new None).
Listener = Callable[[Json | None, Json | None], None]


class Cache:
    """Objects of one kind by key, by UID and by controlling owner.

    Lookups are O(1) and O(size of the result). It is filled as an informer's handler. ``is_synced``: whether
    the first list is complete.
    """

    def __init__(self) -> None:
        self._by_key: dict[str, Json] = {}
        self._by_uid: dict[str, Json] = {}
        self._by_owner: dict[str, dict[str, Json]] = {}
        self._listeners: list[Listener] = []
        self._awaiting: list[Callable[[], None]] = []
        self.is_synced = False

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with every change from now on."""
        self._listeners.append(listener)

    def when_synced(self, call: Callable[[], None]) -> None:
        """Call ``call`` once the first list is complete."""
        if self.is_synced:
            call()
        else:
            self._awaiting.append(call)

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Json]:
        return iter(list(self._by_key.values()))

    def get(self, key: str) -> Json | None:
        """The object at ``key`` (``namespace/name``)."""
        return self._by_key.get(key)

    def by_uid(self, uid: str) -> Json | None:
        """The object with this UID."""
        return self._by_uid.get(uid)

    def controlled_by(self, uid: str) -> Iterable[Json]:
        """The objects whose controller has this UID."""
        return list(self._by_owner.get(uid, {}).values())

    def synced(self) -> None:
        """The first list is complete."""
        self.is_synced = True
        awaiting, self._awaiting = self._awaiting, []
        for call in awaiting:
            call()

    def upsert(self, item: Json) -> None:
        """An object was created or has changed."""
        key = key_of(item)
        old = self._by_key.get(key)
        if old is not None:
            if uid_of(old) != uid_of(item):
                # Deleted and recreated while the watch was interrupted: report both changes.
                self.remove(key, old)
                old = None
            else:
                self._forget(key, old)
        self._by_key[key] = item
        self._by_uid[uid_of(item)] = item
        owner = controller_of(item)
        if owner is not None:
            self._by_owner.setdefault(str(owner.get("uid")), {})[key] = item
        for listener in self._listeners:
            listener(old, item)

    def remove(self, key: str, last: Json) -> None:
        """An object was deleted; ``last`` is its last known state."""
        old = self._by_key.get(key)
        if old is None:
            return
        self._forget(key, old)
        for listener in self._listeners:
            listener(last, None)

    def _forget(self, key: str, old: Json) -> None:
        del self._by_key[key]
        self._by_uid.pop(uid_of(old), None)
        owner = controller_of(old)
        if owner is not None:
            owned = self._by_owner.get(str(owner.get("uid")), {})
            owned.pop(key, None)
            if not owned:
                self._by_owner.pop(str(owner.get("uid")), None)


class Expectations:
    """Our own writes that are not in a cache yet, so that a lagging watch never makes us write twice.

    Created pods count as existing, deleted ones as gone, until the cache has seen the change or ``patience_s``
    has passed (an object that was created and deleted while the watch was interrupted is never seen).
    """

    def __init__(self, cache: Cache, monotonic: Callable[[], float], patience_s: float = 15.0) -> None:
        self._monotonic = monotonic
        self._patience_s = patience_s
        self._created: dict[str, dict[str, tuple[Json, float]]] = {}
        self._deleted: dict[str, float] = {}
        self._cache = cache
        cache.listen(self._seen)

    def created(self, owner_uid: str, item: Json) -> None:
        """We created ``item`` for the owner."""
        if self._cache.by_uid(uid_of(item)) is None:
            until = self._monotonic() + self._patience_s
            self._created.setdefault(owner_uid, {})[uid_of(item)] = (item, until)

    def deleted(self, item: Json) -> None:
        """We requested ``item``'s deletion."""
        cached = self._cache.by_uid(uid_of(item))
        if cached is not None and not is_deleting(cached):
            self._deleted[uid_of(item)] = self._monotonic() + self._patience_s

    def owned(self, owner_uid: str) -> list[Json]:
        """The owner's objects, as the cache will have them once it has caught up."""
        now = self._monotonic()
        unseen = self._created.get(owner_uid, {})
        for uid in [uid for uid, (_, until) in unseen.items() if until <= now]:
            del unseen[uid]
        if not unseen:
            self._created.pop(owner_uid, None)
        return [*self._cache.controlled_by(owner_uid), *(item for item, _ in unseen.values())]

    def is_going(self, item: Json) -> bool:
        """Whether its deletion has begun, according to the server or to our own writes."""
        return is_deleting(item) or self._deleted.get(uid_of(item), 0.0) > self._monotonic()

    def _seen(self, old: Json | None, new: Json | None) -> None:
        item = new if new is not None else old
        if item is None:
            return
        uid = uid_of(item)
        owner = controller_of(item)
        if owner is not None and str(owner.get("uid")) in self._created:
            unseen = self._created[str(owner.get("uid"))]
            unseen.pop(uid, None)
            if not unseen:
                del self._created[str(owner.get("uid"))]
        if uid in self._deleted and (new is None or is_deleting(new)):
            del self._deleted[uid]
