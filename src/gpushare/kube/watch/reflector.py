"""Watching: a single watch, and one that resumes after every failure.

``watch_events`` is one connection. ``follow`` lists, watches from the list's resource version, and resumes an interrupted watch. It lists
again when the resource version has expired (410, as a status or in the stream) or the answer is malformed. It never ends; errors are
yielded as steps, so that the consumer can count and log them.
"""

import random
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

import msgspec

from gpushare.kube.backoff import Backoff
from gpushare.kube.client.errors import ApiError, CredentialError, KubeError, MalformedAnswer, Unreachable
from gpushare.kube.client.listing import PAGE_SIZE, Page, list_pages
from gpushare.kube.client.session import Session, status_error
from gpushare.kube.clock import SYSTEM_CLOCK, Clock

IDLE_TIMEOUT_S = 120.0
"""Bookmarks arrive about every minute; a watch silent for twice that is considered dead."""
_WATCH_LIFETIME_S = (300, 600)
"""The server ends a watch after a time in this range, so that not all end together."""
_STABLE_S = 10.0
"""A watch that lived this long resets the backoff."""
_ABSENT_S = 5.0
"""Interval of checks whether an optional kind is served by now, in seconds."""
_MAX_RESUMES = 8
"""After this many failed resumes in a row, list again: the server may not accept the resource version."""


class Head(msgspec.Struct, rename="camel", gc=False):
    """The metadata needed to follow an object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Object(msgspec.Struct, gc=False):
    metadata: Head = msgspec.field(default_factory=Head)


class _Frame(msgspec.Struct):
    type: str
    object: msgspec.Raw


_decode_frame = msgspec.json.Decoder(_Frame).decode
_decode_object = msgspec.json.Decoder(_Object).decode


def read_head(raw: msgspec.Raw) -> Head:
    """Name and version of an object in JSON. Raises ``msgspec.DecodeError``."""
    return _decode_object(raw).metadata


class Event(msgspec.Struct, frozen=True, gc=False):
    """``type`` is ADDED, MODIFIED, DELETED or BOOKMARK; ``raw`` the object's JSON."""

    type: str
    head: Head
    raw: msgspec.Raw


class ListBegins(msgspec.Struct, frozen=True):
    """Pages follow; pages of an unfinished earlier list are invalid."""


class ListEnds(msgspec.Struct, frozen=True):
    """All pages have arrived: objects in none of them do not exist."""


class Trouble(msgspec.Struct, frozen=True):
    """Something failed; retry after ``wait_s`` seconds, with a list if ``relist``."""

    error: KubeError
    wait_s: float
    relist: bool


Step = ListBegins | Page | ListEnds | Event | Trouble


async def watch_events(
    session: Session,
    path: str,
    params: Mapping[str, str],
    resource_version: str,
    *,
    idle_timeout_s: float = IDLE_TIMEOUT_S,
    life_s: int = _WATCH_LIFETIME_S[0],
) -> AsyncGenerator[Event, None]:
    """The events of one connection after ``resource_version``, until the server ends it.

    Raises what ``Session.stream`` raises, ``ApiError`` for an ERROR event (``gone`` for 410), and
    ``MalformedAnswer`` for a line that is not an event.
    """
    query = {
        **params,
        "watch": "1",
        "allowWatchBookmarks": "true",
        "resourceVersion": resource_version,
        "timeoutSeconds": str(life_s),
    }
    async with aclosing(session.stream(path, query, idle_timeout_s=idle_timeout_s)) as lines:
        async for line in lines:
            try:
                frame = _decode_frame(line)
                if frame.type == "ERROR":
                    raise status_error(500, bytes(frame.object), path)
                yield Event(frame.type, read_head(frame.object), frame.object)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise MalformedAnswer(path, f"a line of the watch is no event ({error})") from error


class Following(msgspec.Struct):
    """Parameters of ``follow``."""

    session: Session
    path: str
    params: Mapping[str, str] = {}
    page_size: int = PAGE_SIZE
    idle_timeout_s: float = IDLE_TIMEOUT_S
    clock: Clock = SYSTEM_CLOCK
    backoff: Backoff = msgspec.field(default_factory=Backoff)
    life_s: Callable[[], int] = lambda: random.SystemRandom().randint(*_WATCH_LIFETIME_S)
    may_be_absent: bool = False
    """Whether the kind is optional (a CustomResourceDefinition): if it is not served, there are no objects."""


async def follow(following: Following) -> AsyncGenerator[Step, None]:
    """List, watch, resume and relist forever; yields steps in the server's order."""
    while True:
        yield ListBegins()
        version = ""
        trouble: Trouble | None = None
        absent = False
        try:
            pages = list_pages(
                following.session, following.path, following.params, page_size=following.page_size
            )
            async with aclosing(pages):
                async for page in pages:
                    version = page.resource_version
                    yield page
        except KubeError as error:
            absent = following.may_be_absent and isinstance(error, ApiError) and error.not_found
            if not absent:
                trouble = Trouble(error, _wait_s(following, error), relist=True)
        if trouble is not None:
            yield trouble
            await following.clock.sleep(trouble.wait_s)
            continue
        yield ListEnds()
        if absent:
            following.backoff.reset()
            await following.clock.sleep(_ABSENT_S)
            continue
        watch = _watch_until_expired(following, version)
        async with aclosing(watch):
            async for step in watch:
                yield step


async def _watch_until_expired(following: Following, version: str) -> AsyncGenerator[Event | Trouble, None]:
    """Watch from ``version`` and resume after interruptions; ends when only a list helps."""
    while True:
        began = following.clock.monotonic()
        error: KubeError | None = None
        events = watch_events(
            following.session,
            following.path,
            following.params,
            version,
            idle_timeout_s=following.idle_timeout_s,
            life_s=following.life_s(),
        )
        try:
            async with aclosing(events):
                async for event in events:
                    version = event.head.resource_version or version
                    yield event
        except KubeError as caught:
            error = caught
        duration_s = following.clock.monotonic() - began
        if duration_s >= _STABLE_S:
            following.backoff.reset()
            if error is None:
                continue
        if error is None:
            error = Unreachable(following.path, "the server ended the watch at once", sent=True)
        trouble = Trouble(
            error, _wait_s(following, error), relist=_needs_list(error, following.backoff.tries)
        )
        yield trouble
        await following.clock.sleep(trouble.wait_s)
        if trouble.relist:
            return


def _needs_list(error: KubeError, tries: int) -> bool:
    if isinstance(error, ApiError):
        return error.gone or not error.passing or tries > _MAX_RESUMES
    return not isinstance(error, (Unreachable, CredentialError))


def _wait_s(following: Following, error: KubeError) -> float:
    requested_s = error.retry_after_s if isinstance(error, ApiError) else None
    return following.backoff.next_s(requested_s or 0.0)
