"""The chart's definition of ElasticQuotaTree: plain YAML, a structural schema, and the documented names."""

from pathlib import Path
from typing import Any, Final

import yaml

from gpushare.api import names
from gpushare_playground.apiserver.kinds.custom_resources import resources_of
from gpushare_playground.apiserver.kinds.custom_validation import check_custom, settle_custom
from gpushare_playground.apiserver.writes.writing import WriteOptions
from tests.unit.playground.apiserver.plane import Plane

FILE: Final = (
    Path(__file__).parents[4] / "charts" / "ack-co-scheduler" / "templates" / "crds" / "elasticquotatree.yaml"
)
DEFINITION: Final[dict[str, Any]] = yaml.safe_load(FILE.read_text())


def schemas(schema: dict[str, Any], path: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Every schema in it, by path."""
    found = [(path, schema)]
    for name, part in schema.get("properties", {}).items():
        found += schemas(part, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            found += schemas(schema[key], f"{path}[]")
    return found


def test_its_names_are_those_of_the_documentation() -> None:
    (resource,) = resources_of(DEFINITION)
    assert f"{resource.group}/{resource.version}" == names.QUOTA_GROUP
    assert (resource.kind, resource.plural) == (names.QUOTA_KIND, names.QUOTA_PLURAL)
    assert resource.namespaced
    assert resource.has_status
    assert DEFINITION["metadata"]["name"] == f"{resource.plural}.{resource.group}"
    # Groups under k8s.io are protected: without this the API server refuses the definition.
    assert DEFINITION["metadata"]["annotations"]["api-approved.kubernetes.io"].startswith("unapproved")
    # The documented table is NAME and AGE; the rest is for -o wide.
    assert [column["name"] for column in resource.columns if not column.get("priority")] == ["Age"]


def test_it_is_plain_and_structural() -> None:
    assert "{{" not in FILE.read_text()
    version = DEFINITION["spec"]["versions"][0]
    for path, schema in schemas(version["schema"]["openAPIV3Schema"]):
        assert "type" in schema or schema.get("x-kubernetes-int-or-string"), path
        assert not ("properties" in schema and "additionalProperties" in schema), path


def test_a_new_tree_has_the_status_not_looked_at() -> None:
    (resource,) = resources_of(DEFINITION)
    tree = {
        "apiVersion": names.QUOTA_GROUP,
        "kind": names.QUOTA_KIND,
        "metadata": {"name": "t", "namespace": "default"},
        "spec": {"root": {"name": "root"}},
        "status": {"state": "InForce"},
    }
    made = Plane().writer.create(resource, "default", tree, WriteOptions()).record.obj
    assert made["status"] == {
        "state": "NotLookedAt",
        "message": f"not evaluated by the scheduler; only trees in namespace {names.QUOTA_NAMESPACE} take effect",
    }
    assert check_custom(resource, made) == []


def test_cel_rules_are_only_where_the_api_server_accepts_their_cost() -> None:
    version = DEFINITION["spec"]["versions"][0]
    ruled = [
        path
        for path, schema in schemas(version["schema"]["openAPIV3Schema"])
        if "x-kubernetes-validations" in schema
    ]
    assert ruled == [".spec.root", ".spec.root.children[]"]


def test_levels_below_the_defined_ones_stay_and_amounts_may_be_numbers_or_texts() -> None:
    (resource,) = resources_of(DEFINITION)
    deep: dict[str, Any] = {"name": "level-6", "min": {"cpu": 1}}
    for level in range(5, 0, -1):
        deep = {"name": f"level-{level}", "max": {"cpu": "500m"}, "children": [deep]}
    tree = {"apiVersion": names.QUOTA_GROUP, "kind": names.QUOTA_KIND, "metadata": {}, "spec": {"root": deep}}
    assert settle_custom(resource, tree) == []
    assert check_custom(resource, tree) == []
    wrong: dict[str, Any] = {"spec": {"root": {"name": "r", "max": {"cpu": 1.5}, "child": []}}}
    assert settle_custom(resource, wrong) == ["spec.root.child"]
    assert [one.path for one in check_custom(resource, wrong)] == ["spec.root.max.cpu"]
