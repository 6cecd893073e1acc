"""What the scheduler's account may write, on a real API server with the chart's own roles: a stolen token
changes no container.

The playground's API server has no such policies. Where Kubernetes has none, the webhook is tested with the
same table (``test_webhook``).
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpushare.kube.auth.access import load_access
from tests.admission_scheduler import DEBUGS, IMAGE, OF_THE_SCHEDULER
from tests.admission_users import ADMIN
from tests.admission_writes import Write
from tests.e2e.asking import Api, Commands
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.plane import CHECKOUT, administrators, control_plane, create_objects, wait_for_accounts
from tests.e2e.policies import VALIDATING, serves
from tests.e2e.startup_taint import assert_that_the_startup_taint_alone_goes

CHART = CHECKOUT / "charts" / "ack-co-scheduler"
NEEDED = (
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ClusterRole",
    "ClusterRoleBinding",
)


@pytest.fixture(scope="module")
def api(binaries: Path, states: Path) -> Iterator[Api]:
    """An API server with the chart's policies and roles, and the objects of the table."""
    with control_plane(binaries, states / "guards") as kubeconfig:
        commands = Commands(kubeconfig, binaries)
        with Api(load_access(str(kubeconfig))) as api:
            if not serves(api, VALIDATING):
                pytest.skip("this Kubernetes has no ValidatingAdmissionPolicy (v1 from 1.30 on)")
            argv = ["helm", "template", "co", str(CHART), "-n", "kube-system"]
            rendered = commands.typed(*argv, "--set", "autoscaling.removeStartupTaint=true")
            docs = [doc for doc in yaml.safe_load_all(rendered) if doc and doc["kind"] in NEEDED]
            commands.apply(*docs, administrators("the-administrator", "User", ADMIN.name))
            wait_for_accounts(api, "default")
            create_objects(api)
            cordoned = next(write for write in OF_THE_SCHEDULER if write.resource == "nodes")
            for write in (IMAGE, cordoned):
                wait_for(
                    "the policy is at work", lambda one=write: api.attempt(one).message.endswith(one.says)
                )
            yield api


@pytest.mark.parametrize("write", OF_THE_SCHEDULER, ids=lambda write: write.id)
def test_it_may_change_what_it_needs_and_no_more(api: Api, write: Write) -> None:
    answer = api.attempt(write)
    if not write.says:
        assert answer.taken, answer.message
    else:
        assert (answer.status, answer.message.endswith(write.says)) == (403, True), answer.message


def test_it_may_not_change_other_parts_of_a_pod(api: Api) -> None:
    assert api.attempt(DEBUGS).status == 403


def test_it_may_remove_only_the_startup_taint_of_a_node(api: Api) -> None:
    assert_that_the_startup_taint_alone_goes(api)
