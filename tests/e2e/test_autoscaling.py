"""How cluster-autoscaler's own code treats our nodes and pods: packages of its module, built here, called
with objects.
"""

import json
import subprocess
from pathlib import Path

import pytest

from tests.autoscaler_cases import CASES, Case
from tests.e2e.cluster.gomodules import built
from tests.e2e.cluster.kept import CannotBuild
from tests.e2e.cluster.programs import Program
from tests.patience import SLOWNESS

SIMULATION = Program("ca-simulation", "cluster-autoscaler", "./ca-simulation")


@pytest.fixture(scope="module")
def simulation() -> Path:
    """The program, built or from the cache."""
    try:
        return built([SIMULATION], print)[SIMULATION.name]
    except CannotBuild as error:
        if "module version is not available" not in str(error):
            raise
        pytest.skip(f"this Go module proxy has no cluster-autoscaler; its rules alone were tried: {error}")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_what_it_does(simulation: Path, case: Case) -> None:
    question = json.dumps({"nodes": case.nodes, "pods": case.pods, "template": case.template})
    ran = subprocess.run(
        [simulation], input=question, capture_output=True, text=True, timeout=60 * SLOWNESS, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert (len(found["seen"]), sorted(found["lacking"]), found["nodes"]) == (
        case.seen,
        sorted(case.lacking),
        case.makes,
    )
    assert case.makes == 0 or sorted(found["served"]) == sorted(case.lacking)
