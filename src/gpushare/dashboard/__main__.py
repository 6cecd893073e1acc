"""Command line of ``gpushare dashboard``."""

import os
import sys
from collections.abc import Mapping
from types import SimpleNamespace

from gpushare.api.errors import InvalidUnit
from gpushare.api.node.device import Placement
from gpushare.api.quantity import MemoryUnit
from gpushare.dashboard.errors import InvalidSetting
from gpushare.dashboard.main import Settings, serve
from gpushare.dashboard.options import ROLE
from gpushare.httpserver.command import InvalidAddress, address, address_if, run
from gpushare.kube.auth.access import load_access
from gpushare.kube.client.errors import KubeconfigError
from gpushare.options.option import InvalidSettings
from gpushare.options.reading import read
from gpushare.options.usage_error import refuse
from gpushare.options.variables import warn_of_typos
from gpushare.process import log_setup


def _settings(options: SimpleNamespace, environ: Mapping[str, str]) -> Settings:
    namespace = environ.get("POD_NAMESPACE", "")
    if options.token_file is None:
        raise InvalidSetting("--token-file: name a file with a token, such as one of: openssl rand -hex 32")
    if not options.scheduler.startswith(("http://", "https://")):
        raise InvalidSetting(f"--scheduler {options.scheduler}: write a URL, such as http://127.0.0.1:9451")
    host, port = address("--listen", options.listen, "127.0.0.1:9453")
    lease_namespace, _, lease = (options.lease or "").partition("/")
    return Settings(
        token_file=options.token_file,
        host=host,
        port=port,
        metrics_listen=address_if("--metrics-listen", options.metrics_listen, "0.0.0.0:9452"),
        probes_listen=address_if("--probes-listen", options.probes_listen, "0.0.0.0:9454"),
        port_file=options.port_file,
        scheduler=options.scheduler,
        lease=(lease_namespace, lease) if lease else None,
        namespaces=tuple(dict.fromkeys(options.component_namespace or filter(None, [namespace]))),
        agents_file=options.agents_file,
        unit=MemoryUnit.parse(options.unit, "--unit"),
        isolated_cap=options.isolated_max_pods,
        node_policy=Placement(options.node_policy),
    )


def main(argv: list[str] | None = None) -> int:
    """Run the dashboard; 0 after SIGTERM, 2 on bad input, 1 when a component failed."""
    try:
        options = read(ROLE, argv, os.environ)
        settings = _settings(options, os.environ)
        access = load_access(options.kubeconfig, options.context)
        log_setup.configure(options.log_level, options.log_format, role=ROLE.name)
        warn_of_typos(ROLE, os.environ)
        return run(ROLE.program, serve(access, settings))
    except (InvalidSettings, InvalidSetting, InvalidAddress, InvalidUnit, KubeconfigError) as error:
        return refuse(ROLE.program, error)


if __name__ == "__main__":
    sys.exit(main())
