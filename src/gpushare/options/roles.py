"""The roles with options, and the modules that declare them, imported on demand."""

import importlib
from typing import Final

from gpushare.options.option import Role

#: Role → module whose ``ROLE`` declares its options.
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
    """As ``role_of``; ``None`` if this installation lacks the role: images have no playground, the single-file kubectl plugin has only its own role."""
    try:
        return role_of(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"gpushare", "gpushare_playground"}:
            raise
        return None


def role_of(name: str) -> Role:
    """The role of that name, one of ``ROLES``."""
    role = importlib.import_module(ROLES[name]).ROLE
    assert isinstance(role, Role)
    return role
