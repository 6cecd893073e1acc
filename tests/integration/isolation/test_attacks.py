"""A tenant's attempts against its limits, its files and its neighbours that fail, with the rights
that runtimes leave a container's root. Attempts that bypass the libraries are in
test_attacks_watched.py.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from gpushare_playground import gpus
from tests.integration.isolation.placed import (
    AS_TENANT,
    OVER,
    WAYS,
    Way,
    allocated_container,
    compiled,
    must,
    needs_root,
    run,
    running,
)
from tests.integration.isolation.test_ways_to_the_driver import NAMED, REACH
from tests.unit.isolation.building import MIB, Container

pytestmark = needs_root

#: Runs each line by itself; prints the lines that succeed.
TRY_ALL = (
    'while IFS= read -r line; do if bash -c "$line" 2>/dev/null; then echo "went through: $line"; fi; done'
)

#: Higher limits, in /run/forged.
ON_THE_LIMITS = """
echo gpu >>/run/gpushare/limits
echo gpu >/proc/self/root/run/gpushare/limits
cp /run/forged /run/gpushare/limits
cp --remove-destination /run/forged /run/gpushare/limits
mv -f /run/forged /run/gpushare/limits
ln -sf /run/forged /run/gpushare/limits
sed -i s/memory_bytes=2/memory_bytes=9/ /run/gpushare/limits
truncate -s 0 /run/gpushare/limits
rm -f /run/gpushare/limits
rm -rf /run/gpushare/limits
chmod 666 /run/gpushare/limits
chown 65534 /run/gpushare/limits
dd if=/run/forged of=/run/gpushare/limits conv=notrunc
exec 3</run/gpushare/limits && echo gpu >>/proc/self/fd/3
mount -o remount,rw,bind /run/gpushare/limits
mount --bind /run/forged /run/gpushare/limits
umount /run/gpushare/limits
umount -l /run/gpushare/limits
mv /run/gpushare/limits /run/gpushare/elsewhere
"""
ON_THE_PRELOAD = """
: >/etc/ld.so.preload
echo >>/etc/ld.so.preload
cp /dev/null /etc/ld.so.preload
mv -f /run/forged /etc/ld.so.preload
rm -f /etc/ld.so.preload
ln -sf /dev/null /etc/ld.so.preload
chmod 000 /etc/ld.so.preload
mount --bind /dev/null /etc/ld.so.preload
umount /etc/ld.so.preload
rm -f /run/gpushare/lib/libcuda.so.1
: >/run/gpushare/lib/libcuda.so.1
mount --bind /dev/null /run/gpushare/lib/libcuda.so.1
"""
ON_THE_USAGE = """
rm -f /run/gpushare/usage
mv /run/gpushare/usage /run/gpushare/elsewhere
ln -sf /run/forged /run/gpushare/usage
umount /run/gpushare/usage
"""
FORGE = f"sed 's/memory_bytes=[0-9]*/memory_bytes={16000 * MIB}/' /run/gpushare/limits >/run/forged"


@pytest.fixture
def node(tmp_path: Path) -> gpus.GpuNode:
    described = gpus.preset("core-mem-4", "n1")
    gpus.write(tmp_path / "node.gpus", described)
    return described


@pytest.fixture
def here(tmp_path: Path, node: gpus.GpuNode) -> Container:
    return allocated_container(tmp_path, node)


def tried(here: Container, way: Way, folder: Path, attempts: str, *beforehand: str) -> str:
    """The attempts that succeeded."""
    return gone_through(must(run(here, way, folder, *beforehand, "bash", "-c", script_of(attempts))))


def script_of(attempts: str) -> str:
    # The last one succeeds, as proof that all were tried.
    return f"{TRY_ALL} <<'ATTEMPTS'\n{attempts.strip()}\ntrue\nATTEMPTS"


def gone_through(output: str) -> str:
    assert output.endswith("went through: true\n")
    return output.removesuffix("went through: true\n")


@pytest.mark.parametrize("way", WAYS)
def test_a_tenant_cannot_change_its_limits(way: str, here: Container, tmp_path: Path) -> None:
    before = here.limits.read_text()
    tenant = Way(way, as_tenant=True, before=FORGE)
    assert tried(here, tenant, tmp_path, ON_THE_LIMITS) == ""
    unprivileged = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    assert (
        tried(
            here, Way(way, before=f"{FORGE}; chmod 666 /run/forged"), tmp_path, ON_THE_LIMITS, *unprivileged
        )
        == ""
    )
    assert here.limits.read_text() == before
    must(run(here, tenant, tmp_path, sys.executable, "-c", OVER))


def test_file_modes_alone_protect_the_limits(here: Container, tmp_path: Path) -> None:
    """Where no mount protects them: against another user of the node, or of a playground."""
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o055)
    unprivileged = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    containers, before = here.run.parent, here.limits.read_text()

    def went_through() -> str:
        attempts = ON_THE_LIMITS.replace("/run/gpushare/", f"{here.run}/")
        script = script_of(attempts.replace("/run/forged", str(tmp_path / "forged")))
        tried = subprocess.run(
            [*unprivileged, "bash", "-c", script], capture_output=True, text=True, timeout=60, check=True
        )
        return gone_through(tried.stdout)

    (tmp_path / "forged").write_text(before)
    (tmp_path / "forged").chmod(0o666)

    assert went_through() == ""
    # The directory of all containers is closed to others; one container's by itself need not be.
    assert containers.stat().st_mode & 0o077 == 0
    containers.chmod(0o755)
    assert went_through() == ""
    assert here.limits.read_text() == before


def test_a_tenant_cannot_change_the_preload_list(here: Container, tmp_path: Path) -> None:
    tenant = Way("preloaded", as_tenant=True, before=FORGE)
    assert tried(here, tenant, tmp_path, ON_THE_PRELOAD) == ""
    must(run(here, tenant, tmp_path, sys.executable, "-c", OVER))


def test_an_unallocated_gpu_has_no_memory_whatever_the_environment(here: Container, tmp_path: Path) -> None:
    reach = compiled(tmp_path / "programs", REACH)
    tenant = Way(as_tenant=True)
    for another in ("1", "2,3"):
        result = run(here, tenant, tmp_path, reach, "plain", NAMED, "64", FAKEGPU_VISIBLE_DEVICES=another)
        assert must(result) == "2 0\n"


def test_the_usage_file_cannot_be_removed(here: Container, tmp_path: Path) -> None:
    tenant = Way(as_tenant=True, before=FORGE)
    assert tried(here, tenant, tmp_path, ON_THE_USAGE) == ""
    must(run(here, tenant, tmp_path, sys.executable, "-c", OVER))


@pytest.mark.parametrize(
    "spoil",
    [
        "os.truncate('/run/gpushare/usage', 0)",
        "os.truncate('/run/gpushare/usage', 100_000)",
        "open('/run/gpushare/usage', 'r+b').write(b'\\xff' * 400_000)",
        "usage, limits = open('/run/gpushare/usage', 'r+b'), open('/run/gpushare/limits')\n"
        "fcntl.lockf(usage, fcntl.LOCK_EX, 1 << 20)\nfcntl.flock(limits, fcntl.LOCK_EX)",
    ],
)
def test_damage_to_the_usage_file_affects_only_its_own_container(
    spoil: str, node: gpus.GpuNode, here: Container, tmp_path: Path
) -> None:
    neighbour = allocated_container(tmp_path, node)
    tenant = Way(as_tenant=True)
    works = """
