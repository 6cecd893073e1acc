"""Which directories of containers are in use. Pure.

A directory was made for one pod, but the kubelet may have admitted another one with an identical request: so it is also in use
while any container has the device IDs that it was made for. IDs are allocated repeatedly; of several directories for the same
ones only the youngest is in use.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.nodeagent.isolation.storage.files import Claimed

#: How long a directory is kept that seems unused: the kubelet lists devices only after ``Allocate`` returned.
GRACE_S: Final = 60.0


#: ``namespace/name`` of a pod and a container's name → the fingerprint of the device IDs that it has.
ListedPods = Mapping[tuple[str, str], str]


@dataclass(frozen=True, slots=True)
class Kept:
    """A directory at ``folder``, and since when this process has known it (monotonic seconds)."""

    folder: Path
    claimed: Claimed | None
    since_s: float


def unused(
    known: Mapping[str, Kept],
    live: Collection[str],
    listed: ListedPods,
    now_s: float,
    grace_s: float = GRACE_S,
) -> list[str]:
    """The unused directories. ``known`` has the older ones first.

    ``live``: UIDs of the node's pods; ``listed``: the devices of containers in the kubelet's list.
    """

    def is_own(claimed: Claimed) -> bool:
        """Whether its pod is live and has, as far as is known, the devices for which the directory was created."""
        return (
            claimed.uid in live and listed.get((claimed.pod, claimed.container), claimed.ids) == claimed.ids
        )

    youngest: dict[str, str] = {}
    again: dict[tuple[str, str, str], str] = {}
    own: set[str] = set()
    # In the order of ``known`` if they are equally old, as all are after a start.
    for name, kept in sorted(known.items(), key=lambda item: item[1].since_s):
        if kept.claimed is not None:
            youngest[kept.claimed.ids] = name
            again[kept.claimed.uid, kept.claimed.container, kept.claimed.ids] = name
            if is_own(kept.claimed):
                own.add(kept.claimed.ids)
    held = set(listed.values())

    def used(name: str, kept: Kept) -> bool:
        claimed = kept.claimed
        if now_s - kept.since_s < grace_s:
            return True
        if claimed is None:
            return bool(live)
        if is_own(claimed):
            return again[claimed.uid, claimed.container, claimed.ids] == name
        return claimed.ids in held - own and youngest[claimed.ids] == name

    return [name for name, kept in known.items() if not used(name, kept)]
