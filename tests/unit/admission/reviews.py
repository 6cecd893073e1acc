"""AdmissionReviews as the API server sends them, and a reviewer with the users of the tables."""

import base64
import json
from collections.abc import Mapping
from typing import Any

from gpushare.admission.claims.templates import TemplateUnavailable
from gpushare.admission.review.admission_review import UserInfo
from gpushare.admission.review.annotation_guard import NODE_NAME, Writers
from gpushare.admission.review.dispatcher import Reviewer
from gpushare.api import names
from gpushare_playground.apiserver.writes.patching import json_patch
from tests.admission_users import SCHEDULER, User, agent_on
from tests.admission_words import COUNTING

GROUPS = {"apps/v1": ("apps", "v1"), "batch/v1": ("batch", "v1"), "v1": ("", "v1")}
AGENT = agent_on("n1").name


class TokensAlone:
    async def node_of(self, user: UserInfo) -> str:
        return user.claim(NODE_NAME)


class Templates:
    """Templates of claims that were asked for, by namespace and name."""

    def __init__(self, trouble: str = "") -> None:
        self.made: dict[str, dict[str, Any]] = {}
        self._trouble = trouble

    async def provide(self, namespace: str, templates: Mapping[str, Any]) -> None:
        if self._trouble:
            raise TemplateUnavailable(self._trouble)
        self.made.setdefault(namespace, {}).update(templates)


def reviewer(**changes: Any) -> Reviewer:
    settings: dict[str, Any] = {
        "writers": Writers(frozenset({SCHEDULER.name, AGENT}), AGENT, SCHEDULER.name),
        "places": TokensAlone(),
        "scheduler": names.SCHEDULER_NAME,
        "counting": COUNTING,
    }
    return Reviewer(**{**settings, **changes})


def review(
    resource: str,
    new: dict[str, Any] | None,
    old: dict[str, Any] | None = None,
    *,
    operation: str = "CREATE",
    group: str = "",
    name: str = "",
    user: User | None = None,
) -> bytes:
    named, _, sub = resource.partition("/")
    request: dict[str, Any] = {
        "uid": "u-1",
        "kind": {"group": group, "version": "v1", "kind": "X"},
        "resource": {"group": group, "version": "v1", "resource": named},
        "operation": operation,
        "namespace": "" if named == "nodes" else "default",
        "name": name,
        "userInfo": {
            "username": user.name if user else "someone",
            "groups": list(user.groups) if user else [],
            "extra": {key: list(values) for key, values in user.extra.items()} if user else {},
        },
        "object": new,
        "oldObject": old,
        "dryRun": False,
        "options": None,
    }
    if sub:
        request["subResource"] = sub
    return json.dumps(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    ).encode()


def answered(body: bytes) -> dict[str, Any]:
    """The response, with the patch decoded; as a client of the API server reads it."""
    found = json.loads(body)
    assert (found["apiVersion"], found["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: dict[str, Any] = found["response"]
    assert response["uid"] == "u-1"
    if "patch" in response:
        assert response["patchType"] == "JSONPatch"
        response["patch"] = json.loads(base64.b64decode(response["patch"]))
    return response


def patched(pod: dict[str, Any], patch: list[dict[str, Any]]) -> dict[str, Any]:
    return json_patch(pod, patch)
