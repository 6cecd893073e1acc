"""Addresses of our components: of pods by the labels that the charts set, or from a file."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpushare.dashboard.data.endpoints import AgentsFile, Place, Places, decode_place
from gpushare.dashboard.errors import InvalidSetting


def pod(name: str, program: str, ip: str = "10.0.0.1", **more: Any) -> bytes:
    port = "health" if program in ("gpushare-device-plugin", "ack-co-scheduler") else "x"
    ports = [{"name": "other", "containerPort": 1}, {"name": port, "containerPort": 9452}]
    return json.dumps(
        {
            "metadata": {
                "name": name,
                "namespace": "kube-system",
                "labels": {"app.kubernetes.io/name": program},
            },
            "spec": {"nodeName": "a", "containers": [{"name": "x"}, {"name": "y", "ports": ports}]},
            "status": {"phase": "Running", "podIP": ip, **more},
        }
    ).encode()


def place(raw: bytes) -> Place:
    decoded = decode_place(raw)
    assert decoded is not None
    return decoded[1]


def test_agents_are_found_by_node_and_schedulers_by_pod() -> None:
    places = Places()
    places.synced()
    agent, scheduler = (
        place(pod("agent", "gpushare-device-plugin")),
        place(pod("s", "ack-co-scheduler", "fd00::1")),
    )
    places.upsert(agent)
    places.upsert(scheduler)
    assert places.agent("a") == "10.0.0.1:9452"
    assert places.scheduler("kube-system/s") == "[fd00::1]:9452"
    assert (places.agent("b"), places.scheduler("kube-system/t")) == ("", "")


def test_a_scheduler_is_read_at_its_decisions_port_and_an_agent_at_its_metrics_port() -> None:
    ports = [
        {"name": name, "containerPort": at} for at, name in enumerate(("health", "probes", "decisions"), 9)
    ]
    places = Places()
    for name, program in (("s", "ack-co-scheduler"), ("agent", "gpushare-device-plugin")):
        document = json.loads(pod(name, program))
        document["spec"]["containers"] = [{"ports": ports}]
        places.upsert(place(json.dumps(document).encode()))
    assert (places.scheduler("kube-system/s"), places.agent("a")) == ("10.0.0.1:11", "10.0.0.1:9")


def test_removing_an_agent_after_its_successor_came_changes_nothing() -> None:
    places = Places()
    old = place(pod("old", "gpushare-device-plugin"))
    places.upsert(old)
    places.upsert(place(pod("new", "gpushare-device-plugin", "10.0.0.2")))
    places.remove("kube-system/old", old)
    assert places.agent("a") == "10.0.0.2:9452"
    places.remove("kube-system/new", place(pod("new", "gpushare-device-plugin", "10.0.0.2")))
    assert places.agent("a") == ""


def test_updates_of_a_terminating_agent_do_not_hide_its_successor() -> None:
    places = Places()
    old = place(pod("old", "gpushare-device-plugin"))
    places.upsert(old)
    places.upsert(place(pod("new", "gpushare-device-plugin", "10.0.0.2")))
    # Its deletion is requested, then its containers terminate: the new one has no updates meanwhile.
    places.upsert(old)
    assert places.agent("a") == "10.0.0.2:9452"
    terminated = place(pod("old", "gpushare-device-plugin", phase="Succeeded"))
    places.upsert(terminated)
    places.remove("kube-system/old", terminated)
    assert places.agent("a") == "10.0.0.2:9452"


def test_a_terminated_agent_is_not_queried() -> None:
    places = Places()
    places.upsert(place(pod("old", "gpushare-device-plugin")))
    places.upsert(place(pod("old", "gpushare-device-plugin", phase="Failed")))
    assert places.agent("a") == ""


def test_pods_that_do_not_run_and_pods_of_others_are_not_queried() -> None:
    assert decode_place(pod("x", "webhook")) is None
    places = Places()
    places.upsert(place(pod("agent", "gpushare-device-plugin", phase="Pending")))
    assert places.agent("a") == ""


def test_a_file_lists_the_agents_and_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "agents"
    file.write_text("a 127.0.0.1:1\n\nb [::1]:2\n")
    agents = AgentsFile(file)
    assert (agents.agent("a"), agents.agent("b"), agents.agent("c")) == ("127.0.0.1:1", "[::1]:2", "")
    file.write_text("a 127.0.0.1:3\n")
    os.utime(file, ns=(1, 1))
    assert (agents.agent("a"), agents.agent("b")) == ("127.0.0.1:3", "")
    file.write_text("half")
    assert agents.agent("a") == "127.0.0.1:3"


def test_an_invalid_file_is_refused_with_the_expected_format(tmp_path: Path) -> None:
    file = tmp_path / "agents"
    with pytest.raises(InvalidSetting, match="No such file"):
        AgentsFile(file)
    file.write_text("a b c\n")
    with pytest.raises(InvalidSetting, match="NODE HOST:PORT"):
        AgentsFile(file)
