"""The limits that the driver is to enforce for each container, from allocations and what the kubelet reports of them."""

import msgspec

from gpushare.api.allocation.allocation import Allocation, share_of
from gpushare.nodeagent.allocate.node_allocations import NodeAllocations
from gpushare.nodeagent.allocate.pod_allocations import AllocatedPod
from gpushare.nodeagent.isolation.backends.driver_limits import due_of
from tests.unit.nodeagent.allocate.allocated_pods import APP, INIT, SIDECAR, allocated, node_of, request

NODE = node_of(15360, 15360, 16160)


def with_ids(one: AllocatedPod, *, running: bool = False, **containers: str) -> AllocatedPod:
    """``one`` once the kubelet has reported these IDs, by container."""
    ids = {container_id: name for name, container_id in containers.items()}
    return msgspec.structs.replace(
        one, bound=msgspec.structs.replace(one.bound, containers=ids, running=running)
    )


def due(*claims: AllocatedPod) -> set[tuple[str, str, int, int]]:
    """Container, its ID, GPU and MiB."""
    book = NodeAllocations(NODE)
    for one in claims:
        book.put(one)
    return {
        (one.container, one.owner.container_id, int(one.gpu_label), one.mib)
        for one in due_of(book, lambda *_: 0)
    }


def test_each_container_is_limited_to_its_part_once_its_id_is_reported() -> None:
    one = allocated(NODE, "a", 2, request((APP, 2), (APP, 3)))
    assert due(one) == set()
    assert due(with_ids(one, c1="i1")) == {("c1", "i1", 2, 3232)}
    assert due(with_ids(one, c0="i0", c1="i1", other="i2")) == {("c0", "i0", 2, 2154), ("c1", "i1", 2, 3232)}


def test_limits_apply_on_every_gpu_of_the_container() -> None:
    one = with_ids(allocated(NODE, "a", (0, 2), request((APP, 3), gpus=2)), c0="i0")
    assert due(one) == {("c0", "i0", 0, 3072), ("c0", "i0", 2, 3232)}


def test_init_containers_are_limited_until_the_pod_runs_and_sidecars_beyond() -> None:
    one = allocated(NODE, "a", 0, request((INIT, 4), (SIDECAR, 1), (APP, 2)))
    ids = {"c0": "i0", "c1": "i1", "c2": "i2"}
    later = {("c1", "i1", 0, 1024), ("c2", "i2", 0, 2048)}
    assert due(with_ids(one, **ids)) == {("c0", "i0", 0, 4096), *later}
    assert due(with_ids(one, running=True, **ids)) == later


def test_a_pod_with_all_of_a_gpu_needs_no_limit() -> None:
    assert due(with_ids(allocated(NODE, "a", 0, request((APP, 15))), c0="i0")) == set()
    whole = allocated(NODE, "b", (0, 1), request((APP, 1), gpus=2, whole=True))
    assert due(with_ids(whole, c0="i0")) == set()


def test_a_container_with_its_own_gpu_is_limited_only_there() -> None:
    one = allocated(NODE, "a", 0, request((APP, 2), (APP, 3)))
    shares = {
        "c0": (share_of(NODE.devices[0], 15, 2, 0),),
        "c1": (share_of(NODE.devices[1], 15, 3, 0),),
    }
    apart = msgspec.structs.replace(
        one, allocation=Allocation((*shares["c0"], *shares["c1"]), shares, one.allocation.unit)
    )
    assert not apart.on_same_gpus
    assert due(with_ids(apart, c0="i0", c1="i1")) == {("c0", "i0", 0, 2048), ("c1", "i1", 1, 3072)}
