"""The record of a cluster, so that any process can use it, and end it after its maker was killed."""

import contextlib
import hashlib
import json
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpushare_playground.certificate_authority import write_private
from tests.e2e.cluster.machine import Machine, Process

STATES: Final = Path(os.environ.get("GPUSHARE_E2E_STATES") or "/var/tmp/gpushare-e2e")
"""Where the states of clusters lie that are known by name only (``$GPUSHARE_E2E_STATES`` says otherwise); on disk, for images lie there."""

CONTROL: Final = "control"


def to_type(verb: str, state: Path | None = None) -> str:
    """The command line ``verb`` of this program, for the cluster in ``state``; as it is typed where this
    process runs.
    """
    python = Path(sys.executable)
    if python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    arguments = [str(python), "-m", "tests.e2e.cluster", verb]
    if state is None:
        return f"{shlex.join(arguments)} --name NAME"
    is_named = state.parent == STATES
    return shlex.join(
        [*arguments, "--name" if is_named else "--state", state.name if is_named else str(state)]
    )


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A real node: its place in the address plan, and the preset of its GPUs (``None`` without)."""

    name: str
    index: int
    preset: str | None


@dataclass(frozen=True, slots=True)
class Record:
    """A cluster as ``cluster.json`` has it."""

    k8s: str
    slot: int
    binaries: Path
    nodes: tuple[NodeRecord, ...]
    host: str = "kubeadm"
    """Of :data:`~tests.e2e.cluster.hosts.HOSTS`."""


def group(state: Path) -> str:
    """The cgroup of the cluster below :data:`~tests.e2e.cluster.cgroups.ROOT`; different for each state folder."""
    return f"{state.name}-{hashlib.sha256(str(state).encode()).hexdigest()[:6]}"


def write(state: Path, record: Record) -> None:
    """Write ``cluster.json``."""
    nodes = [{"name": n.name, "index": n.index, "preset": n.preset} for n in record.nodes]
    found = {"k8s": record.k8s, "slot": record.slot, "binaries": str(record.binaries), "host": record.host}
    _put(state / "cluster.json", {**found, "nodes": nodes})


def read(state: Path) -> Record:
    """Read ``cluster.json``. Raises ``FileNotFoundError`` when there is no cluster in the folder."""
    try:
        found = json.loads((state / "cluster.json").read_text())
    except FileNotFoundError:
        raise FileNotFoundError(f"{state}: no cluster here; begin one with: {to_type('up', state)}") from None
    nodes = tuple(NodeRecord(n["name"], n["index"], n["preset"]) for n in found["nodes"])
    return Record(found["k8s"], found["slot"], Path(found["binaries"]), nodes, found["host"])


def write_machine(machine: Machine) -> None:
    """Write ``machine.json`` into the machine's folder."""
    _put(
        machine.folder / "machine.json",
        {"group": machine.group, "binaries": str(machine.binaries), "init": _process(machine.init)},
    )


def read_machine(state: Path, name: str) -> Machine:
    """The machine of that name. Raises ``FileNotFoundError``."""
    folder = state / "machines" / name
    found = json.loads((folder / "machine.json").read_text())
    return Machine(name, folder, found["group"], Path(found["binaries"]), Process(**found["init"]))


def write_process(state: Path, name: str, process: Process) -> None:
    """Remember that ``name`` runs as ``process``."""
    _put(state / "processes" / name, _process(process))


def read_process(state: Path, name: str) -> Process | None:
    """The recorded process; ``None`` for one that has not been started or was stopped."""
    with contextlib.suppress(FileNotFoundError):
        return Process(**json.loads((state / "processes" / name).read_text()))
    return None


def forget_process(state: Path, name: str) -> None:
    """Record that it was stopped."""
    (state / "processes" / name).unlink(missing_ok=True)


def _process(process: Process) -> dict[str, int]:
    return {"pid": process.pid, "began": process.began}


def _put(path: Path, value: Any) -> None:
    write_private(path, json.dumps(value))
