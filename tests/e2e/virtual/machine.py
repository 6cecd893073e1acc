"""Runs a command in a virtual machine whose files are this machine's, under another kernel.

The root is this machine's, read-only, under an overlay: programs, checkout and cache have their usual paths, and nothing
that the command writes stays, except in ``/run/virtual``. There is no network.
"""

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.e2e.cluster.kept import cache

#: Modules that find the root; the others are loaded from there.
_MODULES: Final = ("virtio_pci", "virtio_blk", "9pnet_virtio", "9p", "overlay", "ext4")
_HERE: Final = Path(__file__).parent
_DISK_BYTES: Final = 20 << 30
_MEMORY_MIB: Final = 8192


class NoMachine(RuntimeError):
    """The virtual machine cannot start, or ended without a result; the message says why."""


def kernel_folder() -> Path:
    """Where ``scripts/install-virtual-machine`` has unpacked the kernel's package."""
    return cache() / "virtual"


def accelerated() -> bool:
    """Whether this processor runs a virtual machine by itself; emulated, it is ten times slower."""
    flags = Path("/proc/cpuinfo").read_text().split()
    return os.access("/dev/kvm", os.R_OK | os.W_OK) and ("vmx" in flags or "svm" in flags)


def run(command: Sequence[str], folder: Path, shared: Path, *, timeout_s: float, security: str) -> int:
    """Run ``command`` in ``folder``; its output is ours. Returns its exit status.

    ``shared`` is the machine's ``/run/virtual``, for results. ``security``: the kernel's security module, ``apparmor`` or ``selinux``.

    Raises ``NoMachine`` if it does not start, or does not end in ``timeout_s`` seconds.
    """
    kernel = kernel_folder()
    images = sorted(kernel.glob("boot/vmlinuz-*"))
    qemu = shutil.which("qemu-system-x86_64")
    if not images or qemu is None:
        raise NoMachine("QEMU or the kernel is missing: run scripts/install-virtual-machine")
    version = images[-1].name.removeprefix("vmlinuz-")
    environment = [f"{name}={os.environ[name]}" for name in ("PATH", "HOME") if name in os.environ]
    (shared / "command").write_text(
        f"cd {shlex.quote(str(folder))} && exec env {shlex.join([*environment, *command])}\n"
    )
    shutil.copy(_HERE / "guest.sh", shared)
    (shared / "status").unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpushare-virtual-", dir="/var/tmp") as scratch:
        disk, initramfs = Path(scratch) / "disk", Path(scratch) / "initramfs"
        with disk.open("wb") as file:
            file.truncate(_DISK_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=1", str(disk)], check=True, timeout=60)
        _pack(initramfs, kernel, version)
        speed = (
            ["-accel", "kvm", "-cpu", "host"]
            if accelerated()
            else ["-accel", "tcg,thread=multi", "-cpu", "max"]
        )
        line = f"console=ttyS0 quiet panic=-1 psi=1 security={security} gpushare.modules={kernel}/lib/modules"
        arguments = [
            qemu,
            *speed,
            *("-smp", str(os.cpu_count()), "-m", str(_MEMORY_MIB)),
            *("-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot"),
            *("-kernel", str(images[-1]), "-initrd", str(initramfs), "-append", line),
            *("-drive", f"file={disk},format=raw,if=virtio,cache=unsafe"),
            *("-virtfs", "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap"),
            *("-virtfs", f"local,path={shared},mount_tag=shared,security_model=none"),
        ]
        try:
            subprocess.run(arguments, stdin=subprocess.DEVNULL, check=False, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise NoMachine(f"the virtual machine has not ended after {timeout_s:g} s") from None
    try:
        return int((shared / "status").read_text())
    except (OSError, ValueError):
        raise NoMachine(
            "the virtual machine ended without a result; the end of its output says why"
        ) from None


def _pack(initramfs: Path, kernel: Path, version: str) -> None:
    """Write the files with which the kernel starts: busybox, our ``/init``, and modules in the order of loading."""
    folder = initramfs.with_suffix(".d")
    (folder / "bin").mkdir(parents=True)
    busybox = shutil.which("busybox")
    if busybox is None:
        raise NoMachine("busybox is missing: run scripts/install-e2e-packages")
    shutil.copy(busybox, folder / "bin" / "busybox")
    (folder / "bin" / "sh").symlink_to("busybox")
    shutil.copy(_HERE / "initramfs.sh", folder / "init")
    (folder / "init").chmod(0o755)
    loaded: dict[str, None] = {}
    for module in _MODULES:
        shown = subprocess.run(
            ["modprobe", "-d", str(kernel), "-S", version, "--show-depends", module],
            check=True,
            capture_output=True,
            text=True,
            timeout=30,
        ).stdout
        paths = [line.split()[1] for line in shown.splitlines() if line.startswith("insmod ")]
        loaded.update(dict.fromkeys(paths))
    for path in loaded:
        shutil.copy(path, folder)
    (folder / "modules").write_text("\n".join(Path(path).name for path in loaded) + "\n")
    names = "\n".join(str(path.relative_to(folder)) for path in sorted(folder.rglob("*")))
    with initramfs.open("wb") as file:
        subprocess.run(
            ["cpio", "-o", "-H", "newc", "--quiet"],
            input=names.encode(),
            stdout=file,
            cwd=folder,
            check=True,
            timeout=60,
        )
