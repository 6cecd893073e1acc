"""The views that are about pods: which module shows which."""

from typing import TextIO

from gpushare.inspect.arguments import Options
from gpushare.inspect.colour import Paint
from gpushare.inspect.kubectl import Kubectl
from gpushare.inspect.shown import Shown


def look(kubectl: Kubectl, options: Options, out: TextIO) -> Shown:
    """Read once what ``options.view`` needs, and set it; raises ``InspectError``."""
    paint = Paint(out)
    if options.view == "why":
        from gpushare.inspect.why import why

        return why(kubectl, options, paint)
    if options.view == "waiting":
        from gpushare.inspect.waiting import waiting

        return waiting(kubectl, options, paint)
    from gpushare.inspect.pods import pods

    return pods(kubectl, options, paint)
