"""Lists by page and watches over HTTP: versions, bookmarks, initial events, selectors, and 410."""

import asyncio
import contextlib
import json

import aiohttp
import pytest

from gpushare_playground.apiserver import ApiServer

MAPS = "/api/v1/namespaces/default/configmaps"
MERGE = "application/merge-patch+json"


async def add(api, name, **labels):
    body = {"metadata": {"name": name, "labels": labels}}
    return await api("POST", MAPS, body, code=201)


async def relabel(api, name, **labels):
    return await api("PATCH", f"{MAPS}/{name}", {"metadata": {"labels": labels}}, media=MERGE, code=200)


async def test_pages_show_the_state_at_the_first_page(api):
    for number in range(5):
        await add(api, f"c{number}")
    first = await api("GET", MAPS, limit="2")
    assert (first["metadata"]["remainingItemCount"], len(first["items"])) == (3, 2)
    await add(api, "c00")
    await api("DELETE", f"{MAPS}/c3", code=200)
    second = await api("GET", MAPS, **{"limit": "2", "continue": first["metadata"]["continue"]})
    third = await api("GET", MAPS, **{"limit": "2", "continue": second["metadata"]["continue"]})
    names = [one["metadata"]["name"] for page in (first, second, third) for one in page["items"]]
    assert names == ["c0", "c1", "c2", "c3", "c4"]
    assert "continue" not in third["metadata"]
    assert {page["metadata"]["resourceVersion"] for page in (first, second, third)} == {
        first["metadata"]["resourceVersion"]
    }


async def test_a_continue_token_that_is_too_old_is_gone(api, server):
    for number in range(3):
        await add(api, f"c{number}")
    first = await api("GET", MAPS, limit="1")
    server.store.forget("configmaps")
    answer = await api("GET", MAPS, **{"limit": "1", "continue": first["metadata"]["continue"]}, code=410)
    assert answer["reason"] == "Expired"
    assert "The provided continue parameter is too old" in answer["message"]
    await api("GET", MAPS, **{"continue": "nonsense"}, code=400)


async def test_a_watch_continues_from_a_lists_version(api, next_event):
    await add(api, "before")
    version = (await api("GET", MAPS))["metadata"]["resourceVersion"]
    async with api.watch(MAPS, resourceVersion=version) as watch:
        await add(api, "after")
        await relabel(api, "after", x="y")
        await api("DELETE", f"{MAPS}/after", code=200)
        events = [await next_event(watch) for _ in range(3)]
    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(set(versions))
    assert events[2]["object"]["metadata"]["labels"] == {"x": "y"}


async def test_a_watch_without_version_begins_with_existing_objects(api, next_event):
    await add(api, "one")
    async with api.watch(MAPS) as watch:
        assert (await next_event(watch))["object"]["metadata"]["name"] == "one"


