"""Figures against their budgets."""

import re
from collections.abc import Mapping
from typing import Any, Final

Figures = dict[str, tuple[float, str]]
#: Units that grow with the time that a machine takes, and those that shrink with it.
_TIMES: Final = ("ms", "s", "%")
_RATES: Final = ("1/s",)
#: The sizes in a figure's name: ``5000`` of ``filter_p99_ms_5000``, and nothing of ``p99``. A share of nodes may be adaptive.
_SIZE: Final = re.compile(r"(?<=_)(?:\d+|adaptive)(?=_|$)")


def on_this_machine(
    budgets: Mapping[str, Mapping[str, Any]], slowness: float
) -> dict[str, Mapping[str, Any]]:
    """The budgets of a machine that takes ``slowness`` times as long as the one for which they are written."""
    return {name: _on_this_machine(budget, slowness) for name, budget in budgets.items()}


def _on_this_machine(budget: Mapping[str, Any], slowness: float) -> Mapping[str, Any]:
    unit = budget.get("unit")
    factor = slowness if unit in _TIMES else 1 / slowness if unit in _RATES else 1.0
    return {
        key: round(budget[key] * factor, 3) if key in ("most", "least") else budget[key] for key in budget
    }


def over_budget(
    figures: Mapping[str, tuple[float, str]], budgets: Mapping[str, Mapping[str, float]]
) -> list[str]:
    """A message for every figure outside its budget."""
    found = []
    for name, budget in budgets.items():
        if name not in figures:
            continue
        value, unit = figures[name]
        if value > budget.get("most", value):
            found.append(f"{name} is {value:.3f} {unit}, more than {budget['most']}")
        if value < budget.get("least", value):
            found.append(f"{name} is {value:.3f} {unit}, less than {budget['least']}")
    return found


def unmeasured(
    figures: Mapping[str, tuple[float, str]],
    budgets: Mapping[str, Mapping[str, float]],
    *,
    any_size: bool = False,
) -> list[str]:
    """A message for every figure with a budget that was not measured; with ``any_size``, a measurement on a smaller cluster counts."""

    def kind(name: str) -> str:
        return _SIZE.sub("N", name) if any_size else name

    measured = {kind(name) for name in figures}
    return [f"{name} was not measured" for name in budgets if kind(name) not in measured]


def verdict(
    figures: Mapping[str, tuple[float, str]],
    budgets: Mapping[str, Mapping[str, float]],
    *,
    quick: bool,
    everything: bool,
) -> int:
    """Print the figures that miss their budgets; returns the exit code.

    In a run of ``everything`` each figure with a budget must exist. A ``quick`` run does not show speed, so only
    that is checked, in any size.
    """
    problems = [] if quick else [f"OVER BUDGET: {one}" for one in over_budget(figures, budgets)]
    if everything:
        problems += [f"MISSING: {one}" for one in unmeasured(figures, budgets, any_size=quick)]
    well = "Quick: no figure is compared with its budget." if quick else "All budgets are met."
    print("\n".join(problems or [well]))
    return int(bool(problems))
