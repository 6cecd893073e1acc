"""The curves that ``--plot`` draws."""

from gpushare.simulate.engine.simulation import Result
from gpushare.simulate.output.plot import Axis, Line, Panel, picture
from gpushare.simulate.traces.traces import Replayed, ReplayedInTime


def of_pods(result: Result) -> str:
    """What is given, and what waits, over the pods that come; as SVG."""
    total_gib = max(result.curve[-1].total_mib / 1024, 1.0)
    # What came of the last pod is to be seen, too.
    last = result.curve[-1]
    end = last.arrived + max(0.03 * last.arrived, 0.3)
    at = [(float(one.arrived), one) for one in result.curve] + [(end, last)]
    given = [
        Line("GPU memory given", [(x, one.given_mib / 1024) for x, one in at]),
        Line("GPU memory there", [(x, total_gib) for x, _ in at]),
    ]
    waiting = Line("pods that wait", [(x, one.waiting) for x, one in at])
    return picture(
        f"GPU memory given as pods come ({result.settings.policy.value})",
        Axis("pods looked at", end, whole=True),
        [
            Panel(Axis("GiB", total_gib), given),
            Panel(Axis("pods", max(one.waiting for one in result.curve), whole=True), [waiting]),
        ],
        stepped=True,
    )


def of_trace(found: Replayed | ReplayedInTime) -> str:
    """What each policy gives over what was asked for, or over time; as SVG."""
    return _over_time(found) if isinstance(found, ReplayedInTime) else _over_arrivals(found)


def _over_arrivals(found: Replayed) -> str:
    most = max(outcome.curve[-1][0] for outcome in found.outcomes.values())
    lines = [Line(policy.value, outcome.curve) for policy, outcome in found.outcomes.items()]
    return picture(
        f"{found.name}: GPUs given out as pods arrive",
        Axis("asked for so far, % of all GPUs", most),
        [Panel(Axis("given, % of all GPUs", 100.0), lines)],
    )


#: Seconds of a unit, its name, and from how many of it on it is taken.
_UNITS = ((86400, "days", 3), (3600, "hours", 3), (60, "minutes", 3), (1, "seconds", 0))


def _over_time(found: ReplayedInTime) -> str:
    most_s = max([*(outcome.curve[-1].at_s for outcome in found.outcomes.values()), found.asked[-1][0]])
    unit_s, unit, _ = next(one for one in _UNITS if most_s >= one[0] * one[2])
    given = [
        Line(policy.value, [(one.at_s / unit_s, one.given_percent) for one in outcome.curve])
        for policy, outcome in found.outcomes.items()
    ]
    waiting = [
        Line(policy.value, [(one.at_s / unit_s, one.waiting) for one in outcome.curve])
        for policy, outcome in found.outcomes.items()
    ]
    asked = Line("asked for", [(at_s / unit_s, percent) for at_s, percent in found.asked], faint=True)
    most = max(percent for line in (*given, asked) for _, percent in line.points)
    most_waiting = max(count for line in waiting for _, count in line.points)
    return picture(
        f"{found.name}: GPUs given out over time",
        Axis(f"{unit} since the list begins", most_s / unit_s),
        [
            Panel(Axis("% of all GPUs", most), [asked, *given]),
            Panel(Axis("pods that wait", most_waiting, whole=True), waiting),
        ],
        stepped=True,
    )
