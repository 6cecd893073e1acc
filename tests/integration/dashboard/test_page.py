"""The page in a real Chromium: login, clicks, live updates, lost connections, keys, themes, search."""

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, Route, expect

from benchmarks.api_server import node_name
from tests.integration.dashboard.bed import TOKEN, Bed, bed, looking

pytestmark = pytest.mark.asyncio(loop_scope="session")

WAITS = {
    "key": "default/pod-60",
    "uid": "u",
    "since": 1767225600.0,
    "asks": "3 GiB",
    "category": "memory",
    "reason": "no GPU has 3 units free <img src=x onerror=alert(1)>",
    "suggestion": "free 3 units on one GPU",
}


#: How many cells of each row were there when they were marked.
KEPT = "[...document.querySelectorAll('main tbody tr')].map((row) => [...row.cells].filter((one) => one.drawn).length)"


async def test_nothing_is_shown_without_the_token(window: Browser, made: Bed) -> None:
    async with looking(window, made, log_in=False) as look:
        page = look.page
        await expect(page.get_by_role("dialog")).to_be_visible()
        await page.keyboard.press("Escape")
        await page.get_by_label("Token").fill("not the token at all")
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("alert")).to_have_text("Wrong token.")
        assert await page.locator("canvas").count() == 0
        await page.get_by_label("Token").fill(TOKEN)
        await page.keyboard.press("Enter")
        await look.tile("GPUs", "160")
        [cookie] = await page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert TOKEN not in cookie["value"]
        await page.reload()
        await look.tile("GPUs", "160")
        await page.get_by_role("button", name="Log out").click()
        await expect(page.get_by_role("dialog")).to_be_visible()


async def test_a_wrong_token_in_the_address_is_reported(window: Browser, made: Bed) -> None:
    async with looking(window, made, log_in=False) as look:
        await look.page.goto("about:blank")
        await look.page.goto(f"{made.url}#token=%E0%A4%A")
        await expect(look.page.get_by_role("dialog")).to_be_visible()
        await expect(look.page.get_by_role("alert")).to_have_text("Wrong token.")


async def test_the_login_accepts_the_address_that_contains_the_token(window: Browser, made: Bed) -> None:
    async with looking(window, made, log_in=False) as look:
        await expect(look.page.get_by_role("dialog")).to_be_visible()
        await look.page.goto(f"{made.url}#token={TOKEN}")
        await look.tile("GPUs", "160")
        await expect(look.page.get_by_role("dialog")).to_be_hidden()


async def test_a_token_in_the_address_is_used_and_removed_from_it(window: Browser, made: Bed) -> None:
    async with looking(window, made) as look:
        await look.tile("GPUs", "160")
        assert TOKEN not in look.page.url
        assert not any(TOKEN in url for url in look.requests)


async def test_clicks_lead_from_cluster_to_node_gpu_and_pod_and_back(window: Browser, made: Bed) -> None:
    async with looking(window, made) as look:
        page = look.page
        await look.tile("GPUs", "160")
        await page.locator("canvas").click(position={"x": 10, "y": 30})
        await expect(page.get_by_role("heading", name="GPU 0", exact=True)).to_be_visible()
        await (
            page.get_by_role("navigation", name="Breadcrumbs").get_by_role("link", name=node_name(0)).click()
        )
        await expect(page.get_by_role("heading", name=node_name(0))).to_be_visible()
        await page.get_by_role("link", name="GPU 0", exact=True).click()
        pod = page.get_by_role("link", name=re.compile(r"pod-\d+$")).first
        name = await pod.text_content()
        assert name is not None
        await pod.click()
        await expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()
        await expect(page.get_by_role("heading", name="Allocation")).to_be_visible()
        await page.go_back()
        await expect(page.get_by_role("heading", name="GPU 0", exact=True)).to_be_visible()
        await page.go_back()
        await page.go_back()
        await page.go_back()
        await expect(page.locator("canvas")).to_be_visible()


