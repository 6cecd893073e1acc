"""Scheduling, probes and memory while every reachable port is attacked.

Usage: ``python -m benchmarks.load [--quick] [--door NAME …] [--kind NAME …]``. Extender, webhook, dashboard and node agent run as
processes; four attackers, each a process of low priority, attack one port after the other for some seconds: with idle
connections, slow clients, endless requests, data that is neither TLS nor HTTP, and continuous readers. Writes
``build/figures/load.json``, and exits 1 if a budget is not met, or was not measured in a complete run.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from benchmarks.budgets import Figures, verdict
from benchmarks.load import clients, report
from benchmarks.load.api import waiting_units
from benchmarks.load.attacker import Attack
from benchmarks.load.bed import Bed, Cluster, Door, bed
from benchmarks.load.memory import forget_peak, peak_mib
from benchmarks.processes import machine

ROOT: Final = Path(__file__).parents[2]
_OUT: Final = ROOT / "build" / "figures" / "load.json"
_BUDGETS: Final = Path(__file__).with_name("budgets.json")
ATTACKERS: Final = 4
#: Kind → each attacker's method and number of connections: together at most 4,000.
KINDS: Final = {
    "idle": ("idle", 1000),
    "slow": ("slow", 250),
    "huge": ("huge", 6),
    "pipelined": ("pipelined", 100),
    "malformed": ("malformed", 32),
    "hammer-32": ("hammer", 8),
    "hammer-128": ("hammer", 32),
}
DOORS: Final = ("extender", "webhook", "webhook-probes", "dashboard", "agent")
_STUCK_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds before and during each attack."""

    rest_s: float
    attack_s: float


USUAL: Final = (Pace(2.0, 6.0), Cluster(500, 2000, 1000))
_QUICK: Final = (Pace(0.1, 0.3), Cluster(20, 40, 20))


class _Attackers:
    def __init__(self, processes: list["subprocess.Popen[bytes]"]) -> None:
        self._processes = processes

    async def attack(self, door: Door, kind: str, seconds: float) -> dict[str, int]:
        """Returns when all of its connections are closed."""
        method, connections = KINDS[kind]
        for number, process in enumerate(self._processes):
            sources = [f"127.0.{1 + number}.{host}" for host in (1, 2)]
            attack = Attack(method, door.port, seconds, connections, sources, door.tls, list(door.dear))
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(attack) + b"\n")
            process.stdin.flush()
        sent: Counter[str] = Counter()
        for process in self._processes:
            assert process.stdout is not None
            async with asyncio.timeout(seconds + _STUCK_S):
                answer = await asyncio.to_thread(process.stdout.readline)
            sent.update(msgspec.json.decode(answer, type=dict[str, int]))
        return dict(sent)


