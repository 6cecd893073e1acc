"""Input that violates the API is reported with its object and file, and never as a traceback."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.api.errors import Fault
from gpushare.api.json_objects import Json
from gpushare.config.__main__ import main as config
from gpushare.options import yaml_text
from gpushare.simulate.engine.engine import Settings
from gpushare.simulate.engine.simulation import simulate
from gpushare.simulate.errors import SimulateError
from gpushare.simulate.input.documents import read_documents
from gpushare.simulate.input.manifests import joined, manifests_of
from gpushare.simulate.input.node_shapes import shapes_there
from gpushare.simulate.snapshot import counting_of, read_snapshot, snapshot_of
from tests.unit.simulate.objects import node, pod, template, workload

T4 = 15360
WRONG: tuple[Any, ...] = ([["x"]], 5, "x", None, {"a": 5})
ASKING = pod(
    "asking",
    4,
    nodeSelector={"zone": "a"},
    priorityClassName="high",
    tolerations=[{"key": "a", "operator": "Exists"}],
    affinity={
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
                ]
            },
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "preference": {"matchFields": [{"key": "metadata.name", "operator": "Exists"}]}}
            ],
        },
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]},
    },
    initContainers=[{"name": "first", "restartPolicy": "Always", "ports": [{"hostPort": 80}]}],
    volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
    overhead={"cpu": "1"},
)
SET = workload("StatefulSet", "set", 2, template(4, labels={"app": "set"}, nodeSelector={"zone": "a"}))
RULES: tuple[Json, ...] = (
    {
        "kind": "ResourcePolicy",
        "metadata": {"name": "policy", "namespace": "default"},
        "spec": {
            "selector": {"app": "set"},
            "strategy": "prefer",
            "units": [
                {"nodeSelector": {"zone": "a"}, "max": 2, "podLabels": {"q": "r"}},
                {"resource": "ecs", "podAnnotations": {"a": "b"}},
            ],
            "whenTryNextUnits": {"policy": "TimeoutOrExceedMax", "timeout": "15m"},
        },
    },
    {
        "kind": "ElasticQuotaTree",
        "metadata": {"name": "tree", "namespace": "kube-system"},
        "spec": {
            "root": {
                "name": "root",
                "max": {"cpu": 90},
                "min": {"cpu": 90},
                "children": [
                    {"name": "leaf", "max": {"cpu": 80}, "min": {"cpu": 10}, "namespaces": ["default"]}
                ],
            }
        },
    },
    {"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 5, "globalDefault": True},
    {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "budget", "namespace": "default"},
        "spec": {"minAvailable": "50%", "selector": {"matchLabels": {"app": "set"}}},
        "status": {"disruptionsAllowed": 1},
    },
    {"kind": "Namespace", "metadata": {"name": "default", "labels": {"a": "b"}}},
)


def nodes() -> list[Json]:
    tainted = node("a", T4, T4, zone="a")
    tainted["spec"]["taints"] = [{"key": "a", "effect": "NoSchedule", "value": "b"}]
    return [tainted]


def bound() -> Json:
    made = copy.deepcopy(ASKING)
    made["metadata"] |= {
        "name": "bound",
        "namespace": "default",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": [{"kind": "StatefulSet", "name": "set", "controller": True}],
    }
    made["spec"] |= {"nodeName": "a", "priority": 1}
    made["status"] = {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]}
    return made


def wrong_in(item: Any) -> Iterator[Any]:
    """``item`` with each of its fields in turn as each of ``WRONG``."""
    for key in item if isinstance(item, dict) else range(len(item)):
        for value in WRONG:
            made = copy.copy(item)
            made[key] = value
            yield made
        if isinstance(item[key], dict | list):
            for inner in wrong_in(item[key]):
                made = copy.copy(item)
                made[key] = inner
                yield made


def ran(existing: list[Json], added: list[Json]) -> str:
    """The error message; empty if the input is accepted."""
    try:
        state = read_snapshot(json.dumps({"items": existing}).encode(), "there.json")
        listed = json.dumps({"kind": "List", "items": added}).encode()
        documents = [("come.yaml", one) for one in read_documents(listed, "come.yaml")]
        manifests = manifests_of(documents, state, counting_of(state))
        simulate(joined(state, manifests.state), manifests.pods, Settings())
        read_snapshot(snapshot_of(state), "saved.json")
        shapes_there(state)
    except Fault as error:
        return str(error)
    return ""


@pytest.fixture
def quick_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    """The input here is JSON, which PyYAML reads with the same result, but slowly."""
    monkeypatch.setattr(yaml_text, "documents", lambda raw: [json.loads(raw)])


@pytest.mark.parametrize(
    "item", [ASKING, SET, *RULES], ids=lambda item: str(item["kind"] if isinstance(item, dict) else item)
)
@pytest.mark.usefixtures("quick_yaml")
def test_a_manifest_field_of_any_type_is_accepted_or_rejected_with_a_message(item: Json) -> None:
    others = [] if item in (ASKING, SET) else [SET]
    assert not ran(nodes(), [item, *others])
    refused = {ran(nodes(), [wrong, *others]) for wrong in wrong_in(item)}
    assert len(refused) > 5


@pytest.mark.usefixtures("quick_yaml")
@pytest.mark.parametrize("position", range(2 + len(RULES)))
def test_a_snapshot_field_of_any_type_is_accepted_or_rejected_with_a_message(position: int) -> None:
    items = [*nodes(), bound(), *RULES]
    assert not ran(items, [SET])
    refused = {
        ran([*items[:position], wrong, *items[position + 1 :]], [SET] if position else [])
        for wrong in wrong_in(items[position])
    }
    assert len(refused) > 5


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"nodeSelector": ["a"]},
            "come.yaml: Pod p: cannot be read (Expected `object | null`, got `array` - at `$.spec.nodeSelector`); see `kubectl explain Pod`",
        ),
        ({"affinity": {"nodeAffinity": []}}, "got `array` - at `$.spec.affinity.nodeAffinity`"),
        ({"priority": 1 << 31}, "at `$.spec.priority`"),
    ],
)
def test_a_wrong_field_is_named_with_its_object_and_file(change: Json, expected: str) -> None:
    assert expected in ran(nodes(), [pod("p", 1, **change)])


def test_an_invalid_object_is_named_by_its_position_and_file() -> None:
    assert (
        ran(nodes(), [{"kind": [], "metadata": {"name": "p"}}])
        == "come.yaml: item 1 of document 1 is no Kubernetes object: it has no kind"
    )
    tree = {"kind": "ElasticQuotaTree", "metadata": {"name": "t"}, "spec": None}
    error = "ElasticQuotaTree kube-system/t: cannot be read (Expected `object`, got `null` - at `$.spec`)"
    assert f"come.yaml: {error}; see `kubectl explain ElasticQuotaTree`" == ran(nodes(), [tree])
    assert ran(nodes(), [tree | {"spec": {}}]).startswith("ElasticQuotaTree t: ")
    labelled = node("b", T4) | {"metadata": {"name": "b", "labels": 5}}
    assert ran([labelled], []).startswith(
        "there.json: Node b: cannot be read (Expected `object | null`, got `int`"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "&x {kind: Pod, metadata: *x}",
            "line 1: what begins here refers to itself; write out what is meant",
        ),
        ("kind: Pod\nspec: {a: &x [*x]}", "line 2: what begins here refers to itself"),
        ("kind: !!timestamp x", "a value is not what its tag (!!...) says"),
        ("kind: !!bool x", "a value is not what its tag (!!...) says"),
        ("kind: !!set {a}", "a set has no place in a manifest; write a text, in quotes"),
        ("kind: Pod\n~: a", "None is no key; write a text, in quotes"),
        ("kind: " + "9" * 5000, "Exceeds the limit"),
    ],
)
def test_yaml_that_is_no_json_is_rejected(text: str, expected: str) -> None:
    with pytest.raises(SimulateError) as caught:
        read_documents(text.encode(), "f.yaml")
    assert str(caught.value).startswith(f"f.yaml: is no YAML: {expected}")


def test_yaml_is_read_as_kubectl_reads_it() -> None:
    text = b"kind: Pod\nmetadata: &x {name: 2026-01-01, labels: {2: a, true: b}}\nother: [*x, *x]"
    (read,) = read_documents(text, "f.yaml")
    assert read["metadata"] == {"name": "2026-01-01", "labels": {"2": "a", "true": "b"}}
    assert read["other"] == [read["metadata"]] * 2


def test_options_that_refer_to_themselves_are_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gpushare.yaml"
    file.write_text("simulate:\n  shape: &x [*x]\n")
    assert config(["check", str(file)]) == 2
    error = f"{file}: is no YAML: line 2: what begins here refers to itself; write out what is meant\n"
    assert error in capsys.readouterr().err
