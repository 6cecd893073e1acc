"""What the page shows of GPUs that are shared through ResourceClaims, in a real Chromium."""

import json
from pathlib import Path

import msgspec
import pytest
from playwright.async_api import Browser, expect

from benchmarks.api_server import described_node, node_name, node_object
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.dashboard.data.claims import CLAIMS, CLASSES
from tests.integration.dashboard.bed import Bed, looking
from tests.unit.dashboard.test_claims import claim, pod

pytestmark = pytest.mark.asyncio(loop_scope="session")

SAYS = "0/2 nodes are available: 2 cannot allocate all claims."


async def test_allocated_and_pending_claims_are_shown(window: Browser, tmp_path: Path) -> None:
    node = msgspec.structs.replace(described_node(0, 81920, MemoryUnit.GIB), mode=NodeMode.DRA)
    held = claim("shared", (node.devices[0].uuid.lower(), "20Gi", 30), pods=("one", "two"))
    held["status"]["allocation"]["devices"]["results"][0]["pool"] = node.name
    pods = [
        pod("one", "shared", node.name),
        pod("two", "shared", node.name),
        pod("late", "large", condition_message=SAYS),
    ]
    made = Bed(tmp_path, 2, 0, 0)
    made.cluster.nodes[0] = json.dumps(node_object(node, 1)).encode()
    made.cluster.pods += [json.dumps(one).encode() for one in pods]
    made.cluster.others = {
        CLAIMS: [json.dumps(one).encode() for one in (held, claim("large"))],
        CLASSES: [b'{"metadata": {"name": "gpushare.dev"}}'],
    }
    await made.start()
    try:
        async with looking(window, made, f"#/node/{node_name(0)}") as look:
            page = look.page
            card = page.get_by_role("article", name="GPU 0", exact=True)
            await expect(card).to_contain_text("20 GiB of 80 GiB")
            await expect(card).to_contain_text("claim default/shared: default/one, default/two")
            await card.get_by_role("link", name="GPU 0", exact=True).click()
            await expect(page.get_by_role("region", name="Pods on this GPU")).to_contain_text(
                "claim default/shared"
            )
            await page.get_by_role("link", name="default/one").click()
            await expect(page.get_by_role("heading", name="Allocation")).to_be_visible()
            await expect(
                page.get_by_text("3Gi and 30% compute of a GPU through claim shared")
            ).to_be_visible()
            await page.evaluate("location.hash = '#/waiting'")
            row = page.locator("main tbody tr").filter(has_text="default/late")
            await expect(row).to_contain_text(SAYS)
            await row.get_by_role("link", name="default/late").click()
            await expect(page.get_by_text(SAYS)).to_be_visible()
            assert not look.bad
    finally:
        await made.stop()
