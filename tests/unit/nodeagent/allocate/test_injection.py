"""Environment variables by which a container learns of its GPUs."""

from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.node.modes import NodeMode
from gpushare.nodeagent.allocate.container_response import Grant, memory_envs


def environment(*shares: GpuShare, pod_units: int) -> dict[str, str]:
    return memory_envs(Grant("default/a", "ua", "c", shares, pod_units, NodeMode.SHARE))


def test_of_gpus_of_different_sizes_the_smallest_part_is_reported() -> None:
    """A program that keeps to CONTAINER / DEV on each of them is within its share on all."""
    envs = environment(GpuShare("GPU-a", 0, 4309, 4, 15), GpuShare("GPU-b", 1, 4129, 4, 79), pod_units=8)
    assert (envs["ALIYUN_COM_GPU_MEM_CONTAINER"], envs["ALIYUN_COM_GPU_MEM_DEV"]) == ("4", "79")
    assert envs["GPUSHARE_MEM_LIMIT_MIB"] == "4129"