context()
print("ready", flush=True)
sys.stdin.readline()
for _ in range(50):
    result, address = take("plain", 1500 * MIB)
    assert result == 0, result
    assert take("plain", 500 * MIB)[0] == OUT_OF_MEMORY
    give("plain", address)
print("well", flush=True)
"""
    # The spoiler keeps its changes until the neighbour is done.
    spoils = f"import fcntl, os, sys\n{spoil}\nprint('spoiled', flush=True)\nsys.stdin.read()"
    with (
        running(neighbour, tenant, tmp_path, sys.executable, "-c", AS_TENANT + works) as (working, output),
        running(here, tenant, tmp_path, sys.executable, "-c", spoils) as (_, spoiled),
    ):
        assert output.readline() == "ready\n"
        assert spoiled.readline() == "spoiled\n"
        own = run(here, tenant, tmp_path, sys.executable, "-c", AS_TENANT + "context()")
        assert own.returncode != 0
        assert working.stdin
        working.stdin.write("\n")
        working.stdin.flush()
        assert output.readline() == "well\n"


def test_a_process_of_another_container_cannot_be_traced_read_or_killed(
    node: gpus.GpuNode, here: Container, tmp_path: Path
) -> None:
    other = allocated_container(tmp_path, node)
    own_processes = Way(as_tenant=True, namespaces="-m -p -f --mount-proc")
    holds = (
        AS_TENANT
        + "context()\nassert take('plain', 1500 * MIB)[0] == 0\nprint('held', flush=True)\nsys.stdin.readline()\nprint(used(), flush=True)\n"
    )
    attack = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
victim = int(sys.argv[1])
ATTACH, SEIZE = 16, 0x4206
def refused(result):
    assert result == -1, result
    print(os.strerror(ctypes.get_errno()))
for pid in {victim, *(int(name) for name in os.listdir("/proc") if name.isdigit())} - {os.getpid()}:
    for request in (ATTACH, SEIZE):
        refused(libc.ptrace(request, pid, None, None))
    refused(libc.process_vm_readv(pid, None, 0, None, 0, 0) if pid != victim else libc.kill(pid, 0))
    refused(libc.kill(pid, signal.SIGKILL))
    refused(libc.syscall(434, pid, 0))
    assert not os.path.exists(f"/proc/{pid}/mem")
"""
    with running(other, own_processes, tmp_path, sys.executable, "-c", holds) as (victim, stdout):
        assert stdout.readline() == "held\n"
        assert victim.stdin
        child = Path(f"/proc/{victim.pid}/task/{victim.pid}/children").read_text().split()[0]
        # By its number on the node, which a tenant may guess, and by all those that it sees.
        output = must(run(here, own_processes, tmp_path, sys.executable, "-c", attack, child))
        assert set(output.splitlines()) == {"No such process"}
        # With the node's processes visible (hostPID), but as another user.
        unprivileged = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        tracing = "import ctypes, sys\nlibc = ctypes.CDLL(None)\nprint(libc.ptrace(16, int(sys.argv[1]), None, None), libc.kill(int(sys.argv[1]), 9))"
        output = must(
            run(
                here,
                Way(as_tenant=True),
                tmp_path,
                *unprivileged,
                "/usr/bin/env",
                "python3",
                "-c",
                tracing,
                child,
            )
        )
        assert output == "-1 -1\n"
        victim.stdin.write("\n")
        victim.stdin.flush()
        assert int(stdout.readline()) > 1500
