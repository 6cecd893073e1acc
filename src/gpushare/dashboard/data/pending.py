"""Pending pods and their reasons, read from the scheduler that leads: only the leader handles pods."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import quote

import msgspec

from gpushare.dashboard.data.http_get import HttpGetter, NotFound, RequestFailed
from gpushare.kube.client.errors import KubeError
from gpushare.kube.clock import Clock

FRESH_S: Final = 2.0
_LEADER_FRESH_S: Final = 5.0
#: Lifetime of a token for reading, and the age at which it is renewed.
TOKEN_S: Final = 3600
_TOKEN_FRESH_S: Final = 1800.0
#: Further pods are counted, but not shown.
MOST_SHOWN: Final = 1000


class Waiting(msgspec.Struct, frozen=True):
    """The scheduler's record of a pending pod."""

    key: str
    since: float
    asks: str
    category: str
    reason: str
    suggestion: str = ""
    uid: str = ""


class ReservedShare(msgspec.Struct, frozen=True, rename="camel"):
    """Reserved capacity of one GPU; ``gpu`` is its index."""

    node: str
    gpu: int
    mib: int = msgspec.field(name="MiB")
    core_percent: int = 0


class Reservation(msgspec.Struct, frozen=True):
    """Capacity reserved for ``whom``, a description of a gang or pod."""

    whom: str
    shares: tuple[ReservedShare, ...] = ()


class Line(msgspec.Struct, frozen=True):
    """Pending pods, the oldest first, at most ``MOST_SHOWN``; ``count`` counts all. ``kept``: reserved capacity, with the same limit.

    ``problem`` says why the scheduler could not be read (then ``pods`` is empty), else it is empty; ``answered_by``: the scheduler's name.
    """

    pods: tuple[Waiting, ...] = ()
    count: int = 0
    problem: str = ""
    answered_by: str = ""
    by_category: dict[str, int] = {}
    kept: tuple[Reservation, ...] = ()


class _Answer(msgspec.Struct, rename="camel"):
    waiting: list[Waiting]
    kept: list[Reservation] = []
    count: int | None = None
    """``None``: of a scheduler of an earlier version, which lists all."""
    by_category: dict[str, int] = {}


class _Record(msgspec.Struct):
    """The used part of the scheduler's record of a pod."""

    waiting: Waiting | None = None


_RECORD: Final = msgspec.json.Decoder(_Record)
_ANSWER: Final = msgspec.json.Decoder(list[Waiting] | _Answer)

#: Returns ``NAMESPACE/NAME`` of the leader's pod; empty without a leader.
LeaderFn = Callable[[], Awaitable[str]]


#: Requests a token with a lifetime of ``TOKEN_S``; raises ``KubeError``.
TokenFn = Callable[[], Awaitable[str]]


async def _no_token() -> str:
    return ""


