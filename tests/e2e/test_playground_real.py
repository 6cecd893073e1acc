"""The playground on the real control plane: the same walk, and the same responses as from the embedded one."""

import asyncio
import contextlib
import difflib
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare_playground.cluster import Cluster
from gpushare_playground.cluster.control_plane import Control
from gpushare_playground.cluster.embedded import EmbeddedControl
from gpushare_playground.cluster.real import RealControl
from gpushare_playground.cluster.state import tidy
from tests.e2e.cluster import build
from tests.e2e.cluster.programs import KUBERNETES
from tests.e2e.parity.asking import AnswersByPath, answers
from tests.e2e.parity.normal import normal
from tests.e2e.parity.steps import STEPS, WORKLOADS
from tests.integration.playground.running_playground import wait_until
from tests.integration.whole.world import CHECKOUT, DRIVER, environment
from tests.patience import SLOWNESS

COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "helm")
CHART = CHECKOUT / "charts" / "ack-ai-installer"
EVERY = (*STEPS, *WORKLOADS)


@pytest.fixture(scope="module")
def binaries(k8s: str) -> Path:
    if k8s != KUBERNETES[0]:
        pytest.skip(f"the playground answers like Kubernetes {KUBERNETES[0]}; this run is about {k8s}")
    return build(k8s, COMPONENTS)


# In every pull, the walk runs on the embedded control plane (make run), whose answers are held against the real one's below.
@pytest.mark.nightly
def test_the_walk_holds_on_the_real_control_plane(binaries: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "gpushare", "playground", "--control-plane", str(binaries), "--exit"],
        capture_output=True,
        text=True,
        timeout=500 * SLOWNESS,
        cwd=CHECKOUT,
        env=environment(),
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"All \d\d expectations held\.", ran.stdout)
    assert "two kube-schedulers" in ran.stdout
    assert "the two rules of the examples only" not in ran.stdout


#: Tests of the whole that start a playground, and may start it on the real control plane.
WHOLE = ("memory_amounts", "resource_policy")


# In every pull, the same files run on the embedded control plane (make test), and what they promise on a cluster (tests/e2e/product).
@pytest.mark.nightly
@pytest.mark.parametrize("file", [f"test_{subject}.py" for subject in WHOLE])
def test_whole_product_tests_hold_under_the_real_scheduler(binaries: Path, file: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "-q", f"tests/integration/whole/{file}"],
        capture_output=True,
        text=True,
        timeout=800 * SLOWNESS,
        cwd=CHECKOUT,
        env=environment({"GPUSHARE_TEST_CONTROL_PLANE": str(binaries)}),
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr
    assert re.search(r"^\d+ passed", ran.stdout, re.MULTILINE), ran.stdout


async def _run_steps(control: Control) -> AnswersByPath:
    async with Cluster(driver=DRIVER, control=control, report=lambda _: None) as cluster:
        return await answers(cluster.kubeconfig, EVERY)


@pytest.fixture(scope="module")
def both(binaries: Path) -> tuple[AnswersByPath, AnswersByPath]:
    """The responses of the embedded and the real control plane."""

    async def ask() -> tuple[AnswersByPath, AnswersByPath]:
        embedded, real = _run_steps(EmbeddedControl()), _run_steps(RealControl(binaries, chart=CHART))
        return await asyncio.gather(embedded, real)

    return asyncio.run(ask())


def test_steps_have_names_of_their_own() -> None:
    assert len({step.name for step in EVERY}) == len(EVERY)


@pytest.mark.timeout(1200 * SLOWNESS)
@pytest.mark.parametrize("step", EVERY, ids=lambda step: step.name)
def test_both_control_planes_answer_identically(step, both: tuple[AnswersByPath, AnswersByPath]) -> None:
    (embedded_code, embedded), (real_code, real) = (results[step.name] for results in both)
    assert real_code == step.code, real
    assert embedded_code == step.code, embedded
    lines = [normal(step, text).splitlines() for text in (embedded, real)]
    different = "\n".join(difflib.unified_diff(*lines, "embedded", "real", lineterm="", n=2))
    if step.differs:
        assert different, f"they answer alike now, though {step.differs}: take the reason away"
        return
    assert not different, f"kubectl {step.command}\n{different}"


def _processes_with(word: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and word in (entry / "cmdline").read_text(errors="replace"):
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.nightly), signal.SIGKILL])
def test_nothing_keeps_running_when_the_playground_has_stopped(
    binaries: Path, number: signal.Signals
) -> None:
    command = ["-m", "gpushare", "playground", "--control-plane", str(binaries), "--no-walk"]
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, text=True, cwd=CHECKOUT, env=environment()
    )
    try:
        assert process.stdout is not None
        output = ""
        for line in process.stdout:
            output += line
            if line.startswith("GPUs of every node"):
                break
        found = re.search(r"export KUBECONFIG=(/\S+?)/control/", output)
        assert found, output
        state = found[1]
        # etcd, API server, controllers, two schedulers, extender, three kubelets and agents.
        assert len(_processes_with(state)) >= 12
    finally:
        process.send_signal(number)
        process.communicate(timeout=120 * SLOWNESS)
    wait_until(lambda: not _processes_with(state), detail=lambda: _processes_with(state))
    if number is signal.SIGTERM:
        assert not Path(state).exists()
    else:
        assert Path(state) in tidy()[0]
