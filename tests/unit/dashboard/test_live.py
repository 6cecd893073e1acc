"""What pages see of a cluster: sums, nodes, pods, search results, fragments, and events when something changes."""

import json
from typing import Any

import msgspec
import pytest

from gpushare.api import names
from gpushare.api.node.device import NodeDevices
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.pod_group import Gang
from gpushare.dashboard.data import details, fragmentation, pending
from gpushare.dashboard.data import history as histories
from gpushare.dashboard.data.heatmap import MAX_ROWS
from gpushare.dashboard.data.history import History, Sample
from gpushare.dashboard.data.pending import Waiting
from gpushare.dashboard.server.app import Query
from gpushare.httpserver.exchange import Refusal
from gpushare.ledger import Ledger
from gpushare.scheduler.cache.cache import NodeRecord
from tests.unit.dashboard.live_pages import Shown, described, exposed, gpu, holder, share, waiter
from tests.unit.dashboard.test_board import Page, read_snapshot


async def fetch(shown: Shown, path: str, **parameters: str) -> Any:
    return json.loads((await shown.live.answer(path, Query(parameters)))[1])


async def refused(shown: Shown, path: str, **parameters: str) -> tuple[int, str]:
    with pytest.raises(Refusal) as caught:
        await shown.live.answer(path, Query(parameters))
    return caught.value.status, caught.value.text


async def sent(shown: Shown, last: str) -> list[tuple[str, Any]]:
    page = shown.stream.listen(last)
    wire = await page.next(0.01)
    shown.stream.leave(page)
    assert wire is not None
    found = []
    for block in wire.decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        found.append((fields["event"], json.loads(fields["data"])))
    return found


async def shown_cluster() -> Shown:
    shown = Shown()
    shown.add(
        described("a", gpu("a", 0), gpu("a", 1), mode=NodeMode.CORE_MEM),
        described("b", gpu("b", 0, healthy=False, reason="XID 79")),
        holder("one", "a", share("a", 0, 3, 30), priority=5),
        waiter("big", 40),
    )
    await shown.live.tick()
    return shown


async def test_nothing_is_shown_before_everything_was_read() -> None:
    shown = Shown()
    for path in ("snapshot", "search", "history"):
        assert (await refused(shown, path, q=""))[0] == 503


async def test_a_page_that_loads_and_then_listens_misses_nothing() -> None:
    shown = await shown_cluster()
    raw = (await shown.live.answer("snapshot", Query({})))[1]
    header, _ = read_snapshot(raw)
    page = Page(raw)
    shown.add(holder("two", "a", share("a", 1, 2)))
    await shown.live.tick()
    for event, data in await sent(shown, header["id"]):
        if event == "delta":
            page.apply(data)
            totals = Sample(*data["totals"])
    assert page.seen()["a"]["allocated_mib"] == [3072, 2048]
    assert (totals.pods, totals.waiting, totals.allocated_mib) == (2, 1, 5120)


async def test_a_large_change_is_sent_in_parts_with_the_sums_in_the_last() -> None:
    shown = Shown()
    names = [f"n{number}" for number in range(3 * MAX_ROWS - 2)]
    shown.add(*(described(name, gpu(name, 0)) for name in names))
    await shown.live.tick()
    raw = (await shown.live.answer("snapshot", Query({})))[1]
    last, page = shown.stream.last_id, Page(raw)
    shown.remove(described(names[0], gpu(names[0], 0)))
    shown.add(
        *(described(name, gpu(name, 0, cordoned=True)) for name in names[1:]), described("new", gpu("new", 0))
    )
    await shown.live.tick()
    parts = [data for event, data in await sent(shown, last) if event == "delta"]
    rows = [sum(len(part.get(kind, ())) for kind in ("gone", "nodes", "real")) for part in parts]
    # The new node may take the slot of the removed one, which is then not sent as gone.
    assert rows in ([MAX_ROWS, MAX_ROWS, MAX_ROWS - 1], [MAX_ROWS, MAX_ROWS, MAX_ROWS - 2])
    assert ["more" in part for part in parts] == [True, True, False]
    assert ["totals" in part for part in parts] == [False, False, True]
    for part in parts:
        page.apply(part)
    assert page.seen() == Page((await shown.live.answer("snapshot", Query({})))[1]).seen()


