"""The CEL rules of the chart's own kinds, on a real API server: what each refuses, and similar objects that
are accepted.

The playground's API server checks only the structure of such objects, so the rules are in force only
here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.api import names
from gpushare.kube.auth.access import load_access
from tests.admission_words import RECORDS
from tests.e2e.asking import Answer, Api, Commands
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.plane import CHECKOUT, control_plane

DEFINITIONS = CHECKOUT / "charts" / "ack-co-scheduler" / "templates" / "crds"
POLICY, TREE = "resourcepolicies.yaml", "elasticquotatree.yaml"
PATHS = {
    POLICY: f"/apis/{names.POLICY_GROUP}/{names.POLICY_VERSION}/namespaces/default/{names.POLICY_PLURAL}",
    TREE: f"/apis/{names.QUOTA_GROUP}/namespaces/{names.QUOTA_NAMESPACE}/{names.QUOTA_PLURAL}",
}
GROUPS = "matchLabelKeys has no effect unless a unit has max or maxResources; set one of them, or remove matchLabelKeys"
PREVIOUS = "ignorePreviousPod has no effect unless a unit has max or maxResources; set one of them, or remove ignorePreviousPod"
SELECTED = "podLabels of a unit changes a label of the selector, so the pod would leave the policy; choose another label"
GROUPED = "podLabels of a unit sets a label of matchLabelKeys, so the pod would leave its group; choose another label"
RECORD = "podLabels or podAnnotations of a unit sets a key in which gpushare records allocations; remove it"
PARENT = "a quota with children has no namespaces of its own; move them to a child"


@dataclass(frozen=True)
class Case:
    """A ``spec`` that one rule refuses with ``message``, at ``field``; and others, as similar as possible,
    that are accepted.
    """

    id: str
    definition: str
    message: str
    field: str
    refused: dict[str, Any]
    taken: tuple[dict[str, Any], ...]


def _policy(*units: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"units": list(units), **spec}


def _root(**more: Any) -> dict[str, Any]:
    return {"root": {"name": "root", **more}}


def _leaf(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "namespaces": [name], **more}


CASES = (
    Case(
        "uncounted-groups-of-pods",
        POLICY,
        GROUPS,
        "spec",
        _policy({}, {}, matchLabelKeys=["hash"]),
        (
            _policy({}, {"max": 0}, matchLabelKeys=["hash"]),
            _policy({"maxResources": {"cpu": "1"}}, {}, matchLabelKeys=["hash"]),
            _policy({}, {}, matchLabelKeys=[]),
        ),
    ),
    Case(
        "previous-pods-of-units-without-an-end",
        POLICY,
        PREVIOUS,
        "spec",
        _policy({}, ignorePreviousPod=True),
        (
            _policy({"max": 3}, ignorePreviousPod=True),
            _policy({"maxResources": {"aliyun.com/gpu-mem": 64}}, ignorePreviousPod=True),
            _policy({}, ignorePreviousPod=False),
        ),
    ),
    Case(
        "a-label-of-the-selector-with-another-value",
        POLICY,
        SELECTED,
        "spec",
        _policy({}, {"podLabels": {"app": "y"}}, selector={"app": "x"}),
        (
            _policy({}, {"podLabels": {"app": "x", "tier": "y"}}, selector={"app": "x"}),
            _policy({}, {"podLabels": {"app": "y"}}),
        ),
    ),
    Case(
        "a-label-by-which-pods-are-grouped",
        POLICY,
        GROUPED,
        "spec",
        _policy({"max": 1, "podLabels": {"hash": "y"}}, matchLabelKeys=["hash"]),
        (
            _policy({"max": 1, "podLabels": {"other": "y"}}, matchLabelKeys=["hash"]),
            _policy({"max": 1, "podLabels": {"hash": "y"}}),
        ),
    ),
    Case(
        "an-annotation-that-is-a-record",
        POLICY,
        RECORD,
        "spec",
        _policy({}, {"podAnnotations": {names.ANN_SHARE: "{}"}}),
        (_policy({}, {"podAnnotations": {f"x-{names.ANN_SHARE}": "{}", "example.com/part": "y"}}),),
    ),
    Case(
        "a-root-with-children-and-namespaces",
        TREE,
        PARENT,
        "spec.root",
        _root(children=[_leaf("a")], namespaces=["b"]),
        (
            _root(children=[_leaf("a"), _leaf("b")]),
            _root(children=[_leaf("a")], namespaces=[]),
            _root(children=[], namespaces=["b"]),
        ),
    ),
    Case(
        "a-child-with-children-and-namespaces",
        TREE,
        PARENT,
        "spec.root.children[1]",
        _root(children=[_leaf("a"), _leaf("b", children=[_leaf("c")])]),
        (
            _root(children=[_leaf("a"), {"name": "b", "children": [_leaf("c")]}]),
            # The estimated cost of a rule there is too high: below, only the scheduler checks.
            _root(children=[{"name": "b", "children": [_leaf("c", children=[_leaf("d")])]}]),
        ),
    ),
)


@pytest.fixture(scope="module")
def api(binaries: Path, states: Path) -> Iterator[Api]:
    """An API server that knows the chart's kinds."""
    with control_plane(binaries, states / "kinds") as kubeconfig:
        commands = Commands(kubeconfig, binaries)
        for definition in PATHS:
            # Plain YAML, though a template: as people without helm apply it.
            commands.typed("kubectl", "apply", "-f", str(DEFINITIONS / definition))
        with Api(load_access(str(kubeconfig))) as api:
            for path in PATHS.values():
                wait_for(f"{path} is served", lambda path=path: api.ask("GET", path).taken)
            yield api


