"""cluster-autoscaler's decisions for our nodes and pods, by its rules as we know them."""

import pytest

from tests.autoscaler_cases import CASES, Case
from tests.autoscaler_rules import simulated


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_cluster_autoscaler_adds_the_expected_nodes(case: Case) -> None:
    found = simulated(case.template, case.pods, case.nodes)
    assert (len(found.seen), sorted(found.lacking), found.nodes) == (
        case.seen,
        sorted(case.lacking),
        case.makes,
    )
