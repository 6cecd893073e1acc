"""The scheduler's chart, installed as users install it: permissions and configuration come from the chart.

The chart's pods do not run here. The benchmark's processes run as their service account and read their
configuration and arguments from the objects that the chart created.
"""

import os
import subprocess
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.cluster.api import Api

_NAMESPACE: Final = "kube-system"
_NAME: Final = "ack-co-scheduler"
#: RBAC identifies a service account by user name and groups, however it authenticates: here with a client certificate.
USER: Final = f"system:serviceaccount:{_NAMESPACE}:{_NAME}"
GROUPS: Final = ("system:serviceaccounts", f"system:serviceaccounts:{_NAMESPACE}")
_CHART: Final = Path(__file__).parents[2] / "charts" / _NAME
_INSTALL_S: Final = 120.0
#: Of the extender's arguments, those that do not fit a single process on a machine shared with others: fixed ports, and
#: the Lease of a kube-scheduler that elects a leader.
_LEFT_OUT: Final = ("--listen=", "--health-listen=", "--probes-listen=", "--decisions-listen=", "--lease=")

Configuration = dict[str, Any]


def install(helm: Path, kubeconfig: Path, folder: Path) -> None:
    """``helm install`` of the chart with its defaults; raises ``RuntimeError`` with helm's output."""
    command = [str(helm), "install", _NAME, str(_CHART), "-n", _NAMESPACE]
    own = {f"HELM_{kind}_HOME": str(folder / "helm") for kind in ("CACHE", "CONFIG", "DATA")}
    environment = os.environ | own | {"KUBECONFIG": str(kubeconfig)}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not within {_INSTALL_S:.0f} s: {' '.join(command)}") from None
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr.strip()}")


async def configuration(api: Api) -> Configuration:
    """The KubeSchedulerConfiguration that the chart gives to kube-scheduler."""
    found = await api.get(f"/api/v1/namespaces/{_NAMESPACE}/configmaps/{_NAME}")
    config: Configuration = yaml.safe_load(found["data"]["config.yaml"])
    return config


async def extender_arguments(api: Api) -> list[str]:
    """The chart's command line of the extender, without the options that the benchmark sets."""
    found = await api.get(f"/apis/apps/v1/namespaces/{_NAMESPACE}/deployments/{_NAME}")
    containers = found["spec"]["template"]["spec"]["containers"]
    (arguments,) = (one["args"] for one in containers if one["name"] == "extender")
    return [text for text in arguments if not text.startswith(_LEFT_OUT)]


def adapted(
    chart: Configuration, kubeconfig: Path, percentage: int, extender: str, *, binds: bool = True
) -> Configuration:
    """The chart's configuration for a kube-scheduler of the benchmark.

    ``percentage`` of nodes to score (0: kube-scheduler's own choice); ``extender`` is its address (empty: none). Only
    one scheduler runs at a time, so nothing elects a leader. A kube-scheduler that binds by itself writes to the API
    server for each pod: its client's rate limit is raised, or only that limit would be measured.
    """
    kube_scheduler_binds = not extender or not binds
    limits = {"qps": 5000, "burst": 5000} if kube_scheduler_binds else {}
    config = chart | {
        "clientConnection": chart["clientConnection"] | {"kubeconfig": str(kubeconfig)} | limits,
        "leaderElection": {"leaderElect": False},
        "percentageOfNodesToScore": percentage,
        "extenders": [],
    }
    if extender:
        (one,) = chart["extenders"]
        left_out = () if binds else ("bindVerb",)
        config["extenders"] = [
            {key: value for key, value in one.items() if key not in left_out} | {"urlPrefix": extender}
        ]
    return config
