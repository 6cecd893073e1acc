"""Containers of a whole playground are held to their shares by the product's own parts."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpushare.api import names
from tests.integration.playground.running_playground import Playground, a_pod, wait_until
from tests.unit.fakegpu.building import system_program

SHARE, T4, FOUR = "share-v100", "cgpu-t4", "core-mem-v100x4"
CUDA = "registry.cn-beijing.aliyuncs.com/ai-samples/gpushare-sample:cuda-sample-11.0.3"


@contextmanager
def running(
    playground: Playground, name: str, node: str, gpu_mem: int, *command: str, core: int = 0
) -> Iterator[str]:
    """A pod of the CUDA sample's image."""
    pod: dict[str, Any] = a_pod(name, gpu_mem=gpu_mem, node=node)
    [container] = pod["spec"]["containers"]
    container |= {"image": CUDA, "command": list(command) or ["sleep", "3600"]}
    if core:
        container["resources"]["limits"][names.GPU_CORE] = core
    playground.apply(pod)
    playground.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")
    yield name
    playground.kubectl("delete", "pod", name, "--now")


def taken_mib(output: str) -> int:
    found = re.search(r"taken: (\d+) MiB", output)
    assert found, output
    return int(found[1])


def test_memory_above_the_share_is_refused_and_other_pods_keep_theirs(playground: Playground) -> None:
    with running(playground, "three", T4, 3), running(playground, "twelve", T4, 12):
        took = [playground.kubectl("exec", name, "--", "take-memory") for name in ("three", "twelve")]
    for output, share_mib in zip(took, (3072, 12288), strict=True):
        assert f"CUDA reports {share_mib} MiB" in output
        assert "CUDA_ERROR_OUT_OF_MEMORY" in output
        # What is missing is the context and the rest of a piece.
        assert share_mib - 512 - 256 <= taken_mib(output) < share_mib


def test_third_party_programs_show_the_slice_or_in_share_mode_the_whole_gpu(
    playground: Playground,
) -> None:
    system_program("nvidia-smi")
    with running(playground, "slice", FOUR, 2, "bandwidthTest", core=30) as name:
        shown = [
            playground.kubectl("exec", name, "--", *program)
            for program in (
                ("nvidia-smi",),
                (str(playground.programs / "gpustat"), "--no-color"),
                (str(playground.programs / "nvitop"), "-1"),
            )
        ]
    for output, slice_of in zip(shown, (r"/\s+2154MiB", r"/\s+2154 MB", r"/ 2154MiB"), strict=True):
        assert re.search(slice_of, output), output
    with running(playground, "whole", SHARE, 2) as name:
        assert re.search(r"/\s+16384MiB", playground.kubectl("exec", name, "--", "nvidia-smi"))


def test_a_container_of_a_share_node_is_trusted(playground: Playground) -> None:
    with running(playground, "trusted", SHARE, 2) as name:
        output = playground.kubectl("exec", name, "--", "take-memory", "--most_mib=4096")
    assert taken_mib(output) == 4096
    assert "nothing was refused" in output


def test_after_kubelet_and_agent_are_killed_the_container_is_still_limited(playground: Playground) -> None:
    with running(playground, "steady", FOUR, 2, "bandwidthTest", core=30) as name:
        playground.kill("gpushare_playground.kubelet", f"--node {FOUR}")
        playground.kill("gpushare node-agent", f"--node {FOUR}")

        def asked() -> str:
            done = subprocess.run(
                [playground.programs / "kubectl", "exec", name, "--", "take-memory"],
                env=playground.environment,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            return done.stdout

        wait_until(lambda: "CUDA_ERROR_OUT_OF_MEMORY" in asked(), detail=asked)
        output = playground.get("node", FOUR)["metadata"]["annotations"][names.ANN_ISOLATION]
        assert output.startswith("preload")
        wait_until(lambda: " copies/s of 2 MiB" in playground.kubectl("logs", name, "--tail=1"))


def test_a_program_that_bypasses_the_libraries_is_detected_by_the_watchdog(playground: Playground) -> None:
    with running(playground, "past", T4, 2) as name:
        command = (
            *("exec", name, "--", "env", "-u", "LD_PRELOAD"),
            *("take-memory", "--most_mib=4096", "--hold_s=300"),
        )
        with subprocess.Popen(
            [playground.programs / "kubectl", *command], env=playground.environment, stdout=subprocess.PIPE
        ) as process:
            try:

                def events() -> str:
                    return playground.kubectl("events", "--for", f"pod/{name}")

                wait_until(lambda: "GPUMemoryExceeded" in events(), detail=events)
                assert "its share is 2048 MiB" in events()
            finally:
                process.kill()

    # The memory that it used above its share is free again, for the tests that follow too.
    def devices() -> str:
        return str(playground.get("node", T4)["metadata"]["annotations"][names.ANN_DEVICES])

    wait_until(lambda: '"foreign"' not in devices(), detail=devices)
