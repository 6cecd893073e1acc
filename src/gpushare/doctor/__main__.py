"""``gpushare doctor`` and ``gpushare doctor node``: the command line."""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Final

from gpushare.doctor.findings import CODES, Finding, examine, exit_code
from gpushare.doctor.options import ROLE
from gpushare.doctor.report import as_json, as_table
from gpushare.kube.auth.access import Access, load_access
from gpushare.kube.client.errors import KubeError
from gpushare.kube.client.session import Session
from gpushare.options.option import InvalidSettings
from gpushare.options.reading import read
from gpushare.options.usage_error import refuse
from gpushare.options.variables import warn_of_misspelled_variables
from gpushare.process import log_setup

#: Kubelets publish what a node agent reported within 10 s.
_PATIENCE_S: Final = 12.0
_AGAIN_S: Final = 2.0


async def of_cluster(access: Access, timeout_s: float, namespace: str | None = None) -> list[Finding]:
    """Findings about a cluster; never raises ``KubeError``: an unreachable API server is a finding, too.

    If a kubelet lags behind its node agent, as it does for seconds after most changes, nodes are read again for a while.
    """
    from gpushare.doctor.cluster.reader import Reader
    from gpushare.doctor.cluster.registry import CHECKS
    from gpushare.doctor.retry_checks import settled

    try:
        async with Session(access) as session:
            reader = Reader(session, timeout_s, namespace)
            facts = await settled(await reader.read(), reader.nodes, _PATIENCE_S, _AGAIN_S)
    except KubeError as error:
        suggestion = "if `kubectl get nodes` works, pass the same kubeconfig and context"
        return [Finding("api-server", "fault", access.server, str(error), suggestion)]
    return examine(facts, CHECKS)


def _of_node(options: SimpleNamespace) -> tuple[list[Finding], str]:
    from gpushare.doctor.node.checks import CHECKS
    from gpushare.doctor.node.reader import Places, read_node

    places = Places(
        host_root=options.host_root,
        driver_root=options.driver_root or options.host_root,
        kubelet_dir=options.kubelet_dir,
        kubelet_root=options.kubelet_root,
        library_dir=options.isolation_library_dir,
        cdi_dirs=options.cdi_dirs,
        containerd_config=options.containerd_config,
    )
    facts = asyncio.run(read_node(places, options.timeout))
    return examine(facts, CHECKS), f"node {facts.name}"


def main(argv: Sequence[str] | None = None) -> int:
    """Check and report; 0 if all is well, 1 for warnings, 2 for faults and bad input."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    of_node = arguments[:1] == ["node"]
    try:
        options = read(ROLE, arguments[1:] if of_node else arguments, os.environ)
        warn_of_misspelled_variables(ROLE, os.environ)
        # Problems are reported as findings; log lines of libraries would mix with them.
        log_setup.configure("error", "text", role=ROLE.name)
        if of_node:
            findings, target = _of_node(options)
        else:
            access = load_access(options.kubeconfig, options.context)
            findings = asyncio.run(of_cluster(access, options.timeout, options.namespace))
            target = f"cluster {access.server}"
    except (InvalidSettings, KubeError) as error:
        return refuse(ROLE.program, error)
    if options.output == "json":
        print(json.dumps(as_json(findings, target), indent=2, ensure_ascii=False))
    else:
        print(as_table(findings, target, everything=options.all, wrapped=sys.stdout.isatty()))
    return max(exit_code(findings), CODES["ok"])


if __name__ == "__main__":
    sys.exit(main())
