"""The kubelet's book of devices."""

import json

import pytest

from gpushare_playground.kubelet.devicemanager.checkpoint import read_checkpoint, write_checkpoint
from gpushare_playground.kubelet.devicemanager.devices import DeviceBook, Grant
from gpushare_playground.kubelet.errors import DeviceUnavailable

MEM = "aliyun.com/gpu-mem"


def book_with(*healthy, unhealthy=()):
    book = DeviceBook(shuffle=lambda _: None)
    book.connected(MEM)
    book.listed(MEM, {**dict.fromkeys(healthy, True), **dict.fromkeys(unhealthy, False)})
    return book


def grant(pod, *devices, container="c", response=b""):
    return Grant(pod, container, MEM, frozenset(devices), response)


def test_only_healthy_devices_are_allocatable_but_all_count_as_capacity():
    book = book_with("a", "b", unhealthy=("c",))
    assert (book.capacity(), book.allocatable()) == ({MEM: 3}, {MEM: 2})


def test_a_plugin_that_disconnects_leaves_its_capacity_for_the_grace_period():
    book = book_with("a", "b")
    book.disconnected(MEM, now=10.0)
    assert (book.capacity(), book.allocatable()) == ({MEM: 2}, {MEM: 0})
    assert book.expire(now=309.0, grace_s=300.0) == []
    assert book.expire(now=311.0, grace_s=300.0) == [MEM]
    assert book.capacity() == {}


def test_a_plugin_that_comes_back_in_time_is_not_dropped():
    book = book_with("a")
    book.disconnected(MEM, now=0.0)
    book.connected(MEM)
    assert book.expire(now=1000.0, grace_s=300.0) == []


def test_allocated_devices_are_not_free_until_their_pod_is_no_longer_active():
    book = book_with("a", "b", "c")
    book.put(grant("p1", "a", "b"))
    assert book.free(MEM, 1) == ["c"]
    with pytest.raises(DeviceUnavailable, match="Requested: 2, Available: 1"):
        book.free(MEM, 2)
    assert book.keep_only({"p1"}) is False
    assert book.keep_only(set()) is True
    assert book.free(MEM, 3) == ["a", "b", "c"]


def test_a_reservation_excludes_others_until_it_is_released():
    book = book_with("a", "b")
    book.reserve(MEM, ["a"])
    assert book.free(MEM, 1) == ["b"]
    book.release()
    assert book.free(MEM, 2) == ["a", "b"]


def test_a_container_keeps_its_devices_while_they_are_healthy():
    book = book_with("a", "b")
    book.put(grant("p", "a"))
    assert book.needs("p", "c", MEM, 1, already_running=False) is False
    assert book.needs("q", "c", MEM, 1, already_running=False) is True


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (
            lambda book: book.listed(MEM, {"a": False, "b": True}),
            "previously allocated devices are no longer healthy",
        ),
        (
            lambda book: book.disconnected(MEM, 0.0),
            "no healthy devices present; cannot allocate unhealthy devices",
        ),
        (lambda book: book.resources.clear(), "cannot allocate unregistered device"),
    ],
)
def test_a_restarting_container_needs_its_devices_healthy_a_running_one_does_not(spoil, text):
    book = book_with("a", "b")
    book.put(grant("p", "a"))
    spoil(book)
    assert book.needs("p", "c", MEM, 1, already_running=True) is False
    with pytest.raises(DeviceUnavailable, match=text):
        book.needs("p", "c", MEM, 1, already_running=False)


def test_a_changed_request_is_refused():
    book = book_with("a", "b")
    book.put(grant("p", "a"))
    with pytest.raises(DeviceUnavailable, match=r"changed request for resource .* from 1 to 2"):
        book.needs("p", "c", MEM, 2, already_running=False)


def test_devices_are_offered_in_random_order():
    book = DeviceBook()
    book.listed(MEM, {str(number): True for number in range(200)})
    assert book.free(MEM, 1) != sorted(book.free(MEM, 1))


def test_what_is_written_to_the_checkpoint_is_read_back(tmp_path):
    book = book_with("a", "b", unhealthy=("c",))
    book.put(grant("p", "a", response=b"\x00\xff"))
    path = tmp_path / "checkpoint"
    write_checkpoint(path, book)
    assert read_checkpoint(path) == ([MEM], [grant("p", "a", response=b"\x00\xff")])
    data = json.loads(path.read_text())
    assert data["Data"]["RegisteredDevices"] == {MEM: ["a", "b"]}
    assert data["Data"]["PodDeviceEntries"][0]["DeviceIDs"] == {"-1": ["a"]}
    assert isinstance(data["Checksum"], int)


def test_no_checkpoint_means_no_allocations(tmp_path):
    assert read_checkpoint(tmp_path / "none") == ([], [])


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"Data":{},"Checksum":1}', '{"Data":{"PodDeviceEntries":[{}]},"Checksum":0}']
)
def test_a_broken_checkpoint_is_put_aside_and_ignored(tmp_path, text):
    path = tmp_path / "checkpoint"
    path.write_text(text)
    assert read_checkpoint(path) == ([], [])
    assert not path.exists()
    assert (tmp_path / "checkpoint.broken").read_text() == text


def test_a_checkpoint_that_was_edited_is_ignored(tmp_path):
    path = tmp_path / "checkpoint"
    book = book_with("a")
    book.put(grant("p", "a"))
    write_checkpoint(path, book)
    path.write_text(path.read_text().replace('"a"', '"b"'))
    assert read_checkpoint(path) == ([], [])


def test_a_grant_of_a_resource_that_was_dropped_stays_with_its_pod(tmp_path):
    book = book_with("a")
    book.put(grant("p", "a"))
    book.disconnected(MEM, now=0.0)
    book.expire(now=1000.0, grace_s=300.0)
    write_checkpoint(tmp_path / "checkpoint", book)
    names, grants = read_checkpoint(tmp_path / "checkpoint")
    assert (names, grants) == ([], [grant("p", "a")])
