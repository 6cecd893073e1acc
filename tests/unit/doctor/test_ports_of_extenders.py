"""Where an extender's pod is asked whether it is ready."""

import pytest

from gpushare.doctor.cluster.reader import health_port


@pytest.mark.parametrize(
    ("container", "ports", "asked"),
    [
        ("extender", {"health": 9452, "probes": 9454, "decisions": 9455}, 9454),
        # In charts of before, probes are where metrics are.
        ("extender", {"health": 9452}, 9452),
        ("extender", {}, 0),
        ("dashboard", {"health": 9452, "probes": 9454}, 0),
    ],
)
def test_probes_are_asked_where_the_pod_says(container: str, ports: dict[str, int], asked: int) -> None:
    named = [{"name": name, "containerPort": port} for name, port in ports.items()]
    pod = {"spec": {"containers": [{"name": "kube-scheduler"}, {"name": container, "ports": named}]}}
    assert health_port(pod) == asked
