"""Allocation annotations: ours are read back, those of others are read or refused, never guessed."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api import names
from gpushare.api.allocation.allocation import Allocation, GpuShare, allocate_on, allocate_over
from gpushare.api.allocation.annotations import (
    Stamp,
    allocation_annotations,
    is_allocated,
    read_allocation,
    read_stamp,
)
from gpushare.api.errors import MalformedAllocation
from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import ContainerKind, ContainerRequest, Request

NODE = NodeDevices(
    "n1",
    NodeMode.CORE_MEM,
    MemoryUnit.GIB,
    (Device(0, "GPU-a", 16160), Device(1, "GPU-b", 16160), Device(3, "GPU-d", 81920)),
)
OURS = (names.ANN_SHARE,)
FIRST = (
    names.ANN_MEM_INDEX,
    names.ANN_MEM_POD,
    names.ANN_MEM_DEVICE,
    names.ANN_MEM_ASSIGNED,
    names.ANN_MEM_ASSUME_TIME,
)
SECOND = (names.ANN_ALLOCATION, names.ANN_ASSIGNED, names.ANN_ASSUME_TIME, names.ANN_CORE)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    with_core = draw(st.booleans())
    requested, app_index, init_index = [], 0, 0
    for number in range(draw(st.integers(1, 4))):
        kind = ContainerKind.APP if number == 0 else draw(st.sampled_from(ContainerKind))
        index = app_index if kind is ContainerKind.APP else init_index
        app_index += kind is ContainerKind.APP
        init_index += kind is not ContainerKind.APP
        core = draw(st.integers(1, 4)) * 5 if with_core else 0
        requested.append(ContainerRequest(f"c{number}", kind, index, draw(st.integers(1, 3)), core))
    return Request(
        sum(one.memory_units for one in requested),
        sum(one.core_percent for one in requested),
        tuple(requested),
    )


stamps = st.builds(Stamp, assume_time_ns=st.integers(0, 2**63 - 1), assigned=st.booleans())


def only(written: dict[str, str], kept: tuple[str, ...]) -> dict[str, str]:
    return {name: text for name, text in written.items() if name in kept}


@given(request=requests(), device=st.sampled_from(NODE.devices), stamp=stamps)
def test_every_allocation_is_read_back_unchanged(request: Request, device: Device, stamp: Stamp) -> None:
    allocation = allocate_on(NODE, device, request)
    written = allocation_annotations(allocation, request, stamp)
    assert is_allocated(written)
    assert read_allocation(written, None) == allocation
    assert read_stamp(written) == stamp


@given(request=requests(), device=st.sampled_from(NODE.devices), stamp=stamps)
def test_each_generation_on_its_own_gives_the_same_gpu(
    request: Request, device: Device, stamp: Stamp
) -> None:
    allocation = allocate_on(NODE, device, request)
    written = allocation_annotations(allocation, request, stamp)
    first = read_allocation(only(written, FIRST), NODE)
    second = read_allocation(only(written, SECOND), NODE)
    both = read_allocation(only(written, FIRST + SECOND), NODE)
    assert first is not None
    assert second is not None
    assert both is not None
    apps = [one for one in request.containers if one.kind is ContainerKind.APP]
    held = allocation.gpus[0]
    assert [(share.uuid, share.mib, share.units) for share in first.gpus] == [
        (held.uuid, held.mib, held.units)
    ]
    assert (second.gpus[0].uuid, second.units) == (held.uuid, sum(one.memory_units for one in apps))
    assert second.gpus[0].core_percent == sum(one.core_percent for one in apps)
    assert (both.gpus[0].uuid, both.gpus[0].mib) == (held.uuid, held.mib)
    assert read_stamp(only(written, FIRST)) == read_stamp(only(written, SECOND)) == stamp


def test_the_documented_shapes_are_written() -> None:
    request = Request(3, 30, (ContainerRequest("c", ContainerKind.APP, 0, 3, 30),))
    written = allocation_annotations(
        allocate_on(NODE, NODE.devices[1], request), request, Stamp(7, assigned=False)
    )
    assert only(written, FIRST + SECOND) == {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "3",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "7",
        "scheduler.framework.gpushare.allocation": '{"0":{"1":3}}',
        "scheduler.framework.gpushare.assigned": "false",
        "scheduler.framework.gpushare.assume-time": "7",
        "gpushare.alibabacloud.com/core-percentage": '{"0":{"1":30}}',
    }
    assert msgspec.json.decode(written["gpushare.dev/allocation"])["gpus"] == [
        {"uuid": "GPU-b", "index": 1, "mib": 3232, "units": 3, "of": 15, "core": 30}
    ]


def test_a_pod_with_no_annotation_of_any_generation_holds_nothing() -> None:
    assert read_allocation({"other": "x"}, NODE) is None
    assert not is_allocated({})
    assert read_stamp({}) == Stamp(0, assigned=False)


@st.composite
def wide_requests(draw: st.DrawFn) -> Request:
    """Requests for several GPUs, or for whole ones, that fit on any of ``NODE``."""
    gpus = draw(st.integers(1, 3))
    requested = [
        ContainerRequest(f"c{at}", ContainerKind.APP, at, draw(st.integers(1, 5)) * gpus, 0)
        for at in range(draw(st.integers(1, 3)))
    ]
    return Request(
        sum(one.memory_units for one in requested) // gpus,
        0,
        tuple(requested),
        gpus,
        whole_device=draw(st.booleans()),
    )


@given(request=wide_requests(), devices=st.permutations(NODE.devices), stamp=stamps)
def test_an_allocation_on_several_gpus_is_read_back_from_ours_and_from_the_second_generation(
    request: Request, devices: list[Device], stamp: Stamp
) -> None:
    allocation = allocate_over(NODE, devices[: request.gpu_count], request)
    written = allocation_annotations(allocation, request, stamp)
    assert read_allocation(written, None) == allocation
    assert (names.ANN_MEM_INDEX in written) == (request.gpu_count == 1)
    assert read_stamp(only(written, SECOND)) == stamp
    second = read_allocation(only(written, SECOND), NODE)
    assert second is not None
    assert [share.uuid for share in second.gpus] == [share.uuid for share in allocation.gpus]
    assert list(second.containers.values()) == list(allocation.containers.values())
    for old, share in zip(second.gpus, allocation.gpus, strict=True):
        # Rounded down for each container of a whole GPU: old readers may see slightly less than is allocated.
        assert old.units <= share.units
        assert old.units == share.units or (request.whole_device and len(request.containers) > 1)


def test_a_whole_gpu_is_written_with_all_of_its_units() -> None:
    request = Request(3, 0, (ContainerRequest("c", ContainerKind.APP, 0, 3, 0),), whole_device=True)
    written = allocation_annotations(
        allocate_on(NODE, NODE.devices[1], request), request, Stamp(7, assigned=False)
    )
    assert written[names.ANN_MEM_POD] == written[names.ANN_MEM_DEVICE] == "15"
    assert written[names.ANN_ALLOCATION] == '{"0":{"1":15}}'
    assert msgspec.json.decode(written[names.ANN_SHARE])["gpus"] == [
        {"uuid": "GPU-b", "index": 1, "mib": 16160, "units": 15, "of": 15}
    ]


def test_an_allocation_over_several_gpus_is_read_and_written() -> None:
    shares = (GpuShare("GPU-a", 0, 2154, 2, 15), GpuShare("GPU-b", 1, 2154, 2, 15))
    request = Request(2, 0, (ContainerRequest("c", ContainerKind.APP, 0, 4, 0),), gpu_count=2)
    allocation = allocate_over(NODE, (NODE.devices[1], NODE.devices[0]), request)
    assert allocation == Allocation(shares, {"c": shares}, MemoryUnit.GIB)
    written = allocation_annotations(allocation, request, Stamp(1, assigned=True))
    assert names.ANN_MEM_INDEX not in written
    assert written[names.ANN_ALLOCATION] == '{"0":{"0":2,"1":2}}'
    assert read_allocation(written, None) == allocation
    assert allocation.units == 4
    assert allocation.mib == 4308
    again = read_allocation(only(written, SECOND), NODE)
    assert again is not None
    assert again.gpus == shares


def test_containers_with_a_gpu_each_are_read_and_written() -> None:
    requested = tuple(ContainerRequest(name, ContainerKind.APP, at, 2, 30) for at, name in enumerate("ab"))
    request = Request(2, 30, requested, gpu_count=2, apart=True)
    allocation = allocate_over(NODE, (NODE.devices[1], NODE.devices[0]), request)
    shares = tuple(GpuShare(f"GPU-{name}", index, 2154, 2, 15, 30) for index, name in enumerate("ab"))
    assert allocation == Allocation(shares, {"a": shares[:1], "b": shares[1:]}, MemoryUnit.GIB)
    written = allocation_annotations(allocation, request, Stamp(1, assigned=True))
    assert names.ANN_MEM_INDEX not in written
    assert written[names.ANN_ALLOCATION] == '{"0":{"0":2},"1":{"1":2}}'
    assert written[names.ANN_CORE] == '{"0":{"0":30},"1":{"1":30}}'
    assert read_allocation(written, None) == allocation
    again = read_allocation(only(written, SECOND), NODE)
    assert again is not None
    assert again.gpus == shares


def test_a_pod_in_which_only_the_init_container_requests_has_no_second_generation() -> None:
    request = Request(2, 5, (ContainerRequest("i", ContainerKind.INIT, 0, 2, 5),))
    written = allocation_annotations(
        allocate_on(NODE, NODE.devices[0], request), request, Stamp(1, assigned=True)
    )
    assert not written.keys() & set(SECOND)
    assert read_stamp(written) == Stamp(1, assigned=True)


def test_the_unit_of_the_time_is_taken_from_the_first_generation() -> None:
    # 16 of 126 units of 128 MiB, though the node counts 15 of 1 GiB now.
    read = read_allocation(
        {names.ANN_MEM_INDEX: "0", names.ANN_MEM_POD: "16", names.ANN_MEM_DEVICE: "126"}, NODE
    )
    assert read is not None
    assert read.gpus == (GpuShare("GPU-a", 0, 16160 * 16 // 126, 16, 126),)


def share(**changed: Any) -> str:
    gpu = {"uuid": "GPU-a", "index": 0, "mib": 10, "units": 1, "of": 15} | changed
    return msgspec.json.encode({"version": 1, "unit": "1GiB", "gpus": [gpu], "containers": {}}).decode()


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ({names.ANN_SHARE: "{"}, "cannot be read"),
        ({names.ANN_SHARE: "[]"}, "cannot be read"),
        ({names.ANN_SHARE: share(mib="10")}, "cannot be read"),
        ({names.ANN_SHARE: share().replace("1GiB", "9GiB")}, "unknown GPU memory unit"),
        ({names.ANN_SHARE: share().replace('"version":1', '"version":3')}, "version 3, this program reads 1"),
        ({names.ANN_SHARE: share(mib=-1)}, "out of range"),
        ({names.ANN_SHARE: share(units=16)}, "out of range"),
        ({names.ANN_SHARE: share(core=101)}, "out of range"),
        ({names.ANN_SHARE: share(uuid="")}, "out of range"),
        ({names.ANN_SHARE: '{"version":1,"unit":"","gpus":[],"containers":{}}'}, "names no GPU"),
        (
            {
                names.ANN_SHARE: share().replace(
                    '"gpus":[', '"gpus":[' + share()[share().index('{"uuid') : share().index("]")] + ","
                )
            },
            "twice",
        ),
        ({names.ANN_MEM_INDEX: "0"}, "without ALIYUN_COM_GPU_MEM_POD"),
        ({names.ANN_MEM_INDEX: "-1", names.ANN_MEM_POD: "1"}, "is not a number from 0"),
        ({names.ANN_MEM_INDEX: "zero", names.ANN_MEM_POD: "1"}, "is not a number from 0"),
        ({names.ANN_MEM_INDEX: "0", names.ANN_MEM_POD: "1" * 30}, "is not a number from 0"),
        ({names.ANN_MEM_INDEX: "2", names.ANN_MEM_POD: "1"}, "names GPU 2, which node n1 does not have"),
        ({names.ANN_MEM_INDEX: "0", names.ANN_MEM_POD: "16"}, "holds 16 units of GPU 0, which has 15"),
        ({names.ANN_MEM_INDEX: "0", names.ANN_MEM_POD: "1", names.ANN_MEM_DEVICE: "0"}, "which has 0"),
        ({names.ANN_ALLOCATION: "{}"}, "names no container"),
        ({names.ANN_ALLOCATION: '{"0":{}}'}, "names no container"),
        ({names.ANN_ALLOCATION: '{"0":3}'}, "is not JSON of the form"),
        ({names.ANN_ALLOCATION: '{"a":{"0":3}}'}, "is not JSON of the form"),
        ({names.ANN_ALLOCATION: '{"0":{"-1":3}}'}, "is no index"),
        ({names.ANN_ALLOCATION: '{"0":{"1":-3}}'}, "number out of range"),
        ({names.ANN_ALLOCATION: '{"0":{"1":3},"00":{"1":3}}'}, "is no index"),
        ({names.ANN_ALLOCATION: '{"0":{"0":-3}}'}, "number out of range"),
        ({names.ANN_ALLOCATION: '{"0":{"0":99}}'}, "holds 99 units of GPU 0"),
        ({names.ANN_ALLOCATION: '{"0":{"0":3}}', names.ANN_CORE: '{"0":{"1":30}}'}, "names a GPU that"),
        ({names.ANN_ALLOCATION: '{"0":{"0":3}}', names.ANN_CORE: '{"0":{"0":130}}'}, "130% compute"),
        (
            {names.ANN_MEM_INDEX: "0", names.ANN_MEM_POD: "3", names.ANN_ALLOCATION: '{"0":{"1":3}}'},
            "contradict each other",
        ),
        (
            {names.ANN_MEM_INDEX: "0", names.ANN_MEM_POD: "3", names.ANN_ALLOCATION: '{"0":{"0":4}}'},
            "contradict each other",
        ),
    ],
)
def test_invalid_or_contradictory_annotations_are_refused_by_name(
    annotations: dict[str, str], message: str
) -> None:
    with pytest.raises(MalformedAllocation, match=message) as caught:
        read_allocation(annotations, NODE, "pod default/a")
    assert caught.value.subject == "pod default/a"


def test_older_generations_are_not_read_without_the_node() -> None:
    with pytest.raises(MalformedAllocation, match="on a node that is not known"):
        read_allocation({names.ANN_ALLOCATION: '{"0":{"0":3}}'}, None)


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ({names.ANN_ASSIGNED: "True"}, "neither true nor false"),
        ({names.ANN_MEM_ASSIGNED: ""}, "neither true nor false"),
        ({names.ANN_ASSUME_TIME: "1.5"}, "is not a number"),
        ({names.ANN_MEM_ASSUME_TIME: str(2**64)}, "is not a number"),
    ],
)
def test_an_invalid_timestamp_is_refused(annotations: dict[str, str], message: str) -> None:
    with pytest.raises(MalformedAllocation, match=message):
        read_stamp(annotations)


@given(
    st.dictionaries(
        st.sampled_from((*OURS, *FIRST, *SECOND)), st.text() | st.from_regex(r'\{"\d":\{"\d":\d{1,3}\}\}')
    )
)
def test_any_text_is_read_or_refused_but_never_breaks_the_reader(annotations: dict[str, str]) -> None:
    try:
        read = read_allocation(annotations, NODE)
        read_stamp(annotations)
    except MalformedAllocation:
        return
    assert read is None or all(share.mib <= 81920 for share in read.gpus)
