"""Effective limits: an allocation above the share, a loop with a share of compute, three pods on one GPU."""

import re
from typing import Final

from gpushare.api import names
from gpushare_playground.cluster import Cluster
from gpushare_playground.walk.narration import Story
from gpushare_playground.walk.reading import read_json, shares

SHARE, CORE_MEM = "share-v100", "core-mem-v100x4"
_SHARE_MIB: Final = 2154
_POD: Final = "job/cuda-sample"
#: Tolerance for 30%, in percent of a second: a busy machine wakes threads late, and samples vary.
_LEAST, _MOST = 15, 45
_LATER: Final = re.compile(r"round ([3-9]|\d\d+):")
_RATE: Final = re.compile(r"([0-9.]+) copies/s")
_BUSY: Final = re.compile(r"^GPU \d+: .*busy +(\d+)%", re.MULTILINE)
#: A line of ``kubectl inspect cgpu --pods``: memory in use, and compute in use of the allocated 30%.
_USED: Final = re.compile(r"cuda-sample-\S+ +\S+ +\d+ +\d+ +(\d+) +30 +(\d+)$", re.MULTILINE)
_PROCESS: Final = re.compile(r"process \d+: +(\d+) MiB, busy +(\d+)%")


async def no_more_memory(story: Story, cluster: Cluster) -> None:
    """An allocation above the limit is rejected."""
    story.chapter("A container gets no more memory than its share")
    column = names.ANN_ISOLATION.replace(".", r"\.")
    held = await story.type(
        f"kubectl get nodes -o 'custom-columns=NODE:.metadata.name,HELD BY:.metadata.annotations.{column}'"
    )
    story.expect("the node of example 5 holds its containers", "preload", _line(held, CORE_MEM), within=True)
    story.notice("Programs load gpushare's libraries before the driver's, and see only their share:")
    usage = await story.type(f"kubectl exec {_POD} -- gpu-usage")
    story.expect(f"NVML reports {_SHARE_MIB} MiB", f"of {_SHARE_MIB} MiB", usage, within=True)
    await _nvidia_smi(story)
    refused = await story.type(f"kubectl exec {_POD} -- take-memory")
    story.expect(f"CUDA reports {_SHARE_MIB} MiB too", f"reports {_SHARE_MIB} MiB", refused, within=True)
    story.expect("what goes above is refused", "CUDA_ERROR_OUT_OF_MEMORY", refused, within=True)
    story.notice("On the node that shares without isolation a container of 4 GiB is trusted to keep to them:")
    usage = await story.type("kubectl exec job/tensorflow-mnist-share -- gpu-usage")
    story.expect("it sees the whole GPU", "of 16384 MiB", usage, within=True)
    output = await story.type("kubectl exec job/tensorflow-mnist-share -- take-memory --most_mib=8192")
    story.expect("it can take 8 GiB", "taken: 8192 MiB", output, within=True)


async def _nvidia_smi(story: Story) -> None:
    """The output of NVIDIA's own program, if the machine has it."""
    output = await story.type(f"kubectl exec {_POD} -- nvidia-smi", code=None)
    if "Driver Version" in output:
        story.expect(
            f"NVIDIA's own nvidia-smi shows {_SHARE_MIB} MiB", f"/  {_SHARE_MIB}MiB", output, within=True
        )
    else:
        story.notice("(It would show the same slice; NVIDIA's nvidia-smi is a package of your system.)")


async def no_more_compute(story: Story, cluster: Cluster) -> None:
    """A loop is slowed to its share."""
    story.chapter("A loop is slowed to its share of the GPU's time")
    story.notice(
        "The same program runs on a GPU of the same model without a limit, and with 30% since example 5."
    )
    await story.type("kubectl apply -f no-limit.yaml")
    await story.type("kubectl wait --for=jsonpath={.status.ready}=1 job/cuda-sample-no-limit --timeout=60s")
    # The first second of a program is not representative.
    free = await story.type_while(
        "kubectl logs job/cuda-sample-no-limit --tail=1", lambda text: not _LATER.match(text)
    )
    lowest, highest = (_rate(free) * percent / 100 for percent in (_LEAST, _MOST))
    limited = await story.type_while(
        f"kubectl logs {_POD} --tail=1", lambda text: not lowest < _rate(text) < highest
    )
    percent = 100 * _rate(limited) / max(_rate(free), 1e-9)
    story.expect(
        f"with 30% it does {percent:.0f}% of the copies ({_LEAST} to {_MOST} are taken for 30)",
        expected=True,
        actual=lowest < _rate(limited) < highest,
    )
    await story.type("kubectl delete -f no-limit.yaml")


