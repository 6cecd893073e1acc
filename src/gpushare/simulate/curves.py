"""The curves that ``--plot`` draws."""

from gpushare.simulate.plot import Axis, Line, picture, rounded_up
from gpushare.simulate.simulation import Result
from gpushare.simulate.traces import Replayed


def of_pods(result: Result) -> str:
    """What is given, and what waits, over the pods that come; as SVG."""
    total_gib = max(result.curve[-1].total_mib / 1024, 1.0)
    return picture(
        f"GPU memory given as pods come ({result.settings.policy.value})",
        Axis("pods looked at", rounded_up(max(one.arrived for one in result.curve))),
        Axis("GiB; pods", rounded_up(max(total_gib, *(one.waiting for one in result.curve)))),
        [
            Line("GPU memory given, GiB", [(one.arrived, one.given_mib / 1024) for one in result.curve]),
            Line("GPU memory there, GiB", [(one.arrived, total_gib) for one in result.curve]),
            Line("pods that wait", [(one.arrived, one.waiting) for one in result.curve]),
        ],
        stepped=True,
    )


def of_trace(found: Replayed) -> str:
    """What each policy gives over what was asked for; as SVG."""
    most = max(outcome.curve[-1][0] for outcome in found.outcomes.values())
    return picture(
        f"{found.name}: GPUs given out as pods arrive",
        Axis("asked for so far, % of all GPUs", rounded_up(most)),
        Axis("given, % of all GPUs", 100.0),
        [Line(policy.value, outcome.curve) for policy, outcome in found.outcomes.items()],
    )
