"""What the scheduler's account may write on pods, on a real API server with the chart's own roles: a stolen token changes no container.

The playground's API server has no such policies, so this is the only place where they are at work.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.kube.access import load_access
from gpushare.model import names
from tests.admission_users import SCHEDULER
from tests.e2e.asking import Answer, Api, Commands
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.plane import CHECKOUT, control_plane, wait_for_accounts
from tests.e2e.policies import VALIDATING, serves

CHART = CHECKOUT / "charts" / "ack-co-scheduler"
POD = "/api/v1/namespaces/default/pods/held"
NEEDED = (
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ClusterRole",
    "ClusterRoleBinding",
)


@pytest.fixture(scope="module")
def api(binaries: Path, states: Path) -> Iterator[Api]:
    """An API server with the chart's policies and roles, and a pod."""
    with control_plane(binaries, states / "guards") as kubeconfig:
        commands = Commands(kubeconfig, binaries)
        with Api(load_access(str(kubeconfig))) as api:
            if not serves(api, VALIDATING):
                pytest.skip("this Kubernetes has no ValidatingAdmissionPolicy (v1 from 1.30 on)")
            rendered = commands.typed("helm", "template", "co", str(CHART), "-n", "kube-system")
            docs = [doc for doc in yaml.safe_load_all(rendered) if doc and doc["kind"] in NEEDED]
            commands.apply(*docs)
            wait_for_accounts(api, "default")
            spec = {"containers": [{"name": "c", "image": "i"}], "automountServiceAccountToken": False}
            meta = {"name": "held", "namespace": "default"}
            assert api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}).taken
            wait_for(
                "the policy is at work", lambda: "gpushare-scheduler-pods" in changed(api, IMAGE).message
            )
            yield api


def changed(api: Api, change: dict[str, Any], part: str = "") -> Answer:
    """What comes of the change by the scheduler's account; nothing is kept."""
    return api.ask("PATCH", POD + part, change, user=SCHEDULER, dry=True)


IMAGE = {"spec": {"containers": [{"name": "c", "image": "evil"}]}}
OF_STATUS = "the scheduler changes nothing of a pod's status but conditions and nominatedNodeName"
OF_POD = "the scheduler changes nothing of a pod but labels and annotations"
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}


@pytest.mark.parametrize(
    ("change", "part", "says"),
    [
        (IMAGE, "", OF_POD),
        ({"spec": {"activeDeadlineSeconds": 1}}, "", OF_POD),
        ({"metadata": {"finalizers": ["example.com/kept"]}}, "", OF_POD),
        ({"metadata": {"ownerReferences": [OWNER]}}, "", OF_POD),
        ({"status": {"phase": "Failed"}}, "/status", OF_STATUS),
        ({"status": {"reason": "Evicted"}}, "/status", OF_STATUS),
        ({"status": {"podIPs": [{"ip": "10.0.0.1"}]}}, "/status", OF_STATUS),
    ],
    ids=["image", "deadline", "finalizer", "owner", "phase", "reason", "addresses"],
)
def test_what_it_does_not_need_it_may_not_change(
    api: Api, change: dict[str, Any], part: str, says: str
) -> None:
    answer = changed(api, change, part)
    assert (answer.status, answer.message.endswith(says)) == (403, True), answer.message


def test_other_parts_of_a_pod_are_not_its_to_change(api: Api) -> None:
    assert changed(api, IMAGE, "/ephemeralcontainers").status == 403


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"metadata": {"annotations": {names.ANN_RETRY: "1"}}}, ""),
        ({"metadata": {"labels": {"of-a-policy": "x"}}}, ""),
        ({"status": {"nominatedNodeName": "n"}}, "/status"),
        (
            {
                "status": {
                    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
                }
            },
            "/status",
        ),
    ],
    ids=["retry", "labels", "nominated", "condition"],
)
def test_what_it_needs_it_may(api: Api, change: dict[str, Any], part: str) -> None:
    answer = changed(api, change, part)
    assert answer.taken, answer.message


def test_others_are_not_held_by_it(api: Api) -> None:
    assert api.ask("PATCH", POD, {"spec": {"containers": [{"name": "c", "image": "j"}]}}, dry=True).taken
