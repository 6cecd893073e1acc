"""``gpushare node-agent``: the command line of the node agent."""

import importlib
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Final

from gpushare.api.errors import InvalidUnit
from gpushare.api.quantity import MemoryUnit
from gpushare.httpserver.listeners import PROBES, REST, doors
from gpushare.kube.auth.access import load_access
from gpushare.kube.client.errors import KubeError
from gpushare.nodeagent.errors import InvalidSetting
from gpushare.nodeagent.isolation.options import AskedIsolation, IsolationOptions, Watch
from gpushare.nodeagent.memory_trim import prepare
from gpushare.nodeagent.options import ROLE
from gpushare.nodeagent.runtime.selection import Asked
from gpushare.nodeagent.settings import DefaultShare, Pace, Settings, check_socket_paths
from gpushare.options.option import InvalidSettings
from gpushare.options.reading import read
from gpushare.options.usage_error import refuse
from gpushare.options.variables import warn_of_typos
from gpushare.process.log_setup import configure

#: As in ResourceSlices.
_COMPUTE_STEP: Final = 5
_NODE_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def _isolation(options: SimpleNamespace) -> IsolationOptions:
    if not options.isolation_dir.is_absolute() or options.isolation_dir.parent == Path("/"):
        raise InvalidSetting(
            f"--isolation-dir {options.isolation_dir}",
            "give an absolute path of two parts or more: /var/lib/NAME",
        )
    if options.isolation == AskedIsolation.DRIVER.value and options.watchdog == "off":
        raise InvalidSetting("--isolation driver", "it needs the watchdog; set --watchdog to report or kill")
    return IsolationOptions(
        asked=AskedIsolation(options.isolation),
        folder=options.isolation_dir,
        library_folder=options.isolation_library_dir.absolute(),
        core_policy=options.core_policy,
        pods_per_gpu=options.isolated_pods,
        reclaim=options.reclaim,
        watch=Watch(
            options.watchdog, options.watchdog_grace, options.proc.absolute(), options.cgroups.absolute()
        ),
    )


def _settings(options: SimpleNamespace) -> Settings:
    node = options.node
    if not node:
        raise InvalidSetting("--node", "give the name of this node, or set $NODE_NAME")
    if _NODE_NAME.fullmatch(node) is None:
        raise InvalidSetting(f"--node {node}", "not a name that a node can have (a-z, 0-9, dots and dashes)")
    if not options.driver_root.is_dir():
        raise InvalidSetting(f"--driver-root {options.driver_root}", "no such directory")
    if not options.host_root.is_dir():
        raise InvalidSetting(f"--host-root {options.host_root}", "no such directory")
    cdi_folders = tuple(Path(one.strip()) for one in options.cdi_dirs.split(","))
    if not all(one.is_absolute() for one in cdi_folders):
        raise InvalidSetting(
            f"--cdi-dirs {options.cdi_dirs}", "give absolute paths, with commas between them"
        )
    if options.claim_compute % _COMPUTE_STEP:
        raise InvalidSetting(f"--claim-compute {options.claim_compute}", "give a multiple of 5")
    folder = options.kubelet_dir.absolute()
    check_socket_paths(folder)
    return Settings(
        node=node,
        kubelet_dir=folder,
        pod_resources=options.pod_resources.absolute(),
        unit=MemoryUnit.parse(options.unit, "--unit"),
        doors=tuple(
            doors(
                _address(options.metrics_listen),
                {PROBES: _address(options.probes_listen), REST: _address(options.usage_listen)},
            )
        ),
        pace=Pace(
            wait_s=min(1.0, options.health_period, options.watchdog_period),
            probe_s=options.health_period,
            # With more frequent probes a lost GPU comes back sooner, too.
            reopen_s=min(30.0, 6 * options.health_period),
            watch_s=options.watchdog_period,
        ),
        xid_recovery_s=options.xid_recovery,
        driver_root=options.driver_root.absolute(),
        container_runtime=Asked(options.container_runtime),
        cdi_folders=cdi_folders,
        host_root=options.host_root.absolute(),
        isolation=_isolation(options),
        default_share=DefaultShare(options.claim_memory_mib, options.claim_compute),
    )


def _address(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def main(argv: list[str] | None = None) -> int:
    """Run the node agent; 0 after SIGTERM or SIGINT, 2 on bad input, 1 when a part of it failed."""
    try:
        options = read(ROLE, argv, os.environ)
        settings = _settings(options)
        access = load_access(options.kubeconfig, options.context)
    except (InvalidSettings, InvalidSetting, InvalidUnit, KubeError) as error:
        return refuse(ROLE.program, error)
    configure(options.log_level, options.log_format, role=ROLE.name, node=settings.node)
    warn_of_typos(ROLE, os.environ)
    prepare()
    process = importlib.import_module("gpushare.nodeagent.main")
    code: int = process.run(settings, access, process.DriverNvml(settings.driver_root))
    return code


if __name__ == "__main__":
    sys.exit(main())
