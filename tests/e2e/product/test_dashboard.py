"""The dashboard on a real cluster, through the real API server's proxy: access, events, and the page in a browser."""

import asyncio
import base64
import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest
from playwright.async_api import Page, expect

from gpushare.dashboard.server import assets
from tests.e2e.cluster import Cluster
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.product.audit import Right, calls
from tests.e2e.product.product import MODES, NAMESPACE, SCHEDULER, Product, gpu_pod
from tests.e2e.product.proxied import News, Proxied, kubectl_proxy, pod_path, service_path
from tests.integration.dashboard.bed import Look, browser

SERVICE: Final = "gpushare-dashboard"
PORT: Final = 9453
GPUS: Final = 6
#: As docs/guide/dashboard.md grants it to people with read-only access.
VIEWER: Final = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "Role",
    "metadata": {"name": "gpushare-dashboard-viewer", "namespace": NAMESPACE},
    "rules": [
        {
            "apiGroups": [""],
            "resources": ["services/proxy"],
            "resourceNames": [f"{SERVICE}:http"],
            "verbs": ["get", "create"],
        }
    ],
}


@dataclass
class Dashboard:
    """The installed dashboard, and ``kubectl proxy`` before it."""

    product: Product
    token: str
    port: int

    @property
    def service(self) -> Proxied:
        """Whichever replica answers."""
        return Proxied(self.port, service_path(SERVICE, "http"))

    def replicas(self) -> list[Proxied]:
        """Each of them, logged in."""
        found = [
            Proxied(self.port, pod_path(pod["metadata"]["name"], PORT))
            for pod in self.product.pods(f"app.kubernetes.io/name={SERVICE}", NAMESPACE)
            if "deletionTimestamp" not in pod["metadata"]
        ]
        for one in found:
            self.log_in(one)
        return found

    def log_in(self, at: Proxied) -> str:
        """Log in with the token; later requests send the cookie."""
        answer = at.ask("login", {"token": self.token})
        assert answer.status == 204, answer
        at.headers["cookie"] = answer.headers["set-cookie"].partition(";")[0]
        return answer.headers["set-cookie"]


@pytest.fixture(scope="module")
def switched_on(installed: Product) -> Iterator[Dashboard]:
    """Enabled as in the guide, and disabled afterwards."""
    installed.kubectl(
        *("-n", NAMESPACE, "create", "secret", "generic", SERVICE),
        "--from-literal=token=0123456789abcdef-of-this-cluster",
    )
    installed.upgrade(
        SCHEDULER,
        "--reuse-values",
        *("--set", f"dashboard.enabled=true,dashboard.tokenSecret={SERVICE},dashboard.replicas=2"),
    )
    secret = installed.json("-n", NAMESPACE, "get", "secret", SERVICE)
    try:
        with kubectl_proxy(installed) as port:
            made = Dashboard(installed, base64.b64decode(secret["data"]["token"]).decode(), port)
            # A Service has pods behind it a moment after they are ready.
            wait_for("the Service leads there", lambda: made.service.ask().status == 200, timeout=30)
            yield made
    finally:
        installed.upgrade(SCHEDULER, "--reuse-values", "--set", "dashboard.enabled=false")
        installed.kubectl("-n", NAMESPACE, "delete", "secret", SERVICE)


@pytest.fixture
def dashboard(switched_on: Dashboard, product: Product) -> Dashboard:
    """The same, with no pods of other tests."""
    return switched_on


def test_the_page_arrives_complete_with_its_policy_and_links_only_below_its_path(
    dashboard: Dashboard,
) -> None:
    at = dashboard.service
    for name, asset in assets.load().items():
        response = at.ask(name.removeprefix("/"))
        assert (response.status, response.headers["content-type"]) == (200, asset.kind.decode()), name
        # The proxy rewrites a page's elements, and addresses in them that begin with a slash: there are none.
        assert _addresses(response.body) == _addresses(asset.body), name
        assert response.body == asset.body or name in ("/", assets.INDEX), name
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'"), policy
        assert "unsafe" not in policy
        assert at.ask(name.removeprefix("/"), if_none_match=response.headers["etag"]).status == 304, name
    assert not [one for one in _addresses(at.ask().body) if re.match(r"/|\w+:", one)]


def _addresses(page: bytes) -> list[str]:
    return re.findall(r"""(?:href|src)="([^"]*)""", page.decode())


