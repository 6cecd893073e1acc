"""Commands suggested by findings: complete, with names from the cluster, and valid."""

from typing import Any

import pytest

from documentation.__main__ import PROJECT
from documentation.advice import Text, faults
from gpushare.api import names
from gpushare.doctor.cluster.registry import CHECKS
from gpushare.doctor.findings import examine
from tests.unit.doctor.healthy_cluster import node_of, sound
from tests.unit.doctor.test_cluster_checks import FAULTS, deployment_with

# : A finding about an unknown label names it.
_OF_OTHERS = "is no name of ours"


@pytest.mark.no_cover  # test_cluster_checks.py covers the same lines with the same faults
@pytest.mark.parametrize("changes", [one[1] for one in FAULTS], ids=[one[0] for one in FAULTS])
def test_suggested_commands_are_valid(changes: dict[str, Any]) -> None:
    for one in examine(sound(**changes), CHECKS):
        for fault in faults(Text(f"doctor/{one.check}", one.suggestion), PROJECT):
            assert one.check == "node-labels", fault
            assert _OF_OTHERS in fault


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"ack.node.gpu.shedule": "share"}, "ack.node.gpu.shedule- ack.node.gpu.schedule=share"),
        ({"ack.node.gpu.shedule": "share", names.LABEL_MODE: "share"}, "ack.node.gpu.shedule-"),
        ({"ack.node.gpu.x": "y"}, "ack.node.gpu.x-"),
    ],
)
def test_a_misspelt_label_is_corrected_and_correct_ones_stay(labels: dict[str, str], expected: str) -> None:
    found = examine(sound(nodes=[node_of(labels=labels, annotations={})], pods=[]), CHECKS)
    assert f"`kubectl label node n1 {expected}`" in {one.suggestion for one in found}


def test_commands_name_the_release_and_the_namespace_that_the_cluster_has() -> None:
    (deployment,) = deployment_with(2)
    deployment["metadata"] |= {"namespace": "gpu", "annotations": {"meta.helm.sh/release-name": "mine"}}
    found = examine(sound(deployments=[deployment], definitions=[]), CHECKS)
    upgrade = "`helm upgrade mine charts/ack-co-scheduler -n gpu`"
    assert upgrade in {one.suggestion for one in found if one.check == "definitions"}
