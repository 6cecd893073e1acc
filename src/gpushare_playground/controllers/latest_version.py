"""The newest known version of an object: the cache's, or the response to our own last write."""

from gpushare_playground.cache import Cache
from gpushare_playground.objects import Json, Kind, Objects, key_of, status_of, uid_of


def version_of(item: Json) -> int:
    """``resourceVersion`` as a number; our API server's is a counter (as etcd's is)."""
    text = str(item["metadata"].get("resourceVersion") or "0")
    return int(text) if text.isdecimal() else 0


class LatestVersions:
    """Objects of one kind, where a lagging watch never reverts what we wrote."""

    def __init__(self, kind: Kind, objects: Objects, cache: Cache) -> None:
        self.kind = kind
        self._objects = objects
        self._cache = cache
        self._written: dict[str, Json] = {}
        cache.listen(self._drop_outdated)

    def get(self, key: str) -> Json | None:
        """The object at ``key``, ``None`` if it is gone."""
        cached = self._cache.get(key)
        if cached is None:
            return None
        return self.newer(cached)

    def newer(self, cached: Json) -> Json:
        """``cached``, or a newer version that we wrote."""
        written = self._written.get(uid_of(cached))
        return written if written is not None and version_of(written) > version_of(cached) else cached

    async def write_status(self, item: Json, status: Json) -> Json:
        """Write ``status`` unless it is unchanged; returns the resulting object."""
        if status == status_of(item):
            return item
        return self.wrote(await self._objects.replace_status(self.kind, item, status))

    async def merge(self, item: Json, patch: Json) -> Json:
        """Apply a merge patch to the object; returns the result."""
        return self.wrote(await self._objects.merge(self.kind, item, patch))

    def wrote(self, item: Json) -> Json:
        """Store the response to a write until the cache has it."""
        if self._cache.get(key_of(item)) is not None:
            self._written[uid_of(item)] = item
        return item

    def _drop_outdated(self, old: Json | None, new: Json | None) -> None:
        item = new if new is not None else old
        if item is None:
            return
        written = self._written.get(uid_of(item))
        if written is not None and (new is None or version_of(new) >= version_of(written)):
            del self._written[uid_of(item)]
