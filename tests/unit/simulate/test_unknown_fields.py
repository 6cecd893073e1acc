"""Fields that Kubernetes does not have are named with the one that is meant, and no other field ever is."""

import os
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.simulate.input import unknown_fields as module
from gpushare.simulate.input.unknown_fields import KINDS, VERSION, unknown_fields
from gpushare_playground.apiserver.fields import FieldType, table

CHECKOUT = Path(__file__).parents[3]
TABLE = CHECKOUT / "src" / "gpushare" / "simulate" / "input" / "fields.txt"


def said(field: str, meant: str = "", whose: str = f"Kubernetes {VERSION}") -> str:
    hint = f" (did you mean {meant}?)" if meant else ""
    return f'unknown field "{field}"{hint}: {whose} has none, kubectl would refuse it, and it is passed over here'


def below(of: FieldType) -> str:
    if of.form == "struct":
        return of.name
    if of.form in ("list", "map") and of.item is not None and (inner := below(of.item)):
        return f"[{inner}]" if of.form == "list" else f"{{{inner}}}"
    return ""


def written() -> str:
    """The table as it follows from the playground's, which is Kubernetes' own: the types that can be reached from the kinds."""
    types = table()
    lines: dict[str, str] = {}
    coming = [kind for kind in KINDS if kind not in module._MORE]
    while coming:
        name = coming.pop(0)
        if name in lines:
            continue
        fields = {field: below(of) for field, of in types[name].fields.items()}
        coming += [of.strip("[]{}") for of in fields.values() if of]
        lines[name] = " ".join([name, *(f"{field}:{of}" if of else field for field, of in fields.items())])
    head = f"# Kubernetes {VERSION}: made from the playground's table by tests/unit/simulate/test_unknown_fields.py (GPUSHARE_WRITE_GOLDEN=1).\n"
    return head + "\n".join(lines[name] for name in sorted(lines)) + "\n"


def test_the_table_is_that_of_kubernetes() -> None:
    """``GPUSHARE_WRITE_GOLDEN=1`` writes it."""
    if os.environ.get("GPUSHARE_WRITE_GOLDEN"):
        TABLE.write_text(written())
    assert TABLE.read_text() == written(), (
        "the table is old: GPUSHARE_WRITE_GOLDEN=1 pytest tests/unit/simulate"
    )
    head = (
        (resources.files("gpushare_playground.apiserver") / "fields" / "pods.txt").read_text().splitlines()[0]
    )
    assert f"Kubernetes {VERSION}:" in head
    assert module._types().keys() >= KINDS.keys()


def deployment(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"replicaz": 3}, said("spec.replicaz", "replicas")),
        ({"Replicas": 3}, said("spec.Replicas", "replicas")),
        ({"xyz": 3}, said("spec.xyz")),
        (
            {"template": {"spec": {"nodeSelectors": {}}}},
            said("spec.template.spec.nodeSelectors", "nodeSelector"),
        ),
        (
            {"template": {"spec": {"containers": [{}, {"resourcs": {}}]}}},
            said("spec.template.spec.containers[1].resourcs", "resources"),
        ),
        (
            {"template": {"spec": {"containers": [{"resources": {"limit": {}}}]}}},
            said("spec.template.spec.containers[0].resources.limit", "limits"),
        ),
        ({"template": {"metadata": {"lables": {}}}}, said("spec.template.metadata.lables", "labels")),
    ],
)
def test_a_field_that_there_is_not_is_named_by_its_path(spec: dict[str, Any], told: str) -> None:
    assert unknown_fields(deployment(**spec)) == [told]


def test_what_people_name_themselves_is_no_field() -> None:
    meta = {"labels": {"x": "y"}, "annotations": {"a/b": "c"}}
    container = {
        "name": "c",
        "image": "i",
        "resources": {"limits": {"aliyun.com/gpu-mem": 1}, "requests": {"x/y": 1}},
        "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
        "livenessProbe": {"httpGet": {"path": "/", "port": 1}},
    }
    spec = {"containers": [container], "nodeSelector": {"a": "b"}, "volumes": [{"name": "v", "emptyDir": {}}]}
    given = deployment(selector={"matchLabels": {"z": "y"}}, template={"metadata": meta, "spec": spec})
    assert unknown_fields(given | {"status": {"readyReplicas": 1}}) == []


@pytest.mark.parametrize(
    ("document", "told"),
    [
        (
            {"apiVersion": "v1", "kind": "ReplicationController", "spec": {"replicaz": 2}},
            said("spec.replicaz", "replicas"),
        ),
        (
            {"apiVersion": "v1", "kind": "ReplicationController", "spec": {"template": {"spec": {"containerz": []}}}},
            said("spec.template.spec.containerz", "containers"),
        ),
        (
            {"apiVersion": "scheduling.alibabacloud.com/v1alpha1", "kind": "ResourcePolicy", "spec": {"units": [{"resource": "ecs", "maxx": 1}]}},
            said("spec.units[0].maxx", "max", "the kind"),
        ),
        (
            {"apiVersion": "scheduling.sigs.k8s.io/v1beta1", "kind": "ElasticQuotaTree", "spec": {"root": {"name": "r", "childs": []}}},
            said("spec.root.childs", "children", "the kind"),
        ),
    ],
)  # fmt: skip
def test_so_is_one_of_a_replication_controller_a_policy_and_a_tree_of_quotas(
    document: dict[str, Any], told: str
) -> None:
    assert unknown_fields({**document, "metadata": {"name": "x", "labels": {"a": "b"}}}) == [told]


def test_what_people_name_themselves_in_a_tree_of_quotas_is_no_field() -> None:
    quota = {"name": "r", "min": {"aliyun.com/gpu-mem": 2}, "max": {"x/y": 3}, "children": []}
    tree = {
        "apiVersion": "scheduling.sigs.k8s.io/v1beta1",
        "kind": "ElasticQuotaTree",
        "spec": {"root": quota},
    }
    assert unknown_fields(tree) == []


def test_another_s_kind_of_the_same_name_and_what_is_of_no_form_are_passed_over() -> None:
    assert (
        unknown_fields({"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "spec": {"queue": "x"}})
        == []
    )
    assert unknown_fields({"apiVersion": "apps/v1", "kind": "DaemonSet", "spec": {"replicaz": 1}}) == []
    assert (
        unknown_fields(deployment(template=[{"spec": 1}])) == unknown_fields(deployment(template=None)) == []
    )


def test_of_an_object_with_many_the_first_are_named() -> None:
    assert len(unknown_fields(deployment(**{f"x{at}": 1 for at in range(99)}))) == 8


def test_no_field_of_our_own_examples_is_named() -> None:
    files = sorted((CHECKOUT / "examples").glob("*.yaml"))
    documents = [one for file in files for one in yaml.safe_load_all(file.read_text()) if one]
    assert sum(one["kind"] in KINDS for one in documents) > 5
    assert [text for one in documents for text in unknown_fields(one)] == []
