"""Who waits and why: asked of the scheduler that leads, for it alone is asked about pods and knows."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import quote

import msgspec

from gpushare.dashboard.data.http_get import Asks, CannotAsk, NotKept
from gpushare.kube.client.errors import KubeError
from gpushare.kube.clock import Clock

FRESH_S: Final = 2.0
_LEADER_FRESH_S: Final = 5.0
#: How long a token to read with is good for, and after how long another is had made.
TOKEN_S: Final = 3600
_TOKEN_FRESH_S: Final = 1800.0
#: More are counted, and not shown.
MOST_SHOWN: Final = 1000


class Waiting(msgspec.Struct, frozen=True):
    """A pod that waits, as the scheduler tells of it."""

    key: str
    since: float
    asks: str
    category: str
    reason: str
    suggestion: str = ""
    uid: str = ""


class KeptShare(msgspec.Struct, frozen=True, rename="camel"):
    """What is kept of one GPU; ``gpu`` is its index."""

    node: str
    gpu: int
    mib: int = msgspec.field(name="MiB")
    core_percent: int = 0


class KeptFor(msgspec.Struct, frozen=True):
    """Room that is given to nobody but ``whom``, in words."""

    whom: str
    shares: tuple[KeptShare, ...] = ()


class Line(msgspec.Struct, frozen=True):
    """All that wait, the longest first, at most ``MOST_SHOWN``; ``count`` is of all. ``kept``: room that is kept, of as many GPUs.

    ``problem`` says why nobody can tell (then there are none here), empty when all is well; ``answered_by`` who told.
    """

    pods: tuple[Waiting, ...] = ()
    count: int = 0
    problem: str = ""
    answered_by: str = ""
    by_category: dict[str, int] = {}
    kept: tuple[KeptFor, ...] = ()


class _Told(msgspec.Struct):
    waiting: list[Waiting]
    kept: list[KeptFor] = []


class _Record(msgspec.Struct):
    """What is wanted here of the scheduler's record of a pod."""

    waiting: Waiting | None = None


_RECORD: Final = msgspec.json.Decoder(_Record)
_TOLD: Final = msgspec.json.Decoder(list[Waiting] | _Told)

#: Who leads: ``NAMESPACE/NAME`` of its pod; empty where nobody does.
LeaderFn = Callable[[], Awaitable[str]]


#: Has a token made that is good for ``TOKEN_S``; raises ``KubeError``.
TokenFn = Callable[[], Awaitable[str]]


async def _no_token() -> str:
    return ""


class Source:
    """``leader`` is ``None`` where there is one scheduler alone, at ``scheduler``; ``address`` tells that of its pod otherwise."""

    def __init__(
        self,
        asks: Asks,
        scheduler: str,
        clock: Clock,
        *,
        leader: LeaderFn | None = None,
        address: Callable[[str], str] = lambda pod: "",
        token: TokenFn = _no_token,
    ) -> None:
        self._asks = asks
        self._scheduler = scheduler.rstrip("/")
        self._clock = clock
        self._leader = leader
        self._address = address
        self._make_token = token
        self._token: tuple[float, str] | None = None
        self._last: tuple[float, Line] | None = None
        self._leads: tuple[float, str] | None = None
        self._ones: dict[str, tuple[float, tuple[Waiting | None, str]]] = {}
        self._one_at_a_time = asyncio.Lock()

    async def line(self) -> Line:
        """All who wait, at most ``FRESH_S`` old."""
        async with self._one_at_a_time:
            now_s = self._clock.monotonic()
            if self._last is None or now_s - self._last[0] >= FRESH_S:
                self._last = (now_s, await self._line())
            return self._last[1]

    async def one(self, pod: str) -> tuple[Waiting | None, str]:
        """The pod as it waits, at most ``FRESH_S`` old, or why nobody can tell; neither where the scheduler does not know that it waits."""
        line = await self.line()
        found = next((one for one in line.pods if one.key == pod), None)
        if found is not None or line.problem or line.count <= len(line.pods):
            return found, line.problem
        # It is behind those that are shown.
        now_s = self._clock.monotonic()
        self._ones = {key: one for key, one in self._ones.items() if now_s - one[0] < FRESH_S}
        if pod not in self._ones:
            self._ones[pod] = now_s, await self._read_one(pod)
        return self._ones[pod][1]

    async def _read_one(self, pod: str) -> tuple[Waiting | None, str]:
        body, problem = await self.decision(pod, nodes=False)
        try:
            return (_RECORD.decode(body).waiting if body else None), problem
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return None, f"the scheduler answers what this version does not understand ({error})"

    async def decision(self, pod: str, *, nodes: bool = True) -> tuple[bytes, str]:
        """The scheduler's record of its last look at a pod (JSON, empty where there is none), or why it cannot be had.

        ``nodes``: with what was said of each node, which is long in a large cluster.
        """
        namespace, _, name = pod.partition("/")
        path = f"{quote(namespace, safe='')}/{quote(name, safe='')}{'/nodes' if nodes else ''}"
        try:
            base, _ = await self._where()
            return await self._asks.get(f"{base}/gpushare/decisions/{path}", await self._shown()), ""
        except NotKept:
            return b"", ""
        except CannotAsk as error:
            return b"", str(error)

    async def _line(self) -> Line:
        try:
            base, who = await self._where()
        except CannotAsk as error:
            return Line(problem=str(error))
        try:
            told = _TOLD.decode(await self._asks.get(f"{base}/gpushare/decisions", await self._shown()))
        except NotKept:
            return Line(problem=f"{who} keeps no record of decisions: it is of an older version")
        except CannotAsk as error:
            return Line(problem=f"{who} cannot be asked who waits and why: {error}")
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return Line(problem=f"{who} answers what this version does not understand ({error})")
        waiting = told.waiting if isinstance(told, _Told) else told
        pods = sorted(waiting, key=lambda one: (one.since, one.key))
        counts: dict[str, int] = {}
        for one in pods:
            counts[one.category] = counts.get(one.category, 0) + 1
        kept = tuple(told.kept[:MOST_SHOWN]) if isinstance(told, _Told) else ()
        return Line(tuple(pods[:MOST_SHOWN]), len(pods), "", who, counts, kept)

    async def _shown(self) -> str:
        """The token to read with. Raises ``CannotAsk``."""
        now_s = self._clock.monotonic()
        if self._token is None or now_s - self._token[0] >= _TOKEN_FRESH_S:
            try:
                self._token = (now_s, await self._make_token())
            except KubeError as error:
                raise CannotAsk(f"no token to read with can be had: {error}") from error
        return self._token[1]

    async def _where(self) -> tuple[str, str]:
        """The address of the scheduler that leads, as a URL, and who that is. Raises ``CannotAsk``."""
        if self._leader is None:
            return self._scheduler, "the scheduler"
        now_s = self._clock.monotonic()
        if self._leads is None or now_s - self._leads[0] >= _LEADER_FRESH_S:
            try:
                self._leads = (now_s, await self._leader())
            except KubeError as error:
                raise CannotAsk(f"nobody knows which scheduler leads: {error}") from error
        leads = self._leads[1]
        if not leads:
            raise CannotAsk("no scheduler leads at present, so nobody decides about pods")
        address = self._address(leads)
        if not address:
            raise CannotAsk(f"scheduler {leads} leads, and it is not known where it can be asked")
        return f"http://{address}", leads
