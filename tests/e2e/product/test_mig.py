"""MIG instances on demand on a real cluster: kube-scheduler allocates placements, instances are created and
destroyed with their claims.
"""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from documentation.blocks import read_page
from gpushare.api import names
from gpushare_playground import gpus
from tests.docs.assigned import commands_typed_by
from tests.e2e.cluster import Cluster, Node, NodeRecord, down, driver, up
from tests.e2e.product.conftest import load_images
from tests.e2e.product.product import CHECKOUT, INSTALLER, Json, Product
from tests.e2e.product.test_dra import claim, pod, until
from tests.patience import SLOWNESS

NODE = "mig-a100"
PAGE = "docs/guide/mig.md"
SMALL, WHOLE = "1g.10gb", "7g.80gb"


@pytest.fixture(scope="module")
def cluster_with_mig(states: Path, binaries: Path, k8s: str) -> Iterator[Cluster]:
    """A cluster of one node, with an A100 in MIG mode without instances and a whole one."""
    if tuple(map(int, k8s.split(".")[:2])) < (1, 36):
        pytest.skip("devices have shared counters from Kubernetes 1.36 on")
    made = up(states / "mig", binaries, k8s=k8s, nodes=[NodeRecord(NODE, 0, "mig")], drivers=False)
    try:
        node = made.node(NODE)
        divided, whole = gpus.preset("mig", NODE).gpus
        described = replace(gpus.preset("mig", NODE), gpus=(replace(divided, instances=()), whole))
        node.gpu_file.parent.mkdir(parents=True, exist_ok=True)
        gpus.write(node.gpu_file, described)
        driver.install(node)
        load_images(made)
        yield made
    finally:
        down(made.state)


@pytest.fixture(scope="module")
def product_with_mig(cluster_with_mig: Cluster) -> Product:
    """The node agent alone, which creates instances."""
    product = Product(cluster_with_mig.kubeconfig, cluster_with_mig.bin)
    product.label(NODE, "dra")
    product.install(INSTALLER, "--set", "mig.dynamic=true")
    until("all slices of one generation are there", lambda: len(slices(product)) == 3)
    return product


def slices(product: Product) -> list[Json]:
    found: list[Json] = product.get("/apis/resource.k8s.io/v1/resourceslices")["items"]
    return [one["spec"] for one in found if one["spec"]["driver"] == names.DRA_DRIVER]


def of_profile(name: str, profile: str) -> Json:
    """A claim for an instance of that profile, with all its memory."""
    made = claim(name, "1Gi", 0)
    (request,) = made["spec"]["devices"]["requests"]
    del request["exactly"]["capacity"]
    expression = f'device.attributes["{names.DRA_DRIVER}"].?profile.orValue("") == "{profile}"'
    request["exactly"]["selectors"] = [{"cel": {"expression": expression}}]
    return made


def instances(node: Node) -> list[str]:
    """Profile and memory slice of each instance, as NVIDIA's tool lists them on the node."""
    listed = node.run("nvidia-smi", "mig", "-lgi", check=False).stdout
    assert "GPU instances" in listed, listed
    return sorted(f"{profile}@{start}" for profile, start in re.findall(r"MIG (\S+) .* (\d):\d", listed))


def seen_in(product: Product, name: str) -> list[tuple[Any, ...]]:
    """Profile and UUID of each MIG device that the pod's container sees."""
    return re.findall(
        r"MIG (\S+) .*UUID: (MIG-\S+)\)", product.kubectl("exec", name, "--", "nvidia-smi", "-L")
    )


def typed(product: Product, folder: Path) -> str:
    """Type the page's commands; the output of the last."""
    for block in read_page(PAGE, (CHECKOUT / PAGE).read_text()).blocks:
        if block.file:
            (folder / block.file).write_text("\n".join(block.content) + "\n")
    printed = ""
    for command in commands_typed_by(__file__, "docs/guide/mig.md"):
        environment = dict(product.environment_of_commands)
        done = subprocess.run(
            ["bash", "-c", command.text],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300 * SLOWNESS,
            check=False,
        )
        assert done.returncode == 0, f"$ {command.text}\n{done.stdout}{done.stderr}"
        printed = done.stdout
    return printed


def test_instances_are_created_and_destroyed_with_their_claims(
    product_with_mig: Product, cluster_with_mig: Cluster, tmp_path: Path
) -> None:
    product, node = product_with_mig, cluster_with_mig.node(NODE)
    assert instances(node) == []
    assert SMALL in typed(product, tmp_path)
    assert instances(node) == [f"{SMALL}@6"]
    # The node is described with the new instance a moment after it was created.
    until("the table has the instance", lambda: "GPU0/6(Allocated)" in product.inspect("-d", NODE))
    assert "instance" in product.inspect("-d", NODE)
    product.delete_all()
    until("no instance is left", lambda: not instances(node))
    product.apply(*(one for name in ("a", "b") for one in (of_profile(name, SMALL), pod(name, name))))
    for name in ("a", "b"):
        product.running(f"app={name}")
    # Where they block the fewest others.
    assert instances(node) == [f"{SMALL}@4", f"{SMALL}@6"]
    ((profile, first),), ((_, second),) = (seen_in(product, name) for name in ("a", "b"))
    assert (profile, first != second) == (SMALL, True)
    assert "/  9728MiB" in product.kubectl("exec", "a", "--", "nvidia-smi")
    product.apply(of_profile("whole", WHOLE), pod("whole", "whole"))
    product.wait_for_event("whole", "cannot allocate all claims")
    product.kubectl("delete", "pod", "a", "--grace-period=1")
    until("the first instance is gone", lambda: len(instances(node)) == 1)
    product.kubectl("delete", "pod", "b", "--grace-period=1")
    product.running("app=whole")
    assert instances(node) == [f"{WHOLE}@0"]
    assert [profile for profile, _ in seen_in(product, "whole")] == [WHOLE]
    product.delete_all()
    until("no instance is left", lambda: not instances(node))