def test_access_requires_the_proxy_permission_and_the_token(dashboard: Dashboard) -> None:
    at = dashboard.service
    assert at.ask("api/snapshot").status == 401
    assert at.ask("api/events").status == 401
    assert at.ask("login", {"token": "not the token at all"}).status == 401
    # The API server does not forward this header: it authenticates the user by it.
    assert at.ask("api/snapshot", authorization=f"Bearer {dashboard.token}").status == 401
    cookie = dashboard.log_in(at)
    assert "HttpOnly; SameSite=Strict" in cookie
    assert "Path" not in cookie
    assert dashboard.token not in cookie
    assert at.ask("api/snapshot").body[:4] == b"GPB1"
    # The cookie of another token is not accepted.
    expiry, _, signature = at.headers["cookie"].partition(".")
    at.headers["cookie"] = f"{expiry}.{signature[::-1]}"
    assert at.ask("api/snapshot").status == 401

    product = dashboard.product
    with kubectl_proxy(product, "--as=viewer") as port:
        viewer = Proxied(port, service_path(SERVICE, "http"))
        refused = viewer.ask()
        assert (refused.status, b"services/proxy" in refused.body) == (403, True)
        product.apply(VIEWER)
        binding = ("rolebinding", "gpushare-dashboard-viewer", "-n", NAMESPACE)
        try:
            product.kubectl("create", *binding, "--role=gpushare-dashboard-viewer", "--user=viewer")
            wait_for("the role is known", lambda: viewer.ask().status == 200, timeout=20)
            assert viewer.ask("api/snapshot").status == 401
            dashboard.log_in(viewer)
            assert viewer.ask("api/snapshot").status == 200
            assert Proxied(port, f"/api/v1/namespaces/{NAMESPACE}/pods").ask().status == 403
        finally:
            product.kubectl("delete", *binding, "--ignore-not-found")
            product.kubectl("delete", "role", "gpushare-dashboard-viewer", "-n", NAMESPACE)


def test_every_replica_shows_allocations_of_real_pods_and_pending_reasons(dashboard: Dashboard) -> None:
    product, replicas = dashboard.product, dashboard.replicas()
    assert len(replicas) == 2
    product.apply(gpu_pod("seen", 3, labels={"app": "seen"}, node="cgpu-t4"), gpu_pod("too-large", 20))
    product.running("app=seen")
    reasons = set()
    for at in replicas:

        def shown(at: Proxied = at) -> Any:
            document = json.loads(at.ask("api/pod?key=default/seen").body or b"{}")
            return document if document.get("shares") and document["shares"][0]["containers"] else None

        pod = wait_for("the pod's allocation, and its use by its node's agent", shown, timeout=30)
        (share,) = pod["shares"]
        assert (pod["node"], share["units"], share["mib"]) == ("cgpu-t4", 3, 3072)
        assert share["containers"][0]["used_mib"] >= 0

        # Only the leading scheduler knows the reasons: each replica queries that.
        def reason(at: Proxied = at) -> str:
            line = json.loads(at.ask("api/waiting").body)
            assert not line["problem"], line
            return next((one["reason"] for one in line["pods"] if one["key"] == "default/too-large"), "")

        reasons.add(wait_for("a reason", reason, timeout=30))
        record = at.ask("api/decision?pod=default/too-large")
        assert {one["node"] for one in json.loads(record.body)["nodes"]} == set(MODES)
    (one,) = reasons
    assert "the largest GPU has" in one


def test_events_arrive_through_the_proxy_and_continue_where_they_stopped(dashboard: Dashboard) -> None:
    product, (first, second) = dashboard.product, dashboard.replicas()

    def until(events: Iterator[News], pods: int) -> News:
        for one in events:
            delta = json.loads(one.data) if one.event == "delta" else {}
            # Totals are a row; its seventh figure counts pods.
            if delta.get("totals") and delta["totals"][6] == pods:
                return one
        raise AssertionError("the stream has ended")

    with first.listening("api/events") as events:
        assert next(events).event == "snapshot"
        product.apply(gpu_pod("one", 2, labels={"app": "one"}))
        last = until(events, 1)
    product.apply(gpu_pod("two", 2, labels={"app": "two"}))
    product.running("app=two")
    with first.listening("api/events", last_event_id=last.id) as events:
        # Only the missed events.
        missed = next(events)
        assert (missed.event, missed.id.partition("-")[0]) != ("snapshot", "")
        assert int(missed.id.rpartition("-")[2]) == int(last.id.rpartition("-")[2]) + 1
        if not (missed.event == "delta" and json.loads(missed.data).get("totals", [0] * 7)[6] == 2):
            until(events, 2)
    # Another replica numbers differently: it sends everything, in the same stream.
    with second.listening("api/events", last_event_id=last.id) as events:
        assert next(events).event == "snapshot"


