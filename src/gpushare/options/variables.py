"""Unknown environment variables with our prefix: usually typos, which nothing else would reveal.

They are reported and ignored: Kubernetes itself gives a pod variables that are named after the Services of its namespace.
"""

import logging
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from gpushare.options.option import PREFIX, Role
from gpushare.options.reading import CONFIG
from gpushare.options.roles import ROLES, installed_role_of

logger = logging.getLogger(__name__)

#: Similarity, without the common prefix, from which an unknown variable counts as a typo of a known one.
_ALIKE: Final = 0.8
#: Suffixes of the variables that the kubelet sets for each Service; the first always exists.
_HOST: Final = "_SERVICE_HOST"
_LINK: Final = re.compile(
    r"_SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|_PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?", re.ASCII
)


def unread(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables with our prefix that no role reads, each with the one probably meant, or empty."""
    strange = _unknown(environ, CONFIG.variable)
    return {one: nearest(one, _of_all()) for one in strange - _of_all()} if strange else {}


def warn_of_typos(role: Role, environ: Mapping[str, str]) -> None:
    """Log those that resemble one that ``role`` reads. Others may belong to something else."""
    for one, meant in _misspelled(role, environ).items():
        logger.warning("variable %s is unknown: did you mean %s?", one, meant)


def warn_of_misspelled_variables(role: Role, environ: Mapping[str, str], program: str = "") -> None:
    """As ``warn_of_typos``, on stderr, for interactive commands; lines begin with ``program``."""
    for one, meant in _misspelled(role, environ).items():
        print(
            f"{program or role.program}: variable {one} is unknown: did you mean {meant}?",
            file=sys.stderr,
        )


def _misspelled(role: Role, environ: Mapping[str, str]) -> dict[str, str]:
    own = _of((role,))
    near = {one: meant for one in sorted(_unknown(environ, *own)) if (meant := nearest(one, own))}
    # The options of other roles are imported only if there is something to report.
    read = _of_all() if near else set()
    return {one: meant for one, meant in near.items() if one not in read}


def nearest(variable: str, known: Collection[str]) -> str:
    """Which of ``known`` an unknown variable probably means; empty if none resembles it."""
    from difflib import get_close_matches

    tails = [one.removeprefix(PREFIX) for one in known if one.startswith(PREFIX)]
    found = get_close_matches(variable.removeprefix(PREFIX), sorted(tails), 1, _ALIKE)
    return f"{PREFIX}{found[0]}" if found else ""


def _unknown(environ: Mapping[str, str], *known: str) -> set[str]:
    """Variables with our prefix that are not in ``known`` and do not come from a Service."""
    ours = {one for one in environ if one.startswith(PREFIX) and one not in known}
    services = tuple(one.removesuffix(_HOST) for one in ours if one.endswith(_HOST))
    return {
        one
        for one in ours
        if not any(one.startswith(name) and _LINK.fullmatch(one, len(name)) for name in services)
    }


def _of(roles: Iterable[Role]) -> set[str]:
    options = [option for role in roles for option in (*role.options, CONFIG)]
    return {variable for option in options for variable in (option.variable, *option.variables)}


def _of_all() -> set[str]:
    return _of(role for role in map(installed_role_of, ROLES) if role is not None)
