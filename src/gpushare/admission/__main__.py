"""``gpushare admission``: the command line of the webhook."""

import os
import sys
from datetime import timedelta
from types import SimpleNamespace

from gpushare.admission.accept.translation import PRODUCTS
from gpushare.admission.certs.controller import Pace
from gpushare.admission.certs.rotation import Policy
from gpushare.admission.errors import InvalidSetting
from gpushare.admission.main import Settings, serve
from gpushare.admission.options import ROLE
from gpushare.admission.review.annotation_guard import Writers
from gpushare.api.errors import InvalidUnit
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.unit_conversion import Counting
from gpushare.httpserver.command import InvalidAddress, address, address_if, run
from gpushare.kube.auth.access import load_access
from gpushare.kube.client.errors import KubeconfigError
from gpushare.options.option import InvalidSettings
from gpushare.options.reading import read
from gpushare.options.usage_error import refuse
from gpushare.options.variables import warn_of_typos
from gpushare.process import log_setup


def _settings(options: SimpleNamespace, account_namespace: str) -> Settings:
    namespace = options.namespace or account_namespace
    renew_before = options.valid_for / 3 if options.renew_before is None else options.renew_before
    if not 0 < renew_before < options.valid_for:
        raise InvalidSetting(f"--renew-before {renew_before}: give hours above 0 and below --valid-for")
    if options.overlap + 2 * options.period >= renew_before * 3600:
        raise InvalidSetting(
            f"--overlap {options.overlap}: a certificate would end before the next one is served; "
            "give less, or a greater --renew-before"
        )
    agent = options.node_agent or f"system:serviceaccount:{namespace}:gpushare-device-plugin"
    scheduler = options.scheduler_account or f"system:serviceaccount:{namespace}:ack-co-scheduler"
    writers = options.trusted_service_account or [scheduler, agent]
    service = f"{options.service}.{namespace}.svc"
    return Settings(
        namespace=namespace,
        policy=Policy(
            frozenset({service, f"{service}.cluster.local", *options.server_name}),
            timedelta(hours=options.valid_for),
            timedelta(hours=renew_before),
        ),
        writers=Writers(frozenset(writers), agent, scheduler),
        listen=address("--listen", options.listen, "0.0.0.0:9443"),
        metrics_listen=address("--metrics-listen", options.metrics_listen, "0.0.0.0:9452"),
        probes_listen=address_if("--probes-listen", options.probes_listen, "0.0.0.0:9454"),
        secret=options.secret,
        configuration=options.configuration,
        scheduler=options.scheduler_name,
        bind_agents=options.node_restriction != "never",
        counting=Counting(MemoryUnit.parse(options.unit, "--unit"), options.reference_gpu_memory_mib),
        accepted=tuple(PRODUCTS[name] for name in sorted(set(options.accept))),
        to_claims=options.to_claims,
        require_matching_gpu=options.require_matching_gpu,
        pace=Pace(period_s=options.period, overlap_s=options.overlap),
        drain_s=options.drain,
        port_file=options.port_file,
    )


def main(argv: list[str] | None = None) -> int:
    """Run the webhook; returns 0 after SIGTERM, 2 for invalid options, 1 when a component failed."""
    try:
        options = read(ROLE, argv, os.environ)
        access = load_access(options.kubeconfig, options.context)
        settings = _settings(options, access.namespace)
    except (InvalidSettings, InvalidSetting, InvalidAddress, InvalidUnit, KubeconfigError) as error:
        return refuse(ROLE.program, error)
    log_setup.configure(options.log_level, options.log_format, role=ROLE.name)
    warn_of_typos(ROLE, os.environ)
    return run(ROLE.program, serve(access, settings))


if __name__ == "__main__":
    sys.exit(main())
