"""Containers of a whole playground are held to their shares by the product's own parts."""

import subprocess

from gpushare.api import names
from tests.integration.playground.running_playground import Playground, a_pod, wait_until

NODE = "core-mem-v100x4"
CUDA = "registry.cn-beijing.aliyuncs.com/ai-samples/gpushare-sample:cuda-sample-11.0.3"


def test_after_kubelet_and_agent_are_killed_the_container_is_still_limited(playground: Playground) -> None:
    pod = a_pod("steady", gpu_mem=2, node=NODE)
    [container] = pod["spec"]["containers"]
    container |= {"image": CUDA, "command": ["bandwidthTest"]}
    container["resources"]["limits"][names.GPU_CORE] = 30
    playground.apply(pod)
    playground.kubectl("wait", "--for=condition=Ready", "pod/steady", "--timeout=60s")
    playground.kill("gpushare_playground.kubelet", f"--node {NODE}")
    playground.kill("gpushare node-agent", f"--node {NODE}")

    def asked() -> str:
        done = subprocess.run(
            [playground.programs / "kubectl", "exec", "steady", "--", "take-memory"],
            env=playground.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout

    wait_until(lambda: "CUDA_ERROR_OUT_OF_MEMORY" in asked(), detail=asked)
    output = playground.get("node", NODE)["metadata"]["annotations"][names.ANN_ISOLATION]
    assert output.startswith("preload")
    wait_until(lambda: " copies/s of 2 MiB" in playground.kubectl("logs", "steady", "--tail=1"))
    playground.kubectl("delete", "pod", "steady", "--now")
