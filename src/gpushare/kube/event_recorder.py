"""Records Events (events.k8s.io/v1).

``record`` queues; ``run`` writes. Repeated occurrences about the same object within some minutes are one Event whose ``series`` counts. So
are occurrences with the same ``cause`` and different texts, for example with other figures; as a written Event's note cannot be changed,
the first text stays. The count is written at growing intervals, so that a pod that is refused every second costs a few writes per
minute. Queue, history and length of notes are bounded.

Lasting conditions (a fault, a reason for pending) get one Event, even if several processes see them or a process restarts: the Event's name
is derived from its subject, so that the server accepts the first one and rejects the others, which leave the existing Event unchanged.
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
_FIRST_COUNT_S = 1.0
_MAX_COUNT_S = 60.0
_NAME_LIMIT = 253
_WORD_LIMIT = 128
_MAX_QUEUED_S = 1.0
"""Maximum time that a new Event waits behind count updates that are not due, in seconds."""
RECENTLY_RECORDED_S = 60.0
"""An Event that another process wrote within this time is about the same occurrence of the fault; an older one is about an earlier one."""
RECURRENCES = 3
"""Maximum Events of an intermittent fault; further occurrences are counted in the last one until it is absent for ``SERIES_END_S``."""
_MAX_NAME_ATTEMPTS = 64

EventType = Literal["Normal", "Warning"]
Occurrence = Literal["each", "lasting", "found", "began"]
"""When to write an Event. ``each``: for every occurrence. ``lasting``: a condition that may predate this process and that others may see:
unless an Event about it exists. ``found``: a condition at the start of this process, which is not known to have been reported: unless
reported within a minute. ``began``: a condition that began while this process was watching: unless another process has just reported it."""
EventContent = tuple[ObjectReference, str, str, str, str]


class _Series(msgspec.Struct):
    """The count of an Event and its last occurrence."""

    count: int = 1
    last: str = msgspec.field(name="lastObservedTime", default="")


class _Existing(msgspec.Struct, rename="camel"):
    """An existing Event with our name."""

    event_time: str | None = None
    reporting_instance: str = ""
    series: _Series | None = None


class _Known(msgspec.Struct):
    """An Event that is written or queued. ``written`` is the count that the server has; 0 before it exists.

    ``number`` distinguishes recurrences of a fault; ``recurrences`` is the number of its Events since its last long absence.
    """

    content: EventContent
    note: str
    namespace: str
    name: str
    first_ns: int
    last_ns: int
    last_s: float
    count: int = 1
    written: int = 0
    due_s: float = 0.0
    pause_s: float = _FIRST_COUNT_S
    occurrence: Occurrence = "each"
    number: int = 0
    recurrences: int = 1

    def rename(self) -> None:
        """Choose another name: that of the next recurrence, or a unique one."""
        self.number += 1
        self.name = _name(self.content, self.occurrence, self.number, self.first_ns)


class Recorder(Protocol):
    """The interface of ``EventRecorder`` for callers."""

    def record(
        self,
        regarding: ObjectReference,
        *,
        kind: EventType,
        reason: str,
        action: str,
        note: str,
        cause: str = "",
        occurrence: Occurrence = "each",
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
        self._queued = asyncio.Event()
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
        occurrence: Occurrence = "each",
    ) -> None:
        """Queue an occurrence; never blocks, never raises. ``note`` is cut to 1024 bytes of UTF-8.

        Occurrences with the same reason are distinguished by ``cause``, or else by ``note``. For lasting conditions, call it once per change.

        ``reason`` (``FailedBinding``) and ``action`` (``Binding``) are machine-readable, at most 128 characters.
        """
        now_ns, now_s = self._clock.time_ns(), self._clock.monotonic()
        note = _cut(note)
        content = (regarding, kind, reason[:_WORD_LIMIT], action[:_WORD_LIMIT], cause or note)
        before = self._known.pop(content, None)
        if before is not None and (before.written == 0 or _continues_series(before, occurrence, now_s)):
            known = before
            known.count += 1
            if known.written:
                # A written Event keeps its text; once it has expired on the server, the next one has the new text.
                known.note = note
            known.last_ns, known.last_s = now_ns, now_s
        else:
            known = _Known(
                content,
                note,
                regarding.namespace or "default",
                "",
                now_ns,
                now_ns,
                now_s,
                occurrence=occurrence,
            )
            if before is not None:
                known.number = before.number + 1
                known.recurrences = before.recurrences + 1 if now_s - before.last_s < SERIES_END_S else 1
            known.name = _name(content, occurrence, known.number, now_ns)
        self._known[content] = known
        if len(self._known) > self._known_limit:
            self._known.popitem(last=False)
        if content not in self._waiting and len(self._waiting) >= self._waiting_limit:
            self._waiting.popitem(last=False)
            self.dropped += 1
        self._waiting[content] = known
        self._queued.set()

    async def run(self) -> None:
        """Write the queue until cancelled. Failures are logged and retried, never raised."""
        while True:
            await self._queued.wait()
            known = self._next_due()
            if known is None:
                await self._clock.sleep(_MAX_QUEUED_S)
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
            if error.status >= 500 and self._waiting.get(known.content) is known:
                # It may affect this Event only, such as an unavailable webhook for one namespace: others go first.
                self._waiting.move_to_end(known.content)
            return self._backoff_s(error, error.retry_after_s or 0.0)
        except (InvalidName, UnicodeError) as error:
            self._give_up(known, error)
            return 0.0
        except KubeError as error:
            return self._backoff_s(error, 0.0)
        self._backoff.reset()
        self.written += 1
        known.written = count
        known.due_s = self._clock.monotonic() + known.pause_s
        known.pause_s = min(known.pause_s * 2.0, _MAX_COUNT_S)
        if known.count == count:
            self._remove_from_queue(known)
        return 0.0

    async def _create(self, known: _Known) -> None:
        """Create it, or find that it exists."""
        for _ in range(_MAX_NAME_ATTEMPTS):
            try:
                await self._session.request("POST", _path(known.namespace), body=self._event(known))
            except ApiError as error:
                if not error.conflict:
                    raise
                # A random name is unique to us: an earlier attempt, whose response was lost, has created it.
                if known.occurrence != "each" and not await self._is_recorded(known):
                    continue
            break
        known.written = max(known.written, 1)

    async def _is_recorded(self, known: _Known) -> bool:
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
            existing = msgspec.json.decode(raw, type=_Existing)
        except ApiError as error:
            if not error.not_found:
                raise
            return False  # it has just expired: the name is free
        except msgspec.MsgspecError:
            known.rename()
            return False
        series = existing.series or _Series()
        is_ours = existing.reporting_instance == self._instance and existing.event_time == _micro_time(
            known.first_ns
        )
        if known.occurrence in ("found", "began") and not is_ours:
            last_s = _epoch_s(series.last or existing.event_time or "")
            since_s = self._clock.time_ns() / 1e9 - RECENTLY_RECORDED_S
            # An Event from before this process saw the recovery belongs to an earlier occurrence.
            if last_s <= (max(since_s, self._began_s) if known.occurrence == "began" else since_s):
                known.rename()
                return False
        known.written = series.count
        known.count += series.count - 1
        return True

    def _event(self, known: _Known) -> bytes:
        regarding, kind, reason, action, _ = known.content
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
        regarding = known.content[0]
        subject = _encodable(f"event {known.content[2]} about {regarding.kind} {regarding.name}")
        logger.error("%s is not written: %s", subject, error, extra=_about(regarding))
        self.dropped += 1
        self._known.pop(known.content, None)
        self._remove_from_queue(known)

    def _backoff_s(self, error: KubeError, at_least_s: float) -> float:
        wait_s = self._backoff.next_s(at_least_s)
        logger.warning("events wait %.1f s: %s", wait_s, error)
        return wait_s

    def _remove_from_queue(self, known: _Known) -> None:
        if self._waiting.get(known.content) is known:
            del self._waiting[known.content]
        if not self._waiting:
            self._queued.clear()


def _continues_series(before: _Known, occurrence: Occurrence, now_s: float) -> bool:
    """Whether this occurrence counts on the previous Event."""
    if occurrence == "lasting":
        return True
    return now_s - before.last_s < SERIES_END_S and (
        occurrence == "each" or before.recurrences >= RECURRENCES
    )


def _name(content: EventContent, occurrence: Occurrence, number: int, at_ns: int) -> str:
    """The Event's name. For lasting conditions it is the same in all processes and after restarts.

    For single occurrences its suffix starts with the time, so that a list by name (``kubectl get events``) is also a list by time.
    """
    regarding, _, reason, _, cause = content
    if occurrence == "each":
        ending = f"{at_ns:016x}{os.urandom(4).hex()}"
    else:
        identity = (
            regarding.kind,
            regarding.namespace,
            regarding.name,
            regarding.uid,
            reason,
            cause,
            str(number),
        )
        ending = hashlib.sha256("\0".join(identity).encode(errors="backslashreplace")).hexdigest()[:16]
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
    name = _encodable(reference.name)
    key, uid = _encodable(f"{reference.namespace}/{reference.name}"), _encodable(reference.uid)
    return (
        about(pod=key, uid=uid)
        if reference.kind == "Pod"
        else about(node=name)
        if reference.kind == "Node"
        else None
    )


def _encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


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
