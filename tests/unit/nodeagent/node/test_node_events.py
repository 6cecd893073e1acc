"""One fault of a node is one event, however its signs follow each other, and however often its agent starts."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import pytest

from gpushare.api.node.device import Device
from gpushare.nodeagent.driver.discovery import DriverProblem, Inventory, Trouble
from gpushare.nodeagent.driver.nvml import IN_MIG_MODE, NOT_FOUND
from gpushare.nodeagent.node.node_events import NodeEvents
from gpushare.nodeagent.observability.metrics import Metrics

SOUND, OTHER = Device(0, "GPU-a", 16384), Device(1, "GPU-b", 16384)
WELL: dict[str, Any] = {
    "access": "",
    "faults": (),
    "isolation": "",
    "fallen": "",
    "claims": "",
    "mode": "cgpu",
}


class Told(NamedTuple):
    reason: str
    note: str
    cause: str
    occurrence: str


class Recorder:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Told] = []

    def record(
        self, regarding: Any, *, reason: str, note: str, cause: str, occurrence: str, **_: Any
    ) -> None:
        self.told.append(Told(reason, note, cause, occurrence))

    def take(self) -> list[tuple[str, str]]:
        """Reason and occurrence of each new Event."""
        told, self.told = self.told, []
        return [(one.reason, one.occurrence) for one in told]


class Agent:
    """The news of one node's agent."""

    def __init__(self, *, acts: bool = True) -> None:
        self.recorder = Recorder()
        self.metrics = Metrics()
        self.news = NodeEvents("n", self.recorder, self.metrics, acts=lambda: acts)
        self._before: Inventory | None = None

    def finds(
        self,
        *devices: Device,
        trouble: DriverProblem | None = None,
        left_out: Sequence[str] = (),
        kept_back: Sequence[Device] = (),
        **wrong: Any,
    ) -> list[tuple[str, str]]:
        """What is told once the node is so; ``kept_back`` in place of ``devices`` are described, for other reasons than health."""
        inventory = Inventory(devices, trouble and Trouble(trouble, f"note of {trouble}"), tuple(left_out))
        self.news.gpus(inventory, self._before, 300.0)
        self._before = inventory
        self.news.present(kept_back or devices)
        self.news.troubles(inventory, **WELL | wrong)
        return self.recorder.take()


@pytest.fixture
def agent() -> Agent:
    return Agent()


def sick(reason: str, device: Device = SOUND) -> Device:
    return msgspec.structs.replace(device, healthy=False, reason=reason)


CAME, GONE = ("GPUUnhealthy", "began"), ("GPURecovered", "began")
#: It is counted on the event that is there.
GOES_ON = ("GPUUnhealthy", "lasting")


@pytest.mark.parametrize(
    ("states", "events"),
    [
        (["GPU is lost"], [CAME]),
        (["GPU is lost", "GPU is lost"], [CAME]),
        (["GPU is lost", NOT_FOUND], [CAME]),
        ([NOT_FOUND, NOT_FOUND], [CAME]),
        (["GPU is lost", NOT_FOUND, "", NOT_FOUND], [CAME, GONE, CAME]),
        (["critical error XID 79", "GPU is lost"], [CAME, GOES_ON]),
        (["", ""], []),
    ],
)
def test_a_gpu_is_out_of_service_once_until_it_comes_back(
    agent: Agent, states: list[str], events: list[tuple[str, str]]
) -> None:
    agent.finds(SOUND)
    told = [one for state in states for one in agent.finds(sick(state) if state else SOUND)]
    assert told == events


def test_an_xid_is_told_with_how_long_it_must_be_quiet(agent: Agent) -> None:
    agent.news.health(sick("critical error XID 48"), 300.0)
    assert agent.recorder.told[0].note.endswith("; trusted again 300 s after its last error, if it answers")


def test_of_a_driver_that_fails_the_gpus_are_not_told_as_well(agent: Agent) -> None:
    assert agent.finds(SOUND, OTHER) == []
    failed = [sick("Driver Not Loaded", one) for one in (SOUND, OTHER)]
    assert agent.finds(*failed, trouble="DriverNotFound") == [("DriverNotFound", "began")]
    assert agent.finds(*failed, trouble="DriverNotFound") == []
    assert agent.finds(*failed, trouble="DriverFailed") == [("DriverFailed", "began")]
    assert agent.finds(SOUND, OTHER) == [("DriverReady", "began")]


def test_when_the_last_gpu_is_lost_it_is_that_which_is_told(agent: Agent) -> None:
    agent.finds(SOUND)
    assert agent.finds(sick("GPU is lost")) == [CAME]
    assert agent.finds(sick("GPU is lost"), trouble="NoGPU") == []
    assert agent.metrics.degraded.value("NoGPU") == 0, (
        "figures, and who reads them, call it as the event does"
    )
    assert agent.finds(SOUND) == [GONE]
    agent.finds(trouble="NoGPU")
    assert agent.metrics.degraded.value("NoGPU") == 1


def test_a_node_on_which_no_gpu_can_be_shared_is_told_of_once_and_not_gpu_by_gpu(agent: Agent) -> None:
    left = ["GPU 0 cannot be read (GPU is lost)", "GPU 1 (GPU-b) is in MIG mode"]
    assert agent.finds(trouble="NoGPU", left_out=left) == [("NoGPU", "found")]
    assert agent.finds(SOUND, left_out=left[1:]) == [("DriverReady", "began")]
    assert agent.finds(SOUND, left_out=left) == [("GPUExcluded", "began")], "it was read in between"