@contextmanager
def _attackers() -> Iterator[_Attackers]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "benchmarks.load.attacker"]
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe) for _ in range(ATTACKERS)]
    try:
        yield _Attackers(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


@dataclass(frozen=True, slots=True)
class _Window:
    door: Door
    kind: str
    rest_s: float
    begin_s: float
    end_s: float
    memory_mib: dict[str, float]
    sent: dict[str, int]


async def _measure(
    made: Bed, size: Cluster, pace: Pace, attacks: list[tuple[Door, str]], attackers: _Attackers
) -> list[report.Row]:
    units = [waiting_units(number) for number in range(size.waiting)]
    await clients.filter_waiting(made.extender_port, size.nodes, size.placed, units)
    client_set, windows = clients.Clients(), []
    webhook = next(door for door in made.doors if door.name == "webhook")
    clients.begin(
        client_set,
        extender=made.extender_port,
        nodes=size.nodes,
        webhook=(webhook.port, webhook.request.encode(), webhook.within_s),
        probes={part.name: (part.probes, part.limits.probe_s) for part in made.parts},
        doors={door.name: (door.port, door.request.encode(), door.tls, door.within_s) for door in made.doors},
    )
    try:
        for door, kind in attacks:
            windows.append(await _one(made, door, kind, pace, attackers))
            made.check()
            client_set.check()
            print(f"  {door.name}, {kind}: {windows[-1].sent}", flush=True)
        # The last requests may take a while.
        await asyncio.sleep(pace.rest_s)
    finally:
        await client_set.stop()
    return _rows(made, client_set, windows)


async def _one(made: Bed, door: Door, kind: str, pace: Pace, attackers: _Attackers) -> _Window:
    rest_s = time.monotonic()
    await asyncio.sleep(pace.rest_s)
    for part in made.parts:
        forget_peak(part.pid)
    began_s = time.monotonic()
    sent = await attackers.attack(door, kind, pace.attack_s)
    memory = {part.name: peak_mib(part.pid) for part in made.parts}
    return _Window(door, kind, rest_s, began_s, began_s + pace.attack_s, memory, sent)


def _rows(made: Bed, client_set: clients.Clients, windows: list[_Window]) -> list[report.Row]:
    allocated = [tuple(map(float, line.split())) for line in made.allocated.read_text().splitlines()[1:]]

    def took(name: str, spans: list[tuple[float, float]]) -> list[float]:
        return [each.took_s for span in spans for each in client_set.within(name, *span)]

    def allocate(spans: list[tuple[float, float]]) -> list[float]:
        return [took_s for span in spans for ended_s, took_s in allocated if span[0] <= ended_s < span[1]]

    rows = []
    for one in windows:
        # The idle times before all attacks on the same port: a single one is too short for a p99.
        rests = [(each.rest_s, each.begin_s) for each in windows if each.door is one.door]
        span = one.begin_s, one.end_s
        rows.append(
            report.Row(
                one.door.name,
                one.door.part,
                one.kind,
                took("filter", rests),
                took("filter", [span]),
                took("review", rests),
                took("review", [span]),
                allocate(rests),
                allocate([span]),
                {
                    part.name: report.Probed(
                        client_set.within(f"{part.name} /healthz", *span),
                        client_set.within(f"{part.name} /readyz", *span),
                        part.limits.failures,
                    )
                    for part in made.parts
                },
                client_set.within(f"client {one.door.name}", *span),
                one.memory_mib,
                one.sent,
            )
        )
    return rows


def _write(figures: Figures, rows: list[report.Row]) -> None:
    written = {
        "machine": machine(),
        "load": os.getloadavg()[0],
        "figures": {
            name: {"value": round(value, 4), "unit": unit} for name, (value, unit) in figures.items()
        },
        "table": [dict(zip(report.HEAD, report.line(row), strict=True)) for row in rows],
    }
    _OUT.parent.mkdir(parents=True, exist_ok=True)
    _OUT.write_text(json.dumps(written, indent=2) + "\n")
    print(f"\nWritten: {_OUT.relative_to(ROOT)}")


def main() -> int:
    """Measure, print, write, compare; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.load",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--door", action="append", choices=DOORS, help="only this port; may be repeated")
    parser.add_argument(
        "--kind", action="append", choices=tuple(KINDS), help="only this attack; may be repeated"
    )
    parser.add_argument(
        "--quick", action="store_true", help="each port and each kind once, for less than a second"
    )
    options = parser.parse_args()
    # As with Ctrl-C: started processes are ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    pace, size = _QUICK if options.quick else USUAL
    doors, kinds = options.door or DOORS, options.kind or list(KINDS)
    print(f"Machine: {machine()}; load {os.getloadavg()[0]:.1f}", flush=True)
    with bed(size) as made, _attackers() as attackers:
        by_name = {door.name: door for door in made.doors}
        chosen = [(by_name[door], kind) for door in doors for kind in kinds]
        if options.quick:
            longest = max(len(doors), len(kinds))
            chosen = [(by_name[doors[at % len(doors)]], kinds[at % len(kinds)]) for at in range(longest)]
        rows = uvloop.run(_measure(made, size, pace, chosen, attackers))
        limits = {part.name: part.limits.memory_mib for part in made.parts}
    figures = report.figures_of(rows, limits)
    print(f"\n{report.table(rows)}\n")
    for name, (value, unit) in figures.items():
        print(f"  {name:<44}{value:12.3f} {unit}")
    for row in rows:
        unanswered = [("client", one) for one in row.clients if not one.answered]
        for client, one in (*row.failed_probes(), *unanswered):
            print(f"  {row.door}, {row.kind}, {client}: after {one.took_s:.2f} s: {one.result}")
    if not options.quick:
        _write(figures, rows)
    print()
    everything = options.door is None and options.kind is None
    return verdict(figures, json.loads(_BUDGETS.read_text()), quick=options.quick, everything=everything)


if __name__ == "__main__":
    sys.exit(main())
