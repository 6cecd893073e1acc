"""The checkpoint file: the devices of each container, in the format of the real kubelet's.

``{"Data":{"PodDeviceEntries":[{"PodUID","ContainerName","ResourceName","DeviceIDs":{"-1":[…]},
"AllocResp"}],"RegisteredDevices":{resource:[…]}},"Checksum":N}``. ``DeviceIDs`` is keyed by NUMA node,
``-1`` for devices without one; ``AllocResp`` is the plugin's response, encoded, in base64. The checksum is the
CRC-32 of ``Data`` as compact JSON; the real kubelet's is an FNV hash of its own structs, so neither reads the
other's.
"""

import base64
import json
import logging
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpushare_playground.kubelet.devicemanager.devices import DeviceBook, Grant
from gpushare_playground.kubelet.paths import read_json, write_whole

_log = logging.getLogger(__name__)


def write_checkpoint(path: Path, book: DeviceBook) -> None:
    """Write the book to the file atomically."""
    data = {
        "PodDeviceEntries": [
            {
                "PodUID": grant.pod_uid,
                "ContainerName": grant.container,
                "ResourceName": grant.resource,
                "DeviceIDs": {"-1": sorted(grant.devices)},
                "AllocResp": base64.b64encode(grant.response).decode(),
            }
            for grant in book.grants()
        ],
        "RegisteredDevices": {name: sorted(resource.healthy) for name, resource in book.resources.items()},
    }
    write_whole(path, json.dumps({"Data": data, "Checksum": _checksum(data)}, separators=(",", ":")))


def read_checkpoint(path: Path) -> tuple[list[str], list[Grant]]:
    """The registered resources and the grants; both empty if the file does not exist.

    A file that is broken or does not match its checksum is renamed to ``….broken`` and reported in the
    log: the pods continue, their devices are forgotten, as if the file was deleted.
    """
    if not path.exists():
        return [], []
    read = read_json(path)
    try:
        if read is None or not isinstance(read["Data"], dict) or _checksum(read["Data"]) != read["Checksum"]:
            raise ValueError("no JSON, or not what its checksum says")
        data = read["Data"]
        return list(data["RegisteredDevices"]), [_grant(entry) for entry in data["PodDeviceEntries"] or []]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        aside = path.with_name(f"{path.name}.broken")
        path.replace(aside)
        _log.error(
            "checkpoint is broken; devices of running pods are forgotten (file %s, fault %s)",
            str(aside),
            str(error),
        )
        return [], []


def _grant(entry: Mapping[str, Any]) -> Grant:
    return Grant(
        pod_uid=str(entry["PodUID"]),
        container=str(entry["ContainerName"]),
        resource=str(entry["ResourceName"]),
        devices=frozenset(str(device) for ids in entry["DeviceIDs"].values() for device in ids),
        response=base64.b64decode(entry["AllocResp"], validate=True),
    )


def _checksum(data: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(data, sort_keys=True, separators=(",", ":")).encode())