async def test_a_bound_pod_appears_immediately(window: Browser, made: Bed) -> None:
    async with looking(window, made) as look:
        page = look.page
        await look.tile("Pods", "60")
        await look.tile("Pending", "5")
        made.bind("pod-60", 7)
        await look.tile("Pods", "61")
        await look.tile("Pending", "4")
        assert look.snapshots() == 1
        await page.evaluate("hash => (location.hash = hash)", f"#/node/{node_name(7)}")
        await expect(page.get_by_role("link", name="default/pod-60")).to_be_visible()
        made.bind("pod-61", 7)
        await expect(page.get_by_role("link", name="default/pod-61")).to_be_visible()


async def test_an_unhealthy_gpu_is_shown_with_its_reason(window: Browser, made: Bed) -> None:
    async with looking(window, made, f"#/node/{node_name(3)}") as look:
        await expect(look.page.get_by_text("unhealthy")).to_have_count(0)
        made.break_gpu(3, "XID 79: it has fallen off the bus")
        await expect(look.page.get_by_text("XID 79")).to_be_visible()
        await look.page.keyboard.press("Escape")
        await look.tile("GPUs", "1 unhealthy")
        made.break_gpu(3, "XID 79: it has fallen off the bus", cordoned="1,2")
        await look.page.get_by_role("link", name="Nodes").click()
        row = look.page.locator("main tbody tr").filter(has_text=node_name(3))
        await expect(row).to_contain_text("1 unhealthy, 2 cordoned")


async def test_a_cordoned_gpu_does_not_look_free_on_the_map(window: Browser, made: Bed) -> None:
    async with looking(window, made) as look:
        await look.tile("GPUs", "160")
        await look.page.evaluate(
            """() => {
                const strokes = (window.strokes = []), line = CanvasRenderingContext2D.prototype.lineTo;
                CanvasRenderingContext2D.prototype.lineTo = function (...at) { strokes.push(at); line.apply(this, at); };
            }"""
        )
        made.break_gpu(3, "XID 79: it has fallen off the bus", cordoned="1,2")
        # A cross is two lines, and each cordoned GPU has one.
        await look.page.wait_for_function("() => new Set(window.strokes.map(String)).size === 4")
        await expect(look.page.locator(".legend")).to_contain_text("⊘ accepts no new pods")


async def test_added_and_deleted_nodes_update_the_map_and_the_table(window: Browser, made: Bed) -> None:
    async with looking(window, made) as look:
        await look.tile("GPUs", "20 nodes")
        made.remove_node(0)
        await look.tile("GPUs", "19 nodes")
        await expect(look.page.locator("canvas")).to_have_attribute(
            "aria-label", re.compile("152 GPUs of 19 nodes")
        )
        await look.page.get_by_role("link", name="Nodes", exact=True).click()
        await expect(look.page.get_by_role("link", name=node_name(1), exact=True)).to_be_visible()
        await expect(look.page.get_by_role("link", name=node_name(0), exact=True)).to_have_count(0)
        await look.page.get_by_label("Filter by name").fill("0.1")
        await expect(look.page.get_by_text("11 nodes")).to_be_visible()
        await look.page.get_by_role("button", name="Pods").click()
        await expect(look.page.get_by_role("columnheader", name="Pods")).to_have_attribute(
            "aria-sort", "ascending"
        )


async def test_a_lost_connection_is_shown_and_missed_changes_arrive_without_a_full_reload(
    window: Browser, made: Bed
) -> None:
    async with looking(window, made) as look:
        await look.tile("Pods", "60")
        made.relay.shut = True
        made.relay.cut()
        await look.state("Connection lost")
        await expect(look.page.get_by_role("alert")).to_contain_text(re.compile(r"Data may be \d+ s old\."))
        made.bind("pod-60", 7)
        made.relay.shut = False
        await look.state("Live")
        await look.tile("Pods", "61")
        await expect(look.page.get_by_role("alert")).to_have_count(0)
        assert look.snapshots() == 1


