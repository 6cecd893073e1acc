"""The node agent as a process of its own, on scripted GPUs, for tests that kill it.

Usage: ``python agent_process.py API_URL KUBELET_DIR POD_RESOURCES GPUS``.
"""

import sys
from pathlib import Path

from gpushare.kube.access import Access
from gpushare.logs import configure
from gpushare.nodeagent.process import run
from gpushare.nodeagent.settings import Pace, Settings
from tests.integration.nodeagent.cluster_objects import NODE
from tests.integration.nodeagent.scripted_nvml import ScriptedNvml, gpu

if __name__ == "__main__":
    url, kubelet_dir, pod_resources, gpus = sys.argv[1:]
    configure("warning", "text")
    settings = Settings(
        node=NODE,
        kubelet_dir=Path(kubelet_dir),
        pod_resources=Path(pod_resources),
        pace=Pace(wait_s=0.1, probe_s=0.1),
    )
    sys.exit(run(settings, Access(url), ScriptedNvml([gpu(index) for index in range(int(gpus))])))
