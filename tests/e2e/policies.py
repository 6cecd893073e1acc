"""The chart's admission policies, as helm renders them for what an API server has."""

from typing import Any, Final

import yaml

from tests.admission_words import COUNTING
from tests.e2e.asking import Api, Commands
from tests.e2e.plane import CHECKOUT

CHART: Final = CHECKOUT / "charts" / "ack-ai-installer"
NAMESPACE: Final = "kube-system"
VALIDATING: Final = "ValidatingAdmissionPolicy"
MUTATING: Final = "MutatingAdmissionPolicy"


def policies(commands: Commands, api: Api, *arguments: str) -> list[dict[str, Any]]:
    """What the chart makes of admission on this API server."""
    argv = ["helm", "template", "gpushare", str(CHART), "-n", NAMESPACE, *arguments]
    argv += ["--set", f"admission.cardMemoryMiB={COUNTING.card_mib}"]
    for kind in (VALIDATING, MUTATING):
        if serves(api, kind):
            argv += ["--api-versions", f"admissionregistration.k8s.io/v1/{kind}"]
    docs = yaml.safe_load_all(commands.typed(*argv))
    return [doc for doc in docs if doc and "AdmissionPolicy" in doc["kind"]]


def serves(api: Api, kind: str) -> bool:
    """Whether the API server knows this kind of policy."""
    listed = api.get("/apis/admissionregistration.k8s.io/v1")["resources"]
    return kind in {one["kind"] for one in listed}