async def test_everything_is_loaded_again_after_another_server_took_over(window: Browser, made: Bed) -> None:
    async with looking(window, made) as look:
        await look.tile("Pods", "60")
        await made.end()
        await look.state("Connection lost")
        await made.serve()
        await look.state("Live")
        await expect(look.page.get_by_role("alert")).to_have_count(0)
        await look.tile("Pods", "60")
        made.bind("pod-60", 7)
        await look.tile("Pods", "61")
        # The other server's numbering means nothing here: everything came in the stream.
        assert look.snapshots() == 1


async def test_every_view_is_reachable_by_keys(window: Browser, made: Bed) -> None:
    async with looking(window, made) as look:
        page, keys = look.page, look.page.keyboard
        await look.tile("GPUs", "160")
        await keys.press("?")
        await expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
        await keys.press("Escape")
        await keys.press("6")
        await expect(page.get_by_role("button", name="Health")).to_have_attribute("aria-pressed", "true")
        await page.locator("canvas").focus()
        await keys.press("ArrowRight")
        await expect(page.locator("#said")).to_contain_text(f"{node_name(0)} · GPU 1")
        await keys.press("ArrowDown")
        await expect(page.locator("#said")).to_contain_text(f"{node_name(0)} · GPU 5")
        await keys.press("End")
        await expect(page.locator("#said")).to_contain_text(f"{node_name(19)} · GPU 7")
        await keys.press("Home")
        await keys.press("PageDown")
        await keys.press("Home")
        await keys.press("Enter")
        await page.get_by_role("link", name=re.compile(r"pod-\d+$")).first.click()
        await expect(page.get_by_role("heading", name="Allocation")).to_be_visible()
        await keys.press("Escape")
        await expect(page.get_by_role("heading", name="GPU 0", exact=True)).to_be_visible()
        await keys.press("Escape")
        await expect(page.get_by_role("heading", name=node_name(0))).to_be_visible()
        await keys.press("Escape")
        await expect(page.locator("canvas")).to_be_visible()
        for letter, heading in (
            ("w", "Pending pods"),
            ("f", "Fragmentation"),
            ("h", "History"),
            ("n", "Nodes"),
        ):
            # One call: the second has to come within 1.5 s.
            await keys.type(f"g{letter}")
            await expect(page.get_by_role("heading", name=heading, level=1)).to_be_visible()


async def test_search_finds_nodes_gpus_and_pods(window: Browser, made: Bed) -> None:
    async with looking(window, made) as look:
        page = look.page
        await look.tile("GPUs", "160")
        await page.keyboard.press("/")
        await page.keyboard.type("pod-1")
        await expect(page.get_by_role("option").first).to_contain_text("default/pod-1")
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("ArrowUp")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="default/pod-1", exact=True)).to_be_visible()
        await page.keyboard.press("/")
        await page.keyboard.type("nothing is called so")
        await expect(page.get_by_role("listbox")).to_contain_text("No match for")
        await page.keyboard.press("Escape")
        await page.get_by_role("combobox", name="Search").fill("GPU-00000002")
        await page.get_by_role("option", name=re.compile("GPU 0 of")).click()
        await expect(page.get_by_role("heading", name="GPU 0", exact=True)).to_be_visible()


async def test_a_pending_pod_is_shown_with_reason_and_suggestion_as_text(window: Browser, made: Bed) -> None:
    made.line = [WAITS]
    async with looking(window, made, "#/waiting") as look:
        row = look.page.get_by_role("row").filter(has_text="default/pod-60")
        await expect(row).to_contain_text("no GPU has 3 units free <img src=x")
        await expect(row).to_contain_text("free 3 units on one GPU")
        await row.get_by_role("link").click()
        await expect(look.page.get_by_text("Suggestion")).to_be_visible()
        await look.page.get_by_text("The scheduler's result for each node").click()
        await expect(look.page.get_by_role("cell", name=node_name(0))).to_be_visible()


