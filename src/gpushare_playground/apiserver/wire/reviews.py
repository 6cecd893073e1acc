"""ServiceAccount tokens and access reviews. Reviews get a response, but are never stored.

Any user with a token may do everything: the playground has users, but no access rules. The responses are those of a real API server (1.36), as
``tests/e2e/test_reader_tokens.py`` compares them.
"""

import base64
import hashlib
import hmac
import json
import secrets
from typing import Final

from gpushare_playground.apiserver import errors
from gpushare_playground.apiserver.errors import Object
from gpushare_playground.apiserver.kinds.naming import WallClock, timestamp
from gpushare_playground.apiserver.store import Record

REVIEWS: Final = {
    ("authorization.k8s.io", "v1"): (
        ("selfsubjectaccessreviews", "SelfSubjectAccessReview"),
        ("selfsubjectrulesreviews", "SelfSubjectRulesReview"),
        ("subjectaccessreviews", "SubjectAccessReview"),
    ),
    ("authentication.k8s.io", "v1"): (
        ("selfsubjectreviews", "SelfSubjectReview"),
        ("tokenreviews", "TokenReview"),
    ),
}
_LEAST_S: Final = 600
_USUAL_S: Final = 3600
_ALLOWED: Final[Object] = {"allowed": True, "reason": "every token of the playground may do everything"}


class AccountTokens:
    """Issues and verifies signed ServiceAccount tokens with owner, audience and expiration."""

    def __init__(self, now: WallClock) -> None:
        self._now = now
        self._secret = secrets.token_bytes(32)

    def request(self, account: Record, body: Object) -> Object:
        """The response to a TokenRequest for that account; raises ``ApiError`` for less than ten minutes."""
        spec = body.get("spec") or {}
        seconds = spec.get("expirationSeconds") or _USUAL_S
        if seconds < _LEAST_S:
            field_error = errors.invalid_value(
                "spec.expirationSeconds", seconds, "may not specify a duration less than 10 minutes"
            )
            raise errors.invalid("TokenRequest", "authentication.k8s.io", account.name, [field_error])
        now = self._now()
        ends_s = int(now.timestamp()) + seconds
        claims = {
            "aud": spec.get("audiences") or ["playground"],
            "exp": ends_s,
            "sub": f"system:serviceaccount:{account.namespace}:{account.name}",
            "uid": account.obj["metadata"]["uid"],
        }
        payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode()
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {
                "name": account.name,
                "namespace": account.namespace,
                "creationTimestamp": timestamp(now),
            },
            "spec": {
                **spec,
                "audiences": claims["aud"],
                "expirationSeconds": seconds,
                "boundObjectRef": None,
            },
            "status": {
                "token": f"{payload}.{self._sign(payload)}",
                "expirationTimestamp": timestamp(now.fromtimestamp(ends_s, now.tzinfo)),
            },
        }

    def review(self, spec: Object) -> Object:
        """The status of a TokenReview."""
        payload, _, signature = spec.get("token", "").partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(payload).encode()):
            return {"user": {}, "error": "[invalid bearer token]"}
        claims = json.loads(base64.urlsafe_b64decode(payload))
        audiences = [
            audience for audience in claims["aud"] if audience in (spec.get("audiences") or ["playground"])
        ]
        if not audiences:
            return {
                "user": {},
                "error": f"[invalid bearer token, token audiences {claims['aud']} is invalid for the target audiences]",
            }
        if claims["exp"] <= self._now().timestamp():
            return {"user": {}, "error": "[invalid bearer token, service account token has expired]"}
        namespace = claims["sub"].split(":")[2]
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
        user = {"username": claims["sub"], "uid": claims["uid"], "groups": groups}
        return {"authenticated": True, "user": user, "audiences": audiences}

    def _sign(self, payload: str) -> str:
        return hmac.new(self._secret, payload.encode(), hashlib.sha256).hexdigest()


def review(
    tokens: AccountTokens, group: str, version: str, plural: str, body: Object, user: str
) -> Object | None:
    """The response to a review; None for a path that is not a review."""
    kinds = dict(REVIEWS.get((group, version), ()))
    if plural not in kinds:
        return None
    response: Object = {
        "kind": kinds[plural],
        "apiVersion": f"{group}/{version}",
        "metadata": {"creationTimestamp": None},
        "spec": body.get("spec") or {},
    }
    match plural:
        case "selfsubjectaccessreviews" | "subjectaccessreviews":
            response["status"] = _ALLOWED
        case "selfsubjectrulesreviews":
            response["status"] = {
                "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
                "incomplete": False,
            }
        case "tokenreviews":
            response["status"] = tokens.review(response["spec"])
        case _:
            response.pop("spec")
            response["status"] = {
                "userInfo": {"username": user, "groups": ["system:masters", "system:authenticated"]}
            }
    return response
