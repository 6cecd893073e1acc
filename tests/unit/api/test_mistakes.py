"""Likely mistakes in manifests: our own names and the documentation have none, and the chart uses the same patterns."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gpushare.api import names
from gpushare.api.objects import Pod
from gpushare.api.quantity import MemoryUnit
from gpushare.reasons.mistakes import names as similar_names
from gpushare.reasons.mistakes import pods as mistakes
from gpushare.reasons.mistakes.pods import mistakes_of

CHECKOUT = Path(__file__).parents[3]
RESOURCES = (
    *(names.GPU_MEM, names.GPU_CORE, names.GPU_COUNT, names.GPU_WHOLE),
    *(names.GPU_MEMORY, names.GPU_MEMORY_PERCENT),
)
OF_NODES = {names.ANN_DEVICES, names.ANN_CORDONED, names.ANN_ISOLATION}
ANNOTATIONS = {
    value for name, value in vars(names).items() if name.startswith("ANN_") and value not in OF_NODES
}
LABELS = {
    *(names.LABEL_POD_GPU_COUNT, names.LABEL_POD_PLACEMENT, names.LABEL_GANG_NAME, names.LABEL_GANG_LEAST),
    *(names.LABEL_STANDS_FOR, names.LABEL_WAIT_FOR_SCALING, names.LABEL_POD_APART),
}


def reported(**metadata: Any) -> list[str]:
    """The mistakes reported for a pod with those ``labels``, ``annotations`` and ``limits``."""
    limits = metadata.pop("limits", {})
    spec = {"containers": [{"name": "c", "resources": {"limits": limits}}]}
    return mistakes_of(msgspec.convert({"metadata": metadata, "spec": spec}, Pod), MemoryUnit.GIB)


@pytest.mark.parametrize("resource", RESOURCES)
def test_a_known_resource_is_no_mistake(resource: str) -> None:
    assert reported(limits={resource: "3"}) == []


def test_known_annotations_and_labels_of_pods_are_no_mistake() -> None:
    assert len(ANNOTATIONS) > 15
    assert reported(annotations=dict.fromkeys(ANNOTATIONS, "true"), labels=dict.fromkeys(LABELS, "x")) == []
    assert reported(labels={names.LABEL_POD_COMPUTE_CLASS: names.COMPUTE_BATCH}) == []


def test_containers_without_resources_are_no_mistake_either() -> None:
    assert mistakes_of(msgspec.convert({"spec": {"containers": [{"name": "c"}]}}, Pod), MemoryUnit.GIB) == []


def test_a_label_meant_for_nodes_is_a_mistake_on_a_pod() -> None:
    for key in (*OF_NODES, names.LABEL_DESCRIBED, names.LABEL_AGENT_PORT, names.LABEL_MAX_NODE_PODS):
        for place in ("labels", "annotations"):
            (text,) = reported(**{place: {key: "x"}})
            assert text.endswith(f"{key} (it belongs on nodes)")


def misspellings(word: str) -> set[str]:
    """``word`` with one letter too many, too few or wrong, or with two swapped."""
    found = {word[:at] + word[at + 1 :] for at in range(len(word))}
    found |= {word[:at] + word[at + 1] + word[at] + word[at + 2 :] for at in range(len(word) - 1)}
    for letter in "abcdefghijklmnopqrstuvwxyz":
        found |= {word[:at] + letter + word[at:] for at in range(len(word) + 1)}
        found |= {word[:at] + letter + word[at + 1 :] for at in range(len(word))}
    return found - {word}


def test_every_one_letter_mistake_in_a_label_is_reported_with_the_intended_label() -> None:
    """A swap of two counts as one; only the part before the word may be another's name."""
    for one in misspellings("count"):
        (text,) = reported(labels={f"aliyun.com/gpu-{one}": "2"})
        assert text.endswith(f"(write label {names.LABEL_POD_GPU_COUNT})"), one
    for key in (names.LABEL_POD_APART, names.LABEL_POD_COMPUTE_CLASS, names.LABEL_ADMISSION):
        domain, _, name = key.partition("/")
        for one in misspellings(name):
            assert len(reported(labels={f"{domain}/{one}": "x"})) == 1, one
    for one in misspellings("class"):
        (text,) = reported(labels={f"gpushare.dev/compute-{one}": "batch"})
        assert text.endswith(f"(write label {names.LABEL_POD_COMPUTE_CLASS})"), one
    for one in misspellings("placement"):
        (text,) = reported(labels={f"ack.gpushare.{one}": "x"})
        assert text.endswith(f"(write label {names.LABEL_POD_PLACEMENT})"), one


def test_two_swapped_letters_of_the_domain_are_reported_too() -> None:
    word = "gpushare"
    for at in range(len(word) - 1):
        domain = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        if domain != word:
            assert reported(labels={f"{domain}.dev/gpu-per-container": "true"}), domain
            assert reported(labels={f"ack.{domain}.placement": "x"}), domain


def test_no_manifest_of_the_examples_has_mistakes() -> None:
    pods = 0
    for path in sorted((CHECKOUT / "examples").glob("*.yaml")):
        for manifest in filter(None, yaml.safe_load_all(path.read_text())):
            spec = manifest.get("spec", {})
            template = spec.get("template", manifest if manifest["kind"] == "Pod" else None)
            if template is not None:
                pods += 1
                pod = msgspec.convert({"metadata": {}, **template}, Pod)
                assert mistakes_of(pod, MemoryUnit.GIB) == [], path.name
    assert pods > 10


def test_the_chart_has_the_same_patterns() -> None:
    chart = (CHECKOUT / "charts/ack-ai-installer/templates/admission/_mistakes.tpl").read_text()
    source = Path(similar_names.__file__).read_text() + Path(mistakes.__file__).read_text()
    written = re.findall(r'r"(\(\?i\).*)"', source)
    assert len(written) == 3
    assert re.findall(r"matches\(r'(.*)'\)", chart) == written
    assert f"div {mistakes.MOST_GPU_MIB} " in chart
    assert f"div (add {mistakes.CONTEXT_MIB - 1} $unit) $unit" in chart
    assert f"({mistakes.CONTEXT_MIB} on an H200)" in chart
