"""A step of a pipeline, and its result."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

#: For ``Step.cores``: the step uses all CPUs, or measures, so nothing else may run at the same time.
ALL: Final = float("inf")
#: In double quotes for the shell, and in a variable's value for make.
_SPECIAL: Final = str.maketrans({sign: f"\\{sign}" for sign in '\\"`'} | {"$": "\\$\\$"})


@dataclass(frozen=True, slots=True)
class Step:
    """A shell command with what the runner needs to know about it."""

    name: str
    command: str
    """For bash, in the root of the checkout."""
    timeout_s: float
    """On an idle machine; on a busy one up to five times as long (``tests/patience.py``)."""
    cores: float = 1
    """How many CPUs it keeps busy. A step that needs more than the machine has runs alone."""
    needs: tuple[str, ...] = ()
    """Steps that must have passed before."""
    rerun: str = ""
    """Reruns the failing tests: ``{ids}`` is replaced by their ids, ``{names}`` by an expression for pytest's ``-k``."""

    def rerun_command(self, failing: Sequence[str]) -> str:
        """Reruns only the tests with these ids, or the whole step if there are none."""
        if not self.rerun or not failing:
            return self.command
        names = dict.fromkeys(_function(one) for one in failing)
        ids = " ".join(shlex.quote(one) if "'" in one else f"'{one}'" for one in failing)
        return self.rerun.format(ids=ids.translate(_SPECIAL), names=" or ".join(names))


class State(StrEnum):
    """How a step ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a step."""

    step: Step
    state: State
    wall_s: float = 0.0
    processor_s: float = 0.0
    """CPU seconds of the step's processes whose parents waited for them, without daemons."""
    reason: str = ""

    @property
    def good(self) -> bool:
        """Whether steps that need this one may run."""
        return self.state in (State.PASSED, State.SKIPPED)


class UnknownStep(Exception):
    """A pipeline has no step of that name."""


def chosen(steps: Sequence[Step], names: Iterable[str]) -> list[Step]:
    """The named steps with everything that they need, in the pipeline's order; all when none is named."""
    by_name = {step.name: step for step in steps}
    wanted: set[str] = set()
    left = list(names)
    if not left:
        return list(steps)
    while left:
        name = left.pop()
        if name not in by_name:
            raise UnknownStep(f"no step {name}; there are {', '.join(by_name)}")
        if name not in wanted:
            wanted.add(name)
            left += by_name[name].needs
    return [step for step in steps if step.name in wanted]


def _function(test_id: str) -> str:
    """The name of a test's function; of a file that could not be collected, its name."""
    last = test_id.partition("[")[0].rpartition("::")[2]
    # xdist appends the test's group.
    return last.partition("@")[0].rpartition("/")[2].removesuffix(".py")
