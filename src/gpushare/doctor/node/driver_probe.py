"""Queries the driver in a separate process: a driver that hangs or crashes affects nothing else."""

import json
import sys
from pathlib import Path

import pynvml

from gpushare.nodeagent.driver.driver_faults import suggestion_of
from gpushare.nodeagent.driver.nvml import DriverNvml
from gpushare.nodeagent.errors import NodeAgentError, NvmlFailed


def main(root: str) -> int:
    """Print what the driver under ``root`` reports, as JSON: versions, GPUs, and what cannot be read."""
    driver = DriverNvml(Path(root))
    try:
        driver.open()
        enumeration = driver.enumerate()
        divided = {gpu.parent for gpu in enumeration.gpus}
        report = {
            "driver": _text(pynvml.nvmlSystemGetDriverVersion()),
            "nvml": _text(pynvml.nvmlSystemGetNVMLVersion()),
            "unreadable": [str(gpu) for gpu in enumeration.unreadable],
            "gpus": [
                {
                    "index": gpu.index,
                    "uuid": gpu.uuid,
                    "mib": gpu.total_mib,
                    "model": gpu.model,
                    "minor": gpu.minor,
                    "mig": gpu.mig and gpu.uuid not in divided,
                    "trouble": "" if gpu.mig else driver.probe(gpu.uuid),
                }
                for gpu in enumeration.gpus
            ],
        }
        driver.close()
    except NvmlFailed as error:
        report = {"trouble": str(error), "suggestion": suggestion_of(error)}
    except (NodeAgentError, pynvml.NVMLError) as error:
        report = {"trouble": str(error)}
    print(json.dumps(report))
    return 0


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
