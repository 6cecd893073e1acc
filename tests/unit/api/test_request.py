"""A pod's request is counted as in Kubernetes; invalid ones suggest what to change."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.errors import InvalidRequest
from gpushare.api.objects import Pod, decode_pod
from gpushare.api.request.describe import asks_text
from gpushare.api.request.request import ContainerKind, effective_amount, request_of
from tests.admission_cases import PODS
from tests.admission_cases import pod as admission_pod
from tests.admission_words import PodCase

MEM, CORE = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"


def container(name: str, mem: Any = None, core: Any = None, *, restart: str | None = None) -> dict[str, Any]:
    limits = {key: value for key, value in ((MEM, mem), (CORE, core)) if value is not None}
    made: dict[str, Any] = {"name": name, "resources": {"limits": limits}}
    if restart:
        made["restartPolicy"] = restart
    return made


def whole_gpus(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": {"aliyun.com/gpu": str(number)}}}


def pod(
    *apps: dict[str, Any], init: tuple[dict[str, Any], ...] = (), labels: dict[str, str] | None = None
) -> Pod:
    return decode_pod(
        {
            "metadata": {"name": "a", "namespace": "default", "uid": "u", "labels": labels or {}},
            "spec": {"containers": list(apps), "initContainers": list(init)},
        }
    )


def test_a_pod_without_gpu_resources_is_not_ours() -> None:
    assert request_of(pod({"name": "c"}, container("d"))) is None
    assert request_of(pod(container("c", mem=0))) is None


def test_limits_count_and_otherwise_requests() -> None:
    only_requests = {"name": "c", "resources": {"requests": {MEM: "4"}}}
    both = {"name": "d", "resources": {"limits": {MEM: "3"}, "requests": {MEM: "3"}}}
    request = request_of(pod(only_requests, both))
    assert request is not None
    assert request.memory_units == 7
    assert [(one.name, one.index, one.memory_units) for one in request.containers] == [
        ("c", 0, 4),
        ("d", 1, 3),
    ]


def test_an_init_container_counts_only_if_it_requests_more_than_the_apps_together() -> None:
    small = request_of(pod(container("a", 2), container("b", 2), init=(container("i", 3),)))
    large = request_of(pod(container("a", 2), container("b", 2), init=(container("i", 9),)))
    assert small is not None
    assert large is not None
    assert (small.memory_units, large.memory_units) == (4, 9)


def test_a_native_sidecar_runs_next_to_the_apps_and_later_init_containers() -> None:
    sidecar = container("s", 2, restart="Always")
    request = request_of(
        pod(container("a", 3), init=(container("before", 4), sidecar, container("after", 4)))
    )
    assert request is not None
    assert request.memory_units == 6  # sidecar 2 + the init container after it 4, above 2 + 3
    assert [one.kind for one in request.containers] == [
        ContainerKind.INIT,
        ContainerKind.SIDECAR,
        ContainerKind.INIT,
        ContainerKind.APP,
    ]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            pod(container("c", core=30)),
            "container c asks for .*core.percentage without aliyun.com/gpu-mem; add",
        ),
        (pod(container("c", 2, 7)), "must be a multiple of 5 from 5 to 100: container c asks for 7"),
        (pod(container("c", 2, 105)), "must be a multiple of 5 from 5 to 100: container c asks for 105"),
        (pod(container("c", 2, 30), container("d", 2)), "different kinds .*only c asks"),
        (pod(container("c", "1.5")), "container c asks for aliyun.com/gpu-mem: 1.5 is not a whole number"),
        (pod(container("c", "-1")), "is negative"),
        (pod(container("c", "1e30")), "larger than"),
        (pod(container("c", "many")), "is not a valid quantity"),
        (pod(container("c", "2Gi")), "container c asks for aliyun.com/gpu-mem: 2147483648 is more than any"),
        (
            pod(container("c", 2**63 - 1), container("d", 2**63 - 1)),
            "container c .*: 9223372036854775807 is more",
        ),
        (
            pod(*(container(name, 2**30) for name in "cd")),
            "containers together ask .*: 2147483648 is more than",
        ),
        (
            pod(whole_gpus("c", 2**63 - 1)),
            "container c asks for aliyun.com/gpu: 9223372036854775807 is more than",
        ),
        (
            pod(*(whole_gpus(name, 2**30) for name in "cd")),
            "together ask for aliyun.com/gpu: 2147483648 is more",
        ),
    ],
)
def test_an_invalid_request_names_the_pod_and_suggests_what_to_change(spec: Pod, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        request_of(spec)
    assert caught.value.subject == "pod default/a"


def test_one_gpu_requested_by_label_is_the_default() -> None:
    spec = container("c", 4, 30)
    assert request_of(pod(spec, labels={"aliyun.com/gpu-count": "1"})) == request_of(pod(spec))


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in PODS
        if case.id.startswith(("gpu-count-", "placement-", "apart-"))
        and case.id != "gpu-count-as-resource"
        and "mib" not in case.id  # those are in units once they are stored
    ],
    ids=lambda case: case.id,
)
def test_labels_are_judged_as_at_admission_with_the_same_messages(case: PodCase) -> None:
    spec = decode_pod(admission_pod(case, "x"))
    if not case.refused:
        request_of(spec)
        return
    with pytest.raises(InvalidRequest) as caught:
        request_of(spec)
    assert caught.value.problem == case.says


def test_a_label_gives_each_container_its_own_gpu() -> None:
    labels = {"gpushare.dev/gpu-per-container": "true"}
    request = request_of(pod(container("a", 10, 30), container("web"), container("b", 10, 30), labels=labels))
    assert request is not None
    assert (request.gpu_count, request.memory_units, request.core_percent, request.apart) == (2, 10, 30, True)
    assert [request.part_of(one) for one in request.containers] == [10, 10]
    assert asks_text(request) == (
        "aliyun.com/gpu-mem: 20, aliyun.com/gpu-core.percentage: 60, gpushare.dev/gpu-per-container: true"
    )


@pytest.mark.parametrize("value", ["true", "false"])
def test_a_single_container_has_its_own_gpu_anyway(value: str) -> None:
    spec = container("c", 4, 30)
    assert request_of(pod(spec, labels={"gpushare.dev/gpu-per-container": value})) == request_of(pod(spec))


def test_a_label_spreads_a_pod_over_gpus_in_equal_parts() -> None:
    request = request_of(
        pod(
            container("a", 4),
            container("b", 2),
            init=(container("i", 8),),
            labels={"aliyun.com/gpu-count": "2"},
        )
    )
    assert request is not None
    assert (request.gpu_count, request.memory_units, request.whole_device) == (2, 4, False)
    assert [(one.name, one.memory_units, request.part_of(one)) for one in request.containers] == [
        ("i", 8, 4),
        ("a", 4, 2),
        ("b", 2, 1),
    ]


def test_a_label_requests_exclusive_gpus() -> None:
    labels = {"ack.gpushare.placement": "require-whole-device"}
    request = request_of(pod(container("a", 2), container("b", 3), labels=labels))
    assert request is not None
    assert (request.whole_device, request.memory_units) == (True, 5)
    # The containers divide a GPU of 16 in proportion to their requests, and never exceed it.
    assert [request.allocated_units(units, 16) for units in (5, 2, 3)] == [16, 6, 9]


@given(
    apps=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    init=st.lists(st.tuples(st.booleans(), st.integers(1, 20)), max_size=4),
    gpus=st.integers(1, 4),
    device_units=st.integers(1, 200),
    whole=st.booleans(),
)
def test_containers_shares_never_exceed_their_pods(
    apps: list[int], init: list[tuple[bool, int]], gpus: int, device_units: int, whole: bool
) -> None:
    labels = {"aliyun.com/gpu-count": str(gpus)}
    if whole:
        labels["ack.gpushare.placement"] = "require-whole-device"
    spec = pod(
        *(container(f"a{n}", amount * gpus) for n, amount in enumerate(apps)),
        init=tuple(
            container(f"i{n}", amount * gpus, restart="Always" if sidecar else None)
            for n, (sidecar, amount) in enumerate(init)
        ),
        labels=labels,
    )
    request = request_of(spec)
    assert request is not None
    assert request.memory_units == Kubernetes.effective(init, apps)
    if request.memory_units > device_units:
        return
    units_of = [
        (one.kind, request.allocated_units(request.part_of(one), device_units)) for one in request.containers
    ]
    assert all(units > 0 for _, units in units_of)
    most = device_units if whole else request.memory_units
    assert request.allocated_units(request.memory_units, device_units) == most
    assert effective_amount(units_of) <= most


class Kubernetes:
    """The rule of k8s.io/component-helpers, step by step over init containers."""

    @staticmethod
    def effective(init: list[tuple[bool, int]], apps: list[int]) -> int:
        running, init_peak, sidecars = sum(apps), 0, 0
        for restartable, amount in init:
            if restartable:
                running += amount
                sidecars += amount
                init_peak = max(init_peak, sidecars)
            else:
                init_peak = max(init_peak, sidecars + amount)
        return max(running, init_peak)


@given(
    init=st.lists(st.tuples(st.booleans(), st.integers(1, 20)), max_size=5),
    apps=st.lists(st.integers(1, 20), min_size=1, max_size=4),
)
def test_any_mixture_of_containers_is_counted_as_in_kubernetes(
    init: list[tuple[bool, int]], apps: list[int]
) -> None:
    spec = pod(
        *(container(f"a{n}", amount) for n, amount in enumerate(apps)),
        init=tuple(
            container(f"i{n}", amount, restart="Always" if sidecar else None)
            for n, (sidecar, amount) in enumerate(init)
        ),
    )
    request = request_of(spec)
    assert request is not None
    assert request.memory_units == Kubernetes.effective(init, apps)


def whole(name: str, gpus: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": {"aliyun.com/gpu": gpus, **more}}}


def test_whole_gpus_are_counted_and_labels_for_shares_do_not_matter() -> None:
    request = request_of(
        pod(whole("a", "2"), whole("b", 1), init=(whole("i", 4),), labels={"aliyun.com/gpu-count": "3"})
    )
    assert request is not None
    assert (request.by_gpu, request.whole_device, request.gpu_count, request.memory_units) == (
        True,
        True,
        4,
        1,
    )
    assert not request.is_ordinary
    assert not request.wants_core
    assert [(one.name, one.whole_gpus, one.memory_units) for one in request.containers] == [
        ("i", 4, 0),
        ("a", 2, 0),
        ("b", 1, 0),
    ]
    assert request_of(pod(whole("a", 0))) is None


def test_whole_gpus_next_to_a_share_are_refused() -> None:
    with pytest.raises(
        InvalidRequest, match=r"aliyun\.com/gpu cannot be combined with aliyun\.com/gpu-mem.*container b"
    ):
        request_of(pod(whole("a", 1), container("b", 2)))
    with pytest.raises(InvalidRequest, match="no node offers both"):
        request_of(pod(whole("a", 1, **{MEM: 2})))
