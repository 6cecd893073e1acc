"""ServiceAccount tokens: requesting them, and reviewing their owners and permissions.

Methods raise the same errors as ``Client``'s.
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from gpushare.kube.client.errors import MalformedAnswer
from gpushare.kube.client.session import Session, segment

T = TypeVar("T")

_AUTHENTICATION_PATH: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_AUTHORIZATION_PATH: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """A token's owner, as returned by TokenReview and sent in SubjectAccessReview."""

    username: str = ""
    uid: str = ""
    groups: Sequence[str] = ()
    extra: Mapping[str, Sequence[str]] = {}


class _Reviewed(msgspec.Struct):
    authenticated: bool = False
    user: Caller | None = None
    audiences: list[str] = []


class _TokenReview(msgspec.Struct):
    status: _Reviewed


class _Access(msgspec.Struct):
    allowed: bool = False


class _AccessReview(msgspec.Struct):
    status: _Access


class _Token(msgspec.Struct):
    token: str


class _TokenRequest(msgspec.Struct):
    status: _Token


_TOKEN_REVIEW: Final = msgspec.json.Decoder(_TokenReview)
_ACCESS_REVIEW: Final = msgspec.json.Decoder(_AccessReview)
_TOKEN_REQUEST: Final = msgspec.json.Decoder(_TokenRequest)


class AccessReviews:
    """Reviews through the API server; needs the right to create TokenReviews and SubjectAccessReviews. ``timeout_s``: of each request."""

    def __init__(self, session: Session, *, timeout_s: float = 3.0) -> None:
        self._session = session
        self._timeout_s = timeout_s

    async def caller_of(self, token: str, audience: str) -> Caller | None:
        """The owner of a token of that audience; ``None`` if it is invalid."""
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [audience]},
        }
        status = (await self._review(_AUTHENTICATION_PATH, review, _TOKEN_REVIEW)).status
        # An API server without audience support reviews for its own audience and returns none.
        return status.user if status.authenticated and audience in status.audiences else None

    async def may_get(self, caller: Caller, path: str) -> bool:
        """Whether the cluster's authorizer allows ``get`` on the non-resource URL."""
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": caller.username,
                "uid": caller.uid,
                "groups": caller.groups,
                "extra": caller.extra,
                "nonResourceAttributes": {"path": path, "verb": "get"},
            },
        }
        return (await self._review(_AUTHORIZATION_PATH, review, _ACCESS_REVIEW)).status.allowed

    async def _review(self, path: str, review: object, decoder: msgspec.json.Decoder[T]) -> T:
        return await _posted(self._session, path, review, decoder, self._timeout_s)


async def token_of(
    session: Session, namespace: str, account: str, audience: str, *, seconds: int, timeout_s: float = 3.0
) -> str:
    """A token of that ServiceAccount for ``audience`` only, valid for that many seconds (at least 600, the API server's minimum)."""
    path = f"/api/v1/namespaces/{segment(namespace)}/serviceaccounts/{segment(account)}/token"
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": [audience], "expirationSeconds": seconds},
    }
    return (await _posted(session, path, request, _TOKEN_REQUEST, timeout_s)).status.token


async def _posted(
    session: Session, path: str, body: object, decoder: msgspec.json.Decoder[T], timeout_s: float
) -> T:
    # Reviews are not stored, so repeating one is safe.
    answer = await session.request(
        "POST", path, body=msgspec.json.encode(body), timeout_s=timeout_s, idempotent=True
    )
    try:
        return decoder.decode(answer)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedAnswer(path, f"unexpected response ({error})") from error