async def test_compute_is_summed_over_gpus_that_count_it() -> None:
    shown = await shown_cluster()
    (sample,) = shown.history.samples()
    assert (sample.gpus, sample.core_gpus, sample.allocated_core) == (3, 2, 30)


async def test_nothing_is_sent_when_nothing_changed() -> None:
    shown = await shown_cluster()
    number = shown.stream.number
    for _ in range(5):
        await shown.clock.turn(0.5)
        await shown.live.tick()
    assert shown.stream.number == number
    await shown.clock.turn(5)
    await shown.live.tick()
    assert [event for event, _ in await sent(shown, f"e-{number}")] == ["sample"]


async def test_a_node_is_sent_with_its_gpus_their_pods_and_the_pods_usage() -> None:
    shown = await shown_cluster()
    shown.addresses["a"] = "10.0.0.1:9452"
    shown.http.responses["http://10.0.0.1:9452/metrics"] = exposed(one=(900, 25))
    node = await fetch(shown, "node", name="a")
    first, second = node["gpus"]
    assert (first["allocated_mib"], first["allocated_core"], first["used_mib"], first["busy_percent"]) == (
        3072,
        30,
        900,
        25,
    )
    assert [one["pod"] for one in first["pods"]] == ["default/one"]
    use = {"container": "main", "used_mib": 900, "busy_percent": 25, "limit_mib": 0}
    assert first["pods"][0]["containers"] == [use]
    assert (second["used_mib"], second["pods"]) == (-1, [])
    # Agents report only containers with processes on the GPU: on an idle GPU each share is idle.
    shown.http.responses["http://10.0.0.1:9452/metrics"] = b"\n".join(
        (
            b'gpushare_gpu_memory_used_bytes{UUID="GPU-a-0"} 0',
            b'gpushare_gpu_utilization_ratio{UUID="GPU-a-0"} 0',
        )
    )
    await shown.clock.turn(60)
    (share_of_idle,) = (await fetch(shown, "node", name="a"))["gpus"][0]["pods"]
    assert share_of_idle["containers"] == [
        {"container": "", "used_mib": 0, "busy_percent": 0, "limit_mib": 0}
    ]
    other = await fetch(shown, "node", name="b")
    assert (other["gpus"][0]["healthy"], other["gpus"][0]["reason"]) == (False, "XID 79")
    assert "no node agent" in other["usage_unknown"]
    assert (await refused(shown, "node", name="c"))[0] == 404


async def test_a_share_of_a_missing_gpu_is_listed_separately() -> None:
    shown = await shown_cluster()
    shown.add(holder("lost", "a", share("a", 7, 2)))
    node = await fetch(shown, "node", name="a")
    assert [one["pod"] for one in node["pending"]] == ["default/lost"]


async def test_allocated_and_pending_pods_are_sent() -> None:
    shown = await shown_cluster()
    pod = await fetch(shown, "pod", key="default/one")
    assert (pod["node"], pod["priority"], [one["mib"] for one in pod["shares"]]) == ("a", 5, [3072])
    waiting = await fetch(shown, "pod", key="default/big")
    assert (waiting["node"], waiting["asks"], waiting["shares"]) == (
        "",
        "aliyun.com/gpu-mem: 40 (40 GiB)",
        [],
    )
    assert (await refused(shown, "pod", key="default/none"))[0] == 404
    shown.remove(waiter("big", 40))
    assert (await refused(shown, "pod", key="default/big"))[0] == 404


