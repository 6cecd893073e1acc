"""The chart's policies on a real API server of a cluster with units of 128 MiB: rules that depend on the
unit, and on a pod's node.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.api import names
from gpushare.kube.auth.access import load_access
from tests.admission_cases import WORKLOADS, pod, workload
from tests.admission_mistakes import SMALL, SMALL_MIB, placed_words
from tests.admission_words import COUNT, PodCase, box
from tests.admission_writes import binding
from tests.e2e.asking import Answer, Api, Commands
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.plane import administrators, control_plane, wait_for_accounts
from tests.e2e.policies import VALIDATING, policies, serves


@pytest.fixture(scope="module")
def api(binaries: Path, states: Path) -> Iterator[Api]:
    """The administrator, once the policies are in force."""
    with control_plane(binaries, states / "units") as kubeconfig:
        commands = Commands(kubeconfig, binaries)
        with Api(load_access(str(kubeconfig))) as api:
            if not serves(api, VALIDATING):
                pytest.skip("this Kubernetes has no ValidatingAdmissionPolicy (v1 from 1.30 on)")
            commands.apply(*policies(commands, api, "--set", "gpuMemoryUnit=128MiB"))
            commands.apply(administrators("everybody", "Group", "system:authenticated"))
            wait_for_accounts(api, "default")
            first = SMALL[0]
            wait_for(
                "the policies are at work",
                lambda: all(_warned(_sent(api, kind, first)) == first.warns for kind in ("Pod", *WORKLOADS)),
            )
            yield api


@pytest.mark.parametrize("kind", WORKLOADS)
def test_less_memory_than_a_context_needs_is_warned_about_in_templates(api: Api, kind: str) -> None:
    cases = (*SMALL, *SMALL_MIB)
    assert {case.id: _warned(_sent(api, kind, case)) for case in cases} == {
        case.id: case.warns for case in cases
    }


def test_less_memory_than_a_context_needs_is_warned_about_in_pods(api: Api) -> None:
    assert {case.id: _warned(_sent(api, "Pod", case)) for case in SMALL} == {
        case.id: case.warns for case in SMALL
    }


def test_changing_a_label_read_at_scheduling_is_warned_about_once_the_pod_is_bound(api: Api) -> None:
    def relabelled(name: str, **labels: str) -> tuple[str, ...]:
        path = f"/api/v1/namespaces/default/pods/{name}"
        return _warned(api.ask("PATCH", path, {"metadata": {"labels": labels}}, dry=True))

    for name in ("waits", "bound"):
        assert api.create(pod(PodCase(name, (box(mem="12"),)), name)).taken
    bound = binding("bound", {})
    assert api.ask("POST", "/api/v1/namespaces/default/pods/bound/binding", bound).taken
    # Its policy is not among those that were waited for.
    wait_for("it is at work", lambda: relabelled("bound", **{COUNT: "3"}))
    for label, value in ((COUNT, "3"), (names.LABEL_POD_COMPUTE_CLASS, "batch")):
        assert relabelled("bound", **{label: value}) == (placed_words(label),)
    assert relabelled("bound", team="x") == relabelled("waits", **{COUNT: "3"}) == ()


def _sent(api: Api, kind: str, case: PodCase) -> Answer:
    return api.create(pod(case, "small") if kind == "Pod" else workload(kind, case, "small"), dry=True)


def _warned(answer: Answer) -> tuple[str, ...]:
    assert answer.taken, answer.message
    return tuple(warning.partition("': ")[2] for warning in answer.warnings if "gpushare" in warning)
