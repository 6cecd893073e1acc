"""A simple and slow model of turns on a GPU, with which ``isolation/arbiter/schedule.c`` is compared.

The rules are described in ``isolation/arbiter/schedule.h``. Whole numbers only, so that both must agree to the nanosecond.
"""

from dataclasses import dataclass, field
from enum import IntEnum

MS = 1_000_000
QUANTUM = 50 * MS
ALONE = 100 * MS
PERIOD = 50 * MS
BURST = 100 * MS
OWED = 5000 * MS
LINGER = MS // 2
HANDOVER = 5 * MS
OVERLAP = 10 * MS
ANSWER = 25 * MS
ASLEEP_MIN, ASLEEP_MAX = 20 * MS, 1000 * MS
HOLD = 500 * MS
LEAD = 10_000 * MS
VISIT = 50 * MS
CREDIT = MS
TAKEN_UP = MS // 2
PATIENCE = 50 * MS
SHALLOW_FOR = 2000 * MS
SHALLOW = 2 * MS
STEP_MOST = 250 * MS
CLAIM_MOST = 60_000 * MS
UNPAID_MOST = 20 * MS
NEVER = 2**64 - 1


class Rank(IntEnum):
    """A container's claim to the GPU."""

    NOT_NOW = 0
    BORROWER = 1
    ENTITLED = 2


class Class(IntEnum):
    """Configured class of a container's work, as in ``isolation/files/limits.h``."""

    INFERRED = 0
    LATENCY = 1
    BATCH = 2


@dataclass(slots=True)
class Page:
    """What a container reports."""

    used: int = 0
    busy_until: int = 0
    requests: int = 0
    wants: bool = False


@dataclass(slots=True)
class Container:
    """The schedule's state of a container."""

    percent: int
    borrows: bool
    used: int
    allowed: int
    class_: Class
    active: bool = False
    busy: bool = False
    busy_until: int = 0
    beside: int = 0
    """Time for which others had work on the GPU."""
    balance: int = 0
    run: int = 0
    room: int = 0
    unpaid: int = 0
    left: int = 0
    wanted: bool = False
    idle_from: int = 0
    comes_back: bool = False
    visits_since: int | None = None
    visit_used: int = 0
    paused: bool = False
    """Whether the visit follows a pause."""
    asleep_until: int = 0
    asleep: int = 0
    asleep_requests: int = 0

    @property
    def enough(self) -> int:
        return PERIOD * self.percent

    @property
    def patience(self) -> int:
        return 0 if self.class_ is Class.LATENCY else 100 * PATIENCE

    def rank(self, needed: int) -> Rank:
        if self.balance >= needed:
            return Rank.ENTITLED
        return Rank.BORROWER if self.borrows else Rank.NOT_NOW


@dataclass(slots=True)
class Turn:
    """A granted turn."""

    holder: int
    since: int
    until: int
    used: int
    requests: int
    answered: bool = False
    over: int | None = None
    rests: bool = False


