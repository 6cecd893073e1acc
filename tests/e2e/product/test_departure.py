"""Commands of the pages and the README about a real cluster, typed verbatim on one of its own; which the
product then leaves.

Its kubelet reports what the agent offered for five minutes after the agent's end, so the last check of it is
made when the other tests are done (``test_removal.py``).
"""

from collections.abc import Iterator

import pytest

from gpushare.api import names
from tests.docs.sentences import sentences_typed_by
from tests.e2e.cluster import wait_for
from tests.e2e.product.claiming import CLAIMS, claim, pod
from tests.e2e.product.conftest import Departure
from tests.e2e.product.left_on_nodes import Traces
from tests.e2e.product.product import NAMESPACE, SCHEDULER, Json, gpu_pod

#: Objects that pages create next to the charts, and a reader would keep.
SENTENCES = sentences_typed_by(__file__)
REMOVAL = "kubectl -n kube-system logs deploy/gpushare-uninstall"
OF_READERS = (("secret", "gpushare-dashboard", NAMESPACE),)


@pytest.fixture
def operator(departure: Departure) -> Iterator[Departure]:
    """The kinds of the Prometheus operator, which one page has; nothing acts on them."""
    kinds = [
        definition("podmonitors", "PodMonitor"),
        definition("prometheusrules", "PrometheusRule"),
        definition("servicemonitors", "ServiceMonitor"),
    ]
    departure.product.apply(*kinds)
    for kind in kinds:
        name = f"crd/{kind['metadata']['name']}"
        departure.product.kubectl("wait", "--for=condition=Established", name, "--timeout=30s")
    yield departure
    departure.product.kubectl("delete", "crd", *(kind["metadata"]["name"] for kind in kinds))


def test_the_pages_commands_for_a_cluster_work_and_helm_uninstall_keeps_pods(operator: Departure) -> None:
    departure, product, node = operator, operator.product, operator.node
    departure.pages.type("install")
    product.offers(node, gpu_mem=15)
    product.running("app=tensorflow-mnist-share")
    assert product.row(node)[2] == "4/15"
    product.apply(gpu_pod("mine", 2, labels={"app": "mine"}))
    (mine,) = product.running("app=mine")

    departure.pages.type("installed")
    (agent,) = product.rolled_out().values()
    product.kubectl("-n", NAMESPACE, "rollout", "status", f"deployment/{SCHEDULER}", "--timeout=120s")
    # The unit has changed; older pods keep their allocation, in a GPU of 120 units.
    product.offers(node, gpu_mem=120)
    # The agent describes the node concurrently with what the kubelet reports.
    wait_for("its table has the new unit", lambda: product.row(node)[2].endswith("/120"), timeout=30)
    departure.pages.say([one for one in SENTENCES if one.text != REMOVAL], (("POD", agent),))

    for kind, name, namespace in OF_READERS:
        product.kubectl("delete", kind, name, *(["-n", namespace] if namespace else []))
    if departure.serves_claims:
        serve_claims(departure)
    departure.pages.type("remove")
    # The cleanup runs until kubelets have dropped what agents offered.
    departure.pages.say([one for one in SENTENCES if one.text == REMOVAL], ())
    (same,) = product.running("app=mine")
    assert same["metadata"]["uid"] == mine["metadata"]["uid"]
    assert same["status"]["containerStatuses"][0]["restartCount"] == 0
    product.delete_all()


def serve_claims(departure: Departure) -> None:
    """Leave the node in mode ``dra``, with a claim that ended; every kind of trace that this leaves is one
    that is checked.
    """
    product, node = departure.product, departure.node
    product.label(node, "dra")
    product.apply(claim("share", "1Gi", 0), pod("claims", "share"))
    product.running("app=claims")
    uid = departure.cluster.get(f"{CLAIMS}/share")["metadata"]["uid"]
    serving = (
        f"object DeviceClass//{names.DRA_DRIVER}",
        f"object ResourceSlice//{node}-{names.DRA_DRIVER}",
        f"files of {node}: /var/lib/kubelet/plugins_registry/{names.DRA_DRIVER}",
    )
    file = f"files of {node}: /var/run/cdi/gpushare.dev-claim-{uid}.json"
    found = traces(departure)
    assert not [one for one in (*serving, file) if not any(trace.startswith(one) for trace in found)], found
    product.kubectl("delete", "pod", "claims", "--grace-period=1")
    product.kubectl("delete", "resourceclaim", "share")
    wait_for("its CDI file is gone", lambda: file not in traces(departure), timeout=60, every=0.5)
    found = traces(departure)
    assert not [one for one in serving if not any(trace.startswith(one) for trace in found)], found


def traces(departure: Departure) -> list[str]:
    return Traces.of(departure.cluster).beside(departure.before)


def definition(plural: str, kind: str) -> Json:
    """A definition that accepts anything."""
    group = "monitoring.coreos.com"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    kind_names = {"plural": plural, "singular": kind.lower(), "kind": kind}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": kind_names, "versions": [version]},
    }
