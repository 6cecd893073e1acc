"""A chart as helm renders it, as objects."""

from pathlib import Path
from typing import Any

import yaml

from tests.e2e.asking import Commands

CHARTS = Path(__file__).parents[3] / "charts"
INSTALLER, SCHEDULER = "ack-ai-installer", "ack-co-scheduler"
NAMESPACE = "kube-system"
#: API versions that the charts look for, by the version of Kubernetes that has them.
POLICIES = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
MUTATIONS = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
CLAIMS = "resource.k8s.io/v1/DeviceClass"
APIS = {"1.28.15": (), "1.30.14": (POLICIES,), "1.36.3": (POLICIES, MUTATIONS, CLAIMS)}


def arguments(chart: str, version: str, *values: str, namespace: str = NAMESPACE) -> list[str]:
    """``helm template`` of a chart for a cluster of ``version``; each of ``values`` is one of ``--set``."""
    argv = ["helm", "template", chart, str(CHARTS / chart), "-n", namespace, "--kube-version", version]
    for api in APIS.get(version, ()):
        argv += ["--api-versions", api]
    for value in values:
        argv += ["--set", value]
    return argv


def rendered(helm: Commands, chart: str, version: str, *values: str, **where: str) -> list[dict[str, Any]]:
    """The objects, in helm's order."""
    docs = yaml.safe_load_all(helm.typed(*arguments(chart, version, *values, **where)))
    return [doc for doc in docs if doc]


def notes(helm: Commands, chart: str, *values: str, namespace: str = NAMESPACE) -> str:
    """The output of ``helm install`` for its user, without a cluster; each of ``values`` is one of ``--set``."""
    argv = ["helm", "install", chart, str(CHARTS / chart), "-n", namespace, "--dry-run=client"]
    for value in values:
        argv += ["--set", value]
    return helm.typed(*argv).partition("\nNOTES:\n")[2]


def found(docs: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """The one object of that kind and name."""
    hits = [doc for doc in docs if (doc["kind"], doc["metadata"]["name"]) == (kind, name)]
    assert len(hits) == 1, f"{len(hits)} of {kind} {name}"
    return hits[0]
