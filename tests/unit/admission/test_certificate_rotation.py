"""Certificates over months, jumps, kills and two replicas: the certificate that is served is always trusted and valid."""

import ssl
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.admission.certs.certificates import (
    Generation,
    MalformedCertificate,
    make_generation,
    read_generation,
    split_bundle,
)
from gpushare.admission.certs.controller import Keeper
from gpushare.admission.certs.rotation import Policy, Step, Stored, next_step
from gpushare.admission.certs.store import KINDS, Configuration
from gpushare.admission.certs.tls import ServerTls
from tests.unit.admission.kept import NAMES, PACE, POLICY, Cut, KeptStore, TurnedClock, keeper, settle

DAY_S = 86400.0


def served(one: Keeper) -> Generation:
    serving = one._tls.serving
    assert serving is not None
    return serving


async def test_from_nothing_to_ready() -> None:
    store, clock = KeptStore(), TurnedClock()
    one = keeper(store, clock)
    assert one.missing() == "the certificate was not read yet"
    await settle(one)
    assert store.writes == ["secret", *KINDS]
    assert one.missing() == ""
    assert served(one) == store.stored.current
    assert store.trusts(served(one))
    assert served(one).names == NAMES
    writes = len(store.writes)
    clock.turn(50 * DAY_S)
    await settle(one)
    assert len(store.writes) == writes, "nothing is written while nothing is due"


async def test_renewal_announces_waits_promotes_and_forgets() -> None:
    store, clock = KeptStore(), TurnedClock()
    one = keeper(store, clock)
    await settle(one)
    old = served(one)
    clock.turn(60 * DAY_S + 1)
    await settle(one)
    new = store.stored.coming
    assert new is not None
    assert served(one) == old
    assert store.trusts(old)
    assert store.trusts(new)
    clock.turn(PACE.overlap_s - 1)
    await settle(one)
    assert served(one) == old, "not every API server may have seen it yet"
    clock.turn(2)
    await settle(one)
    assert served(one) == new
    assert store.stored == Stored(new)
    assert store.trusts(old), "connections and replicas that lag are trusted for a while"
    clock.turn(PACE.overlap_s + 1)
    await settle(one)
    assert not store.trusts(old)
    assert store.trusts(new)


async def test_two_replicas_make_one_certificate_and_a_late_one_is_trusted() -> None:
    store, clock = KeptStore(), TurnedClock()
    first, second = keeper(store, clock), keeper(store, clock)
    await settle(first, second)
    assert served(first) == served(second)
    assert store.writes.count("secret") == 1
    clock.turn(61 * DAY_S)
    await settle(first)
    clock.turn(PACE.overlap_s + 1)
    await settle(first)
    assert served(first) != served(second)
    assert store.trusts(served(second))
    await settle(second)
    assert served(first) == served(second)


async def test_the_replica_that_is_slower_is_refused_and_reads_again() -> None:
    store, clock = KeptStore(), TurnedClock()
    one = keeper(store, clock)
    read = store.read_configurations

    async def read_late() -> list[Configuration]:
        store.version += 1
        store.read_configurations = read  # type: ignore[method-assign]
        return await read()

    store.read_configurations = read_late  # type: ignore[method-assign]
    await settle(one)
    assert store.writes.count("secret") == 1
    assert one.missing() == ""


@pytest.mark.parametrize("jump_days", [-400, -91, -89, -31, 31, 59, 61, 89, 91, 4000])
async def test_a_clock_that_jumps_and_comes_back(jump_days: float) -> None:
    store, clock = KeptStore(), TurnedClock()
    one = keeper(store, clock)
    await settle(one)
    clock.turn(3600)
    for days in (jump_days, -jump_days):
        clock.wall_s += days * DAY_S
        for _ in range(50):
            await settle(one)
            assert store.trusts(served(one))
            clock.turn(PACE.period_s)
        assert served(one).valid_at(clock.wall)
        assert one.missing() == ""


