"""One search over the logs of all processes shows the way of one pod."""

import json

import pytest

from gpushare_playground.cluster.real import RealControl
from tests.integration.whole.seen import node_of
from tests.integration.whole.world import PODS, World, gpu_pod, shared_node, until, world

NODES = (shared_node("first", "t4"), shared_node("second", "v100-16384"))


def lines_of(seen: World, uid: str) -> list[str]:
    """``grep -h request=UID *.log | sort``."""
    return sorted(
        line for log in seen.logs().values() for line in log.splitlines() if f"request={uid}" in line
    )


def whole_lines(seen: World, part: str) -> list[dict[str, str]]:
    """What a part has logged as JSON; not a line that is just being written."""
    return [json.loads(line) for line in seen.logs()[part].rpartition("\n")[0].splitlines()]


async def test_one_search_shows_a_pods_way_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSHARE_LOG_LEVEL", "debug")
    async with world(*NODES) as seen:
        pod = gpu_pod("nameless", 3)
        del pod["metadata"]["name"]
        made = json.loads(
            await seen.session.request(
                "POST", PODS, body=json.dumps(pod | {"metadata": {"generateName": "way-"}}).encode()
            )
        )["metadata"]
        await seen.run_all(made["name"])
        key, node = f"default/{made['name']}", node_of(seen.pod(made["name"]))
        # Policies of a real API server log nothing; ours says what the webhook would.
        admitted = [] if isinstance(seen.cluster.control, RealControl) else [f"pod {key}: admitted for "]
        wanted = [
            *admitted,
            f"pod {key}: waits for ack-co-scheduler, asks for aliyun.com/gpu-mem: 3",
            f"pod {key}: filter: 2 of 2 nodes fit",
            f"pod {key}: prioritize: ",
            f"pod {key}: bound to node {node}: 3 units of GPU 0",
            f"pod {key}, container main: allocated 3 units of GPU 0",
            f"pod {key} is running",
        ]

        async def all_told() -> list[str]:
            told = lines_of(seen, made["uid"])
            return told if len(told) >= len(wanted) else []

        told = await until(all_told, "the whole way is logged", tell=lambda: lines_of(seen, made["uid"]))
        assert len(told) == len(wanted), told
        # The API server binds before its answer is here: a quick agent may be done before the bind is told.
        at = [next((i for i, line in enumerate(told) if words in line), -1) for words in wanted]
        assert sorted(at) == list(range(len(wanted))), (at, told)
        # Our watch and kube-scheduler's are told of the pod at once: its first question may be here before.
        seen_first = at.pop(len(admitted))
        assert at[: len(admitted)] < [seen_first] < [at[-3]], (at, told)
        assert [at[:-2], at[-2:]] == [sorted(at[:-2]), sorted(at[-2:])], (at, told)
        # Nobody else's lines carry it.
        assert all(key in line for line in told)
        await seen.delete_all()
        seen.assert_sound()


async def test_without_debug_a_cycle_is_not_told_and_a_bind_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSHARE_LOG_FORMAT", "json")
    async with world(*NODES[:1]) as seen:
        await seen.create(gpu_pod("waits", 40), gpu_pod("goes", 3))
        await seen.run_all("goes")
        uid = seen.pod("goes")["metadata"]["uid"]

        async def bound_told() -> list[dict[str, str]]:
            # The API server binds before its answer is with the extender: the pod may run before that is told.
            told = whole_lines(seen, "extender")
            return told if sum(one.get("request") == uid for one in told) >= 2 else []

        extender = await until(bound_told, "the bind is told")
        assert all({"ts", "level", "msg"} <= one.keys() and one["role"] == "scheduler" for one in extender)
        first, bound = [one for one in extender if one.get("request") == uid]
        assert (first["pod"], first["msg"]) == (
            "default/goes",
            "pod default/goes: waits for ack-co-scheduler, asks for aliyun.com/gpu-mem: 3",
        )
        assert (bound["pod"], bound["uid"], bound["node"], bound["level"]) == (
            "default/goes",
            uid,
            "first",
            "info",
        )

        async def runs() -> list[dict[str, str]]:
            agent = whole_lines(seen, "node-agent-first")
            return [one for one in agent if one.get("uid") == uid and one["msg"].endswith(" runs")]

        (line,) = await until(runs, "the agent says that the pod runs")
        assert (line["role"], line["node"], line["pod"]) == ("node-agent", "first", "default/goes")
        waits = seen.pod("waits")["metadata"]["uid"]
        assert [one["msg"] for one in extender if one.get("request") == waits] == [
            "pod default/waits: waits for ack-co-scheduler, asks for aliyun.com/gpu-mem: 40"
        ]
        await seen.delete_all()
        seen.assert_sound()
