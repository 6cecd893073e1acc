"""``gpushare scheduler``: the command line of the extender."""

import os
import sys
from types import SimpleNamespace

from gpushare.api.errors import InvalidUnit
from gpushare.api.node.device import Placement
from gpushare.api.quantity import MemoryUnit
from gpushare.httpserver.command import address, address_if, run
from gpushare.httpserver.listeners import PROBES, REST, doors
from gpushare.kube.auth.access import load_access
from gpushare.kube.client.errors import KubeconfigError
from gpushare.options.option import InvalidSettings
from gpushare.options.reading import read
from gpushare.options.usage_error import refuse
from gpushare.options.variables import warn_of_typos
from gpushare.process import log_setup
from gpushare.scheduler.main import serve
from gpushare.scheduler.options import ROLE
from gpushare.scheduler.plugins.autoscaling.settings import autoscaling_of
from gpushare.scheduler.plugins.defragmentation.limits import Limits
from gpushare.scheduler.settings import Settings


def _settings(options: SimpleNamespace) -> Settings:
    host, port = address("--listen", options.listen, "127.0.0.1:9451")
    lease = None
    if options.lease is not None:
        namespace, _, name = options.lease.partition("/")
        lease = (namespace, name)
    limits = Limits(
        options.defragmentation_interval,
        options.defragmentation_min_pending,
        options.defragmentation_max_evictions,
    )
    return Settings(
        host=host,
        port=port,
        port_file=options.port_file,
        doors=tuple(
            doors(
                address_if("--health-listen", options.health_listen, "0.0.0.0:9452"),
                {
                    PROBES: address_if("--probes-listen", options.probes_listen, "0.0.0.0:9454"),
                    REST: address_if("--decisions-listen", options.decisions_listen, "0.0.0.0:9455"),
                },
            )
        ),
        unit=MemoryUnit.parse(options.unit, "--unit"),
        isolated_cap=options.isolated_max_pods,
        node_policy=Placement(options.node_policy),
        reservation_ttl_s=options.reservation_ttl,
        lease=lease,
        defragmentation=limits if options.defragmentation else None,
        autoscaling=autoscaling_of(options),
        plugins=options.plugins,
    )


def main(argv: list[str] | None = None) -> int:
    """Run the extender. Exit status: 0 after SIGTERM, 2 on invalid input, 1 if a task failed."""
    try:
        options = read(ROLE, argv, os.environ)
        log_setup.configure(options.log_level, options.log_format, role=ROLE.name)
        warn_of_typos(ROLE, os.environ)
        settings = _settings(options)
        access = load_access(options.kubeconfig, options.context)
    except (InvalidSettings, ValueError, InvalidUnit, KubeconfigError) as error:
        return refuse(ROLE.program, error)
    return run(ROLE.program, serve(access, settings))


if __name__ == "__main__":
    sys.exit(main())
