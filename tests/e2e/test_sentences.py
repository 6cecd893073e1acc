"""Commands of the pages' sentences and tables that need helm, policies or the real control plane, typed
there; none needs a node.
"""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from documentation.blocks import Block, Page
from tests.docs.saying import says
from tests.docs.sentences import sentences_typed_by
from tests.docs.typist import Typist
from tests.e2e.asking import Commands
from tests.e2e.charts.rendering import CHARTS, INSTALLER, NAMESPACE, SCHEDULER
from tests.e2e.cluster import build
from tests.e2e.plane import CHECKOUT, control_plane
from tests.patience import SLOWNESS

# It starts five control planes, one after the other: minutes, and many times that next to other work.
pytestmark = pytest.mark.timeout(1800 * SLOWNESS)

K8S = "1.37"
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "helm")
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "shared", "annotations": {"gpushare.dev/devices": "{}"}},
}
_UPGRADE = f"helm upgrade {INSTALLER} charts/{INSTALLER} -n {NAMESPACE}"
_RECORD_GONE = "kubectl annotate node shared gpushare.dev/devices-"
_STAYS_UP = "The cluster stays up until Ctrl-C"


@dataclass(frozen=True)
class Way:
    """What is typed for a sentence, after ``first``; its expected output, or the text at which it is interrupted."""

    typed: str = ""
    shows: tuple[str, ...] = ()
    until: str = ""
    first: tuple[str, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)
    """What the installer's release has of its user's own afterwards; empty: that is not looked at."""


#: In the order in which it is typed.
WAYS = {
    "helm list": Way(f"helm list -n {NAMESPACE}", ("NAME …", f"{INSTALLER} …", f"{SCHEDULER} …")),
    "helm show values charts/CHART": Way(f"helm show values charts/{SCHEDULER}"),
    "helm show values charts/ack-ai-installer": Way(),
    "kubectl get validatingadmissionpolicies": Way(shows=("NAME …", "…", "gpushare-requests …", "…")),
    "kubectl get validatingadmissionpolicies,mutatingadmissionpolicies | grep gpushare": Way(
        shows=("…", "mutatingadmissionpolicy.…/gpushare-…", "…")
    ),
    # What becomes of one's values, by the page on operation.
    "helm upgrade … -f values.yaml": Way(
        f"{_UPGRADE} -f values.yaml",
        first=("echo 'gpuMemoryUnit: 128MiB' > values.yaml",),
        values={"gpuMemoryUnit": "128MiB"},
    ),
    "helm upgrade … --reuse-values --set KEY=VALUE": Way(
        f"{_UPGRADE} --reuse-values --set nodeAgent.maxSurge=2",
        values={"gpuMemoryUnit": "128MiB", "nodeAgent": {"maxSurge": 2}},
    ),
    "helm upgrade … --reuse-values --set admission.referenceGpuMemoryMiB=16160": Way(
        f"{_UPGRADE} --reuse-values --set admission.referenceGpuMemoryMiB=16160",
        values={
            "gpuMemoryUnit": "128MiB",
            "nodeAgent": {"maxSurge": 2},
            "admission": {"referenceGpuMemoryMiB": 16160},
        },
    ),
    "helm upgrade … --set KEY=VALUE": Way(
        f"{_UPGRADE} --set nodeAgent.logLevel=debug", values={"nodeAgent": {"logLevel": "debug"}}
    ),
    "helm upgrade … --reset-then-reuse-values --set KEY=VALUE": Way(
        f"{_UPGRADE} --reset-then-reuse-values --set gpuMemoryUnit=1GiB",
        values={"nodeAgent": {"logLevel": "debug"}, "gpuMemoryUnit": "1GiB"},
    ),
    "helm upgrade … --reuse-values --set extender.ignoredByScheduler=false": Way(
        f"helm upgrade {SCHEDULER} charts/{SCHEDULER} -n {NAMESPACE} --reuse-values --set extender.ignoredByScheduler=false"
    ),
    "kubectl -n kube-system rollout restart deployment/ack-co-scheduler": Way(
        shows=("deployment.apps/ack-co-scheduler restarted",)
    ),
    "kubectl annotate node NODE gpushare.dev/devices-": Way(
        _RECORD_GONE,
        ("node/shared annotated",),
        first=(
            *(f"helm uninstall {chart} -n {NAMESPACE} --no-hooks" for chart in (SCHEDULER, INSTALLER)),
            # An API server applies deleted policies until its watch shows the deletion.
            f"timeout {60 * SLOWNESS:.0f} sh -c 'until {_RECORD_GONE} --dry-run=server; do sleep 0.2; done'",
        ),
    ),
    "kubectl delete crd elasticquotatrees.scheduling.sigs.k8s.io": Way(),
    "python -m tests.e2e.cluster build kubernetes-1.37": Way(),
    "python -m gpushare_playground.controlplane --binaries DIR --state DIR": Way(
        "python -m gpushare_playground.controlplane --binaries $BINARIES --state $STATE", until="ready "
    ),
    "gpushare playground --control-plane DIR": Way(
        "gpushare playground --control-plane $BINARIES --no-walk", until=_STAYS_UP
    ),
    # One file stands for the folder, which has minutes of them.
    'GPUSHARE_TEST_CONTROL_PLANE=DIR make test PYTEST_ARGS="-n0 tests/integration/whole"': Way(
        f'GPUSHARE_TEST_CONTROL_PLANE=$BINARIES make test PYTEST_ARGS="-n0 tests/integration/whole -k test_one_search_shows --timeout={280 * SLOWNESS:.0f}"',
        ("…", "… 1 passed…", "…"),
    ),
    "make run CLUSTER=real": Way("make run CLUSTER=real ARGS=--no-walk", until=_STAYS_UP),
}


