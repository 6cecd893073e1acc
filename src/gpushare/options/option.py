"""What an option is, and what the options of a role are."""

from typing import Any, Final

import msgspec

from gpushare.options.kinds import Kind

#: What every variable of ours begins with.
PREFIX: Final = "GPUSHARE_"


class InvalidSettings(Exception):
    """What cannot be used of flags, environment and file: a line for each, all of them at once."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class TwiceThere(ValueError):
    """A key that a mapping of a file has twice."""


class Option(msgspec.Struct, frozen=True):
    """One option. ``name`` is its flag without dashes, and its key in a file.

    ``default`` is a value as the kind reads it, ``None`` where there is none. ``absent`` says in words what holds by default
    where the value does not.
    ``least`` and ``most`` bound numbers, in the kind's unit; ``variables`` are read, in this order, after our own. ``role`` is named
    in our own where other roles mean something else by the name.
    """

    name: str
    kind: Kind
    help: str
    default: Any = None
    absent: str = ""
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    above: float | None = None
    metavar: str = ""
    variables: tuple[str, ...] = ()
    group: str = ""
    short: str = ""
    role: str = ""

    @property
    def flag(self) -> str:
        """As it is typed: ``--log-level``."""
        return f"--{self.name}"

    @property
    def attribute(self) -> str:
        """Its name in Python: ``log_level``."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """Its environment variable: ``GPUSHARE_LOG_LEVEL``, or with its role ``GPUSHARE_INSPECT_HEADROOM``."""
        named = f"{self.role}-{self.name}" if self.role else self.name
        return PREFIX + named.replace("-", "_").upper()

    @property
    def allowed(self) -> str:
        """What may be given, in words: ``seconds from 0.01 to 86400``."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        return self.kind.words + self.bounds

    @property
    def bounds(self) -> str:
        """The bounds of a number in words, with a blank before them; empty where there are none."""
        least, most, above = self.least, self.most, self.above
        if least is not None and most is not None:
            return f" from {least:g} to {most:.10g}"
        if above is not None and most is not None:
            return f" above {above:g} and at most {most:.10g}"
        return "" if least is None else f" from {least:g}"

    def read(self, raw: Any) -> Any:
        """The value that ``raw`` means; raises ``ValueError`` with what may be given."""
        try:
            value = self.kind.read(raw)
        except (ValueError, TypeError):
            raise ValueError(f"give {self.allowed}") from None
        if self.choices and value not in self.choices:
            raise ValueError(f"give {self.allowed}")
        if self.kind.number and not self._within(value):
            raise ValueError(f"give {self.allowed}")
        return value

    def _within(self, value: float) -> bool:
        return (
            value == value  # nan is equal to nothing
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )

    @property
    def default_words(self) -> str:
        """What holds where nobody says otherwise."""
        if self.absent or self.default is None:
            return self.absent or "none"
        return self.kind.show(self.default)


class Role(msgspec.Struct, frozen=True):
    """The command line of one role of ``gpushare``. ``epilog`` ends its help, as it stands."""

    name: str
    about: str
    options: tuple[Option, ...]
    epilog: str = ""
    groups: dict[str, str] = {}
    """What the options of a group are about, by its name."""

    @property
    def program(self) -> str:
        """As it is called: ``gpushare scheduler``."""
        return f"gpushare {self.name}"
