"""``gpushare simulate``: from the command line to the exit status."""

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import msgspec

from gpushare.api.errors import ModelError
from gpushare.api.json_objects import Json
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.pluralize import counted
from gpushare.kube.auth.access import load_access
from gpushare.kube.client.errors import KubeError
from gpushare.options.option import InvalidSettings
from gpushare.options.usage_error import refuse
from gpushare.options.variables import warn_of_misspelled_variables
from gpushare.simulate.arguments import PROGRAM, parse
from gpushare.simulate.engine.comparison import compare, with_policy
from gpushare.simulate.engine.engine import Settings
from gpushare.simulate.engine.min_nodes import Enough, enough
from gpushare.simulate.engine.simulation import simulate
from gpushare.simulate.errors import SimulateError
from gpushare.simulate.input.documents import files_of, read_documents
from gpushare.simulate.input.manifests import Manifests, joined, manifests_of
from gpushare.simulate.input.node_shapes import shape_of, shapes_there
from gpushare.simulate.options import ROLE
from gpushare.simulate.output import report
from gpushare.simulate.output.comparison import comparison_table
from gpushare.simulate.progress import Bar
from gpushare.simulate.snapshot import ClusterState, counting_of, read_snapshot, snapshot_of

_INTERRUPTED: Final = 130
#: Options that request a simulation; without any of them --save only saves.
_SIMULATE: Final = ("filename", "policy", "reschedule_all", "min_nodes", "compare", "details", "output")


def main(argv: list[str] | None = None) -> int:
    """Simulate and report; 0 if all pods are placed, 3 if pods are pending, 1 if a cluster cannot be read, 2 on bad input."""
    try:
        options = parse(argv)
        warn_of_misspelled_variables(ROLE, os.environ)
        return _simulate(options)
    except InvalidSettings as error:
        return refuse(PROGRAM, error)
    except (SimulateError, ModelError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        # Name the file, and omit the error number.
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        print(f"{PROGRAM}: {message}; check the path and its permissions", file=sys.stderr)
        return 1
    except KubeError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED


def _simulate(options: SimpleNamespace) -> int:
    state = _state(options)
    if options.save is not None:
        # Readable by the owner only, who decides about sharing it.
        with open(options.save, "wb", opener=partial(os.open, mode=0o600)) as file:
            file.write(snapshot_of(state))
        print(
            f"{PROGRAM}: wrote {counted(len(state.nodes), 'node')} and {counted(len(state.pods), 'pod')} to {options.save}",
            file=sys.stderr,
        )
        if not any(getattr(options, name) for name in _SIMULATE):
            return 0
    counting = counting_of(state)
    if options.unit is not None:
        counting = msgspec.structs.replace(counting, unit=MemoryUnit.parse(options.unit, "--unit"))
    if options.reference_gpu_memory_mib is not None:
        counting = msgspec.structs.replace(counting, reference_mib=options.reference_gpu_memory_mib)
    manifests = manifests_of(_documents(options.filename), state, counting, options.namespace)
    for skipped in manifests.skipped:
        print(f"{PROGRAM}: {skipped} is skipped: it creates no pods to simulate", file=sys.stderr)
    for warning in manifests.warnings:
        print(f"{PROGRAM}: {warning}", file=sys.stderr)
    state = joined(state, manifests.state)
    settings = Settings(
        isolated_cap=options.isolated_max_pods,
        unit=counting.unit,
        ignored_by_scheduler=options.ignored_by_scheduler,
        seed=options.seed,
        preemption=options.preemption,
    )
    if options.policy is not None:
        settings = with_policy(settings, options.policy)
    bar = Bar(sys.stderr, "pods")
    try:
        result = simulate(
            state, manifests.pods, settings, reschedule=options.reschedule_all, progress=bar.shown
        )
        enough_results = _enough(options, state, manifests, settings, bar) if options.min_nodes else []
        compared = (
            compare(state, manifests.pods, settings, reschedule=options.reschedule_all, on_run=bar.show_text)
            if options.compare
            else []
        )
    finally:
        bar.end()
    if options.output == "json":
        document = report.structured(
            result, enough_results, manifests.skipped, manifests.existing, manifests.warnings, compared
        )
        _print_json(document)
    else:
        sections = [report.tables(result, details=options.details, existing=manifests.existing)]
        if enough_results:
            sections.append(report.enough_table(enough_results))
        if compared:
            sections.append(comparison_table(compared))
        sys.stdout.write("\n".join(sections))
    return 3 if result.waiting else 0


def _state(options: SimpleNamespace) -> ClusterState:
    if options.snapshot is not None:
        return read_snapshot(_read(options.snapshot), str(options.snapshot))
    from gpushare.simulate.cluster_source import read_cluster

    return asyncio.run(read_cluster(load_access(options.kubeconfig, options.context)))


def _documents(files: Sequence[Path]) -> list[tuple[str, Json]]:
    return [
        (str(file), document)
        for named in files
        for file in files_of(named)
        for document in read_documents(_read(file), str(file))
    ]


def _read(file: Path) -> bytes:
    return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()


def _enough(
    options: SimpleNamespace, state: ClusterState, manifests: Manifests, settings: Settings, bar: Bar
) -> list[Enough]:
    shapes = [shape_of(text, state) for text in options.node_shape] or shapes_there(state)
    if not shapes:
        raise SimulateError("--min-nodes", "no node has GPUs: describe the nodes to add with --node-shape")
    return [
        enough(
            state, manifests.pods, settings, shape, reschedule=options.reschedule_all, on_run=bar.show_text
        )
        for shape in shapes
    ]


def _print_json(document: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")


if __name__ == "__main__":
    sys.exit(main())
