"""The autoscaling plugin: enabled parts run and follow nodes; nothing is imported unless enabled."""

import subprocess
import sys
from typing import Any

import msgspec
import pytest
from prometheus_client import generate_latest

from gpushare.api import names
from gpushare.api.quantity import MemoryUnit
from gpushare.kube.auth.access import Access
from gpushare.kube.client.client import Client
from gpushare.kube.client.session import Session
from gpushare.options.option import InvalidSettings
from gpushare.options.reading import read
from gpushare.process.event import Event
from gpushare.scheduler.cache.cache import NodeReader
from gpushare.scheduler.framework.interface import Handle
from gpushare.scheduler.framework.runtime import Enabled, Framework
from gpushare.scheduler.framework.services import NO_QUOTAS
from gpushare.scheduler.leader.lease import LeaderWatch, Leading, always_leads
from gpushare.scheduler.observability.metrics import Metrics
from gpushare.scheduler.options import ROLE
from gpushare.scheduler.plugins.autoscaling.plugin import Autoscaler
from gpushare.scheduler.plugins.autoscaling.settings import (
    INSTANCE_TYPE,
    Autoscaling,
    PlaceholderLimits,
    autoscaling_of,
)
from tests.unit.scheduler.autoscaling.test_startup_taints import OURS, node
from tests.unit.scheduler.world import World


def autoscaler(enabled: Autoscaling) -> tuple[Autoscaler, Metrics]:
    world, metrics = World(), Metrics()
    session = Session(Access("http://127.0.0.1:1"))
    client = Client(session)
    handle = Handle(
        session=session,
        client=client,
        cache=world.view,
        recorder=world.events,  # type: ignore[arg-type]
        clock=world.clock,
        lease=None,
        must_lead=always_leads,
        retry=world.retries.hurry,
        placed=world.retries.placed,
        resynced=Event(),
        leading=LeaderWatch(Leading(client, None), world.clock),
        synced=lambda: True,
        relist_pods=always_leads,
        gauge=metrics.watch,
        gauge_by=metrics.watch_by,
    )
    return Autoscaler(handle, enabled, NO_QUOTAS), metrics


@pytest.mark.parametrize(
    ("enabled", "runs"),
    [
        (Autoscaling(startup_taint=True), {"startup taints"}),
        (Autoscaling(PlaceholderLimits("s")), {"placeholder pods", "their watch"}),
        (Autoscaling(PlaceholderLimits("s"), True), {"startup taints", "placeholder pods", "their watch"}),
    ],
)
def test_an_enabled_part_runs_and_has_its_metric(enabled: Autoscaling, runs: set[str]) -> None:
    made, metrics = autoscaler(enabled)
    made.post_filter("uid", ["n"])
    running = list(made.tasks())
    assert {name for name, _ in running} == runs
    for _, coroutine in running:
        coroutine.close()
    assert "gpushare_scheduler_placeholder_pods 0" in generate_latest(metrics.registry).decode()


def test_marks_are_read_from_labels_and_forgotten_with_the_node() -> None:
    made, _ = autoscaler(Autoscaling(PlaceholderLimits("s")))
    labelled: dict[str, Any] = node()
    labelled["metadata"]["labels"] |= {"kubernetes.io/hostname": "h", INSTANCE_TYPE: "t"}
    made.node_read("n", msgspec.json.encode(labelled))
    marks = made._marks
    assert (marks["n"].hostname, marks["n"].kind) == ("h", "t")
    del labelled["metadata"]["labels"]
    made.node_read("n", msgspec.json.encode(labelled))
    assert (marks["n"].hostname, marks["n"].kind) == ("n", "")
    made.node_removed("n")
    assert not marks


def test_marks_of_a_node_replaced_between_two_lists_stay_when_the_old_one_goes() -> None:
    made, _ = autoscaler(Autoscaling(PlaceholderLimits("s"), True))
    framework = Framework([Enabled("autoscaling", made)])
    nodes = framework.nodes(World().view)
    decode = nodes.decoder(NodeReader(unit=MemoryUnit.GIB, isolated_cap=16).decode)
    _, old = decode(msgspec.json.encode(node(OURS, units=0)))
    nodes.upsert(old)
    # As an informer does after a relist: it decodes the whole list, then removes missing objects, then adds new ones.
    _, new = decode(msgspec.json.encode(node(OURS)))
    nodes.remove("n", old)
    nodes.upsert(new)
    assert made._taints is not None
    assert made._taints._ready == {"n"}
    assert list(made._marks) == ["n"]
    nodes.remove("n", new)
    assert not made._taints._ready
    assert not made._marks


def test_nothing_is_imported_if_nothing_is_enabled() -> None:
    code = "import sys, gpushare.scheduler.main; print([name for name in sys.modules if 'placeholder_pods' in name])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], None),
        (["--startup-taint"], Autoscaling(None, True)),
        (["--placeholder-pods", "s"], Autoscaling(PlaceholderLimits("s"))),
        (
            [
                "--placeholder-pods",
                "s",
                "--placeholder-pods-group-label",
                "pool",
                "--placeholder-pods-min-pending",
                "5",
                "--placeholder-pods-max",
                "3",
            ],
            Autoscaling(PlaceholderLimits("s", "pool", 5.0, 3)),
        ),
    ],
)
def test_the_command_line_enables_the_parts(options: list[str], expected: Autoscaling | None) -> None:
    assert autoscaling_of(read(ROLE, options, {})) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--placeholder-pods", "No"], "--placeholder-pods No: write"),
        (["--placeholder-pods-max", "0"], "1 to 100"),
    ],
)
def test_a_mistake_is_reported(options: list[str], message: str) -> None:
    with pytest.raises((ValueError, InvalidSettings), match=message):
        autoscaling_of(read(ROLE, options, {}))


def test_a_placeholder_pod_requests_gpus_and_is_not_ours_to_place() -> None:
    world = World()
    pod = world.create("p", 4)
    assert pod.metadata.uid in world.view.waiting
    made = world.api.pods["default/p"]
    world.api.pods["default/s"] = {
        "metadata": {**made["metadata"], "name": "s", "uid": "u"},
        "spec": {**made["spec"], "schedulerName": names.PLACEHOLDER_SCHEDULER},
        "status": made["status"],
    }
    world.see("s")
    assert "u" not in world.view.waiting
