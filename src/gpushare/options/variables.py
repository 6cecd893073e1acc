"""Variables that begin like ours and that nobody reads: a slip, in most cases, that nothing else would ever show.

They are told of and passed over: Kubernetes itself gives a pod variables that are named after the Services of its namespace.
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

#: How alike a variable must be to one that is read to be taken for a slip, without the prefix that all have.
_ALIKE: Final = 0.8
#: After the name of a Service, in upper case: what the kubelet gives of it. The first is there for each.
_HOST: Final = "_SERVICE_HOST"
_LINK: Final = re.compile(
    r"_SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|_PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?", re.ASCII
)


def unread(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables of ours that no role reads, each with the one that is meant, empty where none is like it."""
    strange = _unknown(environ, CONFIG.variable)
    return {one: nearest(one, _of_all()) for one in strange - _of_all()} if strange else {}


def warn_of_typos(role: Role, environ: Mapping[str, str]) -> None:
    """Log those that are nearly one that ``role`` reads. What is like none of them may be anybody's."""
    for one, meant in _slips(role, environ).items():
        logger.warning("variable %s is read by nobody: did you mean %s?", one, meant)


def tell_slips(role: Role, environ: Mapping[str, str], program: str = "") -> None:
    """As ``warn_of_typos``, on stderr, for a command that somebody typed: ``program`` as its other lines begin."""
    for one, meant in _slips(role, environ).items():
        print(
            f"{program or role.program}: variable {one} is read by nobody: did you mean {meant}?",
            file=sys.stderr,
        )


def _slips(role: Role, environ: Mapping[str, str]) -> dict[str, str]:
    own = _of((role,))
    near = {one: meant for one in sorted(_unknown(environ, *own)) if (meant := nearest(one, own))}
    # The options of other roles are imported only where there is something to be said.
    read = _of_all() if near else set()
    return {one: meant for one, meant in near.items() if one not in read}


def nearest(variable: str, known: Collection[str]) -> str:
    """Which of ``known`` is meant by a variable that is none of them; empty where none is like it."""
    from difflib import get_close_matches

    tails = [one.removeprefix(PREFIX) for one in known if one.startswith(PREFIX)]
    found = get_close_matches(variable.removeprefix(PREFIX), sorted(tails), 1, _ALIKE)
    return f"{PREFIX}{found[0]}" if found else ""


def _unknown(environ: Mapping[str, str], *known: str) -> set[str]:
    """Variables that begin like ours, are none of ``known``, and are of no Service."""
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
