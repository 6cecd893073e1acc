"""The node agent as its own process, on scripted GPUs, for tests that kill it.

Usage: ``python agent_process.py API_URL KUBELET_DIR POD_RESOURCES GPUS [UNIT [ISOLATION]]``; ``ISOLATION``
is a folder with our libraries in ``image`` and the driver in ``driver``, for containers to be isolated.
"""

import sys
from pathlib import Path

from gpushare.api.quantity import MemoryUnit
from gpushare.kube.auth.access import Access
from gpushare.nodeagent.isolation.options import AskedIsolation, IsolationOptions
from gpushare.nodeagent.main import run
from gpushare.nodeagent.settings import Pace, Settings
from gpushare.process.log_setup import configure
from tests.integration.nodeagent.cluster_objects import NODE
from tests.integration.nodeagent.scripted_nvml import ScriptedNvml, gpu

if __name__ == "__main__":
    url, kubelet_dir, pod_resources, gpus, *more = sys.argv[1:]
    unit, isolation = more[:1], [Path(one) for one in more[1:]]
    configure("warning", "text")
    settings = Settings(
        node=NODE,
        kubelet_dir=Path(kubelet_dir),
        plugins_registry=Path(kubelet_dir).parent / "plugins_registry",
        pod_resources=Path(pod_resources),
        unit=MemoryUnit.parse(*unit, "unit") if unit else MemoryUnit.GIB,
        pace=Pace(wait_s=0.1, probe_s=0.1, keep_s=0.5, sweep_s=0.1),
        cdi_folders=(Path(kubelet_dir, "no-cdi"),),
        driver_root=isolation[0] / "driver" if isolation else Path("/"),
        isolation=IsolationOptions(AskedIsolation.AUTO, isolation[0] / "containers", isolation[0] / "image")
        if isolation
        else IsolationOptions(),
    )
    sys.exit(run(settings, Access(url), ScriptedNvml([gpu(index) for index in range(int(gpus))])))
