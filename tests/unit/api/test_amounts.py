"""A pod's requests are counted as in Kubernetes, for every resource."""

from typing import Any

import pytest

from gpushare.api.objects import decode_pod
from gpushare.api.request.amounts import amounts_of, written


def container(
    limits: dict[str, Any] | None = None, requests: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    return {"name": "c", "resources": {"limits": limits, "requests": requests}, **more}


def amounts(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = ()) -> dict[str, int]:
    return dict(
        amounts_of(decode_pod({"spec": {"containers": list(containers), "initContainers": list(init)}}))
    )


def test_requests_count_and_otherwise_limits() -> None:
    assert amounts(container({"cpu": 2, "aliyun.com/gpu-mem": "3"}, {"cpu": "500m"})) == {
        "cpu": 500,
        "aliyun.com/gpu-mem": 3000,
    }


def test_apps_add_up_and_the_largest_init_container_counts_next_to_sidecars() -> None:
    app = container({"aliyun.com/gpu-mem": 2})
    sidecar = container({"aliyun.com/gpu-mem": 1}, restartPolicy="Always")
    large = container({"aliyun.com/gpu-mem": 7, "memory": "1Ki"})
    assert amounts(app, app, init=(sidecar, large)) == {"aliyun.com/gpu-mem": 8000, "memory": 1024_000}


def test_the_overhead_of_the_runtime_is_added() -> None:
    large = container({"cpu": 7})
    spec = {
        "containers": [container({"cpu": 2})],
        "initContainers": [large],
        "overhead": {"cpu": "250m", "memory": "1Ki"},
    }
    assert amounts_of(decode_pod({"spec": spec})) == {"cpu": 7250, "memory": 1024_000}


def test_requests_of_the_pod_replace_those_of_its_containers() -> None:
    spec = {
        "containers": [container({"cpu": 2, "aliyun.com/gpu-mem": 3}), container({"cpu": 3})],
        "initContainers": [container({"memory": "9Ki"})],
        "resources": {"limits": {"cpu": 9, "memory": "1Ki"}, "requests": {"cpu": 4}},
        "overhead": {"cpu": "250m"},
    }
    assert amounts_of(decode_pod({"spec": spec})) == {
        "cpu": 4250,
        "memory": 1024_000,
        "aliyun.com/gpu-mem": 3000,
    }


def test_absent_or_invalid_requests_count_as_nothing() -> None:
    assert amounts({"name": "c"}) == {}
    assert amounts(container({"cpu": "much", "memory": "-5"})) == {"cpu": 0, "memory": 0}


def test_equal_pods_share_one_value() -> None:
    pod = {"spec": {"containers": [container({"aliyun.com/gpu-mem": 2})]}}
    assert amounts_of(decode_pod(pod)) is amounts_of(decode_pod(pod))


def test_a_pod_with_very_many_containers_and_resources_is_counted_and_not_kept() -> None:
    # In minutes, if the time grew with containers times resources.
    containers = [container({f"example.com/{number}": 1, "cpu": 1}) for number in range(20_000)]
    init = container({f"example.com/{number}": 2 for number in range(20_000)})
    counted = amounts(*containers, init=(init,))
    assert counted == {"cpu": 20_000_000, **{f"example.com/{number}": 2000 for number in range(20_000)}}
    pod = {"spec": {"containers": containers[:65]}}
    assert amounts_of(decode_pod(pod)) is not amounts_of(decode_pod(pod))


@pytest.mark.parametrize(
    ("resource", "thousandths", "text"),
    [
        ("aliyun.com/gpu-mem", 3000, "3"),
        ("cpu", 1500, "1500m"),
        ("cpu", 0, "0"),
        ("memory", 10 * 2**30 * 1000, "10Gi"),
        ("memory", 1_000_000, "1000"),
        ("memory", 0, "0"),
        ("hugepages-2Mi", 2**21 * 1000, "2Mi"),
        ("ephemeral-storage", 2**42 * 1000, "4Ti"),
    ],
)
def test_amounts_are_formatted_for_readers(resource: str, thousandths: int, text: str) -> None:
    assert written(resource, thousandths) == text
