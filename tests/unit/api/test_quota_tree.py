"""An ElasticQuotaTree is accepted or refused as a whole, with all errors."""

import json
from typing import Any

import pytest

from gpushare.api.crd import elastic_quota_tree
from gpushare.api.crd.elastic_quota_tree import MOST_LEVELS, MOST_QUOTAS, decode_quota_tree, quota_tree_of
from gpushare.api.errors import InvalidQuotaTree

MEM, CORE = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"


def quota(name: str, *children: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"name": name, **({"children": list(children)} if children else {}), **fields}


def problem(root: Any) -> str:
    with pytest.raises(InvalidQuotaTree) as caught:
        quota_tree_of(json.dumps(root).encode())
    return caught.value.problem


def test_the_documented_tree_is_accepted() -> None:
    def leaf(name: str, *namespaces: str, gpus: int = 2) -> dict[str, Any]:
        most = {"cpu": 20, "memory": "20Gi", "nvidia.com/gpu": gpus}
        least = {"cpu": 10, "memory": "10Gi", "nvidia.com/gpu": 1}
        return quota(name, namespaces=list(namespaces), max=most, min=least)

    whole = {"cpu": 40, "memory": "40Gi", "nvidia.com/gpu": 4, "kube-queue/max-jobs": 10000000000}
    half = {"cpu": 20, "memory": "20Gi", "nvidia.com/gpu": 2}
    a = quota("root.a", leaf("root.a.1", "namespace1"), leaf("root.a.2", "namespace2"), max=whole, min=half)
    b = quota("root.b", leaf("root.b.1", "namespace3", "namespace4"), max=whole, min=half)
    tree = quota_tree_of(json.dumps(quota("root", a, b, max=whole, min=whole)).encode())
    assert [one.name for one in tree.quotas] == [
        "root",
        "root.a",
        "root.a.1",
        "root.a.2",
        "root.b",
        "root.b.1",
    ]
    assert tree.leaf_of == {"namespace1": 2, "namespace2": 3, "namespace3": 5, "namespace4": 5}
    assert tree.path(5) == (5, 4, 0)
    assert tree.resources == {"cpu", "memory", "nvidia.com/gpu"}
    assert tree.quotas[2].min == {"cpu": 10_000, "memory": 10 * 2**30 * 1000, "nvidia.com/gpu": 1000}


def test_children_with_a_higher_cpu_min_than_their_parent_are_accepted_with_a_note() -> None:
    """The documentation's example for job queues has such a group."""

    def amounts(cpu: int, memory: str, gpus: int) -> dict[str, Any]:
        return {"cpu": cpu, "memory": memory, "nvidia.com/gpu": gpus}

    text = quota("text", min=amounts(40, "15Gi", 8), max=amounts(40, "30Gi", 10), namespaces=["text1"])
    video = quota("video", min=amounts(12, "12Gi", 2), max=amounts(14, "14Gi", 4), namespaces=["video"])
    group = quota("algorithm", text, video, min=amounts(50, "25Gi", 10), max=amounts(80, "50Gi", 14))
    whole = amounts(100, "50Gi", 16)
    tree = quota_tree_of(json.dumps(quota("root", group, min=whole, max=whole)).encode())
    assert tree.notes == (
        "quota algorithm: its children's min of cpu add up to 52, above its own min (50); "
        "raise its min, or lower theirs",
        "quota algorithm: its children's min of memory add up to 27Gi, above its own min (25Gi); "
        "raise its min, or lower theirs",
    )


@pytest.mark.parametrize(
    ("resources", "counts"),
    [
        ((MEM, CORE, "aliyun.com/gpu"), False),
        ((MEM, "memory"), True),
        (("nvidia.com/gpu",), True),
    ],
)
def test_pods_without_a_gpu_count_if_the_quota_limits_one_of_their_resources(
    resources: tuple[str, ...], counts: bool
) -> None:
    least, most = dict.fromkeys(resources[:1], 1), dict.fromkeys(resources, 1)
    tree = quota_tree_of(json.dumps(quota("root", min=least, max=most)).encode())
    assert tree.counts_every_pod is counts
    assert tree.notes == ()


def test_min_and_max_are_optional_and_attributes_are_ignored() -> None:
    root = quota(
        "root", quota("a", namespaces=["a"], attributes={"resourceflavors": "x"}, max={"cpu": "500m"})
    )
    tree = quota_tree_of(json.dumps(root).encode())
    assert tree.quotas[1].min == {}
    assert tree.quotas[1].max == {"cpu": 500}


