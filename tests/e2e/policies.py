"""The chart's admission policies, as helm renders them for an API server's features."""

import re
from typing import Any, Final

import yaml

from tests.admission_words import COUNTING, PodCase
from tests.e2e.asking import Answer, Api, Commands
from tests.e2e.plane import CHECKOUT

CHART: Final = CHECKOUT / "charts" / "ack-ai-installer"
NAMESPACE: Final = "kube-system"
VALIDATING: Final = "ValidatingAdmissionPolicy"
MUTATING: Final = "MutatingAdmissionPolicy"
_OF_POLICY = re.compile(
    "Validation failed for ValidatingAdmissionPolicy '(gpushare-mistakes[a-z-]*)' with binding '\\1': "
)


def policies(commands: Commands, api: Api, *arguments: str) -> list[dict[str, Any]]:
    """The chart's admission objects on this API server."""
    argv = ["helm", "template", "gpushare", str(CHART), "-n", NAMESPACE, *arguments]
    argv += ["--set", f"admission.referenceGpuMemoryMiB={COUNTING.reference_mib}"]
    for kind in (VALIDATING, MUTATING):
        if serves(api, kind):
            argv += ["--api-versions", f"admissionregistration.k8s.io/v1/{kind}"]
    if serves_claims(api):
        argv += ["--api-versions", "resource.k8s.io/v1/DeviceClass"]
    docs = yaml.safe_load_all(commands.typed(*argv))
    return [doc for doc in docs if doc and "AdmissionPolicy" in doc["kind"]]


def serves(api: Api, kind: str) -> bool:
    """Whether the API server knows this kind of policy."""
    listed = api.get("/apis/admissionregistration.k8s.io/v1")["resources"]
    return kind in {one["kind"] for one in listed}


def serves_claims(api: Api) -> bool:
    """Whether the API server has ResourceClaims of the version in which devices are shared by capacity."""
    groups = {one["name"]: one for one in api.get("/apis")["groups"]}
    versions = groups.get("resource.k8s.io", {}).get("versions", ())
    return "v1" in {one["version"] for one in versions}


def problem(case: PodCase, answer: Answer, *, pointed: str | None = None) -> str:
    """How ``answer`` deviates from ``case``; empty if it matches the table. ``pointed``: the scheduler got."""
    ours = [warning for warning in answer.warnings if "gpushare" in warning]
    ends = [warning.partition("': ")[2] if _OF_POLICY.match(warning) else warning for warning in ours]
    if case.refused:
        if answer.taken or case.says not in answer.message:
            return f"wanted {case.says!r}, got {answer.status} {answer.message!r}"
        return ""
    if not answer.taken:
        return f"refused: {answer.message}"
    if ends != list(case.warns):
        return f"warned: {ours}, not {case.warns}"
    if pointed is not None and pointed != case.scheduler:
        return f"scheduler {pointed}, not {case.scheduler}"
    return ""
