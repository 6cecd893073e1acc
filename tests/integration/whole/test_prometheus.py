"""A real Prometheus scrapes the playground: every metric, every panel of the dashboard and every rule has data."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

import pytest
import pytest_asyncio
import yaml

from gpushare.api import names
from gpushare_playground import gpus
from tests.integration.whole.cluster import record_of, waits_because
from tests.integration.whole.prometheus import RULES, Prometheus, promtool, running_prometheus
from tests.integration.whole.world import CHECKOUT, World, gpu_pod, shared_node, until, world

pytestmark = pytest.mark.asyncio(loop_scope="module")

NODE: Final = "four"
DASHBOARD: Final = CHECKOUT / "charts" / "ack-ai-installer" / "files" / "dashboard.json"
EXAMPLE: Final = CHECKOUT / "examples" / "05-core-mem.yaml"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def busy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[World, Prometheus]]:
    """A container that computes and was refused memory, one that uses none, a pending pod, a GPU with an XID."""
    async with world(shared_node(NODE, "core-mem-4", "core_mem"), isolated=True, dashboard=True) as cluster:
        assert (await cluster.kubectl("apply", "-f", str(EXAMPLE))).code == 0
        await cluster.create(
            gpu_pod("idle", 3, limits={names.GPU_CORE: 10}), gpu_pod("big", 20, limits={names.GPU_CORE: 10})
        )
        await cluster.run_all("idle")
        await cluster.pods.until(lambda: bool(waits_because(cluster.pod("big"))), "big waits")

        async def refused() -> bool:
            return (
                "OUT_OF_MEMORY"
                in (await cluster.kubectl("exec", "job/cuda-sample", "--", "take-memory")).text
            )

        await until(refused, "memory is refused")
        good = gpus.preset("core-mem-4", NODE)
        broken = (*good.gpus[:3], replace(good.gpus[3], xids={79: 1}))
        gpus.write(cluster.playground.gpu_file(NODE), replace(good, gpus=broken))
        folder = tmp_path_factory.mktemp("prometheus")
        async with running_prometheus(folder, cluster.playground.state / "metrics.json") as prometheus:
            await prometheus.until("sum(up) == 4", "every part is scraped, and the agent's other page")
            yield cluster, prometheus


async def test_every_panel_of_the_dashboard_shows_something(busy: tuple[World, Prometheus]) -> None:
    _, prometheus = busy
    panels = [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]
    # The playground has no ResourceClaims.
    panels = [panel for panel in panels if not panel["title"].endswith("by claim")]
    assert len(panels) > 20
    for panel in panels:
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "10s")
            expression = expression.replace("$node", ".*").replace("$namespace", ".*")
            assert "$" not in expression
            found = await prometheus.until(expression, panel["title"])
            legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            labels = set().union(*(one["metric"].keys() for one in found))
            assert legend <= labels | {"xid", "reason"}, (panel["title"], legend, labels)


async def test_nothing_of_ours_uses_the_page_with_other_products_names() -> None:
    assert not [path.name for path in (DASHBOARD, *RULES) if "DCGM" in path.read_text()]


async def test_variables_of_the_dashboard_have_values(busy: tuple[World, Prometheus]) -> None:
    _, prometheus = busy
    queries = [
        one for one in json.loads(DASHBOARD.read_text())["templating"]["list"] if one["type"] == "query"
    ]
    labels = {}
    for one in queries:
        match = re.fullmatch(r"label_values\((\w+), (\w+)\)", one["definition"])
        assert match
        labels[one["name"]] = {
            found["metric"][match[2]] for found in await prometheus.until(match[1], "variable")
        }
    assert labels == {"node": {NODE}, "namespace": {"default"}}


async def test_every_rule_is_evaluated_without_an_error(busy: tuple[World, Prometheus]) -> None:
    _, prometheus = busy
    written = {
        rule["alert"]
        for path in RULES
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    }

    async def evaluated() -> list[Any]:
        groups = (await prometheus.get("rules"))["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        return rules if all(rule["health"] != "unknown" for rule in rules) else []

    rules = await until(evaluated, "all rules were evaluated")
    assert {rule["name"] for rule in rules} == written
    assert {rule["health"] for rule in rules} == {"ok"}, rules


async def test_a_gpu_with_an_xid_shows_in_metrics_and_fires_an_alert(busy: tuple[World, Prometheus]) -> None:
    _, prometheus = busy
    (healthy,) = await prometheus.until("gpushare_gpu_healthy == 0", "one GPU is out of service")
    assert healthy["metric"]["gpu"] == "3"
    assert await prometheus.until('gpushare_gpu_xid_errors_total{gpu="3", xid="79"} == 1', "the XID")
    assert await prometheus.until('gpushare_gpu_last_xid{gpu="3"} == 79', "the last one")
    assert await prometheus.until('DCGM_FI_DEV_XID_ERRORS{gpu="3"} == 79', "under DCGM's name")
    (alert,) = await prometheus.until('ALERTS{alertname="GPUUnhealthy"}', "the alert")
    assert alert["metric"]["alertstate"] in ("pending", "firing")


async def test_metrics_of_containers_agree_with_allocation_and_usage(
    busy: tuple[World, Prometheus],
) -> None:
    cluster, prometheus = busy
    idle = 'namespace="default", pod="idle", container="main"'
    (sample,) = await prometheus.until(
        f"gpushare_container_memory_allocated_bytes{{{idle}}}", "the allocation of idle"
    )
    (record,) = record_of(cluster.pod("idle"))
    assert int(sample["value"][1]) == record["mib"] << 20
    (core,) = await prometheus.query(f"gpushare_container_compute_allocated_ratio{{{idle}}}")
    assert core["value"][1] == "0.1"
    for family in ("gpushare_container_memory_used_bytes", "gpushare_container_compute_used_ratio"):
        (unused,) = await prometheus.until(f"{family}{{{idle}}}", "what idle uses")
        assert unused["value"][1] == "0", "nothing, and not no figure"
    busy_one = 'namespace="default", container="cuda-sample"'
    assert await prometheus.until(
        f"gpushare_container_memory_allocation_failures_total{{{busy_one}}} >= 1", "refused"
    )
    assert await prometheus.until(
        f"rate(gpushare_container_gpu_seconds_total{{{busy_one}}}[10s]) > 0.05", "GPU time"
    )
    assert await prometheus.until(
        f"rate(gpushare_container_compute_throttled_seconds_total{{{busy_one}}}[10s]) > 0.05",
        "waits for its share",
    )
    expression = f'gpushare_process_memory_used_bytes{{{busy_one}, process!=""}} > 0'
    (process,) = await prometheus.until(expression, "its process has a name")
    theirs = (
        f'DCGM_CUSTOM_PROCESS_MEM_USED{{ContainerName="cuda-sample", ProcessId="{process["metric"]["pid"]}"}}'
    )
    (same,) = await prometheus.until(theirs, "under ACK's name")
    assert (same["metric"]["ProcessName"], same["metric"]["ProcessType"]) == (
        process["metric"]["process"],
        "C",
    )
    # The ledger and the node agents count the same.
    both = (
        "sum(gpushare_scheduler_gpu_memory_allocated_bytes) == sum(gpushare_gpu_memory_allocated_bytes) "
        "and sum(gpushare_gpu_memory_allocated_bytes) > 0"
    )
    assert await prometheus.until(both, "the ledger and the agent agree")
    equality = "gpushare_scheduler_gpu_memory_allocated_bytes == on (node, gpu) group_left () gpushare_gpu_memory_allocated_bytes"
    assert len(await prometheus.until(f"count({equality}) == 4", "GPU by GPU")) == 1


async def test_a_loop_limited_by_its_share_is_advised_more(busy: tuple[World, Prometheus]) -> None:
    cluster, _ = busy
    arguments = ("inspect", "cgpu", "--recommend", "--min-history=4s", "--window=1h")

    async def throttled() -> Any:
        document = json.loads((await cluster.kubectl(*arguments, "-o", "json")).out)
        (found,) = [one for one in document["workloads"] if one["name"] == "cuda-sample"]
        core = found["core"]
        # The first samples on a busy machine may show that it waits, but not that it needs more.
        more = (core["advisedPercent"] or 0) > core["givenPercent"]
        return core if more and core["throttledPercent"] else None

    core = await until(throttled, "the agent has seen it wait, and advises more")
    # It would keep the GPU busy except for the copies between; a sample on a busy machine is rough.
    assert core["p95Percent"] < core["needPercent"] <= 100
    assert core["advisedPercent"] > core["givenPercent"] == 30
    table = (await cluster.kubectl(*arguments)).out
    assert "% of the time: without a limit it would use about " in table
    assert "Based on the usage of the last 1h, recorded for " in table


async def test_a_pending_pod_is_counted_by_its_reason_and_shows_it(busy: tuple[World, Prometheus]) -> None:
    cluster, prometheus = busy
    (size,) = await prometheus.until('gpushare_scheduler_pending_pods{reason="size"} > 0', "big is counted")
    assert size["value"][1] == "1"

    async def described() -> str:
        text = (await cluster.kubectl("describe", "pod", "big")).out
        return text if "GPUSchedulingPending" in text else ""

    text = await until(described, "kubectl describe pod says why")
    (line,) = [one for one in text.splitlines() if "GPUSchedulingPending" in one]
    assert "pending, requests aliyun.com/gpu-mem: 20" in line
    assert "the largest GPU has 15 GiB" in line
    assert "What would help: " in line


async def test_promtool_has_no_complaint_about_our_pages(busy: tuple[World, Prometheus]) -> None:
    cluster, _ = busy
    pages = [
        (address, group["labels"].get("__metrics_path__", "/metrics"))
        for group in json.loads((cluster.playground.state / "metrics.json").read_text())
        for address in group["targets"]
    ]
    assert sorted(path for _, path in pages) == [*["/metrics"] * 3, "/metrics/dcgm"]
    for address, path in pages:
        text = await scraped(address, path)
        assert text.startswith("# HELP")
        if path == "/metrics":
            assert "DCGM_" not in text
            result = await asyncio.to_thread(promtool, "check", "metrics", stdin=text)
            assert result == (0, ""), address
        else:
            assert all(line.startswith(("DCGM_", "# ")) for line in text.splitlines())


async def scraped(address: str, path: str) -> str:
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 200")
    return body.decode()