def _tried(api: Api, case: Case, spec: dict[str, Any]) -> Answer:
    """The response to an object with ``spec``; nothing is stored."""
    kind = yaml.safe_load((DEFINITIONS / case.definition).read_text())["spec"]
    made = {
        "apiVersion": f"{kind['group']}/{kind['versions'][0]['name']}",
        "kind": kind["names"]["kind"],
        "metadata": {"name": "case"},
        "spec": spec,
    }
    return api.ask("POST", PATHS[case.definition], made, dry=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_rule_refuses_with_its_message_and_accepts_similar_objects(api: Api, case: Case) -> None:
    refused = _tried(api, case, case.refused)
    assert refused.status == 422
    (cause,) = refused.body["details"]["causes"]
    assert cause["field"] == case.field
    # Older API servers name the type of what is invalid before it.
    assert cause["message"].removeprefix("Invalid value: ").removeprefix('"object": ') == case.message
    for spec in case.taken:
        answer = _tried(api, case, spec)
        assert answer.taken, answer.message


@pytest.mark.parametrize("field", ["podLabels", "podAnnotations"])
def test_no_key_of_a_record_is_put_on_pods(api: Api, field: str) -> None:
    case = next(one for one in CASES if one.message == RECORD)
    for key in (*RECORDS, names.LABEL_POD_APART):
        refused = _tried(api, case, _policy({}, {field: {key: "y"}}))
        assert (refused.status, RECORD in refused.message) == (422, True), key


def test_a_tree_outside_the_watched_namespace_reports_it_until_a_status_is_written(
    api: Api,
) -> None:
    path = PATHS[TREE].replace(f"namespaces/{names.QUOTA_NAMESPACE}/", "namespaces/default/")
    tree = {"metadata": {"name": "t"}, "spec": _root()}
    made = api.ask("POST", path, {"apiVersion": names.QUOTA_GROUP, "kind": names.QUOTA_KIND, **tree})
    assert made.taken, made.message
    status = api.ask("GET", f"{path}/t").body["status"]
    assert status == {
        "state": "NotLookedAt",
        "message": f"not evaluated by the scheduler; only trees in namespace {names.QUOTA_NAMESPACE} take effect",
    }
    update = {**api.ask("GET", f"{path}/t").body, "status": {"state": "InForce", "message": ""}}
    assert api.ask("PUT", f"{path}/t/status", update).taken
    assert api.ask("GET", f"{path}/t").body["status"] == {"state": "InForce", "message": ""}


@pytest.mark.parametrize("definition", PATHS)
def test_every_rule_of_a_kind_has_a_case(definition: str) -> None:
    schema = yaml.safe_load((DEFINITIONS / definition).read_text())["spec"]["versions"][0]["schema"]
    messages = sorted(_messages(schema["openAPIV3Schema"]))
    assert messages == sorted(case.message for case in CASES if case.definition == definition)


def _messages(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for one in schema:
            yield from _messages(one)
    elif isinstance(schema, dict):
        for rule in schema.get("x-kubernetes-validations", ()):
            yield rule["message"]
        for one in schema.values():
            yield from _messages(one)
