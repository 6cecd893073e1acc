"""Reads what is examined of the node on which this program runs. Every wait has a time limit; nothing is changed."""

import asyncio
import ctypes
import os
import re
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from gpushare.api import names
from gpushare.doctor.findings import Unread
from gpushare.doctor.node.facts import Disk, NodeFacts, SeenDriver
from gpushare.nodeagent.deviceplugin.socket_names import PLUGINS_REGISTRY
from gpushare.nodeagent.errors import PodResourcesUnavailable
from gpushare.nodeagent.isolation.selftest.selftest import driver_files, try_libraries
from gpushare.nodeagent.isolation.storage.files import DELIVERED
from gpushare.nodeagent.isolation.storage.libraries import Release
from gpushare.nodeagent.isolation.storage.selinux import is_enforced, type_of
from gpushare.nodeagent.reconcile.pod_resources import KubeletPodResources
from gpushare.nodeagent.runtime.cdi.spec_dirs import CdiFolders

T = TypeVar("T")

_DEVICE_NODE: Final = re.compile(r"nvidia\d+|nvidiactl|nvidia-uvm|dxg")
_ARBITER: Final = "arbiter"
_RUNTIMES: Final = ("usr/bin/nvidia-container-runtime", "usr/local/nvidia/toolkit/nvidia-container-runtime")
_OURS: Final = "gpushare-"
#: A trial opens the driver several times, which takes seconds per GPU without persistence mode.
_TRIAL_ANSWERS: Final = 6
_LIBRARIES_ON_NODE: Final = "var/lib/gpushare"
#: adjtimex(2): the clock is not synchronized; the size of struct timex is below the second value.
_TIME_ERROR: Final = 5
_TIMEX_BYTES: Final = 512
_MOST_CONFIG_BYTES: Final = 1 << 20


class Places(msgspec.Struct, frozen=True):
    """Paths as seen by this program; ``cdi_dirs`` (with commas between them) and ``containerd_config`` are below ``host_root``."""

    host_root: Path
    driver_root: Path
    kubelet_dir: Path
    kubelet_root: Path
    library_dir: Path
    cdi_dirs: str
    containerd_config: str


async def read_node(places: Places, timeout_s: float) -> NodeFacts:
    """Read everything; a response that takes longer than ``timeout_s`` seconds counts as none."""
    root, plugins = places.host_root, places.kubelet_dir
    driver = await _driver(places.driver_root, timeout_s)
    cdi = [folder for folder in _below(root, places.cdi_dirs) if folder.is_dir()]
    specs = CdiFolders(cdi).read() if cdi else None
    registry = places.kubelet_root / PLUGINS_REGISTRY
    drivers = sorted(name for name in _names_in(registry) if name.startswith(names.DRA_DRIVER))
    alive = {name for name in drivers if await _is_served(registry / name, timeout_s)}
    return NodeFacts(
        name=os.environ.get("NODE_NAME") or socket.gethostname(),
        is_root=os.geteuid() == 0,
        driver=driver,
        device_nodes=frozenset(filter(_DEVICE_NODE.fullmatch, _names_in(root / "dev"))),
        plugin_folder=str(plugins),
        plugin_folder_writable=os.access(plugins, os.W_OK | os.X_OK),
        kubelet_registers=_is_socket(plugins / "kubelet.sock"),
        kubelet_lists=await _listing_trouble(
            places.kubelet_root / "pod-resources" / "kubelet.sock", timeout_s
        ),
        our_sockets=tuple(sorted(name for name in _names_in(plugins) if name.startswith(_OURS))),
        dra_folder=str(registry) if registry.is_dir() else "",
        dra_sockets=tuple(name for name in drivers if name in alive),
        dead_dra_sockets=tuple(name for name in drivers if name not in alive),
        cdi_folders=tuple(map(str, cdi)),
        cdi_kinds=tuple(description.kind for description in specs.descriptions) if specs else (),
        cdi_faults=specs.faults if specs else (),
        containerd=_or_unread(lambda: _text(root / places.containerd_config.lstrip("/"))),
        nvidia_runtime=any((root / program).exists() for program in _RUNTIMES),
        libraries_missing=_missing(places.library_dir),
        trial=await _trial(places, driver, timeout_s),
        cgroup_version=_or_unread(lambda: _cgroup_version(root)),
        clock=_or_unread(_clock),
        disk=_or_unread(lambda: _disk(root)),
        selinux_type=type_of(root / _LIBRARIES_ON_NODE) if is_enforced(root) else None,
    )


