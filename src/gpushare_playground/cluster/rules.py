"""The admission rules for a real API server: the chart's policies, rendered by helm."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpushare.api.request.unit_conversion import Counting
from gpushare_playground.cluster.errors import ClusterError

_HELM_S: Final = 60.0
_FILES: Final = ("memory-amounts", "scheduler-name", "requests", "records")
"""Those of the chart's ``templates/admission`` that do not depend on the accounts of our components in a cluster."""
_POLICIES: Final = ("MutatingAdmissionPolicy", "ValidatingAdmissionPolicy")


def helm_command(
    helm: Path, chart: Path, version: tuple[int, int], writers: Sequence[str], counting: Counting
) -> list[str]:
    """The command that prints the policies of ``chart`` for a Kubernetes of ``version``.

    ``writers`` are the users that may write records, as ``admission.trustedServiceAccounts`` of the chart; ``counting`` is how
    MiB and percentage requests become units.
    """
    command = [str(helm), "template", "gpushare", str(chart), "--namespace=kube-system"]
    command += [f"--kube-version={version[0]}.{version[1]}", "--set=admission.mode=policy"]
    command += [f"--api-versions=admissionregistration.k8s.io/v1/{kind}" for kind in _POLICIES]
    command += [f"--set=admission.trustedServiceAccounts={{{','.join(writers)}}}"]
    command += [
        f"--set=gpuMemoryUnit={counting.unit.setting}",
        f"--set=admission.referenceGpuMemoryMiB={counting.reference_mib}",
    ]
    return [*command, *(f"--show-only=templates/admission/{name}.yaml" for name in _FILES)]


async def rendered(command: Sequence[str], into: Path) -> Path:
    """Run that command and write its output to ``into``. Raises ``ClusterError`` with helm's own message."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(_HELM_S):
            printed, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise ClusterError(f"{command[0]} does not render the chart within {_HELM_S:.0f} s") from None
    if process.returncode:
        raise ClusterError(f"the chart's admission rules cannot be rendered: {errors.decode().strip()}")
    await asyncio.to_thread(into.write_bytes, printed)
    return into
