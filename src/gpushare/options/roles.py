"""Which roles have options of this kind, and where they are declared. Imports each only when it is asked for."""

import importlib
from typing import Final

from gpushare.options.option import Role

#: Role → the module whose ``ROLE`` declares its options.
ROLES: Final = {
    "scheduler": "gpushare.scheduler.options",
    "node-agent": "gpushare.nodeagent.options",
    "admission": "gpushare.admission.options",
    "dashboard": "gpushare.dashboard.options",
    "uninstall": "gpushare.uninstall.options",
    "playground": "gpushare_playground.options",
    "node-template": "gpushare.nodetemplate.options",
    "doctor": "gpushare.doctor.options",
    "simulate": "gpushare.simulate.options",
    "inspect": "gpushare.inspect.options",
}


def installed_role_of(name: str) -> Role | None:
    """As ``role_of``; ``None`` where this installation lacks the role: images have no playground, the kubectl plugin as one file has no other role."""
    try:
        return role_of(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"gpushare", "gpushare_playground"}:
            raise
        return None


def role_of(name: str) -> Role:
    """The options of the role of that name, which is one of ``ROLES``."""
    role = importlib.import_module(ROLES[name]).ROLE
    assert isinstance(role, Role)
    return role