async def test_commands_in_reasons_are_typeset_as_code_and_a_lone_backtick_stays(
    window: Browser, made: Bed
) -> None:
    made.line = [
        {**WAITS, "reason": "a ` alone", "suggestion": "ask `kubectl inspect cgpu <b>` and `kubectl get po`"}
    ]
    async with looking(window, made, "#/waiting") as look:
        row = look.page.get_by_role("row").filter(has_text="default/pod-60")
        await expect(row.locator("code")).to_have_text(["kubectl inspect cgpu <b>", "kubectl get po"])
        await expect(row).to_contain_text("ask kubectl inspect cgpu <b> and kubectl get po")
        await expect(row).to_contain_text("a ` alone")


async def test_reserved_memory_is_shown_on_the_map_and_on_its_gpus_page_with_its_pod(
    window: Browser, made: Bed
) -> None:
    share = {"node": node_name(0), "gpu": 0, "uuid": "", "units": 2, "MiB": 2048, "corePercent": 30}
    made.kept = [{"whom": "gang tenant/g", "shares": [share]}]
    async with looking(window, made, f"#/node/{node_name(0)}/gpu/0") as look:
        page = look.page
        await expect(page.get_by_text("2 GiB and 30% compute for gang tenant/g")).to_be_visible()
        await page.goto(f"{made.url}#/")
        await page.locator("canvas").focus()
        await expect(page.locator(".tip")).to_contain_text("Reserved2 GiB and 30% compute for gang tenant/g")
        made.kept = []
        await page.goto(f"{made.url}#/node/{node_name(0)}/gpu/0")
        await expect(page.get_by_text("for gang tenant/g")).to_have_count(0)


async def test_a_pods_page_shows_the_pending_reason_as_soon_as_the_scheduler_reports_it(
    window: Browser, made: Bed
) -> None:
    async with looking(window, made, "#/pod/default/pod-60") as look:
        page = look.page
        await expect(page.get_by_text("The scheduler has not handled it yet.")).to_be_visible()
        await page.get_by_text("The scheduler's result for each node").click()
        await expect(page.get_by_role("cell", name=node_name(0))).to_be_visible()
        made.line = [WAITS]
        await expect(page.get_by_text("free 3 units on one GPU")).to_be_visible()
        await expect(page.get_by_text("The scheduler has not handled it yet.")).to_have_count(0)
        await expect(page.get_by_role("cell", name=node_name(0))).to_be_visible()
        made.line = None
        await expect(page.get_by_text("older version")).to_be_visible()
        made.bind("pod-60", 7)
        await expect(page.get_by_role("heading", name="Allocation")).to_be_visible()
        await expect(page.get_by_text("Requestsaliyun.com/gpu-mem: 3 (3 GiB)")).to_be_visible()
        await expect(page.get_by_text("does not enforce the shares of new containers")).to_be_visible()


async def test_of_many_pending_pods_one_page_is_shown_and_only_changed_rows_are_redrawn(
    window: Browser, made: Bed
) -> None:
    # They are pending for 0 s, whenever the page is loaded.
    made.line = [{**WAITS, "key": f"default/p-{n:03}", "since": 4e9 + n} for n in range(150)]
    async with looking(window, made, "#/waiting") as look:
        page = look.page
        rows = page.locator("main tbody tr")
        await expect(page.get_by_text("150 pods, page 1 of 2")).to_be_visible()
        await expect(rows).to_have_count(100)
        await page.evaluate("for (const one of document.querySelectorAll('main td')) one.drawn = 'before'")
        made.line = [{**made.line[0], "reason": "another one"}, *made.line[2:]]
        await expect(rows.first).to_contain_text("another one")
        # One row was removed, one added, and one has another reason.
        assert await page.evaluate(KEPT) == [4, *[5] * 98, 0]
        await expect(rows.nth(1)).to_contain_text("p-002")
        await page.get_by_role("button", name="Next").click()
        await expect(rows).to_have_count(49)
        await expect(rows.first).to_contain_text("p-101")
        await page.get_by_role("button", name="Back").click()
        await expect(rows.first).to_contain_text("p-000")


