"""One fault of a node is one event, in whatever order its signs arrive, and however often its agent starts."""

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


class RecordedEvent(NamedTuple):
    reason: str
    note: str
    cause: str
    occurrence: str


class Recorder:
    """Keeps recorded events."""

    def __init__(self) -> None:
        self.recorded: list[RecordedEvent] = []

    def record(
        self, regarding: Any, *, reason: str, note: str, cause: str, occurrence: str, **_: Any
    ) -> None:
        self.recorded.append(RecordedEvent(reason, note, cause, occurrence))

    def take(self) -> list[tuple[str, str]]:
        """Reason and occurrence of each new Event."""
        recorded, self.recorded = self.recorded, []
        return [(one.reason, one.occurrence) for one in recorded]


class Agent:
    """The events of one node's agent."""

    def __init__(self, *, acts: bool = True) -> None:
        self.recorder = Recorder()
        self.metrics = Metrics()
        self.node_events = NodeEvents("n", self.recorder, self.metrics, acts=lambda: acts)
        self._before: Inventory | None = None

    def observe(
        self,
        *devices: Device,
        trouble: DriverProblem | None = None,
        left_out: Sequence[str] = (),
        kept_back: Sequence[Device] = (),
        **wrong: Any,
    ) -> list[tuple[str, str]]:
        """New events once the node is in this state; ``kept_back`` in place of ``devices`` are described, for other reasons than health."""
        inventory = Inventory(devices, trouble and Trouble(trouble, f"note of {trouble}"), tuple(left_out))
        self.node_events.gpus(inventory, self._before, 300.0)
        self._before = inventory
        self.node_events.present(kept_back or devices)
        self.node_events.troubles(inventory, **WELL | wrong)
        return self.recorder.take()


@pytest.fixture
def agent() -> Agent:
    return Agent()


def sick(reason: str, device: Device = SOUND) -> Device:
    return msgspec.structs.replace(device, healthy=False, reason=reason)


CAME, GONE = ("GPUUnhealthy", "began"), ("GPURecovered", "began")
# : It is counted on the existing event.
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
    agent.observe(SOUND)
    recorded = [one for state in states for one in agent.observe(sick(state) if state else SOUND)]
    assert recorded == events


def test_an_xid_event_contains_how_long_the_gpu_must_be_quiet(agent: Agent) -> None:
    agent.node_events.health(sick("critical error XID 48"), 300.0)
    assert agent.recorder.recorded[0].note.endswith(
        "; back in service 300 s after its last error, if it responds"
    )


def test_if_the_driver_fails_its_gpus_are_not_reported_as_well(agent: Agent) -> None:
    assert agent.observe(SOUND, OTHER) == []
    failed = [sick("Driver Not Loaded", one) for one in (SOUND, OTHER)]
    assert agent.observe(*failed, trouble="DriverNotFound") == [("DriverNotFound", "began")]
    assert agent.observe(*failed, trouble="DriverNotFound") == []
    assert agent.observe(*failed, trouble="DriverFailed") == [("DriverFailed", "began")]
    assert agent.observe(SOUND, OTHER) == [("DriverReady", "began")]


def test_if_the_last_gpu_is_lost_that_is_what_is_reported(agent: Agent) -> None:
    agent.observe(SOUND)
    assert agent.observe(sick("GPU is lost")) == [CAME]
    assert agent.observe(sick("GPU is lost"), trouble="NoGPU") == []
    assert agent.metrics.degraded.value("NoGPU") == 0, (
        "figures, and who reads them, call it as the event does"
    )
    assert agent.observe(SOUND) == [GONE]
    agent.observe(trouble="NoGPU")
    assert agent.metrics.degraded.value("NoGPU") == 1


def test_a_node_without_shareable_gpus_is_reported_once_and_not_gpu_by_gpu(agent: Agent) -> None:
    left = ["GPU 0 cannot be read (GPU is lost)", "GPU 1 (GPU-b) is in MIG mode"]
    assert agent.observe(trouble="NoGPU", left_out=left) == [("NoGPU", "found")]
    assert agent.observe(SOUND, left_out=left[1:]) == [("DriverReady", "began")]
    assert agent.observe(SOUND, left_out=left) == [("GPUExcluded", "began")], "it was read in between"


def test_an_excluded_gpu_is_reported_again_if_it_came_back_in_between(agent: Agent) -> None:
    left = ["GPU 1 (GPU-b) is in MIG mode"]
    assert agent.observe(SOUND, left_out=left) == [("GPUExcluded", "lasting")]
    assert agent.observe(SOUND, left_out=left) == []
    assert agent.observe(SOUND, OTHER) == []
    assert agent.observe(SOUND, sick(IN_MIG_MODE, OTHER), left_out=left) == [("GPUExcluded", "began")]


