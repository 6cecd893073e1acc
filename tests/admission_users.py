"""Users that write, as the API server sees them: administrators, schedulers, kubelets and node agents."""

from collections.abc import Mapping
from dataclasses import dataclass, field

NODE_NAME_EXTRA = "authentication.kubernetes.io/node-name"


@dataclass(frozen=True)
class User:
    """A user: name, groups, and extra fields that the API server gets from its token."""

    name: str
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def _account(name: str, namespace: str = "kube-system") -> tuple[str, tuple[str, ...]]:
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return f"system:serviceaccount:{namespace}:{name}", groups


def agent_on(node: str) -> User:
    """The node agent, with the token of its pod on ``node``."""
    return User(*_account("gpushare-device-plugin"), {NODE_NAME_EXTRA: (node,)})


ADMIN = User("kubernetes-admin", ("system:masters", "system:authenticated"))
SCHEDULER = User(*_account("ack-co-scheduler"), {NODE_NAME_EXTRA: ("n2",)})
AGENT_WITHOUT_NODE = User(*_account("gpushare-device-plugin"))
KUBELET = User("system:node:n1", ("system:nodes", "system:authenticated"))
#: Without the group, for which NodeRestriction would require the node's UID in ``ownerReferences`` of mirror pods.
MIRRORING = User("system:node:n1", ("system:authenticated",))
COLLECTOR = User(*_account("generic-garbage-collector"))
NAMESAKE = User(*_account("ack-co-scheduler", "default"))
PLAIN_SCHEDULER = User("system:kube-scheduler", ("system:authenticated",))