@pytest.mark.parametrize(
    ("root", "words"),
    [
        (
            quota("root", quota("a", min={MEM: 8}), quota("b", min={MEM: 5}), min={MEM: 12}),
            [f"quota root: its children's min of {MEM} add up to 13, above its own min (12)"],
        ),
        (quota("root", quota("a", min={CORE: 5})), ["add up to 5, above its own min (0)"]),
        (quota("root", min={MEM: 9}, max={MEM: 8}), [f"quota root: min of {MEM} (9) is above its max (8)"]),
        (
            quota("root", min={"memory": "3Gi"}, max={"memory": "2560Mi"}),
            ["min of memory (3Gi) is above its max (2560Mi)"],
        ),
        (
            quota("root", quota("a", namespaces=["x"]), quota("b", namespaces=["x"])),
            ["quota b: namespace x belongs to quota a already; a namespace has one quota"],
        ),
        (
            quota("root", max={MEM: "6Gi"}),
            [
                f"quota root: max of {MEM} is 6Gi, but must be a number of units, as in pod requests, "
                "without Mi or Gi; for 6 units write 6"
            ],
        ),
        (quota("root", min={MEM: "60G"}), [f"min of {MEM} is 60G, but must be a number of units"]),
        (quota("root", namespaces=["x", "x"]), ["namespace x is named twice there"]),
        (quota("root", namespaces=[""]), ["quota root: a namespace without a name"]),
        (
            quota("root", quota("a"), namespaces=["x"]),
            ["quota root: it has children", "move them to a child"],
        ),
        (quota("root", quota("root")), ["this name is used twice"]),
        (quota("root", quota("")), ["the quota without a name below root: give it one"]),
        (quota(""), ["the quota without a name at the root: give it one"]),
        (quota("root", max={f"requests.{MEM}": 1}), [f"this is the ResourceQuota form; write {MEM}"]),
        (
            quota("root", max={"aliyun.com/gpu-memory": 1}),
            [f"use the names that pods request: {MEM}, {CORE} or aliyun.com/gpu"],
        ),
        (quota("root", max={"gpu-mem": 1}), ["no such resource; write cpu, memory"]),
        (quota("root", max={"a/b/c": 1}), ["no such resource"]),
        (quota("root", max={MEM: "much"}), [f"quota root: max of {MEM}: 'much' is not a valid quantity"]),
        (quota("root", max={MEM: "-1"}), ["is -1; write 0 or more"]),
        (quota("root", max={MEM: "1.5"}), ["is 1.5; it is counted in whole numbers"]),
        (quota("root", min={"cpu": True}), ["cannot be read"]),
        ({"name": 5}, ["spec.root cannot be read"]),
        (None, ["there is no spec.root"]),
    ],
)
def test_contradictions_are_refused_by_name(root: Any, words: list[str]) -> None:
    error = problem(root)
    assert all(one in error for one in words), error


def test_all_errors_are_reported_together_up_to_a_limit() -> None:
    error = problem(quota("root", *(quota(f"q{number}", min={MEM: 2}, max={MEM: 1}) for number in range(7))))
    assert error.count("is above its max") == 5
    assert error.endswith("; and 3 more")


def test_invalid_trees_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = quota("last")
    for level in range(MOST_LEVELS):
        deep = quota(f"level-{level}", deep)
    assert f"more than {MOST_LEVELS} levels" in problem(deep)
    monkeypatch.setattr(elastic_quota_tree, "MOST_QUOTAS", 3)
    assert "more than 3 quotas" in problem(quota("root", quota("a"), quota("b"), quota("c")))
    assert MOST_QUOTAS == 1000


def test_a_record_remembers_what_was_in_force_before_an_invalid_change() -> None:
    good = json.dumps(quota("root", namespaces=["a"], max={MEM: 5}))

    def read(root: Any, status: Any) -> elastic_quota_tree.QuotaTreeRecord:
        meta = {"name": "t", "uid": "u", "generation": 3, "creationTimestamp": "2026-11-22T10:00:00Z"}
        return decode_quota_tree(
            json.dumps({"metadata": meta, "spec": {"root": root}, "status": status}).encode()
        )

    fine = read(json.loads(good), {"inForce": "not looked at"})
    assert fine.tree is not None
    assert (fine.problem, fine.earlier, fine.generation) == ("", None, 3)
    assert json.loads(fine.root) == json.loads(good)
    bad = read(quota(""), {"inForce": good})
    assert bad.tree is None
    assert bad.earlier is not None
    assert bad.earlier.quotas[0].max == {MEM: 5000}
    assert (bad.earlier_root, bad.status) == (good, {"inForce": good})
    for status in ({"inForce": "{"}, {"inForce": 5}, {}, "odd"):
        assert read(quota(""), status).earlier is None
    assert decode_quota_tree(b'{"metadata":{"name":"t"}}').problem.startswith("there is no spec.root")
