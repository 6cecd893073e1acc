"""What depends on the node's kernel: cgroups of either version, AppArmor, SELinux. On one node, for ``make e2e-virtual``."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import NodeRecord, cgroups, down, up, wait_for
from tests.e2e.product.conftest import load_images
from tests.e2e.product.product import INSTALLER, SCHEDULER, Product, gpu_pod
from tests.e2e.product.test_isolation import ALLOCATES, GOES_PAST, SAMPLE, isolates
from tests.patience import SLOWNESS

#: Its driver limits cgroups of version 2.
NODE = NodeRecord("core-mem-t4", 0, "t4-r615")

# On this machine's own kernel test_isolation.py has the same, and more.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800 * SLOWNESS)]


@pytest.fixture(scope="module")
def isolated(states: Path, binaries: Path, k8s: str) -> Iterator[Product]:
    """Both charts on a node, whose watchdog kills what is above its memory, and a pod with 2 GiB and 30%."""
    cluster = up(states / "kernel", binaries, k8s=k8s, nodes=[NODE])
    try:
        load_images(cluster, {"gpushare", "gpushare-sample-cuda-sample-11.0.3"})
        product = Product(cluster.kubeconfig, cluster.bin)
        product.label(NODE.name, "core_mem")
        watchdog = "nodeAgent.watchdog.policy=kill,nodeAgent.watchdog.graceSeconds=2"
        # An emulated API server takes longer to compile the policies than Helm waits for an answer, and they need nothing of the kernel.
        product.install(INSTALLER, "--set", f"{watchdog},admission.enabled=false,admission.guards=false")
        product.install(SCHEDULER, "--set", "replicas=1")
        isolates(
            product, NODE.name, behind="; backed by the driver's own limits" if cgroups.unified() else ""
        )
        pod = gpu_pod("shares", 2, 30, labels={"app": "shares"}, schedulerName=SCHEDULER)
        pod["spec"]["containers"][0]["image"] = SAMPLE
        # Without kubectl's own validation: an emulated API server takes longer for the schemas than kubectl waits.
        product.kubectl("create", "--validate=false", "-f", "-", stdin=json.dumps(pod))
        product.running("app=shares")
        yield product
    finally:
        down(cluster.state)


def executed(product: Product, *argv: str) -> str:
    """Its output. An emulated API server may take longer for a TLS handshake than kubectl waits, 10 s: then nothing was executed."""
    for _ in range(5):
        ran = product.run("kubectl", "exec", "shares", "--", *argv)
        if "TLS handshake timeout" not in ran.text:
            break
    assert ran.code == 0, ran.text
    return ran.out


def test_a_container_sees_its_slice_and_gets_no_more(isolated: Product) -> None:
    """2 GiB are a little more than that in MiB, as a unit is a fifteenth of the GPU; 2 is out of memory."""
    mib, *results = executed(isolated, "python3", "-c", ALLOCATES).split()
    assert results == [*"00002"]
    assert 2048 <= int(mib) < 2200
    assert f"/  {mib}MiB" in executed(isolated, "nvidia-smi")
    with pytest.raises(AssertionError):
        executed(isolated, "sh", "-c", "echo >>/run/gpushare/limits")


def test_a_process_that_bypasses_the_libraries_is_recognized_by_its_cgroup(isolated: Product) -> None:
    """The driver itself refuses its allocation where cgroups are of version 2; elsewhere the watchdog kills it."""
    if cgroups.unified():
        program = GOES_PAST.replace("signal.pause()", "")

        def refused() -> bool:
            # The agent sets the limit once it knows the container's cgroup.
            return executed(isolated, "python3", "-c", program).split() == ["0", "0", "2"]

        wait_for("the driver refuses what is above the share", refused, timeout=60)
        return
    ran = isolated.run("kubectl", "exec", "shares", "--", "python3", "-c", GOES_PAST)
    assert (ran.out.split(), ran.code) == (["0", "0", "0"], 137), ran.text

    def killed() -> bool:
        return any(one.startswith("GPUMemoryKilled: container main") for one in isolated.events("shares"))

    wait_for("an event about the container", killed, timeout=60)


def test_the_container_is_confined_by_the_kernels_security_module(isolated: Product) -> None:
    apparmor, selinux = Path("/sys/kernel/security/apparmor"), Path("/sys/fs/selinux")
    if not apparmor.is_dir() and not selinux.is_dir():
        pytest.skip("this kernel has neither AppArmor nor SELinux: make e2e-virtual")
    own = executed(isolated, "cat", "/proc/self/attr/current").rstrip("\0\n")
    if selinux.is_dir():
        assert own.split(":")[:3] == ["system_u", "system_r", "container_t"]
    else:
        assert own == "cri-containerd.apparmor.d (enforce)"


def test_the_node_has_the_cgroups_of_its_kernel(isolated: Product) -> None:
    """A container of version 2 sees its own cgroup as the root."""
    own = executed(isolated, "cat", "/proc/self/cgroup").splitlines()
    assert (own == ["0::/"]) == cgroups.unified()