@dataclass(slots=True)
class Model:
    """One GPU."""

    now: int
    containers: dict[int, Container] = field(default_factory=dict)
    turn: Turn | None = None
    spare: int = 0
    last_visits: dict[int, int] = field(default_factory=dict)
    """Time of the last visit from each place, also of removed containers."""

    def admit(
        self, place: int, percent: int, borrows: bool, used: int, class_: Class = Class.INFERRED
    ) -> None:
        self.containers[place] = Container(percent, borrows, used, used, class_)

    def change(self, place: int, percent: int, borrows: bool, class_: Class) -> None:
        container = self.containers[place]
        container.percent, container.borrows, container.class_ = percent, borrows, class_

    def dismiss(self, place: int) -> None:
        if self.turn and self.turn.holder == place:
            self.turn = None
        del self.containers[place]

    def _holds(self, place: int) -> bool:
        return self.turn is not None and self.turn.holder == place

    def _end(self, turn: Turn) -> None:
        self.containers[turn.holder].left = self.now
        self.turn = None

    def _on_it(self, place: int) -> bool:
        return self._holds(place) or self.containers[place].visits_since is not None

    @property
    def _visitors(self) -> list[int]:
        return [place for place, it in self.containers.items() if it.visits_since is not None]

    def _had(self, place: int, container: Container) -> bool:
        """Whether it had the GPU since the last step."""
        visitors = self._visitors
        if not self._on_it(place):
            return container.busy and self.now >= container.left + OVERLAP
        return container.busy or not visitors or visitors == [place]

    def _left(self, page: Page) -> int:
        return max(0, min(page.busy_until - self.now, HOLD))

    def _others_had(self, place: int, until: int | None) -> int:
        """Time that others had, with equal slices for all containers with work."""
        others = [it.busy_until for key, it in self.containers.items() if key != place]
        ends = sorted(end if until is None else min(end, until) for end in others if end > self.now)
        had, start = 0, self.now
        for count, end in zip(range(len(ends), 0, -1), ends, strict=True):
            had += (end - start) * count // (count + 1)
            start = end
        return had

    def _beside_of(self, place: int, container: Container) -> int:
        if container.visits_since is not None and container.paused:
            return 0
        return 1 + container.beside + self._others_had(place, None)

    def _count_beside(self, now: int, pages: dict[int, Page]) -> None:
        for place, container in self.containers.items():
            if self._on_it(place):
                container.busy_until = max(container.busy_until, min(pages[place].busy_until, now))
        for place, container in self.containers.items():
            container.beside += self._others_had(place, now)
        for place, container in self.containers.items():
            container.busy_until = now + max(0, min(pages[place].busy_until - now, HOLD))

    def _account(self, now: int, pages: dict[int, Page]) -> None:
        passed = min(now - self.now, STEP_MOST)
        had = [container for place, container in self.containers.items() if self._had(place, container)]
        self._count_beside(now, pages)
        self.now = now
        for container in had:
            part = passed // len(had)
            container.run += part * 100 // container.percent
            container.room += part
        for place, container in sorted(self.containers.items()):
            page = pages[place]
            reported = (page.used - container.used + 2**63) % 2**64 - 2**63
            container.used = page.used
            container.unpaid += max(-CLAIM_MOST, min(reported, CLAIM_MOST))
            left, on_it = self._left(page), self._on_it(place)
            disturbed = len(had) > 1 and any(container is one for one in had)
            under_way = max(0, min(page.busy_until - now, CLAIM_MOST))
            own = min(container.unpaid, max(0, container.room + under_way))
            theirs = max(0, min(container.unpaid - own, self.spare)) if disturbed else 0
            paid = own + theirs
            container.unpaid = min(container.unpaid - paid, UNPAID_MOST)
            container.room = min(container.room - own, BURST)
            self.spare -= theirs
            if disturbed:
                self.spare = min(self.spare + max(0, container.room - UNPAID_MOST), UNPAID_MOST)
                container.room = min(container.room, UNPAID_MOST)
            busy = page.busy_until > now
            if not left and not on_it:
                container.unpaid = 0
            rests = self.turn is not None and self.turn.holder == place and self.turn.rests
            kept_waiting = (page.wants and (not on_it or rests)) or disturbed
            cap = 100 * (OWED if kept_waiting else BURST)
            if page.wants or on_it or busy:
                cap = max(cap, container.balance)
            container.balance = min(container.balance + passed * container.percent - 100 * paid, cap)
            if container.borrows:
                container.balance = max(container.balance, 0)
            container.busy = busy
            active = on_it or page.wants or busy
            others = [other.run for key, other in self.containers.items() if key != place and other.active]
            if others:
                if active and not container.active:
                    container.run = max(container.run, min(others))
                container.run = min(container.run, min(others) + LEAD)
            container.active = active
            paused = now >= min(container.idle_from, page.busy_until) + LINGER
            container.comes_back = page.wants and not container.wanted and not on_it and paused
            container.wanted = page.wants
            if busy:
                container.idle_from = now + left
            elif page.wants:
                container.idle_from = now
            if container.asleep and page.requests != container.asleep_requests:
                container.asleep_until = 0

    def _best(self, pages: dict[int, Page], *, without: int | None = None) -> tuple[Rank, int] | None:
        waiting = [
            (-container.rank(container.enough), container.run, place)
            for place, container in self.containers.items()
            if place != without
            and container.visits_since is None
            and pages[place].wants
            and container.asleep_until <= self.now
        ]
        best = min(waiting, default=None)
        return (Rank(-best[0]), best[2]) if best and best[0] else None

    def _quiet(self, since: int, page: Page) -> int:
        return max(min(page.busy_until, self.now + HOLD), since) + LINGER

    def _weigh(self, turn: Turn, page: Page, rival: tuple[Rank, int]) -> None:
        container = self.containers[turn.holder]
        rank = container.rank(container.enough if page.wants else 1)
        if not turn.answered and self.now >= turn.since + ANSWER:
            container.asleep = max(ASLEEP_MIN, min(2 * container.asleep, ASLEEP_MAX))
            container.asleep_until = self.now + container.asleep
            container.asleep_requests = page.requests
            self._end(turn)
        elif not page.wants and self.now >= self._quiet(turn.since, page):
            self._end(turn)
        elif rank == Rank.NOT_NOW or rival[0] > rank:
            turn.over = turn.until = self.now
        elif rival[0] < rank:
            turn.until = self.now + ALONE
        elif self.now < turn.since + QUANTUM:
            turn.until = turn.since + QUANTUM + HANDOVER
        elif self.containers[rival[1]].run < container.run:
            turn.over = turn.until = self.now
        else:
            turn.since = self.now
            turn.until = self.now + QUANTUM + HANDOVER

    def _look_at_turn(self, turn: Turn, pages: dict[int, Page]) -> None:
        page = pages[turn.holder]
        if not turn.answered and (not page.wants or page.used != turn.used or page.requests != turn.requests):
            turn.answered = True
            self.containers[turn.holder].asleep = 0
        if turn.over is None:
            rival = self._best(pages, without=turn.holder)
            if rival:
                self._weigh(turn, page, rival)
            elif turn.until < self.now + ALONE * 3 // 4:
                turn.until = self.now + ALONE
        self._end_if_through(turn, page)

    def _end_if_through(self, turn: Turn, page: Page) -> None:
        if (
            self.turn is turn
            and turn.over is not None
            and (self._left(page) <= HANDOVER or self.now >= turn.over + HOLD)
        ):
            self._end(turn)

    def _visit_is_over(self, container: Container, page: Page) -> bool:
        assert container.visits_since is not None
        if self.now >= container.visits_since + VISIT:
            return True
        if page.wants:
            return (container.allowed - page.used + 2**63) % 2**64 - 2**63 <= 0
        return self.now >= self._quiet(container.visits_since, page)

    def _may_visit(self, place: int, container: Container) -> bool:
        if not container.wanted or container.class_ is Class.BATCH:
            return False
        if container.comes_back and container.balance >= 100 * CREDIT:
            return True
        idle = container.used == container.visit_used
        goes_first = container.class_ is Class.LATENCY and not self._holds(place) and not idle
        return goes_first and container.balance >= container.enough

    def _look_at_visits(self, pages: dict[int, Page]) -> None:
        for place, container in sorted(self.containers.items()):
            page = pages[place]
            if container.visits_since is not None and self._visit_is_over(container, page):
                container.visits_since, container.left = None, self.now
            if container.visits_since is None and self._may_visit(place, container):
                container.visits_since, container.visit_used = self.now, page.used
                container.paused = container.comes_back
                container.allowed = (page.used + min(container.balance // 100, VISIT)) % 2**64
                container.room = max(container.room, 0)
            if container.visits_since is not None:
                self.last_visits[place] = self.now

    def _rests(self, place: int) -> bool:
        return bool(self._visitors) and self.containers[place].balance < self.containers[place].patience

    def _ahead(self, place: int) -> int:
        others = [at for key, at in self.last_visits.items() if key != place]
        return SHALLOW if others and self.now < max(others) + SHALLOW_FOR else 0

    def _next(self, pages: dict[int, Page]) -> int:
        moments = [NEVER]
        turn = self.turn
        if turn:
            page = pages[turn.holder]
            if turn.over is not None:
                moments += [self.now + max(0, self._left(page) - HANDOVER), turn.over + HOLD]
            elif turn.rests:
                holder = self.containers[turn.holder]
                moments.append(self.now + (holder.patience - holder.balance) // holder.percent + 1)
            elif not self._best(pages, without=turn.holder):
                moments.append(turn.until - ALONE // 2)
            else:
                moments.append(turn.until - HANDOVER)
                if not page.wants:
                    moments.append(self._quiet(turn.since, page))
                if not turn.answered:
                    moments.append(turn.since + ANSWER)
        for place, container in self.containers.items():
            page = pages[place]
            since = container.visits_since
            if since is not None:
                moments.append(since + VISIT)
                moments.append(self.now + TAKEN_UP if page.wants else self._quiet(since, page))
                continue
            if not page.wants:
                continue
            needed = max(container.enough, container.patience) if self._visitors else container.enough
            missing = needed - container.balance
            if container.asleep_until > self.now:
                moments.append(container.asleep_until)
            elif missing > 0:
                moments.append(self.now + missing // container.percent + 1)
        return min(moments)

    def _look(self, pages: dict[int, Page]) -> None:
        """Update visits and turns."""
        self._look_at_visits(pages)
        turn = self.turn
        if turn:
            rested, turn.rests = turn.rests, self._rests(turn.holder)
            if rested and not turn.rests and not turn.answered:
                turn.since = self.now
            if turn.rests:
                self._end_if_through(turn, pages[turn.holder])
            else:
                self._look_at_turn(turn, pages)
        if not self.turn and (best := self._best(pages)) and not self._rests(best[1]):
            page = pages[best[1]]
            self.turn = Turn(best[1], self.now, self.now, page.used, page.requests)
            self.containers[best[1]].active = True
            self.containers[best[1]].room = max(self.containers[best[1]].room, 0)
            self._look_at_turn(self.turn, pages)

    def _until(self, place: int, container: Container) -> int:
        if container.visits_since is not None:
            return container.visits_since + VISIT
        turn = self.turn
        return turn.until if turn and turn.holder == place and turn.over is None and not turn.rests else 0

    def step(self, now: int, pages: dict[int, Page]) -> tuple[int, dict[int, tuple[int, int, int, int]]]:
        """Time of the next step; per container, until when, up to which use and how far ahead it may launch work, and how long others
        had work."""
        self._account(max(now, self.now), pages)
        self._look(pages)
        if self.turn:
            container, page = self.containers[self.turn.holder], pages[self.turn.holder]
            if not page.wants or container.rank(container.enough) != Rank.NOT_NOW:
                more = max(0, container.balance // 100)
                rival = self._best(pages, without=self.turn.holder)
                if container.borrows and not (rival and rival[0] == Rank.ENTITLED):
                    more = max(more, ALONE)
                container.allowed = (page.used + more) % 2**64
        granted = {
            place: (
                self._until(place, container),
                container.allowed,
                self._ahead(place),
                self._beside_of(place, container),
            )
            for place, container in self.containers.items()
        }
        return self._next(pages), granted
