"""Nodes in mode ``dra``: allocations of ResourceClaims are in the tables like those of pods elsewhere."""

import json
from typing import Any, cast

import msgspec

from gpushare.api import names
from gpushare.api.allocation.resource_claim import ResourceClaim
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import Node
from gpushare.inspect.arguments import parse
from gpushare.inspect.render import render
from gpushare.inspect.sources.kubectl import Kubectl, Round
from gpushare.inspect.sources.live_usage import RealUse, Use
from gpushare.inspect.sources.paths import CLAIMS_PATH
from gpushare.inspect.views.allocation_model import usage_of
from gpushare.inspect.views.pods import _rows as pod_rows
from tests.unit.inspect.clusters import device, node
from tests.unit.inspect.schema import faults

GPUS = [device(0), device(1)]
DRA = node("n", "10.0.0.1", GPUS, mode=NodeMode.DRA, advertised=False)


def claim(name: str, *shares: tuple[int, str, int], pods: tuple[str, ...] = (), **result: Any) -> Any:
    """An allocated claim (GPU, memory, compute)."""
    results = [
        {
            "request": "gpu",
            "driver": names.DRA_DRIVER,
            "pool": "n",
            "device": f"gpu-{gpu:08d}",
            "consumedCapacity": {"memory": memory, "compute": str(compute), "shares": "1"},
            **result,
        }
        for gpu, memory, compute in shares
    ]
    return {
        "metadata": {"namespace": "team", "name": name, "uid": f"uid-{name}"},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": pod} for pod in pods],
        },
    }


class Cluster(Kubectl):
    """Nodes, no pods, and claims; or kubectl's error when it reads claims."""

    def __init__(self, nodes: list[Node], claims: list[Any] | str = "") -> None:
        super().__init__(program="none")
        self._nodes = nodes
        self._claims = claims

    def start(self, *paths: str) -> Any:
        assert paths == (CLAIMS_PATH,)
        return _Read(paths, self._claims)

    def render(self, *words: str) -> tuple[str, tuple[str, ...]]:
        nodes = {"items": [msgspec.to_builtins(one) for one in self._nodes]}
        found = render(self, parse(words), cast("Round", _Read(("nodes", "pods"), nodes, {"items": []})))
        return found.text, found.remarks


class _Read:
    def __init__(self, paths: tuple[str, ...], *answers: Any) -> None:
        self._paths = paths
        self._answers = answers

    def finish(self) -> list[bytes]:
        from gpushare.inspect.errors import KubectlFailed

        (answer, *_) = self._answers
        if isinstance(answer, str):
            raise KubectlFailed(self._paths[0], answer)
        return [
            json.dumps({"items": one} if isinstance(one, list) else one).encode() for one in self._answers
        ]


def test_claims_count_on_their_gpus_and_are_listed_with_the_pods_that_use_them() -> None:
    cluster = Cluster(
        [DRA],
        [
            claim("one", (0, "3Gi", 30), pods=("inference",)),
            claim("shared", (0, "1Gi", 0), pods=("a", "b")),
            claim("pair", (0, "512Mi", 20), (1, "2Gi", 0)),
            {"metadata": {"namespace": "team", "name": "pending", "uid": "p"}},
        ],
    )
    text, remarks = cluster.render()
    assert remarks == ()
    assert ["n", "10.0.0.1", "5/15", "2/15", "7/30", "50/200"] in [line.split() for line in text.splitlines()]
    text, _ = cluster.render("-d")
    rows = [line.split() for line in text.splitlines()]
    assert [
        "NAME",
        "NAMESPACE",
        "GPU0(Allocated)",
        "GPU1(Allocated)",
        "GPU0",
        "Core(%)",
        "GPU1",
        "Core(%)",
    ] + ["CLAIM"] in rows
    assert ["inference", "team", "3", "0", "30", "0", "one"] in rows
    assert ["a,", "b", "team", "1", "0", "0", "0", "shared"] in rows
    assert ["-", "team", "1", "2", "20", "0", "pair"] in rows


def test_the_json_names_the_claim() -> None:
    text, _ = Cluster([DRA], [claim("one", (0, "3Gi", 30), pods=("inference",))]).render("-o", "json")
    document = json.loads(text)
    assert not faults(document)
    (pod,) = document["nodes"][0]["pods"]
    assert (pod["name"], pod["claim"], pod["uid"], pod["phase"]) == ("inference", "one", "uid-one", "")
    assert pod["shares"] == [{"gpu": 0, "uuid": "GPU-00000000", "units": 3, "MiB": 3072, "corePercent": 30}]


def test_a_node_without_claims_is_shown_empty_and_monitoring_holds_nothing() -> None:
    for claims in ([], [claim("monitor", (0, "0", 0), adminAccess=True)]):
        text, remarks = Cluster([DRA], claims).render()
        assert "0/15" in text
        assert remarks == ()


def test_claims_that_cannot_be_read_or_understood_are_warned_about() -> None:
    _, (remark,) = Cluster([DRA], "Error from server (Forbidden): no").render()
    assert remark.startswith(
        "warning: ResourceClaims are not counted on nodes in mode dra: kubectl could not read"
    )
    _, remarks = Cluster([DRA], [claim("odd", (0, "x", 0)), claim("lost", (7, "1Gi", 0))]).render()
    assert remarks == (
        "warning: ResourceClaim team/odd: memory: 'x' is not a valid quantity; use a number such as 3 or 2Ki; it is not counted",
        "warning: ResourceClaim team/lost holds 1024 MiB of GPU gpu-00000007, which node n no longer has",
    )


def test_in_other_clusters_claims_are_not_read() -> None:
    text, _ = Cluster([node("m", "10.0.0.2", GPUS)], "asked").render()
    assert "0/15" in text


def test_use_by_the_pods_of_a_claim_is_summed() -> None:
    claims = [
        claim("shared", (0, "3Gi", 30), pods=("a", "b")),
        claim("idle", (1, "1Gi", 0), pods=("c",)),
    ]
    decoded = [msgspec.convert(one, ResourceClaim) for one in claims]
    uuid = GPUS[0].uuid
    use = RealUse(
        {("team/a", uuid): Use(1000.0, 10.0), ("team/b", uuid): Use(500.0, None)}, {}, frozenset({"n"})
    )
    shared, idle = pod_rows(usage_of([DRA], [], decoded), use, None)
    assert (shared.name, shared.claim, shared.used_mib, shared.used_core_percent) == (
        "a, b",
        "shared",
        1500.0,
        None,
    )
    assert (idle.used_mib, idle.used_core_percent) == (0.0, 0.0)
