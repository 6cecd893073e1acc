"""Volumes and mounts, as far as possible for processes on one file system.

Every container has its own folder (``rootfs``), but no root of its own: a mount is a link inside that
folder, and ``PLAYGROUND_MOUNTS`` (JSON, path in the container → path of this machine) is for
programs that need the real path. A program that opens ``/data`` opens the machine's ``/data``.

hostPath, emptyDir, ConfigMap and Secret are implemented; other kinds (service account tokens, claims, projections)
are empty folders. Nothing is read-only, sizes are not limited, ConfigMaps are not updated once mounted.
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Literal

from gpushare_playground.images.registry import inside_path
from gpushare_playground.kubelet.errors import StartFailed
from gpushare_playground.kubelet.podspec import Container, KeyToPath, Pod, Volume

ObjectSource = Callable[[Literal["ConfigMap", "Secret"], str, str], Awaitable[dict[str, bytes] | None]]


async def make_volumes(pod: Pod, container: Container, folder: Path, source: ObjectSource) -> dict[str, str]:
    """Create what ``container`` mounts under ``folder``; returns path in the container → path of this machine.

    Raises ``StartFailed`` (CreateContainerConfigError) if a volume or its source is missing.
    """
    volumes = {volume.name: volume for volume in pod.spec.volumes or ()}
    mounts = {}
    for mount in container.volume_mounts or ():
        volume = volumes.get(mount.name)
        if volume is None:
            raise _broken(container, f'volume "{mount.name}" is not among the pod\'s volumes')
        place = await _make(pod, container, volume, folder / volume.name, source)
        mounts[mount.mount_path] = str(inside_path(place, mount.sub_path) if mount.sub_path else place)
    return mounts


def link_mounts(rootfs: Path, mounts: Mapping[str, str]) -> None:
    """Make each mount visible inside the container's folder; an outer mount hides those below it."""
    for inside, outside in sorted(mounts.items()):
        path = inside_path(rootfs, inside)
        if path == rootfs or any(parent.is_symlink() for parent in path.parents if parent != rootfs):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            path.unlink()
        elif path.is_dir() and not os.listdir(path):
            path.rmdir()
        if not path.exists():
            path.symlink_to(outside)


async def _make(pod: Pod, container: Container, volume: Volume, folder: Path, source: ObjectSource) -> Path:
    if volume.host_path is not None:
        return _host_path(container, volume.host_path.path, volume.host_path.type)
    os.makedirs(folder, exist_ok=True)
    if volume.config_map is not None:
        data = await source("ConfigMap", pod.metadata.namespace, volume.config_map.name)
        _check(container, data, volume.config_map.optional, f'configmap "{volume.config_map.name}" not found')
        _write(folder, data or {}, volume.config_map.items)
    elif volume.secret is not None:
        data = await source("Secret", pod.metadata.namespace, volume.secret.secret_name)
        _check(container, data, volume.secret.optional, f'secret "{volume.secret.secret_name}" not found')
        _write(folder, data or {}, volume.secret.items)
    return folder


def _host_path(container: Container, path: str, kind: str) -> Path:
    place = Path(path)
    if kind == "DirectoryOrCreate":
        place.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        place.touch()
    elif (kind == "Directory" and not place.is_dir()) or (kind == "File" and not place.is_file()):
        raise _broken(container, f"hostPath type check failed: {path} is not a {kind.lower()}")
    return place


def _write(folder: Path, data: Mapping[str, bytes], items: list[KeyToPath] | None) -> None:
    names = {one.key: one.path for one in items} if items is not None else {key: key for key in data}
    for key, name in names.items():
        if key in data:
            file = inside_path(folder, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data[key])


def _check(container: Container, data: object, optional: bool, problem: str) -> None:  # noqa: FBT001
    if data is None and not optional:
        raise _broken(container, problem)


def _broken(container: Container, problem: str) -> StartFailed:
    return StartFailed(container.name, "CreateContainerConfigError", problem)
