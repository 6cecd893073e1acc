"""The environment that replaces a container's mounts, for a process without mounts."""

import os

from gpushare.nodeagent.isolation.storage.files import (
    DELIVERED,
    IN_CONTAINER,
    LIBRARIES,
    LIMITS,
    SHIMS,
    USAGE,
)
from gpushare.nodeagent.isolation.storage.libraries import deliver
from gpushare_playground.kubelet.runtime.preload_env import PRELOAD, RUN, play_mounts


def mounts_of(tmp_path):
    """As a node agent with isolation by ``/etc/ld.so.preload`` answers."""
    built = tmp_path / "built"
    built.mkdir()
    for name in DELIVERED:
        (built / name).touch()
    release = deliver(built, tmp_path / "lib")
    made = tmp_path / "containers" / "3f"
    made.mkdir(parents=True)
    mounts = {f"{IN_CONTAINER}/{name}": str(made / name) for name in (LIMITS, USAGE)}
    mounts |= {f"{IN_CONTAINER}/lib/{name}": str(release.folder / name) for name in DELIVERED}
    mounts |= {
        f"{IN_CONTAINER}/driver/{inside}": str(tmp_path / "driver" / name) for name, inside in SHIMS.items()
    }
    return {**mounts, "/etc/ld.so.preload": str(release.folder / "ld.so.preload")}, release.folder, made


def test_the_environment_points_to_what_a_container_would_find(tmp_path):
    mounts, library, made = mounts_of(tmp_path)
    environment = {"LD_LIBRARY_PATH": "/fake"}
    rootfs = tmp_path / "rootfs"
    play_mounts(environment, mounts, rootfs)
    play_mounts({}, mounts, rootfs)  # as at a second start, when the links exist
    folder = rootfs / "run/gpushare/driver"
    assert environment == {
        "LD_PRELOAD": ":".join(f"{library}/{name}" for name in LIBRARIES),
        "GPUSHARE_RUN": str(made),
        "LD_LIBRARY_PATH": f"{folder}:/fake",
    }
    assert os.readlink(folder / "libgpushare-driver-cuda.so") == str(tmp_path / "driver/libcuda.so.1")
    assert os.readlink(folder / "libgpushare-driver-nvml.so") == str(tmp_path / "driver/libnvidia-ml.so.1")


def test_what_a_manifest_preloads_comes_after_ours(tmp_path):
    mounts, library, _ = mounts_of(tmp_path)
    environment = {"LD_PRELOAD": "/own.so"}
    play_mounts(environment, mounts, tmp_path / "rootfs")
    assert environment["LD_PRELOAD"].split(":") == [
        *(f"{library}/{name}" for name in LIBRARIES),
        "/own.so",
    ]


def test_a_container_without_such_mounts_is_left_as_it_is(tmp_path):
    environment = {"A": "b"}
    play_mounts(environment, {"/data": "/tmp"}, tmp_path / "rootfs")
    assert environment == {"A": "b"}
    assert not (tmp_path / "rootfs").exists()


def test_paths_are_those_of_the_node_agent():
    assert IN_CONTAINER == RUN
    assert PRELOAD == "/etc/ld.so.preload"
