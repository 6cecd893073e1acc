"""The metrics endpoint of each part of a playground: a file of targets as Prometheus reads it (``file_sd_configs``)."""

import json
import os
from pathlib import Path
from typing import Final

FILE: Final = "metrics.json"


class Targets:
    """The file in the folder ``state``, rewritten with each added target."""

    def __init__(self, state: Path) -> None:
        self.path = state / FILE
        self._groups: list[dict[str, object]] = []

    def add(self, address: str, job: str, *paths: str, **labels: str) -> None:
        """``http://ADDRESS/metrics`` exists from now on, and so do the pages ``paths``, by their paths."""
        self._groups.append({"targets": [address], "labels": {"job": job, **labels}})
        for path in paths:
            # With its own label, as in the chart's PodMonitor: otherwise both pages would write to one series "up".
            path_labels = {"__metrics_path__": path, "metrics_path": path}
            self._groups.append({"targets": [address], "labels": {"job": job, **labels, **path_labels}})
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self._groups, indent=1) + "\n")
        os.replace(new, self.path)
