"""Records Events (events.k8s.io/v1).

``record`` only notes; ``run`` writes. The same news of the same object within some minutes is one Event whose
``series`` counts, and so is news of one ``cause`` whose words differ (its figures do): a written Event's note cannot be changed, so
the first one stays. The count is written at growing distances, so that a pod that is refused every
second costs a few writes a minute. All is bounded: what waits, what is remembered, how long a note is.

What lasts (a fault, a reason to wait) is one Event for all who see it, and whoever of them starts anew: its name follows from
what it is about, so the server takes the first and refuses the others; then the Event that is there is left as it is.
"""

import asyncio
import hashlib
import logging
import os
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

import msgspec

from gpushare.api.objects import ObjectReference
from gpushare.kube.backoff import Backoff
from gpushare.kube.client.errors import ApiError, InvalidName, KubeError
from gpushare.kube.client.session import MERGE_PATCH, Session, segment
from gpushare.kube.clock import SYSTEM_CLOCK, Clock
from gpushare.process.log_setup import about

logger = logging.getLogger(__name__)

WAITING_LIMIT = 1000
KNOWN_LIMIT = 2000
SERIES_END_S = 360.0
"""After this many seconds without an occurrence, the next one starts a new Event (as in Kubernetes' own recorder)."""
NOTE_LIMIT_BYTES = 1024
_SERIES_FIRST_S = 1.0
_SERIES_MOST_S = 60.0
_NAME_LIMIT = 253
_WORD_LIMIT = 128
_TURN_S = 1.0
"""Maximum time that a new Event waits behind count updates that are not due, in seconds."""
JUST_TOLD_S = 60.0
"""An Event that was told this shortly ago by another is of the same coming of the fault; an older one is of an earlier."""
COMINGS = 3
"""Events of a fault that comes and goes; as long as it does not stay away for ``SERIES_END_S`` the last of them counts on."""
_MOST_NAMES = 64

EventType = Literal["Normal", "Warning"]
Telling = Literal["each", "standing", "found", "come"]
"""``each``: it has happened, and is news whenever it happens. ``standing``: it is so, maybe since before this process and seen
by others: told unless an Event tells it. ``found``: it is so as this process begins, and was not told as far as is known:
told, unless it was within a minute. ``come``: it has come to be so while this process looked: told, unless another just did."""
EventContent = tuple[ObjectReference, str, str, str, str]


class _Series(msgspec.Struct):
    """The count of an Event and its last occurrence."""

    count: int = 1
    last: str = msgspec.field(name="lastObservedTime", default="")


class _There(msgspec.Struct, rename="camel"):
    """An existing Event with our name."""

    event_time: str | None = None
    reporting_instance: str = ""
    series: _Series | None = None


class _Known(msgspec.Struct):
    """An Event that is written or queued. ``written`` is the count that the server has; 0 before it exists.

    ``number`` tells the comings of one fault apart, ``comings`` is how many of them had an Event since it stayed away long.
    """

    news: EventContent
    note: str
    namespace: str
    name: str
    first_ns: int
    last_ns: int
    last_s: float
    count: int = 1
    written: int = 0
    due_s: float = 0.0
    pause_s: float = _SERIES_FIRST_S
    telling: Telling = "each"
    number: int = 0
    comings: int = 1

    def rename(self) -> None:
        """Choose another name: that of the next recurrence, or a unique one."""
        self.number += 1
        self.name = _name(self.news, self.telling, self.number, self.first_ns)


class Recorder(Protocol):
    """What callers need of an ``EventRecorder``."""

    def record(
        self,
        regarding: ObjectReference,
        *,
        kind: EventType,
        reason: str,
        action: str,
        note: str,
        cause: str = "",
        telling: Telling = "each",
    ) -> None:
        """Record ``note`` about ``regarding``; never blocks. Equal ``cause`` means the same Event, whatever the text."""