async def test_a_pods_share_of_a_broken_gpu_is_marked() -> None:
    shown = await shown_cluster()
    shown.add(holder("hurt", "b", share("b", 0, 2)))
    for key, expected in (("default/hurt", (False, "XID 79")), ("default/one", (True, ""))):
        (its,) = (await fetch(shown, "pod", key=key))["shares"]
        assert (its["healthy"], its["reason"]) == expected
        (its,) = (await fetch(shown, "node", name=its["uuid"].split("-")[1]))["gpus"][0]["pods"]
        assert (its["healthy"], its["reason"]) == expected, "its node's page shows the same"


async def test_memory_that_is_used_without_an_allocation_is_sent_with_its_user() -> None:
    shown = await shown_cluster()
    shown.add(described("k", gpu("k", 0, foreign_mib=9024, foreign_by="process 4711 (in no pod)")))
    (its,) = (await fetch(shown, "node", name="k"))["gpus"]
    assert (its["foreign_mib"], its["foreign_by"]) == (9024, "process 4711 (in no pod)")


async def test_a_gpu_that_a_pod_holds_whole_is_shown_as_healthy() -> None:
    shown = await shown_cluster()
    why = "held whole by pod default/whole until it ends"
    shown.add(described("k", gpu("k", 0, healthy=False, kept_back=True, reason=why)))
    shown.add(holder("whole", "k", share("k", 0, 16)))
    (its,) = (await fetch(shown, "node", name="k"))["gpus"]
    assert (its["healthy"], its["reason"], its["pods"][0]["healthy"]) == (True, why, True)
    (share_of_it,) = (await fetch(shown, "pod", key="default/whole"))["shares"]
    assert (share_of_it["healthy"], share_of_it["reason"]) == (True, "")


async def test_a_placed_pod_is_sent_with_its_request() -> None:
    shown = await shown_cluster()
    for name, amounts, shares in (
        ("one", {names.GPU_MEM: 3000, names.GPU_CORE: 30000}, [share("a", 0, 3, 30)]),
        ("two", {names.GPU_MEM: 4000}, [share("a", 0, 2), share("a", 1, 2)]),
        ("whole", {names.GPU_WHOLE: 2000, "cpu": 500}, [share("a", 0, 16), share("a", 1, 16)]),
        ("card", {names.GPU_MEM: 16000}, [share("a", 1, 16)]),
        ("none", {}, [share("a", 0, 2)]),
    ):
        shown.add(holder(name, "a", *shares, amounts=amounts, whole_device=name == "card"))
    requests = {
        name: (await fetch(shown, "pod", key=f"default/{name}"))["asks"]
        for name in ("one", "two", "whole", "card", "none")
    }
    assert requests == {
        "one": "aliyun.com/gpu-mem: 3 (3 GiB), aliyun.com/gpu-core.percentage: 30",
        "two": "aliyun.com/gpu-mem: 4 (4 GiB), of 2 GPUs together",
        "whole": "aliyun.com/gpu: 2",
        "card": "aliyun.com/gpu-mem: 16 (16 GiB), ack.gpushare.placement: require-whole-device",
        "none": "",
    }


async def test_a_placed_pod_is_sent_with_whether_its_share_is_enforced() -> None:
    shown = await shown_cluster()
    assert (await fetch(shown, "pod", key="default/big"))["not_held"] == ""
    shown.add(described("a", gpu("a", 0), gpu("a", 1)))
    assert (await fetch(shown, "pod", key="default/one"))["not_held"] == (
        "mode share does not enforce shares"
    )
    held = described("a", gpu("a", 0), gpu("a", 1), mode=NodeMode.CGPU)
    shown.add(held)
    assert (await fetch(shown, "pod", key="default/one"))["not_held"] == ""
    off = msgspec.structs.replace(held.devices, isolation="none: it is switched off")
    shown.add(msgspec.structs.replace(held, devices=off))
    assert (await fetch(shown, "pod", key="default/one"))["not_held"] == "it is switched off"