class Source:
    """Reads the scheduler. ``leader`` is ``None`` for a single scheduler at ``scheduler``; otherwise ``address`` maps the leader's pod."""

    def __init__(
        self,
        http: HttpGetter,
        scheduler: str,
        clock: Clock,
        *,
        leader: LeaderFn | None = None,
        address: Callable[[str], str] = lambda pod: "",
        token: TokenFn = _no_token,
    ) -> None:
        self._http = http
        self._scheduler = scheduler.rstrip("/")
        self._clock = clock
        self._leader = leader
        self._address = address
        self._make_token = token
        self._token: tuple[float, str] | None = None
        self._last_line: tuple[float, Line] | None = None
        self._leader_pod: tuple[float, str] | None = None
        self._single_records: dict[str, tuple[float, tuple[Waiting | None, str]]] = {}
        self._lock = asyncio.Lock()

    async def line(self) -> Line:
        """All pending pods, at most ``FRESH_S`` old."""
        async with self._lock:
            now_s = self._clock.monotonic()
            if self._last_line is None or now_s - self._last_line[0] >= FRESH_S:
                self._last_line = (now_s, await self._line())
            return self._last_line[1]

    async def one(self, pod: str) -> tuple[Waiting | None, str]:
        """A pending pod's record, at most ``FRESH_S`` old, or the problem; neither if the scheduler has no record of it."""
        line = await self.line()
        record = next((record for record in line.pods if record.key == pod), None)
        if record is not None or line.problem or line.count <= len(line.pods):
            return record, line.problem
        # It may be beyond the shown pods.
        now_s = self._clock.monotonic()
        self._single_records = {
            key: entry for key, entry in self._single_records.items() if now_s - entry[0] < FRESH_S
        }
        if pod not in self._single_records:
            self._single_records[pod] = now_s, await self._read_one(pod)
        return self._single_records[pod][1]

    async def _read_one(self, pod: str) -> tuple[Waiting | None, str]:
        body, problem = await self.decision(pod, nodes=False)
        try:
            return (_RECORD.decode(body).waiting if body else None), problem
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return None, f"the scheduler's answer is of another version ({error})"

    async def decision(self, pod: str, *, nodes: bool = True) -> tuple[bytes, str]:
        """The scheduler's record of its last decision about a pod (JSON, empty if there is none), or the problem.

        ``nodes``: include the result of each node, which is long in a large cluster.
        """
        namespace, _, name = pod.partition("/")
        path = f"{quote(namespace, safe='')}/{quote(name, safe='')}{'/nodes' if nodes else ''}"
        try:
            base, _ = await self._scheduler_address()
            return await self._http.get(f"{base}/gpushare/decisions/{path}", await self._read_token()), ""
        except NotFound:
            return b"", ""
        except RequestFailed as error:
            return b"", str(error)

    async def _line(self) -> Line:
        try:
            base, scheduler = await self._scheduler_address()
        except RequestFailed as error:
            return Line(problem=str(error))
        try:
            answer = _ANSWER.decode(await self._read_pending(base))
        except NotFound:
            return Line(problem=f"{scheduler} stores no decisions: it is of an older version")
        except RequestFailed as error:
            return Line(problem=f"{scheduler} cannot be asked for pending pods: {error}")
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return Line(problem=f"the answer of {scheduler} is of another version ({error})")
        waiting = answer.waiting if isinstance(answer, _Answer) else answer
        pods = sorted(waiting, key=lambda pod: (pod.since, pod.key))
        reservations = tuple(answer.kept[:MOST_SHOWN]) if isinstance(answer, _Answer) else ()
        if isinstance(answer, _Answer) and answer.count is not None:
            count, by_category = answer.count, answer.by_category
        else:
            count, by_category = len(pods), dict(Counter(pod.category for pod in pods))
        return Line(tuple(pods[:MOST_SHOWN]), count, "", scheduler, by_category, reservations)

    async def _read_pending(self, base: str) -> bytes:
        """The scheduler's pending pods: those that are shown, as all of a large cluster are more than is read. Raises ``RequestFailed``."""
        url, token = f"{base}/gpushare/decisions", await self._read_token()
        try:
            return await self._http.get(f"{url}/oldest", token)
        except NotFound:
            return await self._http.get(url, token)  # a scheduler of an earlier version

    async def _read_token(self) -> str:
        """The token for reading. Raises ``RequestFailed``."""
        now_s = self._clock.monotonic()
        if self._token is None or now_s - self._token[0] >= _TOKEN_FRESH_S:
            try:
                self._token = (now_s, await self._make_token())
            except KubeError as error:
                raise RequestFailed(f"cannot get a token for reading: {error}") from error
        return self._token[1]

    async def _scheduler_address(self) -> tuple[str, str]:
        """URL and name of the scheduler that leads. Raises ``RequestFailed``."""
        if self._leader is None:
            return self._scheduler, "the scheduler"
        now_s = self._clock.monotonic()
        if self._leader_pod is None or now_s - self._leader_pod[0] >= _LEADER_FRESH_S:
            try:
                self._leader_pod = (now_s, await self._leader())
            except KubeError as error:
                raise RequestFailed(f"it is unknown which scheduler leads: {error}") from error
        leader = self._leader_pod[1]
        if not leader:
            raise RequestFailed("no scheduler leads at present, so no pods are placed")
        address = self._address(leader)
        if not address:
            raise RequestFailed(f"scheduler {leader} leads, but its address is unknown")
        return f"http://{address}", leader