@pytest.fixture(scope="module")
def binaries(k8s: str) -> Path:
    if k8s != K8S:
        pytest.skip(f"pages speak of Kubernetes {K8S}; this run is about {k8s}")
    return build(k8s, COMPONENTS)


@pytest.fixture
def commands(binaries: Path, tmp_path: Path) -> Iterator[Commands]:
    """kubectl and helm for a control plane with both charts, and with a node without a kubelet."""
    with control_plane(binaries, tmp_path / "plane") as kubeconfig:
        commands = Commands(kubeconfig, binaries)
        commands.apply(NODE)
        for chart in (INSTALLER, SCHEDULER):
            commands.typed("helm", "install", chart, str(CHARTS / chart), "-n", NAMESPACE)
        yield commands


@pytest.fixture
def typist(commands: Commands, binaries: Path, tmp_path: Path) -> Typist:
    """Types into a folder that has the charts."""
    folder = tmp_path / "reader"
    folder.mkdir()
    for name in ("charts", "build"):
        (folder / name).symlink_to(CHECKOUT / name)
    path = [str(binaries), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {
        **os.environ,
        "KUBECONFIG": str(commands.kubeconfig),
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": os.pathsep.join(map(str, (CHECKOUT / "src", CHECKOUT))),
        **{name: str(tmp_path / "helm") for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME")},
        "BINARIES": str(binaries),
        "STATE": str(tmp_path / "another"),
    }
    # Some commands start a control plane.
    return Typist(environment, folder, command_s=300.0 * SLOWNESS, state_s=60.0 * SLOWNESS)


def test_commands_in_sentences_about_helm_and_control_planes_work(typist: Typist, commands: Commands) -> None:
    lines = {one.text: one for one in sentences_typed_by(__file__)}
    assert WAYS.keys() == lines.keys()
    for text, way in WAYS.items():
        typed = way.typed or text
        assert says(text, typed), f"{typed} is not {text}"
        block = Block(
            lines[text].line - 1, "console", (f"$ {typed}", *way.shows), first=way.first, until=way.until
        )
        wrong = asyncio.run(typist.follow(Page(lines[text].page, ()), block))
        assert not wrong, "\n\n".join(wrong)
        if way.values:
            own = commands.typed("helm", "get", "values", INSTALLER, "-n", NAMESPACE, "-o", "json")
            assert json.loads(own) == way.values, text
