"""A clock that tests turn, and an API server's Secret and configurations that may refuse or be cut off."""

import asyncio
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from gpushare.admission.certs.certificates import Generation
from gpushare.admission.certs.controller import Keeper, Pace
from gpushare.admission.certs.rotation import Policy, Stored
from gpushare.admission.certs.store import KINDS, Configuration, Secret
from gpushare.admission.certs.tls import ServerTls
from gpushare.kube.client.errors import ApiError

NAMES = frozenset({"gpushare-admission.n.svc", "127.0.0.1"})
POLICY = Policy(NAMES, timedelta(days=90), timedelta(days=30))
PACE = Pace(period_s=10.0, overlap_s=300.0)


class Cut(Exception):
    """The process was killed here."""


@dataclass
class TurnedClock:
    """``wall_s`` may jump, ``now_s`` may not."""

    wall_s: float = 1_800_000_000.0
    now_s: float = 5000.0

    def monotonic(self) -> float:
        return self.now_s

    def time_ns(self) -> int:
        return int(self.wall_s * 1e9)

    async def sleep(self, seconds: float) -> None:
        self.turn(seconds)
        await asyncio.sleep(0)

    def turn(self, seconds: float) -> None:
        self.wall_s += seconds
        self.now_s += seconds

    @property
    def wall(self) -> datetime:
        return datetime.fromtimestamp(self.wall_s, UTC)


@dataclass
class KeptStore:
    """A Secret and two configurations with versions. ``cut_after``: writes until the next one kills."""

    stored: Stored = field(default_factory=Stored)
    version: int = 1
    configurations: dict[str, Configuration] = field(
        default_factory=lambda: {
            kind: Configuration(kind, "gpushare-admission", "1", (b"", b"")) for kind in KINDS
        }
    )
    writes: list[str] = field(default_factory=list)
    cut_after: int | None = None

    async def read_secret(self) -> Secret:
        return Secret(str(self.version), self.stored)

    async def write_secret(self, version: str, stored: Stored) -> None:
        if version != str(self.version):
            raise ApiError(409, "Conflict", "it has been changed", "/secret")
        self._written("secret")
        self.version += 1
        self.stored = stored

    async def read_configurations(self) -> list[Configuration]:
        return list(self.configurations.values())

    async def write_bundle(self, configuration: Configuration, bundle: bytes) -> None:
        kept = self.configurations.get(configuration.resource)
        if kept is None or kept.version != configuration.version:
            raise ApiError(409, "Conflict", "it has been changed", configuration.resource)
        self._written(configuration.resource)
        self.configurations[configuration.resource] = replace(
            kept, version=str(int(kept.version) + 1), bundles=tuple(bundle for _ in kept.bundles)
        )

    def trusts(self, generation: Generation) -> bool:
        return all(
            generation.ca_pem in bundle for one in self.configurations.values() for bundle in one.bundles
        )

    def _written(self, what: str) -> None:
        if self.cut_after is not None:
            if self.cut_after == 0:
                raise Cut
            self.cut_after -= 1
        self.writes.append(what)


def keeper(store: KeptStore, clock: TurnedClock, policy: Policy = POLICY, pace: Pace = PACE) -> Keeper:
    return Keeper(store, ServerTls(), policy, pace, clock)


async def settle(*keepers: Keeper, rounds: int = 40) -> None:
    """Rounds of all in turn until none has anything to do; what one is refused, it does later."""
    for _ in range(rounds):
        done = True
        for one in keepers:
            try:
                done &= await one.round()
            except ApiError as error:
                if not error.conflict:
                    raise
                done = False
        if done:
            return
    raise AssertionError("there is no end of it")
