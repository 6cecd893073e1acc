"""Tests our libraries on the node's own driver before any container gets them.

Whether a library works with a driver can only be known on that driver, which may be newer than those it was tested with, and a
library that breaks in every container breaks the node. So a program is run twice, with the driver's own libraries and with ours
in front of them, under a limit, and the results are compared. What fails without our libraries as well is not their fault.
"""

import asyncio
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from gpushare.kube.backoff import Backoff
from gpushare.kube.clock import Clock
from gpushare.nodeagent.driver.driver_library import libraries
from gpushare.nodeagent.isolation.storage.directories import USAGE_BYTES
from gpushare.nodeagent.isolation.storage.files import LIMITS, SHIMS, USAGE, Claimed, limits_text
from gpushare.nodeagent.isolation.storage.libraries import Release

logger = logging.getLogger(__name__)

Outcome = Literal["passed", "failed", "skipped"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("passed", "failed", "skipped")

#: Without persistence mode a driver takes seconds to initialize each GPU.
TRIAL_S: Final = 60.0
_KILLED_S: Final = 3.0
#: Delay before a failed test is repeated, at first and at most.
AGAIN_S: Final = 60.0
AGAIN_MOST_S: Final = 3600.0
#: Less than any GPU has.
_LIMIT_MIB: Final = 64
#: As many as one container's limits can name (isolation/files/limits.h).
_MOST_GPUS: Final = 16
_PROGRAM: Final = Path(__file__).with_name("selftest_program.py")
_LEFT_OUT: Final = ("LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY")


class Verdict(NamedTuple):
    """The result, and the reason for people (empty if it ``passed``)."""

    outcome: Outcome
    why: str = ""


class Answers(msgspec.Struct, frozen=True):
    """Output of ``selftest_program``. ``totals`` and ``nvml``: bytes of memory by the GPU's UUID."""

    denied: str = ""
    unloadable: str = ""
    init: int = -1
    version: int = 0
    totals: dict[str, int] = {}
    nvml: dict[str, int] = {}
    reached: bool = True


class Ended(NamedTuple):
    """A run of the program: its output, or how it ended without any (``fault``)."""

    answers: Answers
    fault: str = ""


def compare_runs(bare: Ended, ours: Ended, gpus: Sequence[str]) -> Verdict:
    """The verdict on our libraries from two runs on a node with ``gpus`` (UUIDs)."""
    if bare.fault or bare.answers.unloadable:
        return Verdict("skipped", f"the driver's own libraries: {bare.fault or bare.answers.unloadable}")
    if bare.answers.init:
        return Verdict("skipped", f"cuInit also returns {bare.answers.init} without the libraries")
    if ours.answers.denied and (ours.fault or ours.answers.unloadable):
        return Verdict("skipped", f"the node agent has {ours.answers.denied}")
    why = _broken(bare.answers, ours, [uuid for uuid in gpus[:_MOST_GPUS] if uuid in bare.answers.totals])
    return Verdict("failed", why) if why else Verdict("passed")


def _broken(bare: Answers, ours: Ended, gpus: Sequence[str]) -> str:
    answers = ours.answers
    if ours.fault or answers.unloadable:
        return ours.fault or answers.unloadable
    if answers.init:
        return f"cuInit returns {answers.init} with the libraries, and 0 without them"
    if answers.version != bare.version:
        return "a function that is unknown to the libraries is not found in the driver"
    if not answers.reached:
        return "cuGetProcAddress bypasses the libraries"
    for uuid in gpus:
        for api, totals in (("CUDA", answers.totals), ("NVML", answers.nvml)):
            reported = totals.get(uuid, -1)
            if reported != _LIMIT_MIB << 20:
                return f"{api} reports {reported} bytes for GPU {uuid} under a limit of {_LIMIT_MIB} MiB"
    return ""


def driver_files(driver_root: Path) -> dict[str, Path] | None:
    """The driver's libraries as this process sees them, by the names in ``SHIMS``; ``None`` if they are not found."""
    listed = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    for nvml in libraries(driver_root, listed):
        found = {name: nvml.path.with_name(name) for name in SHIMS}
        if all(path.is_file() for path in found.values()):
            return {name: path.resolve() for name, path in found.items()}
    return None


async def try_libraries(release: Release, driver: dict[str, Path], gpus: Sequence[str]) -> Verdict:
    """Test the libraries of ``release`` on the ``driver`` under a limit for ``gpus``."""
    try:
        bare = await _run("bare", [str(driver[name]) for name in SHIMS], dict(os.environ))
        # An error of the removal would replace the cancellation in whose course it happens, and the agent would not end.
        with tempfile.TemporaryDirectory(prefix="gpushare-trial-", ignore_cleanup_errors=True) as folder:
            # Not in a thread, which would go on writing into the folder while a cancelled call removes it.
            environment = _lay_out(Path(folder), driver, gpus)
            paths = [str(release.folder / name) for name in SHIMS]
            ours = await _run("ours", [*paths, folder], environment)
    except OSError as error:
        return Verdict("skipped", f"no program can be started for it here: {error}")
    return compare_runs(bare, ours, gpus)


def _lay_out(folder: Path, driver: dict[str, Path], gpus: Sequence[str]) -> dict[str, str]:
    """Write the files of a container's /run/gpushare; returns the environment with which test builds of the libraries find them."""
    folder.chmod(0o755)
    claims = [
        Claimed("node-agent/trial", "trial", "trial", uuid, _LIMIT_MIB, "") for uuid in gpus[:_MOST_GPUS]
    ]
    lines = [limits_text(claim, "hard").splitlines(keepends=True) for claim in claims]
    head = lines[0][:2] if lines else []
    (folder / LIMITS).write_bytes(b"".join([*head, *(one[2] for one in lines)]))
    with (folder / USAGE).open("wb") as usage:
        usage.truncate(USAGE_BYTES)
    (folder / "driver").mkdir()
    for name, inside in SHIMS.items():
        (folder / "driver" / inside).symlink_to(driver[name])
    for name, alias in (("libcuda.so.1", "cuda"), ("libnvidia-ml.so.1", "nvml")):
        (folder / "driver" / f"libgpushare-driver-{alias}.so").symlink_to(driver[name])
    listed = [str(folder / "driver"), os.environ.get("LD_LIBRARY_PATH", "")]
    return {
        **os.environ,
        "GPUSHARE_RUN": str(folder),
        "LD_LIBRARY_PATH": ":".join(filter(None, listed)),
    }


async def _run(mode: str, arguments: Sequence[str], environment: dict[str, str]) -> Ended:
    for name in _LEFT_OUT:
        environment.pop(name, None)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-IS", str(_PROGRAM), mode, *arguments),
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(TRIAL_S):
            out, err = await process.communicate()
    except TimeoutError:
        return Ended(Answers(), f"the test program did not finish within {TRIAL_S:g} s")
    finally:
        await _end(process)
    code = process.returncode or 0
    if code < 0:
        return Ended(Answers(), f"the test program was killed by signal {-code}")
    try:
        answers = msgspec.json.decode(out.splitlines()[-1], type=Answers)
    except (msgspec.MsgspecError, IndexError):
        last_line = err.decode(errors="replace").strip().splitlines()[-1:]
        return Ended(Answers(), f"the test program ended with exit code {code} ({' '.join(last_line)})")
    return Ended(answers)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the process; one that hangs in the kernel is abandoned."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(_KILLED_S):
                await process.wait()


class SelfTests:
    """Runs once per release, driver and set of GPUs, and again with back-off while it fails."""

    def __init__(
        self,
        driver_root: Path,
        *,
        clock: Clock,
        files: Callable[[Path], dict[str, Path] | None] = driver_files,
        again_s: float = AGAIN_S,
    ) -> None:
        self._driver_root = driver_root
        self._clock = clock
        self._files = files
        self._backoff = Backoff(again_s, AGAIN_MOST_S)
        self._of: object = None
        self._due_s = 0.0
        self._verdict = Verdict("skipped", "there is no GPU to test them on")

    async def verdict(self, release: Release, gpus: Sequence[str]) -> Verdict:
        """The result of testing ``release`` on this node's driver, possibly from an earlier call."""
        if not gpus:
            return Verdict("skipped", "there is no GPU to test them on")
        files = await asyncio.to_thread(self._files, self._driver_root)
        key = (release.name, tuple(gpus), None if files is None else tuple(map(_stamp, files.values())))
        now_s = self._clock.monotonic()
        if key == self._of and (self._verdict.outcome == "passed" or now_s < self._due_s):
            return self._verdict
        if key != self._of:
            self._backoff.reset()
        self._verdict = await self._try(release, files, gpus)
        self._of, self._due_s = key, self._clock.monotonic() + self._backoff.next_s()
        if self._verdict.outcome == "passed":
            logger.info("isolation libraries %s passed the self-test on this node's driver", release.name)
        else:
            logger.warning(
                "isolation libraries %s on this node's driver: %s: %s", release.name, *self._verdict
            )
        return self._verdict

    async def _try(self, release: Release, files: dict[str, Path] | None, gpus: Sequence[str]) -> Verdict:
        if files is None:
            return Verdict("skipped", f"the driver's libraries are not found below {self._driver_root}")
        verdict = await try_libraries(release, files, gpus)
        # Retried once: a temporary shortage of resources on the machine is not the library's fault.
        return await try_libraries(release, files, gpus) if verdict.outcome == "failed" else verdict


def _stamp(path: Path) -> tuple[str, int, int]:
    with suppress(OSError):
        status = path.stat()
        return (str(path), status.st_ino, status.st_mtime_ns)
    return (str(path), 0, 0)