def test_faults_in_the_condition_at_startup_count_as_reported(agent: Agent) -> None:
    agent.node_events.restore(["GPUUnhealthy"], {SOUND.uuid: "GPU is lost"})
    assert agent.observe(sick("GPU is lost")) == [GOES_ON]
    assert agent.observe(sick("GPU is lost")) == []
    assert agent.observe(SOUND) == [GONE]
    assert agent.observe(sick("GPU is lost")) == [CAME]


def test_faults_that_ended_while_no_agent_was_there_are_reported_as_ended(agent: Agent) -> None:
    agent.node_events.restore(["DriverFailed"], {})
    assert agent.observe(SOUND) == [("DriverReady", "found")]
    other = Agent()
    other.node_events.restore([""], {SOUND.uuid: "GPU is lost"})
    assert other.observe(SOUND) == [("GPURecovered", "found")]


@pytest.mark.parametrize(
    ("reason", "recovery", "wrong"),
    [
        ("CDIUnavailable", "CDIAvailable", {"access": "no description"}),
        ("IsolationUnavailable", "IsolationAvailable", {"isolation": "no library"}),
        ("IsolationUnavailable", "IsolationAvailable", {"fallen": "the driver is too old"}),
        ("ClaimsUnavailable", "ClaimsAvailable", {"claims": "the kubelet refuses the driver"}),
        ("DriverFailed", "DriverReady", {"trouble": "DriverFailed"}),
    ],
)
def test_a_lasting_fault_is_not_reported_again_but_is_new_once_it_has_ended(
    agent: Agent, reason: str, recovery: str, wrong: dict[str, Any]
) -> None:
    agent.node_events.restore([reason], {})
    assert agent.observe(SOUND, **wrong) == [(reason, "lasting")]
    assert agent.observe(SOUND, **wrong) == []
    assert agent.observe(SOUND) == [(recovery, "began")]
    assert agent.observe(SOUND, **wrong) == [(reason, "began")]


def test_a_changed_text_is_not_another_fault(agent: Agent) -> None:
    agent.observe(SOUND, isolation="one library is missing")
    before = agent.recorder
    agent.node_events.troubles(Inventory((SOUND,)), **WELL | {"isolation": "two libraries are missing"})
    assert [one.cause for one in before.recorded] == ["isolation"]


def test_a_label_wrong_before_the_agent_started_may_have_been_reported_by_the_scheduler(
    agent: Agent,
) -> None:
    note = agent.node_events.mode("label x=y is unknown")
    assert note == "label x=y is unknown; until then the node shares no GPU"
    assert agent.node_events.mode("label x=y is unknown") == note
    assert agent.node_events.mode("") == ""
    assert agent.observe(SOUND) == [("UnknownGPUMode", "lasting")]
    agent.node_events.mode("label x=y is unknown")
    assert agent.recorder.take() == [("UnknownGPUMode", "began")]


def test_an_unusable_file_is_reported_once(agent: Agent) -> None:
    assert agent.observe(SOUND, faults=("x.json is empty",)) == [("CDIFileUnusable", "lasting")]
    assert agent.observe(SOUND, faults=("x.json is empty", "y.json is empty")) == [
        ("CDIFileUnusable", "began")
    ]


def test_while_a_newer_agent_is_there_nothing_is_reported() -> None:
    assert Agent(acts=False).observe(sick("GPU is lost")) == []


def test_a_healthy_gpu_kept_back_for_a_pod_is_reported_neither_out_nor_back(
    agent: Agent,
) -> None:
    held = "held whole by pod ml/a"
    agent.node_events.restore(["SomeGPUsUnhealthy"], {SOUND.uuid: held})
    assert agent.observe(SOUND, kept_back=[sick(held)]) == []
    assert agent.observe(SOUND) == []
    assert agent.observe(sick("GPU is lost")) == [CAME]


def test_a_gpu_that_was_out_and_is_gone_now_is_not_reported(agent: Agent) -> None:
    agent.node_events.restore([""], {OTHER.uuid: "GPU is lost"})
    assert agent.observe(SOUND) == []


def test_gpus_also_offered_by_another_plugin_are_one_event_until_that_ends(agent: Agent) -> None:
    agent.observe(SOUND)
    for others, events in (
        ("nvidia.com/gpu: 2", [("GPUsOfferedTwice", "began")]),
        ("nvidia.com/gpu: 2", []),
        ("", [("GPUsOfferedOnce", "began")]),
        ("", []),
    ):
        agent.node_events.offered_by_others(others)
        assert agent.recorder.take() == events
        assert agent.metrics.degraded.value("GPUsOfferedTwice") == float(bool(others))


def test_a_file_that_breaks_again_in_the_same_way_is_reported_again(agent: Agent) -> None:
    agent.observe(SOUND, faults=("x.json is empty",))
    assert agent.observe(SOUND, faults=()) == []
    assert agent.observe(SOUND, faults=("x.json is empty",)) == [("CDIFileUnusable", "began")]