class EventRecorder:
    """Writes Events as ``controller`` (``gpushare.dev/scheduler``) and ``instance`` (this process's pod)."""

    def __init__(
        self,
        session: Session,
        *,
        controller: str,
        instance: str,
        clock: Clock = SYSTEM_CLOCK,
        backoff: Backoff | None = None,
        waiting_limit: int = WAITING_LIMIT,
        known_limit: int = KNOWN_LIMIT,
    ) -> None:
        self._session = session
        self._controller = controller
        self._instance = instance[:_WORD_LIMIT]
        self._clock = clock
        self._began_s = clock.time_ns() / 1e9
        self._backoff = backoff or Backoff()
        self._waiting_limit = waiting_limit
        self._known_limit = known_limit
        self._known: OrderedDict[EventContent, _Known] = OrderedDict()
        self._waiting: OrderedDict[EventContent, _Known] = OrderedDict()
        self._woken = asyncio.Event()
        self.written = 0
        """Successful writes."""
        self.dropped = 0
        """Events dropped because the queue was full or the server rejected them."""

    @property
    def waiting(self) -> int:
        """Number of queued Events."""
        return len(self._waiting)

    def record(
        self,
        regarding: ObjectReference,
        *,
        kind: EventType,
        reason: str,
        action: str,
        note: str,
        cause: str = "",
        telling: Telling = "each",
    ) -> None:
        """Queue an occurrence; never blocks, never raises. ``note`` is cut to 1024 bytes of UTF-8.

        ``cause`` tells news of one reason apart, where given; else ``note`` does. Who tells of what lasts says each change once.

        ``reason`` (``FailedBinding``) and ``action`` (``Binding``) are words for programs, at most 128 characters.
        """
        now_ns, now_s = self._clock.time_ns(), self._clock.monotonic()
        note = _cut(note)
        news = (regarding, kind, reason[:_WORD_LIMIT], action[:_WORD_LIMIT], cause or note)
        before = self._known.pop(news, None)
        if before is not None and (before.written == 0 or _goes_on(before, telling, now_s)):
            known = before
            known.count += 1
            if known.written:
                # A written Event keeps its text; once it has expired on the server, the next one has the new text.
                known.note = note
            known.last_ns, known.last_s = now_ns, now_s
        else:
            known = _Known(
                news, note, regarding.namespace or "default", "", now_ns, now_ns, now_s, telling=telling
            )
            if before is not None:
                known.number = before.number + 1
                known.comings = before.comings + 1 if now_s - before.last_s < SERIES_END_S else 1
            known.name = _name(news, telling, known.number, now_ns)
        self._known[news] = known
        if len(self._known) > self._known_limit:
            self._known.popitem(last=False)
        if news not in self._waiting and len(self._waiting) >= self._waiting_limit:
            self._waiting.popitem(last=False)
            self.dropped += 1
        self._waiting[news] = known
        self._woken.set()

    async def run(self) -> None:
        """Write the queue until cancelled. Failures are logged and retried, never raised."""
        while True:
            await self._woken.wait()
            known = self._next_due()
            if known is None:
                await self._clock.sleep(_TURN_S)
                continue
            wait_s = await self._try(known)
            if wait_s:
                await self._clock.sleep(wait_s)

    async def flush(self) -> None:
        """Write the whole queue, counts included, trying each Event once; for the end of a process.

        The caller sets the bound (``asyncio.timeout``).
        """
        for known in list(self._waiting.values()):
            await self._try(known)

    def _next_due(self) -> _Known | None:
        now_s = self._clock.monotonic()
        return next((known for known in self._waiting.values() if known.due_s <= now_s), None)

    async def _try(self, known: _Known) -> float:
        """Write one Event; returns the pause in seconds before the next."""
        try:
            if known.written == 0:
                await self._create(known)
            count = known.count
            if count > known.written:
                await self._count(known, count)
        except ApiError as error:
            if error.not_found and known.written:
                # The Event has expired on the server; write it as a new one.
                known.written = 0
                known.first_ns, known.count = known.last_ns, 1
                known.rename()
                return 0.0
            if not error.passing and error.status != 401:
                self._give_up(known, error)
                return 0.0
            if error.status >= 500 and self._waiting.get(known.news) is known:
                # It may affect this Event only, such as an unavailable webhook for one namespace: others go first.
                self._waiting.move_to_end(known.news)
            return self._wait_out(error, error.retry_after_s or 0.0)
        except (InvalidName, UnicodeError) as error:
            self._give_up(known, error)
            return 0.0
        except KubeError as error:
            return self._wait_out(error, 0.0)
        self._backoff.reset()
        self.written += 1
        known.written = count
        known.due_s = self._clock.monotonic() + known.pause_s
        known.pause_s = min(known.pause_s * 2.0, _SERIES_MOST_S)
        if known.count == count:
            self._forget_waiting(known)
        return 0.0

    async def _create(self, known: _Known) -> None:
        """Create it, or find that it exists."""
        for _ in range(_MOST_NAMES):
            try:
                await self._session.request("POST", _path(known.namespace), body=self._event(known))
            except ApiError as error:
                if not error.conflict:
                    raise
                # A random name is unique to us: an earlier attempt, whose response was lost, has created it.
                if known.telling != "each" and not await self._is_told(known):
                    continue
            break
        known.written = max(known.written, 1)

    async def _is_told(self, known: _Known) -> bool:
        """Whether the existing Event of this name is the same one: then continue it; else choose another name."""
        # An empty patch returns the object without needing read permission.
        try:
            raw = await self._session.request(
                "PATCH",
                f"{_path(known.namespace)}/{segment(known.name)}",
                body=b"{}",
                content_type=MERGE_PATCH,
                idempotent=True,
            )
            there = msgspec.json.decode(raw, type=_There)
        except ApiError as error:
            if not error.not_found:
                raise
            return False  # it has just expired: the name is free
        except msgspec.MsgspecError:
            known.rename()
            return False
        series = there.series or _Series()
        is_ours = there.reporting_instance == self._instance and there.event_time == _micro_time(
            known.first_ns
        )
        if known.telling in ("found", "come") and not is_ours:
            last_s = _epoch_s(series.last or there.event_time or "")
            since_s = self._clock.time_ns() / 1e9 - JUST_TOLD_S
            # An Event from before this process saw the recovery belongs to an earlier occurrence.
            if last_s <= (max(since_s, self._began_s) if known.telling == "come" else since_s):
                known.rename()
                return False
        known.written = series.count
        known.count += series.count - 1
        return True

    def _event(self, known: _Known) -> bytes:
        regarding, kind, reason, action, _ = known.news
        return msgspec.json.encode(
            {
                "apiVersion": "events.k8s.io/v1",
                "kind": "Event",
                "metadata": {"name": known.name, "namespace": known.namespace},
                "eventTime": _micro_time(known.first_ns),
                "reportingController": self._controller,
                "reportingInstance": self._instance,
                "type": kind,
                "reason": reason,
                "action": action,
                "note": known.note,
                "regarding": _as_object(regarding),
            }
        )

    async def _count(self, known: _Known, count: int) -> None:
        series = {"count": count, "lastObservedTime": _micro_time(known.last_ns)}
        await self._session.request(
            "PATCH",
            f"{_path(known.namespace)}/{segment(known.name)}",
            body=msgspec.json.encode({"series": series}),
            content_type=MERGE_PATCH,
            idempotent=True,
        )

    def _give_up(self, known: _Known, error: Exception) -> None:
        # The text may not be encodable; it is logged too.
        regarding = known.news[0]
        news = _written(f"event {known.news[2]} about {regarding.kind} {regarding.name}")
        logger.error("%s is not written: %s", news, error, extra=_about(regarding))
        self.dropped += 1
        self._known.pop(known.news, None)
        self._forget_waiting(known)

    def _wait_out(self, error: KubeError, at_least_s: float) -> float:
        wait_s = self._backoff.next_s(at_least_s)
        logger.warning("events wait %.1f s: %s", wait_s, error)
        return wait_s

    def _forget_waiting(self, known: _Known) -> None:
        if self._waiting.get(known.news) is known:
            del self._waiting[known.news]
        if not self._waiting:
            self._woken.clear()


