"""Keeps the certificates valid: each round reads everything, takes at most one step, and schedules the next.

A round may be cut off at any instruction: the Secret is replaced whole, what API servers trust follows from it, and
the next round, of this replica or another, goes on from what it reads.
"""

import logging
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from gpushare.admission.certs.certificates import Generation, make_generation, mark_of, split_bundle
from gpushare.admission.certs.rotation import Policy, Step, Stored, after, next_step
from gpushare.admission.certs.store import Configuration, Secret, Store
from gpushare.admission.certs.tls import ServerTls
from gpushare.admission.errors import MissingObject
from gpushare.kube.backoff import Backoff
from gpushare.kube.client.errors import ApiError, KubeError
from gpushare.kube.clock import Clock

logger = logging.getLogger(__name__)

#: Minimum seconds between two generations that this process makes for lack of a valid one: two replicas whose
#: clocks differ by a lifetime would otherwise overwrite each other continuously.
_BEGIN_AGAIN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Pace:
    """``period_s``: interval of checks; ``overlap_s``: how long a CA is trusted before and after it is used."""

    period_s: float = 10.0
    overlap_s: float = 300.0


@dataclass(slots=True)
class Figures:
    """Values for metrics. Times are unix seconds; ``None``: not known yet."""

    generations: int = 0
    rounds_failed: int = 0
    expires_s: float | None = None
    trusted: bool = False


@dataclass(slots=True)
class _Seen:
    """How long things have been observed without interruption, by the monotonic clock."""

    since: dict[str, float] = field(default_factory=dict)

    def for_s(self, marks: Iterable[str], now_s: float) -> dict[str, float]:
        """For how many seconds each of ``marks`` has been observed; others are forgotten."""
        self.since = {mark: self.since.get(mark, now_s) for mark in marks}
        return {mark: now_s - began for mark, began in self.since.items()}


