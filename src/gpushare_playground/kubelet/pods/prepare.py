"""Combines what a container is started with: image, devices, environment, mounts, GPUs."""

import base64
import json
from pathlib import Path
from typing import Any, Final, Literal

from gpushare.kube.client.errors import ApiError, KubeError
from gpushare.kube.client.session import Session, segment
from gpushare_playground.images.errors import ImageError, UnknownImage
from gpushare_playground.images.registry import Image, Registry, inside_path
from gpushare_playground.kubelet.devicemanager.allocate import Allocator
from gpushare_playground.kubelet.errors import DeviceUnavailable, StartFailed
from gpushare_playground.kubelet.pods.environment import command_line, manifest_environment
from gpushare_playground.kubelet.pods.volumes import link_mounts, make_volumes
from gpushare_playground.kubelet.podspec import Container, Pod
from gpushare_playground.kubelet.runtime.containers import Launch
from gpushare_playground.kubelet.runtime.gpuruntime import inject
from gpushare_playground.kubelet.runtime.preload_env import play_mounts
from gpushare_playground.kubelet.settings import Settings

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV_ROOTFS: Final = "PLAYGROUND_ROOTFS"
ENV_MOUNTS: Final = "PLAYGROUND_MOUNTS"
IMAGE_FAILED: Final = "ErrImagePull"


class Preparer:
    """Creates the ``Launch`` of a container, with everything that it needs from the node."""

    def __init__(self, settings: Settings, session: Session, allocator: Allocator) -> None:
        self._settings = settings
        self._session = session
        self._allocator = allocator
        self._registry = Registry(settings.images)

    def image(self, container: Container) -> Image:
        """The container's image; raises ``StartFailed`` (ErrImagePull) with the list of existing ones."""
        try:
            return self._registry.find(container.image)
        except UnknownImage:
            pass
        # It may have been described after the kubelet started.
        try:
            self._registry.reload()
            return self._registry.find(container.image)
        except ImageError as error:
            raise StartFailed(container.name, IMAGE_FAILED, str(error)) from None

    async def launch(self, pod: Pod, container: Container, image: Image, pod_ip: str) -> Launch:
        """Everything for one start; raises ``StartFailed`` with the reason for the container's waiting state."""
        folder = self._settings.folders.pods / pod.uid
        try:
            granted = await self._allocator.before_start(pod, container)
        except DeviceUnavailable as error:
            raise StartFailed(container.name, "CreateContainerConfigError", error.problem) from None
        manifest = await manifest_environment(pod, container, (pod_ip, self._settings.node_ip), self._source)
        variables = {**image.env, **granted.envs, **manifest}
        try:
            mounts = await make_volumes(pod, container, folder / "volumes", self._source)
            mounts = {**granted.mounts, **granted.devices, **mounts}
            rootfs = folder / container.name / "rootfs"
            commands = image.furnish(rootfs)
            link_mounts(rootfs, mounts)
            inject(variables, self._settings, commands)
            play_mounts(variables, granted.mounts, rootfs)
            home, cwd = rootfs / "root", inside_path(rootfs, container.working_dir or image.workdir)
            for place in (home, cwd, rootfs / "tmp"):
                place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StartFailed(
                container.name, "CreateContainerError", f"the container's folder cannot be made: {error}"
            ) from None
        environment = {
            **variables,
            "PATH": f"{commands}:{variables.get('PATH', _PATH)}",
            "HOSTNAME": pod.spec.hostname or pod.metadata.name,
            "PWD": str(cwd),
            ENV_ROOTFS: str(rootfs),
            ENV_MOUNTS: json.dumps(mounts, sort_keys=True),
        }
        environment.setdefault("HOME", str(home))
        environment.setdefault("TMPDIR", str(rootfs / "tmp"))
        line = command_line(container, image, manifest)
        return Launch([_resolve(rootfs, line[0]), *line[1:]], environment, cwd)

    async def _source(
        self, kind: Literal["ConfigMap", "Secret"], namespace: str, name: str
    ) -> dict[str, bytes] | None:
        """The data of a ConfigMap or Secret; raises ``StartFailed`` if the server does not return it."""
        path = f"/api/v1/namespaces/{segment(namespace)}/{kind.lower()}s/{segment(name)}"
        try:
            content: dict[str, Any] = json.loads(await self._session.request("GET", path))
        except ApiError as error:
            if error.not_found:
                return None
            raise StartFailed(name, "CreateContainerConfigError", str(error)) from None
        except (KubeError, ValueError) as error:
            raise StartFailed(name, "CreateContainerConfigError", str(error)) from None
        binary = {key: base64.b64decode(value) for key, value in (content.get("binaryData") or {}).items()}
        data = content.get("data") or {}
        if kind == "Secret":
            return {key: base64.b64decode(value) for key, value in data.items()}
        return {**binary, **{key: value.encode() for key, value in data.items()}}


def _resolve(rootfs: Path, program: str) -> str:
    """A program with a full path is the container's own if it has it, otherwise the machine's."""
    if program.startswith("/") and (own := inside_path(rootfs, program)).exists():
        return str(own)
    return program
