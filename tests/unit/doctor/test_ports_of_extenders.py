"""The port at which an extender's pod is probed for readiness."""

import pytest

from gpushare.doctor.cluster.reader import health_port


@pytest.mark.parametrize(
    ("container", "ports", "probed"),
    [
        ("extender", {"health": 9452, "probes": 9454, "decisions": 9455}, 9454),
        # In earlier charts, probes are where metrics are.
        ("extender", {"health": 9452}, 9452),
        ("extender", {}, 0),
        ("dashboard", {"health": 9452, "probes": 9454}, 0),
    ],
)
def test_the_probed_port_is_the_one_declared_by_the_pod(
    container: str, ports: dict[str, int], probed: int
) -> None:
    named = [{"name": name, "containerPort": port} for name, port in ports.items()]
    pod = {"spec": {"containers": [{"name": "kube-scheduler"}, {"name": container, "ports": named}]}}
    assert health_port(pod) == probed