async def test_a_streamed_list_ends_with_its_bookmark(api, next_event):
    await add(api, "one")
    await add(api, "two")
    query = {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
    }
    async with api.watch(MAPS, **query) as watch:
        events = [await next_event(watch) for _ in range(3)]
    assert [event["type"] for event in events] == ["ADDED", "ADDED", "BOOKMARK"]
    metadata = events[2]["object"]["metadata"]
    assert metadata["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert int(metadata["resourceVersion"]) >= int(events[1]["object"]["metadata"]["resourceVersion"])
    answer = await api("GET", MAPS, watch="true", sendInitialEvents="true", code=422)
    assert "sendInitialEvents requires setting resourceVersionMatch" in answer["message"]


async def test_a_watch_sends_bookmarks_and_ends_in_time(tmp_path, api_of, next_event):
    query = {"allowWatchBookmarks": "true", "resourceVersion": "1"}
    async with ApiServer(tmp_path / "quick", bookmark_s=0.05) as server, api_of(server) as api:
        async with api.watch(MAPS, **query) as watch:
            events = [await next_event(watch)]
            await api("POST", "/api/v1/namespaces", {"metadata": {"name": "x"}}, code=201)
            expected = str(server.store.revision)
            while events[-1]["object"]["metadata"]["resourceVersion"] != expected:
                events.append(await next_event(watch))
        async with api.watch(MAPS, **query, timeoutSeconds="1") as watch:
            events += [json.loads(line) async for line in watch.content]
    assert {event["type"] for event in events} == {"BOOKMARK"}
    assert events[-1]["object"]["metadata"]["resourceVersion"] == expected


async def test_a_watch_with_a_selector_reports_objects_that_start_and_stop_matching(api, next_event):
    await add(api, "a")
    version = (await api("GET", MAPS))["metadata"]["resourceVersion"]
    async with api.watch(MAPS, resourceVersion=version, labelSelector="tier=x") as watch:
        await relabel(api, "a", other="1")
        await relabel(api, "a", tier="x")
        await relabel(api, "a", more="2")
        left = await relabel(api, "a", tier="y")
        events = [await next_event(watch) for _ in range(3)]
    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    assert events[2]["object"]["metadata"]["labels"]["tier"] == "x"
    assert events[2]["object"]["metadata"]["resourceVersion"] == left["metadata"]["resourceVersion"]


async def test_a_watch_by_name_and_one_of_pods_by_node(api, make_pod, next_event):
    pods = "/api/v1/namespaces/default/pods"
    async with (
        api.watch("/api/v1/pods", fieldSelector="spec.nodeName=n1") as node_pods,
        api.watch(pods, fieldSelector="metadata.name=b", resourceVersion="1") as pod_b,
    ):
        await api("POST", pods, make_pod("a"), code=201)
        await api("POST", pods, make_pod("b"), code=201)
        await api("POST", f"{pods}/a/binding", {"target": {"name": "n1"}}, code=201)
        seen = await next_event(node_pods)
        assert (seen["type"], seen["object"]["metadata"]["name"]) == ("ADDED", "a")
        assert (await next_event(pod_b))["object"]["metadata"]["name"] == "b"


async def test_a_watch_from_before_the_history_gets_410_gone(tmp_path, api_of, next_event):
    async with ApiServer(tmp_path / "short", history=10) as server, api_of(server) as api:
        for number in range(25):
            await add(api, f"c{number}")
        async with api.watch(MAPS, resourceVersion="2") as watch:
            event = await next_event(watch)
    assert event["type"] == "ERROR"
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
    assert event["object"]["message"].startswith("too old resource version: 2 (")


async def test_a_version_from_the_future_is_refused(api):
    answer = await api("GET", MAPS, resourceVersion="99999", code=504)
    assert answer["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
    await api("GET", MAPS, watch="true", resourceVersion="99999", code=504)
    await api("GET", MAPS, resourceVersion="abc", code=400)


@pytest.mark.parametrize("selector", ["a=", "a in b", "=b", "a=b=c", "a,,b", "!", "a in (b", "a>x"])
async def test_malformed_label_selectors_are_refused_except_empty_values(api, selector):
    code = 200 if selector == "a=" else 400
    await api("GET", MAPS, labelSelector=selector, code=code)


async def test_all_watchers_see_the_same_order(api, next_event):
    version = (await api("GET", MAPS))["metadata"]["resourceVersion"]

    async def follow():
        async with api.watch(MAPS, resourceVersion=version) as watch:
            return [(await next_event(watch))["object"]["metadata"]["name"] for _ in range(20)]

    followers = [asyncio.ensure_future(follow()) for _ in range(5)]
    await asyncio.gather(*(add(api, f"c{number}") for number in range(20)))
    seen = await asyncio.gather(*followers)
    assert all(one == seen[0] for one in seen)
    assert len(set(seen[0])) == 20


async def test_stopping_ends_open_watches(tmp_path, api_of):
    server = ApiServer(tmp_path / "stopping")
    await server.start()
    async with asyncio.timeout(10), api_of(server) as api, api.watch(MAPS) as watch:
        await server.stop()
        # Closed with an error or without one, but closed.
        with contextlib.suppress(aiohttp.ClientError):
            assert await watch.content.read() == b""
