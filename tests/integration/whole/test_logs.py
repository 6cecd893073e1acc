"""One search over the logs of all processes shows the way of one pod."""

import json

import pytest

from gpushare_playground.cluster.real import RealControl
from tests.integration.whole.cluster import node_of
from tests.integration.whole.world import PODS, World, gpu_pod, shared_node, until, world

NODES = (shared_node("first", "t4"), shared_node("second", "v100-16384"))


def lines_of(cluster: World, uid: str) -> list[str]:
    """``grep -h request=UID *.log | sort``."""
    return sorted(
        line for log in cluster.logs().values() for line in log.splitlines() if f"request={uid}" in line
    )


async def test_one_search_shows_a_pods_way_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSHARE_LOG_LEVEL", "debug")
    async with world(*NODES) as cluster:
        pod = gpu_pod("nameless", 3)
        del pod["metadata"]["name"]
        made = json.loads(
            await cluster.session.request(
                "POST", PODS, body=json.dumps(pod | {"metadata": {"generateName": "way-"}}).encode()
            )
        )["metadata"]
        await cluster.run_all(made["name"])
        key, node = f"default/{made['name']}", node_of(cluster.pod(made["name"]))
        # Policies of a real API server log nothing; ours log what the webhook would.
        admitted = (
            [] if isinstance(cluster.playground.control, RealControl) else [f"pod {key}: admitted for "]
        )
        wanted = [
            *admitted,
            f"pod {key}: pending for ack-co-scheduler, requests aliyun.com/gpu-mem: 3",
            f"pod {key}: filter: 2 of 2 nodes fit",
            f"pod {key}: prioritize: ",
            f"pod {key}: bound to node {node}: 3 units of GPU 0",
            f"pod {key}, container main: allocated 3 units of GPU 0",
            f"pod {key} is running",
        ]

        async def all_logged() -> list[str]:
            logged = lines_of(cluster, made["uid"])
            return logged if len(logged) >= len(wanted) else []

        logged = await until(
            all_logged, "the whole way is logged", detail=lambda: lines_of(cluster, made["uid"])
        )
        assert len(logged) == len(wanted), logged
        # The API server binds before its response arrives: a quick agent may be done before the bind is logged.
        at = [next((i for i, line in enumerate(logged) if text in line), -1) for text in wanted]
        assert sorted(at) == list(range(len(wanted))), (at, logged)
        # Our watch and kube-scheduler's get the pod at the same time: its first request may arrive earlier.
        watched = at.pop(len(admitted))
        assert at[: len(admitted)] < [watched] < [at[-3]], (at, logged)
        assert [at[:-2], at[-2:]] == [sorted(at[:-2]), sorted(at[-2:])], (at, logged)
        # No other component's lines carry it.
        assert all(key in line for line in logged)
        await cluster.delete_all()
        cluster.assert_sound()
