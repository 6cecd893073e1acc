"""Checks the guarantees of isolation on the driver of this machine, and writes a report.

Usage: ``make gpu-check`` (``SECTION=memory ARGS="--out DIR"``), or ``python3 -m benchmarks.gpu_check``. Needs Python 3.11, gcc, make
and a driver; no network. ``DRIVER=fakegpu`` tests the check itself on the fake driver; its report goes into ``build/gpu-check``.
Exits with 1 if a guarantee did not hold, with 2 if nothing could be checked.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from benchmarks.gpu_check import (
    captures,
    clients,
    compute,
    costs,
    facts,
    latency,
    machine,
    memory,
    pytorch,
    races,
    suite,
    symbols,
)
from benchmarks.gpu_check.building import ROOT, NotBuilt, make, programs
from benchmarks.gpu_check.driver import Driver, NoDriver, fake_driver, found
from benchmarks.gpu_check.lab import ISOLATION, TROUBLES, Lab
from benchmarks.gpu_check.report import Heading, Report, Row, WrongPlace, not_run, place, promise
from benchmarks.gpu_check.running import Clock
from benchmarks.isolation.peer import Peer

#: A borrowed machine often allows ten minutes per command, including the build.
SECONDS = 500.0
#: Time beyond a section's limit before it is interrupted: its programs have their own, earlier deadlines.
GRACE_S = 15.0
Part = Callable[[Lab], Iterable[Row]]


def parts(quick: bool) -> Mapping[str, tuple[str, float, Part]]:
    """The sections in order, with their time limits in seconds: one that hangs must leave time
    for the others. First a little of everything, then details; those that use all their time come last."""
    return {
        "facts": (facts.TITLE, 60, facts.rows),
        "memory": (memory.TITLE, 90, memory.rows),
        "clients": (clients.TITLE, 40, clients.rows),
        "shares": (compute.FIRST_TITLE, 40, lambda lab: compute.first_rows(lab, quick=quick)),
        "latency": (latency.TITLE, 110, lambda lab: latency.rows(lab, quick=quick)),
        "captures": (captures.TITLE, 110, lambda lab: captures.rows(lab, quick=quick)),
        "costs": (costs.TITLE, 70, lambda lab: costs.rows(lab, quick=quick)),
        "symbols": (symbols.TITLE, 40, symbols.rows),
        "pytorch": (pytorch.TITLE, 150, pytorch.rows),
        "races": (races.TITLE, 110, lambda lab: races.rows(lab, quick=quick)),
        "tests": (suite.TITLE, 130, suite.rows),
        "compute": (compute.TITLE, 1000, lambda lab: compute.rows(lab, quick=quick)),
    }


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = list(parts(True))
    parser.add_argument(
        "--driver",
        choices=["machine", "fakegpu"],
        default="machine",
        help="driver to check; fakegpu: the fake driver",
    )
    parser.add_argument(
        "--section",
        action="append",
        default=[],
        metavar="NAME[,NAME]",
        help=f"only these: {', '.join(names)}",
    )
    parser.add_argument("--out", type=Path, help="folder of the report (default: docs/measurements)")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="time limit of all sections (default: %(default)g)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="fewer and shorter, to see that it runs; results that depend on speed are measured, but not judged",
    )
    parser.add_argument("--libraries", type=Path, help="libraries to check instead of build/isolation/open")
    parser.add_argument(
        "--hami",
        type=Path,
        metavar="FOLDER",
        help="folder of HAMi-core's libvgpu.so, to compare shares, latency and costs of calls",
    )
    chosen = parser.parse_args()
    try:
        chosen.peer = Peer.hami_core(chosen.hami) if chosen.hami else None
    except ValueError as error:
        parser.error(str(error))
    chosen.section = [name for text in chosen.section for name in text.split(",") if name]
    if unknown := set(chosen.section) - set(names):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    return chosen


def show(report: Report, row: Row) -> None:
    """Write a row to the report and to the screen."""
    report.add(row)
    print(row.line(), flush=True)


class Hangs(Exception):
    """A section exceeded its time; raised anywhere inside it."""


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Raises ``Hangs`` in the block after that time."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Hangs(f"it had not finished after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def part(report: Report, lab: Lab, title: str, seconds: float, rows: Part, grace_s: float = GRACE_S) -> None:
    """Run one section; any error in it becomes one of its rows."""
    lab.clock.begin_part(seconds)
    print(f"\n{title} … ({lab.clock.left_s():.0f} s at most, {lab.clock.gone_s():.0f} s gone)", flush=True)
    report.begin(title)
    if lab.clock.left_s() < 1:
        show(report, not_run(title, "no time left (--seconds)"))
        return
    try:
        with interrupted_after(lab.clock.left_s() + grace_s):
            for row in rows(lab):
                show(report, row)
                if lab.clock.left_s() < 1:
                    show(
                        report,
                        not_run("the rest of the section", f"its {seconds:g} s, or all time, had passed"),
                    )
                    return
    except (Hangs, *TROUBLES) as error:
        show(report, promise(title, "can be looked at", error, False))
    except Exception as error:
        traceback.print_exc()
        show(report, promise(title, "can be looked at", f"{type(error).__name__}: {error}", False))


def heading(chosen: argparse.Namespace, lab: Lab, date: str) -> Heading:
    """The GPU and the driver of the report."""
    answers = lab.answers(None)
    name, version = answers.get("name", "a GPU without a name"), answers.get("driver", "of unknown version")
    kind = f"the fake driver, with version {version}" if lab.driver.fake else f"NVIDIA {version}"
    gpu = f"the fake driver's {name}" if lab.driver.fake else name
    words = ["make gpu-check", *(["DRIVER=fakegpu"] if lab.driver.fake else [])]
    words += [f"--section {','.join(chosen.section)}"] if chosen.section else []
    words += ["--quick"] if chosen.quick else []
    words += [f"--seconds {chosen.seconds:g}"] if chosen.seconds != SECONDS else []
    words += ["--libraries …"] if chosen.libraries else []
    words += ["--hami …"] if chosen.hami else []
    return Heading(date, gpu, kind, lab.driver.fake, " ".join(words))


def all_parts(chosen: argparse.Namespace, lab: Lab, report: Report) -> None:
    """Runs the requested sections."""
    known = parts(chosen.quick)
    wanted = chosen.section or list(known)
    try:
        part(report, lab, machine.TITLE, 40, machine.rows)
        for name, (title, seconds, rows) in known.items():
            if name in wanted:
                part(report, lab, title, seconds, rows)
    except BaseException as error:
        report.end(f"Stopped early ({type(error).__name__}) after {lab.clock.gone_s():.0f} s")
        raise
    finally:
        print(f"\nReport: {report.path}", flush=True)
    left_out = [name for name in known if name not in wanted]
    some = f", without the sections {', '.join(left_out)}" if left_out else ", all sections"
    report.end(f"Completed after {lab.clock.gone_s():.0f} s{some}")


def check(chosen: argparse.Namespace, driver: Driver, folder: Path, clock: Clock) -> int:
    """Runs the check on a driver; returns the exit code."""
    date = time.strftime("%Y-%m-%d")
    path = place(ROOT, chosen.out, date, fake=driver.fake)
    print(f"Driver: {driver.cuda}{' (the fake driver)' if driver.fake else ''}; compiling …", flush=True)
    make("isolation", "all", "linked")
    lab = Lab(driver, folder, clock, (chosen.libraries or ISOLATION / "open").resolve(), chosen.peer)
    programs(lab.programs)
    with lab.awake():
        try:
            machine.identify(lab)
        except TROUBLES as error:
            raise NoDriver(
                f"{driver.cuda}: the library exists, but a program that uses a GPU {error}. Is there a GPU, and are "
                "its device files (/dev/nvidia*) here?"
            ) from None
        report = Report(path, heading(chosen, lab, date))
        all_parts(chosen, lab, report)
    failed = report.failed()
    print(report.summary() + "".join(f"\n  FAILED {text}" for text in failed), flush=True)
    return int(bool(failed))


def remove_abandoned(work: Path) -> None:
    """Files left behind by killed runs."""
    for folder in work.glob("work-*-*"):
        if not Path("/proc", folder.name.split("-")[1]).exists():
            shutil.rmtree(folder, ignore_errors=True)


def stop_event(number: int, frame: FrameType | None) -> None:
    """SIGTERM acts like ^C: started programs end too."""
    raise SystemExit(128 + number)


def main() -> int:
    """Find the driver, check it; returns the exit code."""
    chosen = options()
    signal.signal(signal.SIGTERM, stop_event)
    clock = Clock(chosen.seconds)
    work = ROOT / "build" / "gpu-check"
    work.mkdir(parents=True, exist_ok=True)
    remove_abandoned(work)
    folder = Path(tempfile.mkdtemp(prefix=f"work-{os.getpid()}-", dir=work))
    try:
        driver = fake_driver(folder) if chosen.driver == "fakegpu" else found(os.environ)
        return check(chosen, driver, folder, clock)
    except (NoDriver, NotBuilt, WrongPlace, *TROUBLES) as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
