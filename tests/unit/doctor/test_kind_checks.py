"""Our CRDs from an older release are reported with what they lack; they carry no version."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from gpushare.doctor.cluster.checks.crds import lacking
from gpushare.doctor.cluster.facts import Json, name_of
from gpushare.doctor.cluster.registry import CHECKS
from gpushare.doctor.findings import Finding, Unread, examine
from gpushare.kube.crds import MANIFESTS, definition
from tests.unit.doctor.healthy_cluster import sound

POLICIES = "resourcepolicies.scheduling.alibabacloud.com"
TREES = "elasticquotatrees.scheduling.sigs.k8s.io"


def findings_of(name: str, change: Callable[[Json], Any]) -> list[Finding]:
    definitions = sound().definitions
    assert not isinstance(definitions, Unread)
    (one,) = [one for one in definitions if name_of(one) == name]
    change(one)
    return [one for one in examine(sound(definitions=definitions), CHECKS) if one.state != "ok"]


def spec_of(found: Json) -> Json:
    """The schema of the field ``spec`` of its only version."""
    spec: Json = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return spec


def units(found: Json) -> Json:
    unit: Json = spec_of(found)["properties"]["units"]["items"]
    return unit


@pytest.mark.parametrize(
    ("name", "change", "lacks"),
    [
        (POLICIES, lambda one: units(one)["properties"].pop("maxResources"), "field spec.units[].maxResources"),
        (POLICIES, lambda one: units(one)["properties"]["resource"]["enum"].remove("elastic"), "spec.units[].resource: elastic"),
        (POLICIES, lambda one: spec_of(one).pop("x-kubernetes-validations"), "a rule of spec"),
        (POLICIES, lambda one: one["spec"]["versions"][0].pop("subresources"), "subresource status"),
        (TREES, lambda one: one["spec"]["versions"][0].update(served=False), "version v1beta1"),
        (TREES, lambda one: spec_of(one)["properties"]["root"]["properties"].pop("max"), "field spec.root.max"),
    ],
)  # fmt: skip
def test_what_a_definition_lacks_is_named_with_what_to_apply(
    name: str, change: Callable[[Json], Any], lacks: str
) -> None:
    (found,) = findings_of(name, change)
    assert (found.check, found.state, found.subject) == ("definitions", "warning", f"crd {name}")
    assert found.message == f"it is from an older release than this program, and lacks {lacks}"
    assert f"-f charts/ack-co-scheduler/templates/crds/{MANIFESTS[name].name}`" in found.suggestion


def test_of_many_missing_fields_the_first_is_named_and_the_rest_counted() -> None:
    (found,) = findings_of(POLICIES, lambda one: units(one).update(properties={}))
    assert found.message.count("field spec.units[].") == 3
    assert found.message.endswith(" more")


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_definition_of_a_newer_release_or_one_that_takes_everything_lacks_nothing(name: str) -> None:
    newer = definition(name)
    spec_of(newer)["properties"]["new"] = {"type": "string"}
    newer["spec"]["versions"].append({**deepcopy(newer["spec"]["versions"][0]), "name": "v9"})
    assert list(lacking(newer, definition(name))) == []
    anything = definition(name)
    anything["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
    }
    assert list(lacking(anything, definition(name))) == []
