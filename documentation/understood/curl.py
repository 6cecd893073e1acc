"""Commands for curl: flags that it has, and an address."""

from pathlib import Path
from typing import Final

from documentation.understood.shell import Misunderstood

#: The flags of pages that take a value, and those that take none.
_VALUED: Final = frozenset({"-H", "-d", "-b", "-c", "-o", "--cacert"})
_SWITCHES: Final = frozenset({"-s", "-f", "-k", "-sf", "-fsS"})


def understand(words: list[str], project: Path) -> None:
    """Raises ``Misunderstood`` unless there is one address, and flags that curl has."""
    if not words:
        return
    addresses = []
    rest = iter(words)
    for word in rest:
        if word in _VALUED:
            if next(rest, None) is None:
                raise Misunderstood(f"curl {word} needs a value")
        elif word.startswith("-"):
            if word not in _SWITCHES:
                raise Misunderstood(f"curl {word}: no flag that pages use")
        else:
            addresses.append(word)
    if len(addresses) != 1 or "/" not in addresses[0]:
        raise Misunderstood(f"one address, not {' '.join(addresses) or 'none'}")
