"""``gpushare uninstall``: the clean-up after ``helm uninstall``."""

import asyncio
import logging
import os
import sys
from types import SimpleNamespace

from gpushare.kube.auth.access import Access, load_access
from gpushare.kube.backoff import Backoff
from gpushare.kube.client.errors import KubeconfigError, KubeError
from gpushare.kube.client.session import Session
from gpushare.kube.clock import SYSTEM_CLOCK
from gpushare.options.option import InvalidSettings
from gpushare.options.reading import read
from gpushare.options.usage_error import refuse
from gpushare.options.variables import warn_of_typos
from gpushare.process import log_setup
from gpushare.process.signals import stop_event
from gpushare.uninstall.api import Agents, ApiCluster, OwnObjects
from gpushare.uninstall.cleaner import Cleaner, Outcome, Pace
from gpushare.uninstall.options import ROLE

logger = logging.getLogger(__name__)


def _pace(options: SimpleNamespace) -> Pace:
    look_s = min(Pace().look_s, max(options.settle_time / 3, 0.1))
    return Pace(
        look_s=look_s,
        kubelet_s=options.device_plugin_ttl,
        quiet_s=options.settle_time,
        patience_s=options.timeout,
    )


async def clean(access: Access, agents: Agents, pace: Pace, own: str | None) -> Outcome:
    """Clean up, then remove this process's own objects; raises ``KubeError`` if the latter fails."""
    async with Session(access) as session:
        objects = OwnObjects(session, agents.namespace, own) if own else None
        if objects is not None:
            await objects.tie()
        outcome = await Cleaner(ApiCluster(session, agents), SYSTEM_CLOCK, pace).run()
        logger.info("done: %s", outcome.value)
        if objects is not None:
            await objects.remove()
    return outcome


async def _until_signalled(access: Access, agents: Agents, pace: Pace, own: str | None) -> int:
    stop = stop_event()
    stopping = asyncio.create_task(stop.wait())
    backoff = Backoff()
    while True:
        cleaning = asyncio.create_task(clean(access, agents, pace, own))
        await asyncio.wait([cleaning, stopping], return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            cleaning.cancel()
            await asyncio.gather(cleaning, return_exceptions=True)
            return 0
        try:
            outcome = cleaning.result()
        except KubeError as error:
            if own is None:
                raise
            # The hook's RBAC and its Job are created one after the other.
            logger.warning("%s", error)
            await asyncio.wait([stopping], timeout=backoff.next_s())
            continue
        if own is not None:
            await stopping  # what runs us would start us again until it is gone itself
        else:
            stopping.cancel()
        return 1 if outcome is Outcome.UNFINISHED else 0


def main(argv: list[str] | None = None) -> int:
    """Run to completion; returns 0, 1 if nodes are not clean, 2 for invalid options."""
    try:
        options = read(ROLE, argv, os.environ)
        log_setup.configure(options.log_level, options.log_format, role=ROLE.name)
        warn_of_typos(ROLE, os.environ)
        pace = _pace(options)
        access = load_access(options.kubeconfig, options.context)
    except (InvalidSettings, KubeconfigError) as error:
        return refuse(ROLE.program, error)
    agents = Agents(options.namespace or access.namespace, options.daemonset, options.selector)
    try:
        return asyncio.run(_until_signalled(access, agents, pace, options.self))
    except KubeError as error:
        print(f"{ROLE.program}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