async def test_a_pending_pod_is_sent_with_reason_and_suggestion() -> None:
    shown = await shown_cluster()

    async def why() -> tuple[str, str, str]:
        await shown.clock.turn(pending.FRESH_S)
        pod = await fetch(shown, "pod", key="default/big")
        return pod["reason"], pod["suggestion"], pod["reason_unknown"]

    big = Waiting("default/big", 5.0, "40", "memory", "no GPU is so large", "ask for less")
    other = [Waiting(f"default/p{n}", 1.0, "1", "memory", "no", "") for n in range(pending.MOST_SHOWN)]
    url = "http://scheduler/gpushare/decisions"
    assert "cannot be asked" in (await why())[2]
    shown.http.responses[url] = msgspec.json.encode(other)
    shown.http.responses[f"{url}/default/big"] = None
    assert await why() == ("", "", ""), "the scheduler does not have it yet"
    shown.http.responses[url] = msgspec.json.encode([big])
    assert await why() == ("no GPU is so large", "ask for less", "")
    # After the pods that are shown.
    shown.http.responses[url] = msgspec.json.encode([*other, big])
    assert await why() == ("", "", "")
    shown.http.responses[f"{url}/default/big"] = b'{"state":"waiting","waiting":%s}' % msgspec.json.encode(
        big
    )
    requests = len(shown.http.requested)
    assert await why() == ("no GPU is so large", "ask for less", "")
    await fetch(shown, "pod", key="default/big")
    assert len(shown.http.requested) == requests + 3, "the line, in both ways, and the pod, once each"
    shown.http.responses[f"{url}/default/big"] = b"{"
    assert "of another version" in (await why())[2]
    del shown.http.responses[f"{url}/default/big"]
    assert "no such server" in (await why())[2]


async def test_a_pod_of_the_same_name_replaces_the_one_before() -> None:
    shown = await shown_cluster()
    recreated = waiter("one", 1)
    shown.add(recreated.__class__("uid-again", recreated.pod, "", False, request=recreated.request))
    shown.remove(holder("one", "a", share("a", 0, 3, 30)))
    assert (await fetch(shown, "pod", key="default/one"))["uid"] == "uid-again"
    finished = recreated.__class__("uid-again", recreated.pod, "", True, request=recreated.request)
    shown.add(finished)
    assert (await refused(shown, "pod", key="default/one"))[0] == 404
    shown.add(finished)
    bystander = recreated.__class__(
        "uid-by", "default/by", "", False, gang=Gang("default/g", 2), bystander=True
    )
    shown.add(bystander)
    shown.remove(bystander)


async def test_searches_find_nodes_pods_and_gpus() -> None:
    shown = await shown_cluster()
    kinds = [(one["kind"], one["name"]) for one in await fetch(shown, "search", q="GPU-A")]
    assert kinds == [("gpu", "GPU-a-0"), ("gpu", "GPU-a-1")]
    assert [one["note"] for one in await fetch(shown, "search", q="default/")] == ["pending", "on a"]
    assert (await fetch(shown, "search", q="b"))[0]["kind"] == "node"
    assert await fetch(shown, "search", q=" ") == []


async def test_many_search_results_include_each_kind() -> None:
    shown = Shown()
    for number in range(100):
        shown.add(described(f"x{number}", gpu(f"x{number}", 0)))
        shown.add(waiter(f"x{number}", 1))
    await shown.live.tick()
    found = await fetch(shown, "search", q="x")
    assert {one["kind"] for one in found} == {"node", "pod"}
    assert len(found) <= details.MAX_FOUND