async def test_a_jump_hurts_no_api_server_whose_clock_is_right() -> None:
    """Less than a lifetime, either way: what is made then is valid by the right clock too."""
    for days in (-89, 89):
        store, clock = KeptStore(), TurnedClock()
        right = clock.wall
        clock.wall_s += days * DAY_S
        one = keeper(store, clock)
        await settle(one)
        assert served(one).valid_at(right)


async def test_replicas_whose_clocks_disagree_by_years_do_not_race() -> None:
    store, right, wrong = KeptStore(), TurnedClock(), TurnedClock()
    wrong.wall_s += 4000 * DAY_S
    first, second = keeper(store, right), keeper(store, wrong)
    for _ in range(60):
        for one in (first, second):
            await one.round()
    assert store.writes.count("secret") <= 3
    assert any("compare the clocks" in fault for one in (first, second) for fault in one._logged)


async def test_an_unreadable_secret_is_recreated_and_the_old_certificate_stays_trusted_for_a_while() -> None:
    store, clock = KeptStore(), TurnedClock()
    one = keeper(store, clock)
    await settle(one)
    old = served(one)
    store.stored = Stored()
    await settle(one)
    assert served(one) == store.stored.current != old
    assert store.trusts(old)
    clock.turn(PACE.overlap_s + 1)
    await settle(one)
    assert not store.trusts(old)


async def test_another_name_is_a_reason_to_renew_without_a_gap() -> None:
    store, clock = KeptStore(), TurnedClock()
    await settle(keeper(store, clock))
    moved = replace(POLICY, names=frozenset({"gpushare-admission.other.svc"}))
    one = keeper(store, clock, moved)
    await settle(one)
    assert served(one).names == NAMES
    clock.turn(PACE.overlap_s + 1)
    await settle(one)
    assert served(one).names == moved.names


async def test_configurations_that_appear_later_or_are_recreated_get_the_ca_bundle() -> None:
    store, clock = KeptStore(), TurnedClock()
    all_of_them, store.configurations = store.configurations, {}
    one = keeper(store, clock)
    await settle(one)
    assert "no webhook configuration exists" in one.missing()
    store.configurations = all_of_them
    await settle(one)
    assert one.missing() == ""
    store.configurations = {KINDS[0]: Configuration(KINDS[0], "gpushare-admission", "9", (b"", b"", b""))}
    await settle(one)
    assert one.missing() == ""
    assert store.trusts(served(one))


async def test_a_bundle_that_is_rubbish_is_replaced() -> None:
    store, clock = KeptStore(), TurnedClock()
    store.configurations = {
        kind: replace(one, bundles=(b"-----BEGIN CERTIFICATE-----\nno\n", b"\xff"))
        for kind, one in store.configurations.items()
    }
    one = keeper(store, clock)
    await settle(one)
    assert store.trusts(served(one))
    assert all(b"no\n" not in bundle for conf in store.configurations.values() for bundle in conf.bundles)


async def test_an_expired_certificate_is_said_to_be_why_it_is_not_ready() -> None:
    store, clock = KeptStore(), TurnedClock()
    one = keeper(store, clock)
    await settle(one)
    clock.turn(91 * DAY_S)
    assert "the certificate is valid from" in one.missing()
    await settle(one)
    assert one.missing() == ""


@settings(max_examples=60, deadline=None)
@given(st.data())
async def test_killed_at_any_write_and_while_time_passes(data: st.DataObject) -> None:
    """Any mixture of kills, waits, jumps and losses, of two replicas: in the end both serve what all trust."""
    store, clock = KeptStore(), TurnedClock()
    replicas = [keeper(store, clock), keeper(store, clock)]
    steps = {
        "wait a period": lambda: clock.turn(PACE.period_s),
        "wait the overlap": lambda: clock.turn(PACE.overlap_s + 1),
        "wait a month": lambda: clock.turn(31 * DAY_S),
        "clock ahead": lambda: setattr(clock, "wall_s", clock.wall_s + 200 * DAY_S),
        "clock behind": lambda: setattr(clock, "wall_s", clock.wall_s - 200 * DAY_S),
        "secret emptied": lambda: setattr(store, "stored", Stored()),
    }
    for _ in range(data.draw(st.integers(1, 12))):
        which = data.draw(st.integers(0, 1))
        store.cut_after = data.draw(st.none() | st.integers(0, 3))
        try:
            await settle(replicas[which])
        except Cut:
            replicas[which] = keeper(store, clock)
        store.cut_after = None
        await settle(replicas[which])
        assert store.trusts(served(replicas[which]))
        steps[data.draw(st.sampled_from(sorted(steps)))]()
    clock.turn(120)  # beyond the pause between certificates that are made for want of a valid one
    await settle(*replicas)
    clock.turn(PACE.overlap_s + 1)
    await settle(*replicas)
    assert served(replicas[0]) == served(replicas[1]) == store.stored.current
    assert served(replicas[0]).valid_at(clock.wall)
    for one in replicas:
        assert one.missing() == ""


