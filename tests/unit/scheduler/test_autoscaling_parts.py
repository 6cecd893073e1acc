"""What was asked for of autoscaling is put together, sees nodes on their way, and is not there where nothing was asked for."""

import subprocess
import sys
from typing import Any

import msgspec
import pytest
from prometheus_client import generate_latest

from gpushare.api import names
from gpushare.api.objects import decode_node
from gpushare.kube.auth.access import Access
from gpushare.kube.client.session import Session
from gpushare.options.option import InvalidSettings
from gpushare.options.reading import read
from gpushare.scheduler.observability.metrics import Metrics
from gpushare.scheduler.options import ROLE
from gpushare.scheduler.plugins.autoscaling.settings import (
    INSTANCE_TYPE,
    Autoscaling,
    StandInLimits,
    autoscaling_of,
)
from gpushare.scheduler.plugins.autoscaling.wiring import Scaling, Unscaled, scaling_of
from tests.unit.scheduler.test_startup_taints import OURS, node
from tests.unit.scheduler.world import World


class Handler:
    """What a node's handler was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def synced(self) -> None:
        self.told.append("synced")

    def upsert(self, item: object) -> None:
        self.told.append(str(item))

    def remove(self, key: str, last: object) -> None:
        self.told.append(f"-{key}")


def scaling(asked: Autoscaling | None) -> tuple[Scaling, Metrics]:
    world, metrics = World(), Metrics()
    session = Session(Access("http://127.0.0.1:1"))
    made = scaling_of(
        asked,
        session,
        world.view,
        world.events,
        world.clock,
        None,
        metrics,
        read=lambda: True,  # type: ignore[arg-type]
    )
    return made, metrics


def decode(raw: bytes) -> tuple[str, str]:
    name = decode_node(raw).metadata.name
    return name, name


@pytest.mark.parametrize(
    ("asked", "runs"),
    [
        (None, set()),
        (Autoscaling(startup_taint=True), {"startup taints"}),
        (Autoscaling(StandInLimits("s")), {"stand-ins", "their watch"}),
        (Autoscaling(StandInLimits("s"), True), {"startup taints", "stand-ins", "their watch"}),
    ],
)
def test_what_was_asked_for_runs_and_nodes_pass_by(asked: Autoscaling | None, runs: set[str]) -> None:
    made, metrics = scaling(asked)
    handler = Handler()
    follower = made.following(handler)
    made.refused("uid", ["n"])
    name, item = made.noticing(decode)(msgspec.json.encode(node(OURS)))
    follower.synced()
    follower.upsert(item)
    assert handler.told == ["synced", "n"]
    follower.remove(name, item)
    assert handler.told[-1] == "-n"
    running = made.running()
    assert {name for name, _ in running} == runs
    for _, coroutine in running:
        coroutine.close()
    assert ("gpushare_scheduler_stand_ins 0" in generate_latest(metrics.registry).decode()) is (
        asked is not None
    )


def test_marks_are_read_from_labels_and_forgotten_with_the_node() -> None:
    made, _ = scaling(Autoscaling(StandInLimits("s")))
    labelled: dict[str, Any] = node()
    labelled["metadata"]["labels"] |= {"kubernetes.io/hostname": "h", INSTANCE_TYPE: "t"}
    noticed = made.noticing(decode)
    noticed(msgspec.json.encode(labelled))
    marks = made._marks  # type: ignore[attr-defined]
    assert (marks["n"].hostname, marks["n"].kind) == ("h", "t")
    del labelled["metadata"]["labels"]
    _, last = noticed(msgspec.json.encode(labelled))
    assert (marks["n"].hostname, marks["n"].kind) == ("n", "")
    made.following(Handler()).remove("n", last)
    assert not marks


def test_what_was_seen_of_a_node_that_came_anew_between_two_lists_stays_when_the_old_one_goes() -> None:
    made, _ = scaling(Autoscaling(StandInLimits("s"), True))
    noticed, follower = made.noticing(decode_anew), made.following(Handler())
    _, old = noticed(msgspec.json.encode(node(OURS, units=0)))
    follower.upsert(old)
    # As an informer has it that lists anew: it reads what is there, then tells what is gone, then what has come.
    _, new = noticed(msgspec.json.encode(node(OURS)))
    follower.remove("n", old)
    follower.upsert(new)
    assert made._taints._ready == {"n"}  # type: ignore[attr-defined]
    assert list(made._marks) == ["n"]  # type: ignore[attr-defined]
    follower.remove("n", new)
    assert not made._taints._ready  # type: ignore[attr-defined]
    assert not made._marks  # type: ignore[attr-defined]


def decode_anew(raw: bytes) -> tuple[str, list[str]]:
    """As nodes are decoded: each time it is something else."""
    name, _ = decode(raw)
    return name, [name]


def test_nothing_is_imported_where_nothing_is_asked_for() -> None:
    code = "import sys, gpushare.scheduler.main; print([name for name in sys.modules if 'stand_in' in name])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"
    assert isinstance(scaling(None)[0], Unscaled)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], None),
        (["--startup-taint"], Autoscaling(None, True)),
        (["--stand-ins", "s"], Autoscaling(StandInLimits("s"))),
        (
            [
                "--stand-ins",
                "s",
                "--stand-ins-kind-label",
                "pool",
                "--stand-ins-wait",
                "5",
                "--stand-ins-most",
                "3",
            ],
            Autoscaling(StandInLimits("s", "pool", 5.0, 3)),
        ),
    ],
)
def test_the_command_line_says_what_is_asked_for(options: list[str], expected: Autoscaling | None) -> None:
    assert autoscaling_of(read(ROLE, options, {})) == expected


@pytest.mark.parametrize(
    ("options", "says"),
    [(["--stand-ins", "No"], "--stand-ins No: write"), (["--stand-ins-most", "0"], "1 to 100")],
)
def test_a_mistake_is_told(options: list[str], says: str) -> None:
    with pytest.raises((ValueError, InvalidSettings), match=says):
        autoscaling_of(read(ROLE, options, {}))


def test_a_stand_in_asks_for_gpus_and_is_nobody_of_ours() -> None:
    world = World()
    pod = world.create("p", 4)
    assert pod.metadata.uid in world.view.waiting
    made = world.api.pods["default/p"]
    world.api.pods["default/s"] = {
        "metadata": {**made["metadata"], "name": "s", "uid": "u"},
        "spec": {**made["spec"], "schedulerName": names.STAND_IN_SCHEDULER},
        "status": made["status"],
    }
    world.see("s")
    assert "u" not in world.view.waiting
