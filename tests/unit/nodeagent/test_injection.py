"""What a container is told of its GPUs."""

from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.node.modes import NodeMode
from gpushare.nodeagent.allocate.container_response import Grant, memory_envs


def told(*shares: GpuShare, pod_units: int) -> dict[str, str]:
    return memory_envs(Grant("default/a", "ua", "c", shares, pod_units, NodeMode.SHARE))


def test_a_share_of_one_gpu_is_told_as_documented() -> None:
    assert told(GpuShare("GPU-b", 1, 4096, 4, 16), pod_units=4) == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-b",
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "4",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "4",
        "ALIYUN_COM_GPU_MEM_DEV": "16",
        "GPUSHARE_MEM_LIMIT_MIB": "4096",
    }


def test_several_gpus_are_listed_and_amounts_are_those_on_one_of_them() -> None:
    shares = (GpuShare("GPU-b", 1, 4096, 4, 16), GpuShare("GPU-d", 3, 4096, 4, 16))
    assert told(*shares, pod_units=8) == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-b,GPU-d",
        "ALIYUN_COM_GPU_MEM_IDX": "1,3",
        "ALIYUN_COM_GPU_MEM_POD": "8",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "4",
        "ALIYUN_COM_GPU_MEM_DEV": "16",
        "GPUSHARE_MEM_LIMIT_MIB": "4096",
    }


def test_of_gpus_of_different_sizes_the_smallest_part_is_told() -> None:
    """A program that keeps to CONTAINER / DEV on each of them is within its share on all."""
    envs = told(GpuShare("GPU-a", 0, 4309, 4, 15), GpuShare("GPU-b", 1, 4129, 4, 79), pod_units=8)
    assert (envs["ALIYUN_COM_GPU_MEM_CONTAINER"], envs["ALIYUN_COM_GPU_MEM_DEV"]) == ("4", "79")
    assert envs["GPUSHARE_MEM_LIMIT_MIB"] == "4129"