# --- the parts ----------------------------------------------------------------------------------------


def test_steps() -> None:
    clock = TurnedClock()
    now = clock.wall
    good = make_generation(NAMES, now, POLICY.valid_for)
    near = make_generation(NAMES, now - timedelta(days=61), POLICY.valid_for)
    gone = make_generation(NAMES, now - timedelta(days=91), POLICY.valid_for)

    def step(stored: Stored, *, announced: bool = False, policy: Policy = POLICY) -> Step:
        return next_step(stored, policy, now, announced_long_enough=announced)

    assert step(Stored()) is Step.BEGIN
    assert step(Stored(gone)) is Step.BEGIN
    assert step(Stored(gone, gone)) is Step.BEGIN
    assert step(Stored(gone, good)) is Step.PROMOTE
    assert step(Stored(None, good)) is Step.PROMOTE
    assert step(Stored(good)) is Step.KEEP
    assert step(Stored(near)) is Step.ANNOUNCE
    assert step(Stored(near, near)) is Step.ANNOUNCE
    assert step(Stored(near, good)) is Step.KEEP
    assert step(Stored(near, good), announced=True) is Step.PROMOTE
    assert step(Stored(good, near)) is Step.KEEP


def test_a_generation_is_read_as_it_was_made_and_nothing_else_is() -> None:
    now = TurnedClock().wall
    one, other = (make_generation(NAMES, now, timedelta(hours=1)) for _ in range(2))
    assert read_generation(one.ca_pem, one.certificate_pem, one.key_pem) == one
    assert "PRIVATE" not in repr(one)
    assert one.not_after - now <= timedelta(hours=1)
    for texts in (
        (other.ca_pem, one.certificate_pem, one.key_pem),
        (one.ca_pem, one.certificate_pem, other.key_pem),
        (one.ca_pem, b"", one.key_pem),
        (b"\x00", b"\xff", b"{}"),
        (one.ca_pem, one.ca_pem, one.key_pem),
    ):
        with pytest.raises(MalformedCertificate):
            read_generation(*texts)
    assert split_bundle(one.ca_pem + other.ca_pem) == [one.ca_pem, other.ca_pem]
    assert split_bundle(b"") == split_bundle(b"rubbish") == []


def test_what_openssl_thinks_of_it() -> None:
    """The strictest of clients: every check of RFC 5280 that OpenSSL knows."""
    made = make_generation(NAMES, TurnedClock().wall, timedelta(days=365 * 5))
    client = ssl.create_default_context(cadata=made.ca_pem.decode())
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    tls = ServerTls()
    tls.use(made)
    ends = [ssl.MemoryBIO() for _ in range(4)]
    server = tls.context.wrap_bio(ends[0], ends[1], server_side=True)
    caller = client.wrap_bio(ends[2], ends[3], server_hostname="127.0.0.1")
    done = 0
    for _ in range(10):
        for one, incoming in ((caller, ends[0]), (server, ends[2])):
            try:
                one.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                pass
            outgoing = ends[3] if one is caller else ends[1]
            incoming.write(outgoing.read())
        if done > 3:
            break
    assert caller.version() == "TLSv1.3"
    assert caller.getpeercert(binary_form=True) == ssl.PEM_cert_to_DER_cert(made.certificate_pem.decode())