def _below(root: Path, folders: str) -> Iterator[Path]:
    for folder in folders.split(","):
        path = folder.strip().lstrip("/")
        yield root / path
        # The node's /var/run is a link to /run, and leads out of where its root is mounted.
        if path.startswith("var/run/"):
            yield root / path.removeprefix("var/")


def _or_unread(read: Callable[[], T]) -> T | Unread:
    try:
        return read()
    except OSError as error:
        return Unread(
            f"{error.filename or 'it'}: {error.strerror or error}",
            absent=isinstance(error, FileNotFoundError),
        )


async def _driver(root: Path, timeout_s: float) -> SeenDriver | Unread:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpushare.doctor.node.driver_probe", str(root)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        return Unread(f"the driver does not answer within {timeout_s:g} s")
    code = process.returncode or 0
    try:
        return msgspec.json.decode(out.splitlines()[-1], type=SeenDriver)
    except (msgspec.MsgspecError, IndexError):
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        last = " ".join(err.decode(errors="replace").strip().splitlines()[-1:])
        return Unread(f"a program that queries the driver ended {how} ({last})")


async def _trial(places: Places, driver: SeenDriver | Unread, timeout_s: float) -> tuple[str, str]:
    if isinstance(driver, Unread) or not driver.gpus:
        return ("skipped", "there is no GPU to test them on")
    if missing := _missing(places.library_dir):
        return ("skipped", f"{missing[0]} is not there")
    files = driver_files(places.driver_root)
    if files is None:
        return ("skipped", f"the driver's libraries are not found below {places.driver_root}")
    try:
        async with asyncio.timeout(_TRIAL_ANSWERS * timeout_s):
            verdict = await try_libraries(
                Release("doctor", places.library_dir), files, [gpu.uuid for gpu in driver.gpus]
            )
    except TimeoutError:
        return ("skipped", "the driver was too slow; set a longer `--timeout`")
    return (verdict.outcome, verdict.why)


async def _listing_trouble(path: Path, timeout_s: float) -> str:
    if not _is_socket(path):
        return f"there is no socket {path}"
    try:
        await KubeletPodResources(path).read(timeout_s)
    except PodResourcesUnavailable as error:
        return str(error)
    return ""


async def _is_served(path: Path, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_unix_connection(str(path))
    except (TimeoutError, OSError):
        return False
    writer.close()
    return True


def _missing(folder: Path) -> tuple[str, ...]:
    return tuple(str(folder / name) for name in (*DELIVERED, _ARBITER) if not (folder / name).is_file())


def _names_in(folder: Path) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)
    return []


def _is_socket(path: Path) -> bool:
    with suppress(OSError):
        return stat.S_ISSOCK(path.stat().st_mode)
    return False


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MOST_CONFIG_BYTES).decode(errors="replace")


def _cgroup_version(root: Path) -> int:
    folder = root / "sys/fs/cgroup"
    return 2 if (folder / "cgroup.controllers").exists() else 1 if os.listdir(folder) else 0


def _clock() -> str:
    """Empty if the clock is synchronized; raises ``OSError``."""
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)  # modes 0: only reads
    state = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    if state < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "adjtimex")
    return "it is not synchronized (adjtimex: TIME_ERROR)" if state == _TIME_ERROR else ""


def _disk(root: Path) -> Disk:
    path = root / _LIBRARIES_ON_NODE
    while not path.exists():
        path = path.parent
    file_system = os.statvfs(path)
    return Disk(
        str(path),
        file_system.f_bavail * file_system.f_frsize,
        file_system.f_blocks * file_system.f_frsize,
        bool(file_system.f_flag & os.ST_NOEXEC),
    )
