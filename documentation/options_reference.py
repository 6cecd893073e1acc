"""The reference of options: a table for each role, from the declarations in its ``options.py``."""

from typing import Final

from gpushare.options.roles import ROLES, role_of
from gpushare.options.schema import table_of

_HEAD: Final = """\
# Options

Every option of every role: its name in a file, its values, its default and its environment variables. This page is generated: `make docs` writes it.
[Configuration](../guide/configuration.md) explains where values come from. `inspect` has further flags, which are only typed ([its page](../guide/inspect.md)).
"""


def page() -> str:
    """The page's Markdown."""
    return "\n".join([_HEAD, *(f"## {name}\n\n{table_of(role_of(name))}\n" for name in ROLES)])