async def test_requests_of_pending_pods_are_shown_in_gib_where_all_nodes_have_the_same_unit() -> None:
    shown = await shown_cluster()
    url = "http://scheduler/gpushare/decisions"
    big = Waiting("default/big", 5.0, "aliyun.com/gpu-mem: 40", "memory", "no", "", uid="uid-big")
    other = msgspec.structs.replace(big, key="default/not-seen-here", uid="uid-other")
    shown.http.responses[url] = msgspec.json.encode([big, other])

    async def requests() -> list[str]:
        return [one["asks"] for one in (await fetch(shown, "waiting"))["pods"]]

    assert await requests() == ["aliyun.com/gpu-mem: 40 (40 GiB)", "aliyun.com/gpu-mem: 40"]
    small = NodeDevices("small", NodeMode.SHARE, MemoryUnit.MIB_128, (gpu("small", 0),))
    shown.add(NodeRecord(small, ""))
    await shown.live.tick()
    assert await requests() == ["aliyun.com/gpu-mem: 40", "aliyun.com/gpu-mem: 40"]
    assert (await fetch(shown, "pod", key="default/big"))["asks"] == "aliyun.com/gpu-mem: 40"


async def test_fragments_are_sent_with_the_pods_that_would_have_to_move() -> None:
    shown = Shown()
    shown.add(
        described("a", gpu("a", 0), gpu("a", 1)),
        holder("one", "a", share("a", 0, 10)),
        holder("two", "a", share("a", 1, 4)),
        waiter("fits", 6),
        waiter("moves", 14),
        waiter("never", 17),
        waiter("several", 2, gpu_count=2),
    )
    await shown.live.tick()
    report = await fetch(shown, "fragmentation")
    ways = {one["pod"].partition("/")[2]: one for one in report["ways"]}
    assert (report["free_mib"], report["free_gpus"], report["largest_mib"]) == (18432, 2, 12288)
    assert report["pieces"][0] == {"mib": 1024, "gpus": 2, "pods": 18}
    assert "it fits" in ways["fits"]["note"]
    assert ways["moves"]["moves"] == ["default/two (4 GiB) from GPU 1 of a to GPU 0 of a"]
    assert "no move" in ways["never"]["note"]
    assert "not examined" in ways["several"]["note"]
    assert await fetch(shown, "fragmentation") == report


async def test_a_pod_that_would_fit_once_another_moved_is_sent_with_that_move() -> None:
    shown = Shown()
    shown.add(
        described("a", gpu("a", 0), gpu("a", 1)),
        holder("one", "a", share("a", 0, 4)),
        holder("two", "a", share("a", 1, 4)),
        waiter("wide", 14),
    )
    await shown.live.tick()
    [way] = (await fetch(shown, "fragmentation"))["ways"]
    assert way["goes_to"] == "GPU 0 of a"
    assert way["moves"] == ["default/one (4 GiB) from GPU 0 of a to GPU 1 of a"]


async def test_other_reasons_than_capacity_are_sent_next_to_a_pods_moves() -> None:
    shown = Shown()
    shown.add(
        described("a", gpu("a", 0), gpu("a", 1)),
        holder("one", "a", share("a", 0, 4)),
        holder("two", "a", share("a", 1, 4)),
        waiter("wide", 14),
        waiter("gated", 2),
        waiter("room", 15),
    )
    gates = "scheduling gates block it: example.com/wait"
    shown.http.responses["http://scheduler/gpushare/decisions"] = msgspec.json.encode(
        [
            Waiting("default/wide", 1.0, "", "quota", "elastic quota a: its max of 4 is used up", ""),
            Waiting("default/gated", 2.0, "", "gates", gates, ""),
            Waiting("default/room", 3.0, "", "memory", "no single GPU has 15 GiB free", ""),
        ]
    )
    await shown.live.tick()
    ways = {one["pod"].partition("/")[2]: one for one in (await fetch(shown, "fragmentation"))["ways"]}
    assert len(ways["wide"]["moves"]) == 1
    assert ways["wide"]["note"] == ("something else blocks it, too: elastic quota a: its max of 4 is used up")
    assert ways["gated"]["note"] == f"it fits: something else blocks it: {gates}"
    assert (len(ways["room"]["moves"]), ways["room"]["note"]) == (1, "")


