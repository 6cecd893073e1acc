"""A node with cgroups of version 2, made of folders, and containers that run in them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from gpushare.nodeagent.isolation.options import Watch, WatchPolicy
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.scripted_kubelet import Admitted

CONTAINER = "0a1b2c3d" * 8


def with_cgroups(world: World, policy: WatchPolicy = "report", *, version: int = 2) -> Path:
    """The root of the node's cgroups, and of its ``/proc``."""
    root, proc = world.folder / "cgroup", world.folder / "proc"
    for folder in (root, proc):
        folder.mkdir(exist_ok=True)
    if version == 2:
        (root / "cgroup.controllers").touch()
    watch = Watch(policy, 30.0, proc, root)
    world.use(isolation=replace(world.settings.isolation, watch=watch))
    return root


def run_process(world: World, pid: int, cgroup: str) -> None:
    """A process in that cgroup, which is created if missing."""
    (world.folder / "cgroup" / cgroup.lstrip("/")).mkdir(parents=True, exist_ok=True)
    folder = world.folder / "proc" / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup").write_text(f"0::{cgroup}\n")
    (folder / "comm").write_text("python3\n")


def cgroup_of(admitted: Admitted, container_id: str = CONTAINER) -> str:
    return f"/kubepods/burstable/pod{admitted.pod['metadata']['uid']}/{container_id}"


def directory_of(world: World, admitted: Admitted, container_id: str = CONTAINER) -> str:
    return f"{world.folder}/cgroup{cgroup_of(admitted, container_id)}"


def report_containers(world: World, name: str, **ids: str) -> None:
    """The kubelet writes into the pod's status that these containers run."""
    made: dict[str, Any] = world.api.objects["pods", f"default/{name}"]
    statuses = [{"name": one, "containerID": f"containerd://{its_id}"} for one, its_id in ids.items()]
    world.api.put_pod({**made, "status": {"phase": "Running", "containerStatuses": statuses}})
