"""Runs the clients' checks, without limits and with them. Usage: ``python -m tests.clients [--list | CLIENT ...]``."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare_playground import gpus
from tests.clients import installing
from tests.integration.isolation.test_compute_limit import arbiter, place
from tests.unit.fakegpu import building as fakegpu
from tests.unit.isolation.building import MIB, lay_out

PROGRAMS: Final = Path(__file__).with_name("programs")
LIMIT_MIB: Final = 4096
#: The checks of each client, by its program.
CHECKS: Final = {
    "jax_arrays": ("memory",),
    "numba_kernels": ("memory",),
    "pytorch": ("memory", "copies", "training", "graph", "graph beside", "loader", "ipc"),
    "ray_actors": ("fractions",),
    "triton_kernels": ("kernels",),
}


@dataclass(frozen=True)
class Setting:
    """The isolation under which a client runs."""

    name: str
    limits: str | None
    """The GPU's line in the container's limits; None: no isolation."""

    @property
    def limit_bytes(self) -> int:
        return 0 if self.limits is None else LIMIT_MIB * MIB


SETTINGS: Final = (
    Setting("no limits", None),
    Setting(f"{LIMIT_MIB} MiB", f"memory_bytes={LIMIT_MIB * MIB}"),
    Setting(f"{LIMIT_MIB} MiB, 50%", f"memory_bytes={LIMIT_MIB * MIB} core_percent=50"),
)


def main(clients: list[str]) -> int:
    """The exit status: 1 if a check fails."""
    if clients == ["--list"]:
        for client, checks in CHECKS.items():
            print(client, ", ".join(checks))
        return 0
    begun = time.monotonic()
    try:
        installing.install()
    except installing.WheelMissing as missing:
        print(f"skipped: the registry has no {missing}")
        return 0
    print(f"installed and built in {time.monotonic() - begun:.0f} s", flush=True)
    good = failed = 0
    for setting in SETTINGS:
        with (
            tempfile.TemporaryDirectory(prefix="gpushare-clients-") as folder,
            laid_out(setting, Path(folder)) as environment,
        ):
            for client in clients or CHECKS:
                for check in CHECKS[client]:
                    if run_check(client, check, setting, environment):
                        good += 1
                    else:
                        failed += 1
    print(f"{good} passed, {failed} failed")
    return 1 if failed else 0


@contextmanager
def laid_out(setting: Setting, folder: Path) -> Iterator[dict[str, str]]:
    """The environment of a program in a container with its own H100."""
    node, description = gpus.preset("h100-80gb", "n1"), folder / "node.gpus"
    gpus.write(description, node)
    if setting.limits is None:
        yield fakegpu.environment(description)
        return
    container = lay_out(folder / "container", description)
    container.limit(f"{node.gpus[0].uuid} {setting.limits}")
    containers = folder / "containers"
    containers.mkdir()
    place(containers, container)
    with arbiter(containers):
        yield container.environment()


def run_check(client: str, check: str, setting: Setting, environment: dict[str, str]) -> bool:
    """Runs one check and prints its result in a line."""
    begun = time.monotonic()
    command = [installing.PYTHON, PROGRAMS / f"{client}.py", check, str(setting.limit_bytes)]
    completed = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    try:
        result = json.loads(completed.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        result = {"good": False, "got": f"no answer: {completed.stderr[-500:]}"}
    if completed.returncode:
        result = {
            "good": False,
            "got": f"{result['got']}; exit status {completed.returncode}: {completed.stderr[-300:]}",
        }
    verdict = "held  " if result["good"] else "FAILED"
    print(
        f"{verdict} {setting.name:14} {client:15} {check:13} {time.monotonic() - begun:5.1f} s  {result['got']}",
        flush=True,
    )
    return bool(result["good"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
