"""Authorization of readers: the API server says whose a token is (TokenReview) and what its owner may do (SubjectAccessReview).

As kube-rbac-proxy does it for metrics, with two differences. The token is one of an audience of our own, so that its receiver cannot act
with it on the API server. And it comes in a header of our own, because the API server's proxy takes ``Authorization`` off a request before it
passes it on.
"""

import hashlib
from collections import OrderedDict
from typing import Final, Protocol

from gpushare.api import names
from gpushare.httpserver.exchange import Refusal
from gpushare.kube.auth.token_reviews import Caller
from gpushare.kube.client.errors import KubeError
from gpushare.kube.clock import SYSTEM_CLOCK, Clock

#: How long the API server's answer about a token is cached: a valid one, and an invalid one.
_GOOD_S: Final = 60.0
_BAD_S: Final = 10.0
_MOST_KEPT: Final = 256
#: Reviews of new tokens: burst, and rate per second. Made-up tokens cannot flood the API server.
_BURST: Final = 20
_PER_SECOND: Final = 10.0


class Reviews(Protocol):
    """The client of the API server's reviews: ``gpushare.kube.auth.token_reviews``, or a fake in tests."""

    async def caller_of(self, token: str, audience: str) -> Caller | None:
        """The owner of a token of that audience; ``None`` if it is invalid. Raises ``KubeError``."""

    async def may_get(self, caller: Caller, path: str) -> bool:
        """Whether RBAC allows ``get`` on the non-resource URL. Raises ``KubeError``."""


class Readers:
    """Checks callers and caches the API server's answers."""

    def __init__(self, reviews: Reviews, clock: Clock = SYSTEM_CLOCK) -> None:
        self._reviews = reviews
        self._clock = clock
        self._known: OrderedDict[tuple[bytes, str], tuple[float, Refusal | None]] = OrderedDict()
        self._places = float(_BURST)
        self._refilled_s = clock.monotonic()

    async def check(self, token: str, path: str) -> None:
        """Raise ``Refusal`` unless the token's owner may ``get`` ``path``, the endpoint's name in RBAC."""
        if not token:
            raise Refusal(
                401,
                f"{path} requires a token of ServiceAccount {names.READER_ACCOUNT} for the audience {names.READER_AUDIENCE} in "
                f"the header {names.READER_HEADER}, as the kubectl plugin does",
            )
        now_s = self._clock.monotonic()
        key = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest(), path
        until_s, refusal = self._known.get(key, (0.0, None))
        if until_s > now_s:
            self._known.move_to_end(key)
        else:
            self._take_a_place(now_s)
            refusal = await self._ask(token, path)
            self._known[key] = now_s + (_GOOD_S if refusal is None else _BAD_S), refusal
            self._known.move_to_end(key)
            while len(self._known) > _MOST_KEPT:
                self._known.popitem(last=False)
        if refusal is not None:
            raise refusal

    def _take_a_place(self, now_s: float) -> None:
        self._places = min(self._places + _PER_SECOND * (now_s - self._refilled_s), float(_BURST))
        self._refilled_s = now_s
        if self._places < 1.0:
            raise Refusal(503, "too many unknown tokens at once; retry in a second")
        self._places -= 1.0

    async def _ask(self, token: str, path: str) -> Refusal | None:
        try:
            caller = await self._reviews.caller_of(token, names.READER_AUDIENCE)
            if caller is None:
                return Refusal(
                    401,
                    f"the token in {names.READER_HEADER} is not valid in this cluster for the audience {names.READER_AUDIENCE}, or has expired",
                )
            if await self._reviews.may_get(caller, path):
                return None
        except KubeError as error:
            # Not cached: it says nothing about the token.
            raise Refusal(503, f"cannot authenticate the request for {path}: {error}") from error
        return Refusal(403, f"{caller.username} may not get the non-resource URL {path}")