async def test_pending_pods_that_are_not_examined_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragmentation, "MAX_EXAMINED", 1)
    shown = Shown()
    shown.add(described("a", gpu("a", 0)), waiter("x", 20), waiter("y", 20))
    await shown.live.tick()
    report = await fetch(shown, "fragmentation")
    assert (len(report["ways"]), report["not_looked_at"]) == (1, 1)


def test_fragments_are_none_before_anything_arrived() -> None:
    assert Ledger().fragments_mib() == 0


async def test_memory_that_no_pod_of_the_mix_could_use_counts_as_fragments() -> None:
    shown = Shown()
    shown.add(described("a", gpu("a", 0), gpu("a", 1)), waiter("x", 10))
    assert shown.cluster.ledger.fragments_mib() == 0
    shown.add(holder("one", "a", share("a", 0, 10)))
    # The mix has two pods with 10 units each: the 6 that are left on GPU 0 are enough for neither.
    assert shown.cluster.ledger.fragments_mib() == 6 * 1024
    shown.add(described("b", gpu("b", 0, healthy=False)), described("c", gpu("c", 0), refusal="away"))
    assert shown.cluster.ledger.fragments_mib() == 6 * 1024


async def test_pending_pods_are_pushed_when_they_change() -> None:
    shown = await shown_cluster()
    number = shown.stream.number
    url = "http://scheduler/gpushare/decisions"
    shown.http.responses[url] = (
        b'[{"key":"default/big","since":5.0,"asks":"40","category":"memory","reason":"no","suggestion":"less"}]'
    )
    await shown.live.send_pending()
    await shown.live.send_pending()
    assert await sent(shown, f"e-{number}") == [
        ("waiting", {"count": 1, "problem": "", "by_category": {"memory": 1}, "kept": []})
    ]
    line = await fetch(shown, "waiting")
    assert line["pods"][0]["reason"] == "no"


async def test_without_a_scheduler_pending_pods_are_shown_without_reasons() -> None:
    shown = await shown_cluster()
    line = await fetch(shown, "waiting")
    assert "cannot be asked" in line["problem"]
    assert [(one["key"], one["reason"], one["since"]) for one in line["pods"]] == [
        ("default/big", "", 1767323045.0)
    ]
    shown.add(waiter("odd").__class__("uid-odd", "default/odd", "", False, problem="7% is no multiple of 5"))
    [odd, _] = (await fetch(shown, "waiting"))["pods"]
    assert (odd["reason"], odd["since"], odd["asks"]) == ("7% is no multiple of 5", 0.0, "")


async def test_the_schedulers_record_is_forwarded_or_the_reason_why_not() -> None:
    shown = await shown_cluster()
    assert (await refused(shown, "decision", pod="default/big"))[0] == 502
    url = "http://scheduler/gpushare/decisions/default/big/nodes"
    shown.http.responses[url] = None
    assert (await refused(shown, "decision", pod="default/big"))[0] == 404
    shown.http.responses[url] = b'{"said":"x"}'
    assert await fetch(shown, "decision", pod="default/big") == {"said": "x"}
    assert (await refused(shown, "nothing"))[0] == 404


async def test_history_is_bounded_and_keeps_the_newest_and_the_whole_span() -> None:
    history = History(step_s=1.0, most=10)
    now_s = 0.0
    for number in range(200):
        now_s += 1.0
        if history.due(now_s):
            history.add(Sample(number, *[0] * 9), now_s)
    samples = history.samples()
    assert len(samples) <= 10
    assert samples[0].at_s < 32
    assert samples[-1].at_s > 150
    assert history.step_s >= 16
    assert [one.at_s for one in samples] == sorted(one.at_s for one in samples)
    assert histories.MOST_SAMPLES >= 1000
    shown = await shown_cluster()
    assert len((await fetch(shown, "history"))["samples"]) == 1