async def three_on_one_gpu(story: Story, cluster: Cluster) -> None:
    """Three pods with 30% each, observed while they work."""
    story.chapter("Three such pods on one GPU, live")
    await story.type("""kubectl patch job cuda-sample --type=merge -p '{"spec":{"parallelism":3}}'""")
    await story.type("kubectl wait --for=jsonpath={.status.ready}=3 job/cuda-sample --timeout=60s")
    details = await story.type(f"kubectl inspect cgpu -d {CORE_MEM}")
    pods = (await read_json(story, "kubectl get pods -l app=cuda-sample -o json"))["items"]
    gpus = {share["uuid"] for pod in pods for share in shares(pod)}
    core = sum(share.get("core", 0) for pod in pods for share in shares(pod))
    story.expect("three such pods are on one GPU", 1, len(gpus))
    story.expect("and hold 90% of it together", 90, core)
    story.expect("kubectl inspect shows it", "90", details, within=True)
    story.notice("Each sees its own share, its own work and its own processes:")
    for pod in pods:
        name = pod["metadata"]["name"]
        output = await story.type_while(
            f"kubectl exec {name} -- gpu-usage", lambda text: not _keeps_to_share(text)
        )
        story.expect(
            "it is busy for its 30% of the time, about", expected=True, actual=_keeps_to_share(output)
        )
    await _from_outside(story, cluster)
    story.notice("A monitor that has no share and sees the whole node:")
    await story.type("kubectl apply -f monitor.yaml")
    await story.type("kubectl wait --for=condition=Ready pod/gpu-monitor --timeout=60s")
    output = await story.type_while(
        "kubectl exec gpu-monitor -- gpu-usage --times=2", lambda text: not _all_work(text)
    )
    story.expect(
        "three processes keep the one GPU busy, none above its share", expected=True, actual=_all_work(output)
    )
    await story.type("kubectl delete -f monitor.yaml --now")


async def _from_outside(story: Story, cluster: Cluster) -> None:
    if not cluster.control.reaches_agents:
        story.notice(
            "(A real API server passes nothing on to loopback addresses, where these agents are: what pods really use is",
            "shown by make run, and by kubectl inspect cgpu --pods on nodes with addresses of their own.)",
        )
        return
    story.notice("Their node's agent looks at them from outside, every other second:")
    table = await story.type_while("kubectl inspect cgpu --pods -n default", lambda text: not _used(text, 3))
    story.expect("each uses about its share", expected=True, actual=_used(table, 3))
    await story.type("kubectl inspect cgpu --recommend --min-history=2s")


def _used(table: str, count: int) -> bool:
    """Whether the table of ``--pods`` has this many pods at work, each using memory and about its share of compute."""
    usages = [(int(mib), int(percent)) for mib, percent in _USED.findall(table)]
    return len(usages) == count and all(
        0 < mib <= _SHARE_MIB and _LEAST <= percent <= _MOST for mib, percent in usages
    )


def _line(text: str, word: str) -> str:
    return next((line for line in text.splitlines() if word in line), "")


def _rate(text: str) -> float:
    match = _RATE.search(text)
    return float(match[1]) if match else 0.0


def _keeps_to_share(text: str) -> bool:
    """Whether the container's only GPU is busy for about its share."""
    match = _BUSY.search(text)
    return match is not None and _LEAST <= int(match[1]) <= _MOST


def _all_work(text: str) -> bool:
    """Whether each sample shows one GPU with three processes, each using about its share, and the others idle."""
    busy = [int(percent) for percent in _BUSY.findall(text)]
    processes = [(int(mib), int(percent)) for mib, percent in _PROCESS.findall(text)]
    samples = len(processes) // 3
    return (
        len(processes) == 3 * samples > 0
        and all(_LEAST <= percent <= _MOST for _, percent in processes)
        and all(mib <= _SHARE_MIB for mib, _ in processes)
        and sum(percent >= 3 * _LEAST for percent in busy) == samples
    )
