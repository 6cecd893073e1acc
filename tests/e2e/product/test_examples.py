"""The five documented examples, with the manifests as documented, on the real cluster (spec §3)."""

import json

import pytest

from gpushare.api import names
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.product.product import EXAMPLES, INSTALLER, Product

SHARE, CGPU, CORE_MEM = "share-v100", "cgpu-t4", "core-mem-v100x4"


@pytest.fixture
def units_of_128_mib(product: Product) -> Product:
    product.upgrade(INSTALLER, "--set", "gpuMemoryUnit=128MiB")
    product.rolled_out()
    product.offers(SHARE, gpu_mem=128)
    # The agent describes the node concurrently with what the kubelet reports, and pods are placed by that.
    wait_for("its table has that unit", lambda: product.row(SHARE)[2] == "0/128", timeout=60)
    return product


def test_1_sixteen_units_of_128_mib_are_two_gib_and_remain_so_when_the_unit_changes(
    units_of_128_mib: Product,
) -> None:
    product = units_of_128_mib
    product.kubectl("apply", "-f", str(EXAMPLES / "01-statefulset-128mib.yaml"))
    (pod,) = product.running("app=binpack-1")
    node = pod["spec"]["nodeName"]
    record = json.loads(pod["metadata"]["annotations"][names.ANN_SHARE])
    # A GPU of 16160 MiB has 126 units, each worth a little more than 128 MiB.
    assert [gpu["mib"] // 1024 for gpu in record["gpus"]] == [2]
    table = product.inspect()
    assert "GPU Memory(128MiB)" in table
    assert any(cell.startswith("16/") for cell in product.row(node))
    assert product.environment("binpack-0")[names.ENV_MEM_CONTAINER] == "16"

    product.upgrade(INSTALLER, "--set", "gpuMemoryUnit=1GiB")
    # A node that does not use that unit yet has its own table.
    wait_for("the whole table counts in GiB", lambda: "128MiB" not in product.inspect(), timeout=60)
    assert "GPU Memory(GiB)" in product.inspect()
    assert any(cell.startswith("2/") for cell in product.row(node))
    (same,) = product.running("app=binpack-1")
    assert same["metadata"]["uid"] == pod["metadata"]["uid"]
    assert same["status"]["containerStatuses"][0]["restartCount"] == 0


def test_2_a_job_with_three_units_shows_as_3_of_15(product: Product) -> None:
    product.offers(CGPU, gpu_mem=15)
    product.kubectl("cordon", SHARE, CORE_MEM)
    try:
        assert product.row(CGPU)[2:4] == ["0/15", "0/15"]
        assert "0/15 (0%)" in product.inspect(CGPU)
        product.kubectl("apply", "-f", str(EXAMPLES / "02-job-co-scheduler.yaml"))
        (pod,) = product.running("app=gpu-share-sample")
    finally:
        product.kubectl("uncordon", SHARE, CORE_MEM)
    assert pod["spec"]["nodeName"] == CGPU
    assert product.row(CGPU)[2:4] == ["3/15", "3/15"]
    assert "3/15 (20%)" in product.inspect(CGPU)
    details = product.inspect("-d", CGPU)
    assert "3 (20%)" in details
    assert pod["metadata"]["name"] in details
    annotations = pod["metadata"]["annotations"]
    assert json.loads(annotations[names.ANN_ALLOCATION]) == {"0": {"0": 3}}
    assert annotations[names.ANN_MEM_POD] == "3"
    assert annotations[names.ANN_MEM_DEVICE] == "15"
    wait_for(
        "the record says that the container has it",
        lambda: (
            product.json("get", "pod", pod["metadata"]["name"])["metadata"]["annotations"][names.ANN_ASSIGNED]
            == "true"
        ),
        timeout=20,
    )


def test_3_a_job_that_names_no_scheduler_sees_its_4_of_16_gib(product: Product) -> None:
    product.offers(SHARE, gpu_mem=16)
    product.kubectl("apply", "-f", str(EXAMPLES / "03-job-share.yaml"))
    (pod,) = product.running("app=tensorflow-mnist-share")
    assert pod["spec"]["nodeName"] == SHARE
    assert pod["spec"]["schedulerName"] == names.SCHEDULER_NAME
    name = pod["metadata"]["name"]
    environment = product.environment(name)
    assert environment[names.ENV_MEM_CONTAINER] == "4"
    assert environment[names.ENV_MEM_DEVICE] == "16"
    assert environment[names.ENV_MEM_POD] == "4"
    assert environment[names.ENV_MEM_INDEX] == "0"
    assert environment[names.ENV_VISIBLE_DEVICES].startswith("GPU-")
    smi = product.kubectl(
        "exec", name, "--", "nvidia-smi", "--query-gpu=memory.total,uuid", "--format=csv,noheader"
    )
    assert smi.split(", ")[0] == "16384 MiB"
    assert smi.split(", ")[1].strip() == environment[names.ENV_VISIBLE_DEVICES]


def test_4_a_core_mem_node_offers_its_capacity(product: Product) -> None:
    status = product.offers(CORE_MEM, gpu_mem=60, gpu_core=400, gpu_count=4)
    for part in ("capacity", "allocatable"):
        assert status[part][names.GPU_CORE] == "400"
        assert status[part][names.GPU_COUNT] == "4"
        assert status[part][names.GPU_MEM] == "60"


def test_5_three_pods_with_30_percent_share_one_gpu(product: Product) -> None:
    product.offers(CORE_MEM, gpu_mem=60, gpu_core=400)
    manifest = json.loads(
        product.kubectl("create", "--dry-run=client", "-o", "json", "-f", str(EXAMPLES / "05-core-mem.yaml"))
    )
    for number in range(3):
        manifest["metadata"]["name"] = f"cuda-sample-{number}"
        product.apply(manifest)
    pods = product.running("app=cuda-sample", 3)
    assert {pod["spec"]["nodeName"] for pod in pods} == {CORE_MEM}
    environments = [product.environment(pod["metadata"]["name"]) for pod in pods]
    assert len({one[names.ENV_VISIBLE_DEVICES] for one in environments}) == 1
    assert [one[names.ENV_MEM_CONTAINER] for one in environments] == ["2", "2", "2"]
    assert [one[names.ENV_MEM_LIMIT] for one in environments] == ["2154"] * 3
    assert [one[names.ENV_CORE_PERCENT] for one in environments] == ["30"] * 3
    assert json.loads(pods[0]["metadata"]["annotations"][names.ANN_CORE]) == {
        "0": {environments[0][names.ENV_MEM_INDEX]: 30}
    }
    assert "6/15" in product.inspect(CORE_MEM)
