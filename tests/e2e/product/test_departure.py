"""What the pages and the README say of a real cluster, typed as it stands on one of its own; which is then left again.

Its kubelet names what the agent offered for five minutes after the agent's end, so the last look at it is taken
when the other tests are through (``test_removal.py``).
"""

from collections.abc import Iterator

import pytest

from tests.docs.sentences import sentences_typed_by
from tests.e2e.product.conftest import Departure
from tests.e2e.product.product import NAMESPACE, SCHEDULER, Json, gpu_pod

#: What pages make beside the charts, and a reader would keep.
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


def test_what_pages_say_of_a_cluster_works_and_helm_uninstall_keeps_pods(operator: Departure) -> None:
    departure, product, node = operator, operator.product, operator.node
    departure.pages.type("install")
    product.offers(node, gpu_mem=15)
    product.running("app=tensorflow-mnist-share")
    assert product.row(node)[2] == "4/15"
    product.apply(gpu_pod("mine", 2, labels={"app": "mine"}))
    (pod,) = product.running("app=mine")

    departure.pages.type("installed")
    (agent,) = product.rolled_out().values()
    product.kubectl("-n", NAMESPACE, "rollout", "status", f"deployment/{SCHEDULER}", "--timeout=120s")
    # The unit is another now; who was there holds what it held, in a GPU of 120 units.
    product.offers(node, gpu_mem=120)
    assert product.row(node)[2].endswith("/120")
    departure.pages.say([one for one in SENTENCES if one.text != REMOVAL], (("POD", agent),))

    for kind, name, namespace in OF_READERS:
        product.kubectl("delete", kind, name, *(["-n", namespace] if namespace else []))
    departure.pages.type("remove")
    # What removes the rest lives until kubelets have forgotten what agents offered.
    departure.pages.say([one for one in SENTENCES if one.text == REMOVAL], ())
    (same,) = product.running("app=mine")
    assert same["metadata"]["uid"] == pod["metadata"]["uid"]
    assert same["status"]["containerStatuses"][0]["restartCount"] == 0
    product.delete_all()


def definition(plural: str, kind: str) -> Json:
    """A definition that takes anything."""
    group = "monitoring.coreos.com"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": plural, "singular": kind.lower(), "kind": kind}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }
