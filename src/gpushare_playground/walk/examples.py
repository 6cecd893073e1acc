"""The five examples of the documentation (spec §3), how containers are limited, and what else a reader would try."""

from collections.abc import Awaitable, Callable
from typing import Final

from gpushare.api import names
from gpushare.api.quantity import MemoryUnit
from gpushare_playground.cluster import Cluster
from gpushare_playground.walk.limits import no_more_compute, no_more_memory, three_on_one_gpu
from gpushare_playground.walk.narration import Story
from gpushare_playground.walk.reading import held_mib, read_json, row

ChapterFn = Callable[[Story, Cluster], Awaitable[None]]

SHARE, CGPU, CORE_MEM = "share-v100", "cgpu-t4", "core-mem-v100x4"
#: Prefixes of variables that report a container's share to it.
_SHARE_VARIABLES: Final = ("ALIYUN_COM_GPU", names.ENV_CORE_PERCENT, names.ENV_MEM_LIMIT)


async def unit_of_128_mib(story: Story, cluster: Cluster) -> None:
    """Example 1, and the change of the unit under its running pod."""
    story.chapter("Example 1: a StatefulSet, where the memory unit is 128 MiB")
    story.notice("All node agents run with --unit 128MiB now (chart value gpuMemoryUnit).")
    await story.type("kubectl apply -f 01-statefulset-128mib.yaml")
    await story.type("kubectl rollout status statefulset/binpack --timeout=30s")
    table = await story.type("kubectl inspect cgpu")
    pod = await read_json(story, "kubectl get pod binpack-0 -o json")
    story.expect("its 16 units of 128 MiB are 2 GiB of one GPU", [2], [mib // 1024 for mib in held_mib(pod)])
    shown = row(table, pod["spec"]["nodeName"])
    story.expect("the table counts in 128MiB", "GPU Memory(128MiB)", table, within=True)
    story.expect("and shows 16 units on its node", "16/", shown, within=True)

    story.chapter("The unit changes to 1 GiB while that pod runs")
    story.notice("The ledger counts MiB, so no pod has to be deleted first.")
    await cluster.set_unit(MemoryUnit.GIB)
    table = await story.type_until("kubectl inspect cgpu", "GPU Memory(GiB)", "2/")
    story.expect("the same pod shows as 2 GiB now", "2/", row(table, pod["spec"]["nodeName"]), within=True)
    await story.type("kubectl delete -f 01-statefulset-128mib.yaml")
    await story.type_until("kubectl inspect cgpu", "0/91 (0%)")


async def one_gpu_of_15_gib(story: Story, cluster: Cluster) -> None:
    """Example 2."""
    story.chapter("Example 2: a Job for ack-co-scheduler, on a node with one 15 GiB GPU")
    story.notice("The documentation's cluster has that node alone, so the others are cordoned for a moment.")
    await story.type(f"kubectl cordon {SHARE} {CORE_MEM}")
    before = await story.type(f"kubectl inspect cgpu {CGPU}")
    story.expect("nothing is allocated", ["0/15", "0/15"], row(before, CGPU).split()[2:4])
    story.expect("0/15 (0%) in the cluster", "0/15 (0%)", before, within=True)
    await story.type("kubectl apply -f 02-job-co-scheduler.yaml")
    await story.type("kubectl wait --for=jsonpath={.status.ready}=1 job/gpu-share-sample --timeout=30s")
    after = await story.type(f"kubectl inspect cgpu {CGPU}")
    story.expect("3 of 15 GiB are allocated", ["3/15", "3/15"], row(after, CGPU).split()[2:4])
    story.expect("3/15 (20%) in the cluster", "3/15 (20%)", after, within=True)
    await story.type(f"kubectl uncordon {SHARE} {CORE_MEM}")


async def shared_without_isolation(story: Story, cluster: Cluster) -> None:
    """Example 3."""
    story.chapter("Example 3: a Job that names no scheduler, on a node that shares without isolation")
    story.notice("Admission points pods that ask for GPU memory to ack-co-scheduler.")
    await story.type("kubectl apply -f 03-job-share.yaml")
    await story.type("kubectl wait --for=jsonpath={.status.ready}=1 job/tensorflow-mnist-share --timeout=30s")
    scheduler = await story.type(
        "kubectl get pods -l app=tensorflow-mnist-share -o custom-columns=POD:.metadata.name,SCHEDULER:.spec.schedulerName,NODE:.spec.nodeName"
    )
    story.expect("its scheduler was filled in", "ack-co-scheduler", scheduler, within=True)
    log = await story.type_until("kubectl logs job/tensorflow-mnist-share --tail=20", "16384", "0.25")
    story.expect("the container sees all 16384 MiB", "16384", log, within=True)
    story.expect("and keeps itself to CONTAINER / DEV = 0.25", "0.25", log, within=True)
    environment = await story.type("kubectl exec job/tensorflow-mnist-share -- env", shown=False)
    share_lines = [line for line in environment.splitlines() if line.startswith("ALIYUN_COM_GPU_MEM_")]
    story.notice(
        "kubectl exec job/tensorflow-mnist-share -- env | grep ALIYUN_COM_GPU_MEM", *sorted(share_lines)
    )
    story.expect(
        "ALIYUN_COM_GPU_MEM_CONTAINER=4",
        "ALIYUN_COM_GPU_MEM_CONTAINER=4",
        share_lines and "\n".join(share_lines),
        within=True,
    )
    story.expect(
        "ALIYUN_COM_GPU_MEM_DEV=16",
        "ALIYUN_COM_GPU_MEM_DEV=16",
        share_lines and "\n".join(share_lines),
        within=True,
    )


async def compute_by_label(story: Story, cluster: Cluster) -> None:
    """Example 4."""
    story.chapter("Example 4: a node with 4 GPUs of 15 GiB, labelled core_mem")
    await story.type(f"kubectl get node {CORE_MEM} --show-labels=false -L {names.LABEL_MODE}")
    node = await read_json(story, f"kubectl get node {CORE_MEM} -o json")
    wanted = {names.GPU_CORE: "400", names.GPU_COUNT: "4", names.GPU_MEM: "60"}
    for field in ("capacity", "allocatable"):
        shown = {name: str(node["status"][field].get(name)) for name in wanted}
        story.notice(
            f"status.{field}: " + ", ".join(f'{name}: "{value}"' for name, value in sorted(shown.items()))
        )
        story.expect(f"{field} is 400 percent, 4 GPUs, 60 GiB", wanted, shown)


async def several_gpus(story: Story, cluster: Cluster) -> None:
    """More than one share of one GPU."""
    story.chapter("Several GPUs for one pod, and a whole one")
    story.notice("The label aliyun.com/gpu-count spreads a pod's 8 GiB over two GPUs of one node.")
    await story.type("kubectl apply -f 06-several-gpus.yaml")
    await story.type(
        "kubectl wait --for=jsonpath={.status.ready}=1 job/tensorflow-mnist-multigpu --timeout=30s"
    )
    table = await story.type(f"kubectl inspect cgpu {CORE_MEM}")
    shown = row(table, CORE_MEM).split()[2:6]
    story.expect("two GPUs give 4 of 15 GiB each", ["0/15", "0/15", "4/15", "4/15"], sorted(shown))
    output = await story.type("kubectl exec job/tensorflow-mnist-multigpu -- gpu-usage")
    totals = [
        line.rpartition(" of ")[2].partition(",")[0] for line in output.splitlines() if line.startswith("GPU")
    ]
    story.expect("the container sees its share of both", ["4309 MiB", "4309 MiB"], totals)
    story.notice("The label ack.gpushare.placement requests a free GPU and allocates all of it.")
    await story.type("kubectl apply -f 07-whole-device.yaml")
    await story.type("kubectl wait --for=condition=Ready pod/whole-device --timeout=30s")
    table = await story.type(f"kubectl inspect cgpu {CORE_MEM}")
    shown = row(table, CORE_MEM).split()[2:6]
    story.expect("one GPU is taken whole", ["0/15", "15/15", "4/15", "4/15"], sorted(shown))
    story.notice(
        "Pods that ask for memory alone and pods that ask for compute too are never on one node together:"
    )
    await story.type("kubectl delete -f 06-several-gpus.yaml -f 07-whole-device.yaml")
    table = await story.type_until(f"kubectl inspect cgpu {CORE_MEM}", "0/60 (0%)")
    story.expect("both are gone before example 5", "0/60 (0%)", table, within=True)


async def memory_and_compute(story: Story, cluster: Cluster) -> None:
    """Example 5."""
    story.chapter("Example 5: 2 GiB and 30% of the compute of one GPU")
    await story.type("kubectl apply -f 05-core-mem.yaml")
    await story.type("kubectl wait --for=jsonpath={.status.ready}=1 job/cuda-sample --timeout=30s")
    environment = await story.type("kubectl exec job/cuda-sample -- env", shown=False)
    variables = dict(line.split("=", 1) for line in environment.splitlines() if "=" in line)
    shown = {key: value for key, value in variables.items() if key.startswith(_SHARE_VARIABLES)}
    story.notice(
        "kubectl exec job/cuda-sample -- env", *(f"{key}={value}" for key, value in sorted(shown.items()))
    )
    share = (variables.get(names.ENV_MEM_CONTAINER), variables.get(names.ENV_MEM_DEVICE))
    story.expect("it has 2 of the GPU's 15 units", ("2", "15"), share)
    [mib] = held_mib(await read_json(story, "kubectl get pods -l app=cuda-sample -o json", first=True))
    story.expect("which are 16160 × 2 / 15 = 2154 MiB", 2154, mib)


async def what_does_not_fit(story: Story, cluster: Cluster) -> None:
    """Reasons and rejections."""
    story.chapter("What does not fit says why")
    await story.type("kubectl apply -f too-large.yaml")
    reason = await story.type_until(
        'kubectl get pod too-large -o "jsonpath={.status.phase}: {.status.conditions[0].message}"',
        "nodes are available",
    )
    story.expect("the pod waits", "Pending", reason, within=True)
    story.expect("with a reason that a person understands", "the largest GPU has", reason, within=True)
    await story.type("kubectl delete -f too-large.yaml")
    refused = await story.type("kubectl apply -f invalid-core.yaml", code=1)
    story.expect(
        "7% of compute cannot be submitted", "must be a multiple of 5 from 5 to 100", refused, within=True
    )


async def relabel(story: Story, cluster: Cluster) -> None:
    """Mode change of a node in use."""
    story.chapter("A node changes its mode by its label, while its pod runs on")
    await story.type(f"kubectl label node {CGPU} {names.LABEL_MODE}=core_mem --overwrite")
    await story.type_until(
        f"kubectl get node {CGPU} -o 'jsonpath={{.status.allocatable.aliyun\\.com/gpu-core\\.percentage}}'",
        "100",
    )
    node = await read_json(story, f"kubectl get node {CGPU} -o json")
    story.expect("it offers compute now", "100", str(node["status"]["allocatable"].get(names.GPU_CORE)))
    table = await story.type(f"kubectl inspect cgpu {CGPU}")
    story.expect("and its pod still holds 3 of 15", "3/15", row(table, CGPU), within=True)
    await story.type(f"kubectl label node {CGPU} {names.LABEL_MODE}=cgpu --overwrite")
    offered = await story.type_until(
        f"kubectl get node {CGPU} -o 'jsonpath=compute: {{.status.allocatable.aliyun\\.com/gpu-core\\.percentage}}'",
        "compute: 0",
    )
    story.expect("back in its old mode it offers none", "compute: 0", offered)


async def tidy(story: Story, cluster: Cluster) -> None:
    """Everything is released."""
    story.chapter("Jobs are deleted, and everything is free at once")
    await story.type("kubectl delete -f 02-job-co-scheduler.yaml -f 03-job-share.yaml -f 05-core-mem.yaml")
    table = await story.type_until("kubectl inspect cgpu", "0/91 (0%)")
    story.expect("nothing is held any more", "0/91 (0%)", table, within=True)


CHAPTERS: Final[tuple[ChapterFn, ...]] = (
    unit_of_128_mib,
    one_gpu_of_15_gib,
    shared_without_isolation,
    compute_by_label,
    several_gpus,
    memory_and_compute,
    no_more_memory,
    no_more_compute,
    three_on_one_gpu,
    what_does_not_fit,
    relabel,
    tidy,
)