async def test_nodes_are_sorted_by_allocation_and_only_changed_rows_are_redrawn(
    window: Browser, made: Bed
) -> None:
    async with looking(window, made, "#/nodes") as look:
        page = look.page
        rows = page.locator("main tbody tr")
        await expect(rows).to_have_count(20)
        await expect(rows.first).to_contain_text("not shared")
        for text in ("Pods", "Pods"):
            await page.get_by_role("button", name=text).click()
        await page.evaluate("for (const one of document.querySelectorAll('main td')) one.drawn = 'before'")
        made.bind("pod-60", 19)
        await expect(rows.first).to_contain_text(node_name(19))
        # Its capacity and its pods are redrawn.
        assert await page.evaluate(KEPT) == [6, *[8] * 19]
        await expect(rows.nth(1)).to_contain_text(node_name(0))
        await page.get_by_role("button", name="Node").click()
        await expect(rows.first).to_contain_text(node_name(0))
        await page.get_by_role("button", name="Node").click()
        await expect(rows.first).to_contain_text(node_name(19))


async def test_no_0_percent_is_shown_where_compute_is_not_shared(window: Browser, made: Bed) -> None:
    async with looking(window, made) as look:
        await look.tile("Compute allocated", "–")
        await look.tile("Compute allocated", "no node shares it")
        await look.page.get_by_role("button", name="Compute allocated").click()
        legend = look.page.get_by_role("group", name="Legend")
        await expect(legend).to_contain_text("not shared")
        await look.page.locator("canvas").focus()
        await look.page.keyboard.press("ArrowRight")
        await expect(look.page.locator("#said")).to_contain_text("Compute allocated not shared")
        above, below = await legend.bounding_box(), await look.page.locator("canvas").bounding_box()
        assert above is not None
        assert below is not None
        assert above["y"] + above["height"] < below["y"]


async def test_the_page_reports_when_the_scheduler_has_no_reason(window: Browser, made: Bed) -> None:
    made.line = None
    async with looking(window, made, "#/waiting") as look:
        await expect(look.page.get_by_role("alert")).to_contain_text("older version")
        await expect(look.page.get_by_role("link", name="default/pod-60")).to_be_visible()


async def test_usage_is_shown_and_unknown_usage_is_not_shown_as_zero(window: Browser, made: Bed) -> None:
    uuid = "GPU-00000000-0000-4000-8000-000000000000"
    labels = f'namespace="default",pod="pod-0",container="main",UUID="{uuid}"'
    made.figures = (
        f"gpushare_container_memory_used_bytes{{{labels}}} {512 << 20}\n"
        f"gpushare_container_memory_limit_bytes{{{labels}}} {14 << 30}\n"
        f"gpushare_container_compute_used_ratio{{{labels}}} 0.37\n"
    )
    async with looking(window, made, f"#/node/{node_name(0)}") as look:
        first = look.page.get_by_role("article", name="GPU 0")
        await expect(first).to_contain_text("Memory used0.5 GiB")
        await expect(first).to_contain_text("Compute used37%")
        await expect(look.page.get_by_role("article", name="GPU 1")).to_contain_text("Memory used–")
        await look.page.evaluate("location.hash = '#/pod/default/pod-0'")
        await expect(look.page.get_by_role("cell", name="0.5 GiB of at most 14 GiB")).to_be_visible()
        await look.page.evaluate("hash => (location.hash = hash)", f"#/node/{node_name(1)}")
        await expect(look.page.get_by_text("Actual usage is unknown")).to_be_visible()
        await look.page.get_by_role("link", name="Overview", exact=True).click()
        await look.tile("Memory used", "0.5 GiB, reported by 1 GPU")


async def test_the_theme_follows_the_system_until_one_is_chosen(window: Browser, made: Bed) -> None:
    for scheme, other in (("dark", "light"), ("light", "dark")):
        async with looking(window, made, color_scheme=scheme) as look:
            root = look.page.locator("html")
            await expect(root).to_have_attribute("data-theme", scheme)
            before = await look.page.evaluate("getComputedStyle(document.body).backgroundColor")
            await look.page.keyboard.press("t")
            await expect(root).to_have_attribute("data-theme", other)
            assert await look.page.evaluate("getComputedStyle(document.body).backgroundColor") != before
            await look.page.reload()
            await expect(root).to_have_attribute("data-theme", other)