async def test_a_browser_leads_from_the_cluster_to_the_pod(dashboard: Dashboard) -> None:
    product, at = dashboard.product, dashboard.service
    await asyncio.to_thread(product.apply, gpu_pod("seen", 3, labels={"app": "seen"}, node="cgpu-t4"))
    with contextlib.ExitStack() as own:
        port = own.enter_context(kubectl_proxy(product))
        url = Proxied(port, at.path).url
        async with browser() as window:
            page = await window.new_page(viewport={"width": 1280, "height": 800})
            look = Look(page, url)
            await page.goto(url)
            await page.get_by_label("Token").fill(dashboard.token)
            await page.keyboard.press("Enter")
            await look.state("Live")
            await look.tile("GPUs", str(GPUS))
            await look.tile("Pods", "1")
            await look.tile("Memory used", "GiB")
            [cookie] = await page.context.cookies()
            assert cookie["path"].rstrip("/") == at.path.rstrip("/")
            await through_the_cluster(page)
            # One more is bound, and one is pending: shown without a reload.
            await asyncio.to_thread(product.apply, gpu_pod("second", 2), gpu_pod("too-large", 20))
            await page.get_by_role("link", name="Overview", exact=True).click()
            await look.tile("Pods", "2")
            await look.tile("Pending", "1")
            await page.get_by_role("link", name=re.compile("^Pending")).click()
            row = page.get_by_role("row").filter(has_text="default/too-large")
            await expect(row).to_contain_text("the largest GPU has")
            # The proxy stops, as with a closed laptop: the page reports it, and continues when there is
            # one again.
            own.close()
            await look.state("Connection lost")
            await asyncio.to_thread(product.kubectl, "delete", "pod", "second", "--grace-period=1")
            own.enter_context(kubectl_proxy(product, port=port))
            await look.state("Live")
            await page.get_by_role("link", name="Overview", exact=True).click()
            await look.tile("Pods", "1")
            assert look.bad == []


async def through_the_cluster(page: Page) -> None:
    """Cluster, node, GPU, pod: by clicks."""
    # It is drawn a frame after the tiles.
    label = f"Heat map: Memory allocated, {GPUS} GPUs of {len(MODES)} nodes"
    await expect(page.locator("canvas")).to_have_attribute("aria-label", label)
    await page.locator("canvas").click(position={"x": 20, "y": 40})
    await expect(page.get_by_role("heading", name="GPU 0", exact=True)).to_be_visible()
    await page.get_by_role("navigation", name="Breadcrumbs").get_by_role("link", name="cgpu-t4").click()
    await expect(page.get_by_role("heading", name="cgpu-t4")).to_be_visible()
    await page.get_by_role("link", name="GPU 0", exact=True).click()
    await page.get_by_role("link", name="default/seen", exact=True).click()
    await expect(page.get_by_role("heading", name="default/seen", exact=True)).to_be_visible()
    shares = page.get_by_role("region", name="Shares")
    await expect(shares).to_contain_text("3 GiB")


def test_it_only_reads_and_only_its_port_is_opened(cluster: Cluster, dashboard: Dashboard) -> None:
    """Runs after the others: the API server's audit log contains its requests while it was used."""
    requested = {call.right for call in calls(cluster, [SERVICE])}
    has_claims = "deviceclasses" in dashboard.product.kubectl("api-resources", "--api-group=resource.k8s.io")
    # Where claims are not served, it requests them from time to time.
    claims = {
        Right(SERVICE, verb, "resource.k8s.io", kind)
        for verb in (("list", "watch") if has_claims else ("list",))
        for kind in ("deviceclasses", "resourceclaims")
    }
    assert requested == claims | {
        Right(SERVICE, "list", "", "nodes"),
        Right(SERVICE, "watch", "", "nodes"),
        Right(SERVICE, "list", "", "pods"),
        Right(SERVICE, "watch", "", "pods"),
        Right(SERVICE, "get", "coordination.k8s.io", "leases"),
        # A token of the account that may read decisions, and of no other.
        Right(SERVICE, "create", "", "serviceaccounts/token"),
    }
    product = dashboard.product
    policy = product.json("-n", NAMESPACE, "get", "networkpolicy", SERVICE)["spec"]
    let_in = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    pods = product.pods(f"app.kubernetes.io/name={SERVICE}", NAMESPACE)
    served = {
        port["containerPort"]
        for pod in pods
        for container in pod["spec"]["containers"]
        for port in container["ports"]
    }
    assert PORT in let_in
    assert let_in == served
    assert policy["podSelector"]["matchLabels"].items() <= pods[0]["metadata"]["labels"].items()