def _goes_on(before: _Known, telling: Telling, now_s: float) -> bool:
    """Whether this occurrence counts on the previous Event."""
    if telling == "standing":
        return True
    return now_s - before.last_s < SERIES_END_S and (telling == "each" or before.comings >= COMINGS)


def _name(news: EventContent, telling: Telling, number: int, at_ns: int) -> str:
    """The Event's name: of what lasts the same from whoever tells it, and as often as the process starts.

    Of what has happened it begins with when, so that lists by name (``kubectl get events``) are lists by time.
    """
    regarding, _, reason, _, cause = news
    if telling == "each":
        ending = f"{at_ns:016x}{os.urandom(4).hex()}"
    else:
        said = (
            regarding.kind,
            regarding.namespace,
            regarding.name,
            regarding.uid,
            reason,
            cause,
            str(number),
        )
        ending = hashlib.sha256("\0".join(said).encode(errors="backslashreplace")).hexdigest()[:16]
    return f"{regarding.name[: _NAME_LIMIT - 1 - len(ending)]}.{ending}"


def _epoch_s(moment: str) -> float:
    """Seconds since 1970; 0 for an invalid time."""
    try:
        return datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return 0.0


def _as_object(reference: ObjectReference) -> dict[str, str]:
    fields = {
        "apiVersion": reference.api_version,
        "kind": reference.kind,
        "name": reference.name,
        "namespace": reference.namespace,
        "uid": reference.uid,
    }
    return {name: value for name, value in fields.items() if value}


def _about(reference: ObjectReference) -> dict[str, Any] | None:
    """The log line's subject."""
    name = _written(reference.name)
    key, uid = _written(f"{reference.namespace}/{reference.name}"), _written(reference.uid)
    return (
        about(pod=key, uid=uid)
        if reference.kind == "Pod"
        else about(node=name)
        if reference.kind == "Node"
        else None
    )


def _written(words: str) -> str:
    return words.encode(errors="backslashreplace").decode()


def _path(namespace: str) -> str:
    return f"/apis/events.k8s.io/v1/namespaces/{segment(namespace)}/events"


def _micro_time(time_ns: int) -> str:
    moment = datetime.fromtimestamp(time_ns // 1_000_000_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ns // 1000 % 1_000_000:06d}Z"


def _cut(note: str) -> str:
    encoded = note.encode(errors="replace")
    if len(encoded) <= NOTE_LIMIT_BYTES:
        return encoded.decode()
    return encoded[: NOTE_LIMIT_BYTES - 3].decode(errors="ignore") + "…"
