"""The scheduler's permissions on the taints of a node, for every kind of enforcement."""

from typing import Any

from gpushare.api.node.startup_taint import STARTUP_TAINT
from tests.admission_scheduler import NODE_WORDS
from tests.admission_users import SCHEDULER
from tests.e2e.asking import Answer, Api
from tests.e2e.cluster.waiting import wait_for

_NODE = "/api/v1/nodes/coming"
_MINE = {"key": "mine", "effect": "PreferNoSchedule"}


def assert_that_the_startup_taint_alone_goes(api: Api) -> None:
    """On a node created for this, with another taint and those that Kubernetes gives to new nodes."""
    taints = [{"key": STARTUP_TAINT, "effect": "NoSchedule"}, _MINE]
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "coming"}, "spec": {"taints": taints}}
    made = api.create(node)
    assert made.taken, made.message

    def others() -> list[dict[str, Any]]:
        return [one for one in api.get(_NODE)["spec"]["taints"] if one["key"] != STARTUP_TAINT]

    def written(left: list[dict[str, Any]]) -> Answer:
        return api.ask("PATCH", _NODE, {"spec": {"taints": left}}, user=SCHEDULER, dry=True)

    assert _MINE in others()
    # A controller may give it another taint between the two.
    wait_for("the startup taint goes", lambda: written(others()).taken)
    for wrong in (
        [one for one in others() if one != _MINE],
        [*others(), {"key": "more", "effect": "NoExecute"}],
    ):
        answer = written(wrong)
        assert (answer.status, answer.message.endswith(NODE_WORDS)) == (403, True), answer.message
