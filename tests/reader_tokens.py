"""Checks of reader tokens, the same for the real API server and the playground's."""

from typing import Any

import pytest

from gpushare.api import names
from gpushare.kube.auth.access import Access
from gpushare.kube.auth.token_reviews import AccessReviews, token_of
from gpushare.kube.client.errors import ApiError
from gpushare.kube.client.session import Session

ACCOUNT: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "ServiceAccount",
    "metadata": {"name": names.READER_ACCOUNT, "namespace": "kube-system"},
}
DECISIONS, USAGE = "/gpushare/decisions", "/gpushare/usage"


async def check_tokens_to_read_with(asking: Access, reviewing: Access) -> None:
    """``asking`` may request tokens, ``reviewing`` may review them; the account exists."""
    where = ("kube-system", names.READER_ACCOUNT)
    async with Session(asking) as asker, Session(reviewing) as reviewer:
        reviews = AccessReviews(reviewer)
        token = await token_of(asker, *where, names.READER_AUDIENCE, seconds=600)
        caller = await reviews.caller_of(token, names.READER_AUDIENCE)
        assert caller is not None
        assert caller.username == "system:serviceaccount:kube-system:gpushare-reader"
        assert {"system:serviceaccounts", "system:authenticated"} <= set(caller.groups)
        assert caller.uid
        assert await reviews.may_get(caller, DECISIONS)
        assert await reviews.may_get(caller, USAGE)
        # It is not accepted for another audience, truncated, invented, or if it is the API server's own.
        other = await token_of(asker, *where, "other.example", seconds=600)
        for wrong in (other, token[:-4], f"{token}x", "made.up.token", "x", asking.token or "x"):
            assert await reviews.caller_of(wrong, names.READER_AUDIENCE) is None, wrong
        assert await reviews.caller_of(token, "other.example") is None
        with pytest.raises(ApiError, match="may not specify a duration less than 10 minutes"):
            await token_of(asker, *where, names.READER_AUDIENCE, seconds=599)
