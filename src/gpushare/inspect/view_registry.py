"""Maps the views of pods to their modules."""

from typing import TextIO

from gpushare.inspect.arguments import Options
from gpushare.inspect.color import Paint
from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.inspect.view_result import Shown


def render(kubectl: Kubectl, options: Options, out: TextIO) -> Shown:
    """Read the cluster once and render ``options.view``; raises ``InspectError``."""
    paint = Paint(out)
    if options.view == "why":
        from gpushare.inspect.views.explain import why

        return why(kubectl, options, paint)
    if options.view == "pending":
        from gpushare.inspect.views.pending import waiting

        return waiting(kubectl, options, paint)
    from gpushare.inspect.views.pods import pods

    return pods(kubectl, options, paint)
