"""Examples in the engines' own repositories, with shares in the place of GPUs."""

from typing import Any, Final

import yaml

from gpushare.api import names
from images.oci import file
from tests.e2e.cluster import Cluster
from tests.e2e.cluster.programs import Program
from tests.e2e.cluster.sample_images import busybox
from tests.e2e.engines.engine import source

WHOLE_GPUS: Final = "nvidia.com/gpu"
_SCRIPT: Final = "#!/bin/sh\n{}\n"


def example(manager: Program, module: str, path: str, *, resource: str = WHOLE_GPUS) -> list[dict[str, Any]]:
    """The objects of a file in the engine's module, with ``aliyun.com/gpu-mem`` in the place of ``resource``.

    For test nodes, which have two CPUs and no registry, requests for other resources are left out, and images that a node has
    are not pulled. An object with ``generateName`` gets that name.
    """
    objects = yaml.safe_load_all((source(manager, module) / path).read_text())
    return [_named(_on_shares(one, resource)) for one in objects if one]


def load_stand_in(cluster: Cluster, image: str, **programs: str) -> None:
    """Load an image with busybox and these programs, by name, each a line of shell, under the name that an example has."""
    scripts = [file(f"/bin/{name}", _SCRIPT.format(line).encode(), 0o755) for name, line in programs.items()]
    cluster.load_image(busybox([image], scripts))


def _on_shares(value: Any, resource: str) -> Any:
    if isinstance(value, list):
        return [_on_shares(one, resource) for one in value]
    if not isinstance(value, dict):
        return value
    changed = {key: _on_shares(one, resource) for key, one in value.items()}
    for key in ("limits", "requests"):
        if isinstance(amounts := value.get(key), dict):
            changed[key] = {names.GPU_MEM: amounts[resource]} if resource in amounts else {}
    return changed | ({"imagePullPolicy": "IfNotPresent"} if "image" in value else {})


def _named(one: dict[str, Any]) -> dict[str, Any]:
    metadata = dict(one["metadata"])
    if prefix := metadata.pop("generateName", ""):
        metadata["name"] = prefix.rstrip("-")
    return one | {"metadata": metadata}