async def test_history_and_fragmentation_are_drawn(window: Browser, made: Bed) -> None:
    async with looking(window, made, "#/history") as look:
        await expect(look.page.get_by_role("img", name=re.compile("Memory: now allocated"))).to_be_visible()
        await expect(look.page.locator(".chart").first).to_contain_text("No node agent reports usage")
        await look.page.get_by_text("As a table").first.click()
        await expect(look.page.get_by_role("columnheader", name="allocated").first).to_be_visible()
        await look.page.get_by_role("link", name="Fragmentation").click()
        await expect(look.page.get_by_text("Free memory by size of the piece")).to_be_visible()
        await expect(look.page.get_by_role("row").filter(has_text="64 GiB").first).to_contain_text("160")
        await expect(look.page.get_by_text("it fits: something else blocks it").first).to_be_visible()


async def test_a_history_of_days_shows_dates_and_how_many_gpus_report_use(window: Browser, made: Bed) -> None:
    async def days(route: Route) -> None:
        rows = [
            [1767225600 + hour * 3600, 160, 160, 80, 20, 0, 60, 5, 80, 8, 40, 40, 0] for hour in range(48)
        ]
        await route.fulfill(json={"step_s": 3600, "samples": rows})

    async with looking(window, made, timezone_id="UTC") as look:
        # A sample of today, sent every 5 s, would become the last one of the chart.
        await look.page.evaluate(
            "import('./store.js').then(({ Store }) => { Store.prototype.addSample = () => {}; })"
        )
        await look.page.route("**/api/history", days)
        await look.page.evaluate("location.hash = '#/history'")
        chart = look.page.locator(".chart").first
        await expect(chart).to_contain_text("Used: of 40 GPUs that report usage.")
        await expect(chart.locator("text").filter(has_text="2 Jan, 23:00")).to_have_count(1)
        await chart.get_by_text("As a table").click()
        await expect(chart.get_by_role("cell", name="1 Jan, 02:00")).to_be_visible()


async def test_nodes_are_filtered_by_state_and_an_empty_map_says_so(window: Browser, made: Bed) -> None:
    made.break_gpu(3, "XID 79")
    async with looking(window, made) as look:
        await look.tile("GPUs", "1 unhealthy")
        canvas, no_match = look.page.locator("canvas"), look.page.get_by_text("No node matches")
        await look.page.get_by_label("State").select_option("With problems")
        await expect(canvas).to_have_attribute("aria-label", re.compile("8 GPUs of 1 node"))
        await expect(no_match).to_be_hidden()
        await look.page.get_by_label("State").select_option("Full")
        await expect(canvas).to_have_attribute("aria-label", re.compile("0 GPUs of 0 nodes"))
        await expect(no_match).to_be_visible()


async def test_unknown_addresses_show_a_message(window: Browser, made: Bed) -> None:
    async with looking(window, made, "#/nowhere/at/all") as look:
        await expect(look.page.get_by_text("There is no such view")).to_be_visible()
        await look.page.evaluate("location.hash = '#/node/absent'")
        await expect(look.page.get_by_role("alert")).to_contain_text("no node absent")
        await look.page.evaluate("location.hash = '#/pod/default/absent'")
        await expect(look.page.get_by_role("alert")).to_contain_text("no pod default/absent")


async def test_thousands_of_gpus_are_on_one_page(window: Browser, tmp_path: Path) -> None:
    """Forty thousand are timed by ``make bench``."""
    async with bed(tmp_path, 1000, 1000, 2) as large, looking(window, large) as look:
        await look.tile("GPUs", "8,000")
        await expect(look.page.locator("canvas")).to_have_attribute("aria-label", re.compile("8,000 GPUs"))
        large.bind("pod-1000", 999)
        await look.tile("Pods", "1,001")
        await look.page.locator("canvas").focus()
        await look.page.keyboard.press("End")
        await expect(look.page.locator("#said")).to_contain_text("GPU 7")
