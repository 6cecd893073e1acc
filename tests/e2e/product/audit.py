"""The components' calls, by the API server's audit log, and what their roles permit."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.e2e.cluster import Cluster
from tests.e2e.product.product import NAMESPACE

#: kube-scheduler uses the same account as the extender; its permissions are Kubernetes' own roles.
OURS: Final = "gpushare/"


@dataclass(frozen=True, order=True, slots=True)
class Right:
    """One verb on one resource of one account, as RBAC and the audit log both name it."""

    account: str
    verb: str
    group: str
    resource: str

    def __str__(self) -> str:
        return f"{self.account}: {self.verb} {self.resource}{'.' + self.group if self.group else ''}"


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a component: the permission that it needs, and whether it was refused for lack of it."""

    right: Right
    of_ours: bool
    forbidden: bool
    message: str
    agent: str


def calls(cluster: Cluster, accounts: Iterable[str]) -> Iterator[Call]:
    """Every request of the accounts, in order."""
    prefix = f"system:serviceaccount:{NAMESPACE}:"
    with cluster.audit_log.open() as log:
        for line in log:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # the last line may be half written
            # Unauthenticated requests have a user without a name.
            account = event["user"].get("username", "").removeprefix(prefix)
            about = event.get("objectRef")
            if account not in accounts or not about:
                continue
            resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
            status = event.get("responseStatus") or {}
            message = status.get("message", "")
            yield Call(
                Right(account, event["verb"], about.get("apiGroup", ""), resource),
                event.get("userAgent", "").startswith(OURS),
                # An admission policy's refusal has the same code; only RBAC's count.
                status.get("code") == 403 and "cannot" in message,
                message,
                event.get("userAgent", ""),
            )


def granted(roles: Iterable[Mapping[str, Any]], accounts: Iterable[str]) -> Iterator[Right]:
    """The permissions of ``roles`` that are named after the accounts."""
    for role in roles:
        name = role["metadata"]["name"]
        account = next((one for one in accounts if name == one or name.startswith(f"{one}:")), None)
        if account is None:
            continue
        for rule in role["rules"]:
            for group in rule.get("apiGroups", ()):
                for resource in rule.get("resources", ()):
                    for verb in rule["verbs"]:
                        yield Right(account, verb, group, resource)