class Keeper:
    """Serves the stored certificate through ``tls``, renews it in time, and publishes its CA to the API servers."""

    def __init__(self, store: Store, tls: ServerTls, policy: Policy, pace: Pace, clock: Clock) -> None:
        self._store = store
        self._tls = tls
        self._policy = policy
        self._pace = pace
        self._clock = clock
        self._announced = _Seen()
        self._superfluous = _Seen()
        self._begun_s: float | None = None
        self._faults: list[str] = []
        self._logged: frozenset[str] = frozenset()
        self.problem = "the certificate was not read yet"
        self.figures = Figures()

    def missing(self) -> str:
        """Why API servers cannot call the webhook; empty if they can."""
        serving = self._tls.serving
        if serving is None or not self.figures.trusted:
            return self.problem
        if not serving.valid_at(self._now()):
            return (
                f"the certificate is valid from {serving.not_before} to {serving.not_after}: {self.problem}"
            )
        return ""

    async def run(self) -> None:
        """Run rounds until cancelled."""
        backoff = Backoff(first_s=0.2, most_s=self._pace.period_s)
        while True:
            try:
                settled = await self.round()
            except (KubeError, MissingObject) as error:
                wait_s = backoff.next_s()
                if not (isinstance(error, ApiError) and error.conflict):
                    self.figures.rounds_failed += 1
                    self.problem = str(error)
                    logger.warning("cannot read or write certificates: %s; retrying in %.1f s", error, wait_s)
            else:
                if settled:
                    backoff.reset()
                wait_s = self._pace.period_s if settled else backoff.next_s()
            await self._clock.sleep(wait_s)

    async def round(self) -> bool:
        """Check, and take the next step; returns whether nothing more is to be done for now.

        Raises ``KubeError`` (a conflict when another replica was faster) and ``MissingObject``.
        """
        self._faults.clear()
        try:
            return await self._look()
        finally:
            self._log_faults()

    async def _look(self) -> bool:
        secret = await self._store.read_secret()
        self._faults += secret.faults
        configurations = await self._store.read_configurations()
        now, now_s = self._now(), self._clock.monotonic()
        coming = secret.stored.coming
        announced = (
            self._announced.for_s([coming.mark], now_s)
            if coming is not None and configurations and all(_trusts(one, coming) for one in configurations)
            else self._announced.for_s([], now_s)
        )
        long_enough = any(seconds >= self._pace.overlap_s for seconds in announced.values())
        step = next_step(secret.stored, self._policy, now, announced_long_enough=long_enough)
        if step is not Step.KEEP and self._may(step, secret.stored, now_s):
            await self._take(step, secret, now)
            return False
        settled = await self._spread(secret.stored, configurations, now_s)
        self._serve(secret.stored, configurations)
        return settled

    def _may(self, step: Step, stored: Stored, now_s: float) -> bool:
        if step is not Step.BEGIN:
            return True
        recently = self._begun_s is not None and now_s - self._begun_s < _BEGIN_AGAIN_S
        if recently and stored.current is not None:
            self._faults.append(
                "the certificate that another replica made is not valid by this machine's clock; "
                "compare the clocks of the machines"
            )
            return False
        self._begun_s = now_s
        return True

    async def _take(self, step: Step, secret: Secret, now: datetime) -> None:
        made = None
        if step in (Step.BEGIN, Step.ANNOUNCE):
            made = make_generation(self._policy.names, now, self._policy.valid_for)
            self.figures.generations += 1
        wanted = after(step, secret.stored, made)
        await self._store.write_secret(secret.version, wanted)
        logger.info(
            "certificates: %s; current %s, coming %s", step.value, _said(wanted.current), _said(wanted.coming)
        )

    async def _spread(self, stored: Stored, configurations: list[Configuration], now_s: float) -> bool:
        """Publish the stored CAs to the API servers; earlier ones stay trusted for a while."""
        wanted = [one.ca_pem for one in (stored.current, stored.coming) if one is not None]
        found: dict[bytes, None] = {}
        for one in configurations:
            for bundle in one.bundles:
                found.update(dict.fromkeys(split_bundle(bundle)))
        others = {mark_of(pem): pem for pem in found if pem not in wanted}
        ages = self._superfluous.for_s(others, now_s)
        kept = [pem for mark, pem in others.items() if ages[mark] < self._pace.overlap_s]
        bundle = b"".join(wanted + sorted(kept))
        stale = [one for one in configurations if any(present != bundle for present in one.bundles)]
        for one in stale:
            await self._store.write_bundle(one, bundle)
            logger.info(
                "certificates: %s %s trusts %d of them", one.resource, one.name, len(wanted) + len(kept)
            )
        return not stale

    def _serve(self, stored: Stored, configurations: list[Configuration]) -> None:
        current = stored.current
        if current is None:
            return
        trusted = bool(configurations) and all(_trusts(one, current) for one in configurations)
        serving = self._tls.serving
        if serving != current and (trusted or serving is None or not serving.valid_at(self._now())):
            try:
                self._tls.use(current)
            except ssl.SSLError as error:
                self.problem = f"certificate {current.mark} cannot be served: {error}"
                self._faults.append(self.problem)
                return
            logger.info("certificates: serving %s", _said(current))
            self.figures.expires_s = current.not_after.timestamp()
        if trusted:
            self.figures.trusted = True
        elif not self.figures.trusted:
            self.problem = (
                "webhook configurations do not trust the certificate yet"
                if configurations
                else "no webhook configuration exists: install or upgrade the chart, which creates them"
            )

    def _log_faults(self) -> None:
        """Log each fault once while it lasts."""
        for fault in self._faults:
            if fault not in self._logged:
                logger.error("%s", fault)
        self._logged = frozenset(self._faults)

    def _now(self) -> datetime:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self._clock.time_ns() // 1000)


def _trusts(configuration: Configuration, generation: Generation) -> bool:
    return all(generation.ca_pem in bundle for bundle in configuration.bundles)


def _said(generation: Generation | None) -> str:
    if generation is None:
        return "none"
    return f"{generation.mark} (until {generation.not_after:%Y-%m-%d %H:%M:%S}Z)"
