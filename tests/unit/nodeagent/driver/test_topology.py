"""How near GPUs are to each other, by the answers of drivers, including incomplete ones."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpushare.api.node.topology import LEAST_NVLINK
from gpushare.nodeagent.driver.topology import Seen, near_of

A, B, C = (
    Seen(f"GPU-{name}", name, f"00000000:{bus}:00.0") for name, bus in (("a", "3A"), ("b", "3B"), ("c", "3C"))
)
AB, AC, BC = ("GPU-a", "GPU-b"), ("GPU-a", "GPU-c"), ("GPU-b", "GPU-c")
SWITCH = "00000000:C5:00.0"


class Driver:
    """``links``: GPU → the addresses at the ends of its links, in order; ``None`` is a link that is down."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.links: dict[str, list[str | None]] = {}
        self.levels: dict[frozenset[str], int] = {}
        self.speed_mbps = 25781
        self.answers("nvmlDeviceGetNvLinkState", lambda gpu, link: int(self._end(gpu, link) is not None))
        self.answers(
            "nvmlDeviceGetNvLinkRemotePciInfo", lambda gpu, link: SimpleNamespace(busId=self._end(gpu, link))
        )
        self.answers(
            "nvmlDeviceGetNvLinkRemoteDeviceType",
            lambda gpu, link: (
                pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if self._end(gpu, link) == SWITCH else 0xFF
            ),
        )
        self.answers("nvmlDeviceGetTopologyCommonAncestor", self._level)
        self.answers("nvmlDeviceGetFieldValues", self._speed)

    def answers(self, function: str, answer: Callable[..., Any]) -> None:
        self._monkeypatch.setattr(pynvml, function, answer, raising=True)

    def silent(self, function: str) -> None:
        def refuse(*_: object) -> Any:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

        self.answers(function, refuse)

    def _end(self, gpu: str, link: int) -> str | None:
        ends = self.links.get(gpu, [])
        if link >= len(ends):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return ends[link]

    def _level(self, one: str, other: str) -> int:
        if frozenset((one, other)) not in self.levels:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
        return self.levels[frozenset((one, other))]

    def _speed(self, gpu: str, fields: list[int]) -> list[Any]:
        known = pynvml.NVML_SUCCESS if self.speed_mbps else pynvml.NVML_ERROR_NOT_SUPPORTED
        return [SimpleNamespace(nvmlReturn=known, value=SimpleNamespace(uiVal=self.speed_mbps))]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


def test_links_count_with_their_speed_and_before_any_path_over_pcie(driver: Driver) -> None:
    driver.links = {"a": ["0000:3b:00.0", None, "00000000:3B:00.0"], "b": ["0000:3A:00.0"] * 2}
    driver.levels = {frozenset("ab"): pynvml.NVML_TOPOLOGY_SINGLE, frozenset("ac"): pynvml.NVML_TOPOLOGY_NODE}
    assert near_of([A, B, C]) == {AB: 51, AC: 2}


def test_behind_switches_two_gpus_have_the_bandwidth_of_the_weaker(driver: Driver) -> None:
    driver.speed_mbps = 26562
    driver.links = {"a": [SWITCH] * 18, "b": [SWITCH] * 18, "c": [SWITCH] * 17}
    assert near_of([A, B, C]) == {AB: 478, AC: 451, BC: 451}


@pytest.mark.parametrize(
    ("level", "near"),
    [
        (pynvml.NVML_TOPOLOGY_INTERNAL, 6),
        (pynvml.NVML_TOPOLOGY_SINGLE, 5),
        (pynvml.NVML_TOPOLOGY_MULTIPLE, 4),
        (pynvml.NVML_TOPOLOGY_HOSTBRIDGE, 3),
        (pynvml.NVML_TOPOLOGY_NODE, 2),
        (pynvml.NVML_TOPOLOGY_SYSTEM, 1),
    ],
)
def test_without_links_the_path_over_pcie_counts(driver: Driver, level: int, near: int) -> None:
    driver.levels = {frozenset("ab"): level}
    assert near_of([A, B]) == {AB: near}


def test_an_unknown_kind_of_path_has_no_effect(driver: Driver) -> None:
    driver.levels = {frozenset("ab"): 77}
    assert near_of([A, B]) == {}


def test_a_link_of_unknown_speed_counts_as_a_slow_one(driver: Driver) -> None:
    driver.links = {"a": ["0000:3B:00.0"] * 4}
    driver.speed_mbps = 0
    assert near_of([A, B]) == {AB: 80}
    driver.silent("nvmlDeviceGetFieldValues")
    assert near_of([A, B]) == {AB: 80}
    driver.links = {"a": ["0000:3B:00.0"]}
    driver.speed_mbps = 1000
    driver.answers("nvmlDeviceGetFieldValues", driver._speed)
    assert near_of([A, B]) == {AB: LEAST_NVLINK}


def test_links_to_unknown_devices_are_ignored(driver: Driver) -> None:
    driver.links = {"a": [SWITCH, "0000:77:00.0"], "b": [SWITCH]}
    driver.silent("nvmlDeviceGetNvLinkRemoteDeviceType")
    assert near_of([A, B]) == {}
    driver.silent("nvmlDeviceGetNvLinkRemotePciInfo")
    assert near_of([A, B]) == {}


def test_a_driver_without_answers_and_gpus_without_addresses_are_no_error(driver: Driver) -> None:
    for function in (
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetTopologyCommonAncestor",
        "nvmlDeviceGetFieldValues",
    ):
        driver.silent(function)
    assert near_of([]) == {}
    assert near_of([A, B._replace(pci_bus_id="")]) == {}


def test_addresses_are_compared_as_bytes_and_as_text(driver: Driver) -> None:
    driver.links = {"a": ["0000:3B:00.0"]}
    driver.answers(
        "nvmlDeviceGetNvLinkRemotePciInfo", lambda gpu, link: SimpleNamespace(busId=b"00000000:3B:00.0")
    )
    assert near_of([A, B]) == {AB: 25}
