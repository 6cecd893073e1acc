"""What an option is, and what the options of a role are."""

from typing import Any, Final

import msgspec

from gpushare.options.kinds import Kind

#: Prefix of every environment variable of gpushare.
PREFIX: Final = "GPUSHARE_"


class InvalidSettings(Exception):
    """Invalid flags, variables and file entries: a line for each, all together."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class TwiceThere(ValueError):
    """A key that occurs twice in a mapping of a file."""


class Option(msgspec.Struct, frozen=True):
    """One option. ``name`` is its flag without dashes, and its key in a file.

    ``default`` is a parsed value, or ``None``; ``absent`` describes the default in words where the value does not.
    ``least`` and ``most`` bound numbers, in the kind's unit; ``variables`` are read, in this order, after the option's own.
    ``role`` is part of the own variable's name where other roles use the same option name with another meaning.
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
        """The flag: ``--log-level``."""
        return f"--{self.name}"

    @property
    def attribute(self) -> str:
        """The Python name: ``log_level``."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """Its environment variable: ``GPUSHARE_LOG_LEVEL``, or with its role ``GPUSHARE_INSPECT_HEADROOM``."""
        named = f"{self.role}-{self.name}" if self.role else self.name
        return PREFIX + named.replace("-", "_").upper()

    @property
    def allowed(self) -> str:
        """Valid values in words: ``seconds from 0.01 to 86400``."""
        if self.choices:
            return f"{'some' if self.kind.several else 'one'} of {', '.join(self.choices)}"
        return self.kind.words + self.bounds

    @property
    def bounds(self) -> str:
        """The bounds of a number in words, with a leading blank; empty without bounds."""
        least, most, above = self.least, self.most, self.above
        if least is not None and most is not None:
            return f" from {least:g} to {most:.10g}"
        if above is not None and most is not None:
            return f" above {above:g} and at most {most:.10g}"
        return "" if least is None else f" from {least:g}"

    def read(self, raw: Any) -> Any:
        """Parse ``raw``; raises ``ValueError`` with the valid values."""
        try:
            value = self.kind.read(raw)
        except (ValueError, TypeError):
            raise ValueError(f"give {self.allowed}") from None
        chosen = value if self.kind.several else [value]
        if self.choices and not set(chosen) <= set(self.choices):
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
        """The default in words."""
        if self.absent or self.default is None:
            return self.absent or "none"
        return self.kind.show(self.default)


class Role(msgspec.Struct, frozen=True):
    """The command line of one role of ``gpushare``. ``epilog`` is appended to its help verbatim."""

    name: str
    about: str
    options: tuple[Option, ...]
    epilog: str = ""
    groups: dict[str, str] = {}
    """Descriptions of option groups by name."""

    @property
    def program(self) -> str:
        """The command: ``gpushare scheduler``."""
        return f"gpushare {self.name}"
