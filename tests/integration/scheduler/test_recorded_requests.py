"""What kube-scheduler's own code sent, of the oldest version and of the newest, is answered over HTTP.

The bodies are recorded: see ``recording/SOURCES.md``.
"""

import asyncio

from tests.integration.scheduler.replaying import CASES, every_recording, every_version, replaying


@every_version
@every_recording
async def test_a_share_several_gpus_and_a_whole_one_are_filtered_ranked_and_bound(
    version: str, form: str
) -> None:
    async with replaying(version, form) as replay:
        for case, shares in (
            ("single-share", [(0, 3)]),
            ("several-gpus", [(0, 4), (1, 4)]),
            ("whole-gpu", [(2, 15)]),
        ):
            assert await replay.fits(case) == ["four"]
            ranked = await replay.send(case, "prioritize")
            assert all(one.keys() == {"Host", "Score"} and 0 <= one["Score"] <= 10 for one in ranked)
            assert await replay.send(case, "bind") == {"Error": ""}
            assert replay.shares(case) == shares


@every_version
@every_recording
async def test_a_gang_is_bound_when_its_last_pod_comes(version: str, form: str) -> None:
    async with replaying(version, form) as replay:
        for case in ("gang-first", "gang-second"):
            assert await replay.fits(case) == ["four"]
            await replay.send(case, "prioritize")
        answers = await asyncio.gather(
            *(replay.send(f"gang-{which}", "bind") for which in ("first", "second"))
        )
        assert answers == [{"Error": ""}] * 2
        assert replay.shares("gang-first") == replay.shares("gang-second") == [(0, 4)]


@every_version
@every_recording
async def test_victims_are_told_as_they_were_named(version: str, form: str) -> None:
    async with replaying(version, form) as replay:
        assert await replay.fits("preemption") == ["four"]
        victim = CASES["cases"][-1]["victims"]["single"][0]["metadata"]["uid"]
        sent = replay.body("preemption", "preempt")
        by_node = sent["NodeNameToMetaVictims"] if form == "names" else sent["NodeNameToVictims"]
        # 1.22 sends 0 of them where it tells victims by UID, whatever it counted; 1.36 sends what it counted.
        violations = by_node["single"]["NumPDBViolations"]
        assert await replay.send("preemption", "preempt") == {
            "NodeNameToMetaVictims": {"single": {"Pods": [{"UID": victim}], "NumPDBViolations": violations}}
        }
