"""Why use by pods is unknown if GPUs are lost: because of the loss, not because of the agent's settings."""

from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.inspect.errors import KubectlFailed
from gpushare.inspect.sources.cluster_source import Snapshot
from gpushare.inspect.sources.live_usage import NOT_LOOKED, RealUse, Use, read
from gpushare.inspect.views import pods
from tests.unit.inspect.clusters import device, node, placed
from tests.unit.inspect.test_views import Answers

UNKNOWN = "warning: GPU usage of pods is unknown on "


def remarks(monkeypatch: pytest.MonkeyPatch, use: RealUse, *healthy: bool) -> tuple[str, ...]:
    """On a node with this many GPUs, a pod on each."""
    gpus = [
        device(index, healthy=well, reason="" if well else "GPU is lost")
        for index, well in enumerate(healthy)
    ]
    there = [placed(f"p{gpu.index}", "n", gpu, 4) for gpu in gpus]
    monkeypatch.setattr(
        pods, "read_cluster", lambda kubectl, node_name: Snapshot([node("n", "10.0.0.1", gpus)], there, [])
    )
    monkeypatch.setattr(pods, "read", lambda kubectl, nodes, ports: use)
    return pods.rows(Answers(), None).remarks


def test_a_node_whose_gpus_are_all_lost_is_not_reported_as_misconfigured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent = RealUse({}, {"n": NOT_LOOKED}, frozenset())
    lost = "GPU {} is out of service: GPU is lost"
    assert remarks(monkeypatch, silent, False) == (f"{UNKNOWN}n: {lost.format(0)}",)
    assert remarks(monkeypatch, silent, False, False) == (f"{UNKNOWN}n: {lost.format(0)}; {lost.format(1)}",)
    assert remarks(monkeypatch, silent, True, False) == (f"{UNKNOWN}n: {NOT_LOOKED}",), (
        "a GPU that is well would be asked"
    )
    away = RealUse({}, {"n": "it has no running node agent"}, frozenset())
    assert remarks(monkeypatch, away, False) == (f"{UNKNOWN}n: it has no running node agent",)


@pytest.mark.parametrize(
    ("complaint", "why"),
    [
        ("Error from server (Forbidden): no", "needs permission to get nodes/proxy"),
        ("no answer within 5 s", "no answer within 5 s"),
    ],
)
def test_only_a_refused_request_for_metrics_is_reported_as_a_lack_of_permission(
    complaint: str, why: str
) -> None:
    class Proxied:
        def __enter__(self) -> "Proxied":
            return self

        def __exit__(self, *_: object) -> None:
            """Nothing to stop."""

        def outcomes(self, paths: list[str], headers: object) -> list[bytes | KubectlFailed]:
            return [b"{}" if "/api/v1/pods?" in path else KubectlFailed(path, complaint) for path in paths]

    kubectl: Any = SimpleNamespace(proxied=Proxied)
    assert read(kubectl, ["n"], {"n": 9452}).silent == {
        "n": f"its node agent's metrics cannot be read ({why})"
    }


def test_usage_of_one_lost_gpu_among_others_is_reported_as_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = RealUse({}, {}, frozenset({"n"}))
    assert remarks(monkeypatch, looked, True, False) == (
        f"{UNKNOWN}GPU 1 of node n: it is out of service: GPU is lost",
    )
    real_use = RealUse({("default/p1", device(1).uuid): Use(5.0, 1.0)}, {}, frozenset({"n"}))
    assert remarks(monkeypatch, real_use, True, False) == ()