def test_a_gpu_that_is_left_out_is_told_again_when_it_came_back_between(agent: Agent) -> None:
    left = ["GPU 1 (GPU-b) is in MIG mode"]
    assert agent.finds(SOUND, left_out=left) == [("GPUExcluded", "lasting")]
    assert agent.finds(SOUND, left_out=left) == []
    assert agent.finds(SOUND, OTHER) == []
    assert agent.finds(SOUND, sick(IN_MIG_MODE, OTHER), left_out=left) == [("GPUExcluded", "began")]


def test_what_the_node_said_as_the_agent_started_is_known_to_have_been_told(agent: Agent) -> None:
    agent.news.restore(["GPUUnhealthy"], {SOUND.uuid: "GPU is lost"})
    assert agent.finds(sick("GPU is lost")) == [GOES_ON]
    assert agent.finds(sick("GPU is lost")) == []
    assert agent.finds(SOUND) == [GONE]
    assert agent.finds(sick("GPU is lost")) == [CAME]


def test_what_has_ended_while_no_agent_was_there_is_told_to_have_ended(agent: Agent) -> None:
    agent.news.restore(["DriverFailed"], {})
    assert agent.finds(SOUND) == [("DriverReady", "found")]
    other = Agent()
    other.news.restore([""], {SOUND.uuid: "GPU is lost"})
    assert other.finds(SOUND) == [("GPURecovered", "found")]


@pytest.mark.parametrize(
    ("reason", "ended", "wrong"),
    [
        ("CDIUnavailable", "CDIAvailable", {"access": "no description"}),
        ("IsolationUnavailable", "IsolationAvailable", {"isolation": "no library"}),
        ("IsolationUnavailable", "IsolationAvailable", {"fallen": "the driver is too old"}),
        ("ClaimsUnavailable", "ClaimsAvailable", {"claims": "the kubelet refuses the driver"}),
        ("DriverFailed", "DriverReady", {"trouble": "DriverFailed"}),
    ],
)
def test_what_stood_is_left_as_it_was_told_and_is_new_once_it_has_ended(
    agent: Agent, reason: str, ended: str, wrong: dict[str, Any]
) -> None:
    agent.news.restore([reason], {})
    assert agent.finds(SOUND, **wrong) == [(reason, "lasting")]
    assert agent.finds(SOUND, **wrong) == []
    assert agent.finds(SOUND) == [(ended, "began")]
    assert agent.finds(SOUND, **wrong) == [(reason, "began")]


def test_words_that_change_do_not_make_another_fault_of_it(agent: Agent) -> None:
    agent.finds(SOUND, isolation="one library is missing")
    before = agent.recorder
    agent.news.troubles(Inventory((SOUND,)), **WELL | {"isolation": "two libraries are missing"})
    assert [one.cause for one in before.told] == ["isolation"]


def test_a_label_that_was_wrong_before_the_agent_came_may_have_been_told_by_the_scheduler(
    agent: Agent,
) -> None:
    note = agent.news.mode("label x=y is unknown")
    assert note == "label x=y is unknown; until then the node shares no GPU"
    assert agent.news.mode("label x=y is unknown") == note
    assert agent.news.mode("") == ""
    assert agent.finds(SOUND) == [("UnknownGPUMode", "lasting")]
    agent.news.mode("label x=y is unknown")
    assert agent.recorder.take() == [("UnknownGPUMode", "began")]


def test_a_file_that_cannot_be_used_is_told_once(agent: Agent) -> None:
    assert agent.finds(SOUND, faults=("x.json is empty",)) == [("CDIFileUnusable", "lasting")]
    assert agent.finds(SOUND, faults=("x.json is empty", "y.json is empty")) == [("CDIFileUnusable", "began")]


def test_while_a_newer_agent_is_there_it_tells() -> None:
    assert Agent(acts=False).finds(sick("GPU is lost")) == []


def test_a_gpu_that_is_well_and_kept_back_for_a_pod_is_told_neither_to_be_out_nor_to_be_back(
    agent: Agent,
) -> None:
    held = "held whole by pod ml/a"
    agent.news.restore(["SomeGPUsUnhealthy"], {SOUND.uuid: held})
    assert agent.finds(SOUND, kept_back=[sick(held)]) == []
    assert agent.finds(SOUND) == []
    assert agent.finds(sick("GPU is lost")) == [CAME]


def test_a_gpu_that_was_out_and_is_there_no_more_is_not_told_of(agent: Agent) -> None:
    agent.news.restore([""], {OTHER.uuid: "GPU is lost"})
    assert agent.finds(SOUND) == []


def test_gpus_that_another_plugin_offers_too_are_one_event_until_it_ends(agent: Agent) -> None:
    agent.finds(SOUND)
    for others, events in (
        ("nvidia.com/gpu: 2", [("GPUsOfferedTwice", "began")]),
        ("nvidia.com/gpu: 2", []),
        ("", [("GPUsOfferedOnce", "began")]),
        ("", []),
    ):
        agent.news.offered_by_others(others)
        assert agent.recorder.take() == events
        assert agent.metrics.degraded.value("GPUsOfferedTwice") == float(bool(others))
