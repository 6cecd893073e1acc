"""The webhook's HTTP interface as an ASGI application: reviews."""

import asyncio
import logging
import time
from typing import Final

from gpushare.admission.errors import UnreadableReview
from gpushare.admission.metrics import Metrics
from gpushare.admission.review.admission_review import MAX_BODY_BYTES
from gpushare.admission.review.dispatcher import Reviewer
from gpushare.httpserver.body_memory import Room
from gpushare.httpserver.exchange import JSON, TEXT, Receive, Refusal, Scope, Send, read_body, respond

logger = logging.getLogger(__name__)

#: Timeout for a body to arrive and be reviewed, in seconds: longer than the API server waits (at most 30).
REVIEW_S: Final = 15.0
#: Maximum memory of all reviews in progress, in bytes: each is small, except in an attack.
MOST_BYTES_AT_ONCE: Final = 2 * MAX_BODY_BYTES


class ReviewApp:
    """``POST /accept``, ``/units``, ``/mutate``, ``/validate`` and ``/mistakes``; request and response are AdmissionReviews."""

    def __init__(self, reviewer: Reviewer, metrics: Metrics, *, within_s: float = REVIEW_S) -> None:
        self._reviews = {
            "/accept": reviewer.accept,
            "/units": reviewer.count,
            "/mutate": reviewer.mutate,
            "/validate": reviewer.validate,
            "/mistakes": reviewer.warn,
        }
        self._metrics = metrics
        self._within_s = within_s
        self._room = Room(MOST_BYTES_AT_ONCE)
        self._turn = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry: one HTTP request."""
        started = time.perf_counter()
        path = scope["path"]
        status, kind = 200, JSON
        try:
            async with asyncio.timeout(self._within_s):
                body = await self._review(scope, receive)
        except Refusal as refusal:
            status, kind, body = refusal.status, TEXT, refusal.text.encode() + b"\n"
        except UnreadableReview as error:
            logger.warning("%s: %s", path, error)
            status, kind, body = 400, TEXT, str(error).encode() + b"\n"
        except TimeoutError:
            logger.warning("%s: no answer within %.0f s", path, self._within_s)
            status, kind, body = 408, TEXT, b"the review took too long to arrive or to be answered\n"
        known = path if path in self._reviews else "other"
        self._metrics.reviews.labels(known, str(status)).inc()
        self._metrics.review_seconds.labels(known).observe(time.perf_counter() - started)
        # The unread rest of a body would be parsed as the next request.
        await respond(send, status, kind, body, close=status in (408, 413, 503))

    async def _review(self, scope: Scope, receive: Receive) -> bytes:
        path, method = scope["path"], scope["method"]
        review = self._reviews.get(path)
        if review is None:
            raise Refusal(
                404, f"nothing at {path}; there are /accept, /units, /mutate, /validate and /mistakes"
            )
        if method != "POST":
            raise Refusal(405, f"{path} takes POST, not {method}")
        with self._room.body() as coming:
            body = await read_body(receive, MAX_BODY_BYTES, coming)
            # One review per pass of the event loop, however many are waiting: handshakes, probes and responses continue in between.
            async with self._turn:
                await asyncio.sleep(0)
            return await review(body)
