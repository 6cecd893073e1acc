"""Both charts on a real API server: installed, upgraded, rolled back, removed without a trace."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.api import names
from gpushare.kube.auth.access import load_access
from tests.e2e.asking import Api, Commands, prefix
from tests.e2e.charts.accounts import kubeconfig_of
from tests.e2e.charts.rendering import CHARTS, INSTALLER, SCHEDULER, arguments
from tests.e2e.cluster.waiting import NotReached, wait_for
from tests.patience import SLOWNESS

NAMESPACE = "gpu"
DAEMON_SET = ("daemonset", names.DAEMON_SET_NAME)
#: Objects that appear and disappear by themselves.
PASSING = ("Event", "EndpointSlice", "Endpoints")
#: An uninstall keeps them, with everybody's policies and quotas.
KEPT = {
    "CustomResourceDefinition//resourcepolicies.scheduling.alibabacloud.com",
    "CustomResourceDefinition//elasticquotatrees.scheduling.sigs.k8s.io",
    # Objects that Kubernetes creates from these.
    "APIService//v1alpha1.scheduling.alibabacloud.com",
    "APIService//v1beta1.scheduling.sigs.k8s.io",
}
#: Nodes without a kubelet; the first two were described by our agents, the last by another program.
NODES = {
    "shared": ({names.LABEL_MODE: "core_mem", names.LABEL_DESCRIBED: "true"}, {names.GPU_MEM: "60", names.GPU_CORE: "400", names.GPU_COUNT: "4"}),
    "unlabelled": ({names.LABEL_DESCRIBED: "true"}, {names.GPU_MEM: "15", names.GPU_COUNT: "1"}),
    "shared-once": ({}, {names.GPU_MEM: "0"}),
    "another-plugins": ({}, {names.GPU_MEM: "15", names.GPU_COUNT: "1"}),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def nodes(commands: Commands) -> None:
    commands.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for name, (labels, resources) in NODES.items():
        annotations = {names.ANN_DEVICES: "{}"} if names.LABEL_DESCRIBED in labels else {}
        metadata = {"name": name, "labels": labels, "annotations": annotations}
        # Not applied: kubectl would leave an annotation of its own.
        node = yaml.safe_dump({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        commands.typed("kubectl", "create", "-f", "-", stdin=node)
        capacity = {"cpu": "8", "memory": "32Gi", "pods": "110", **resources}
        patch = yaml.safe_dump({"status": {"capacity": capacity, "allocatable": capacity}})
        commands.typed(
            "kubectl", "patch", "node", name, "--subresource", "status", "--type", "merge", "-p", patch
        )


@pytest.fixture
def clean(commands: Commands) -> Iterator[Commands]:
    """No release before the test and none after it."""
    yield commands
    for chart in (INSTALLER, SCHEDULER):
        commands.run("helm", "uninstall", chart, "-n", NAMESPACE, "--no-hooks")


def install(commands: Commands, chart: str, *values: str, verb: str = "install") -> str:
    argv = ["helm", verb, chart, str(CHARTS / chart), "-n", NAMESPACE]
    for value in values:
        argv += ["--set", value]
    return commands.typed(*argv)


def objects(commands: Commands) -> set[str]:
    """Every object of the cluster as ``Kind/NAMESPACE/NAME``, but those that come and go by themselves, and what is kept."""
    with Api(load_access(str(commands.kubeconfig))) as api:
        groups = [one["preferredVersion"]["groupVersion"] for one in api.get("/apis")["groups"]]
        found = set()
        for version in ("v1", *groups):
            for kind in served(api, prefix(version))["resources"]:
                if "list" not in kind["verbs"] or kind["kind"] in PASSING:
                    continue
                listed = served(api, f"{prefix(version)}/{kind['name']}")["items"] or ()
                metadata = [one["metadata"] for one in listed]
                found |= {f"{kind['kind']}/{one.get('namespace', '')}/{one['name']}" for one in metadata}
        return found - KEPT


def served(api: Api, path: str) -> Any:
    """The object at ``path``, which may be of a kind that was defined a moment ago: its group is listed
    before it is served.
    """

    def look() -> Any:
        answer = api.ask("GET", path)
        return answer.taken and answer.body

    return wait_for(f"{path} is served", look)


def collected(found: set[str]) -> set[str]:
    """Those of ``found`` that Kubernetes garbage-collects some time after their owners are gone."""
    kinds = ("Pod", "ReplicaSet", "ControllerRevision", "EndpointSlice")
    return {one for one in found if one.startswith(tuple(f"{kind}/{NAMESPACE}/" for kind in kinds))}


def argument(commands: Commands, option: str) -> str:
    """The value of an option in the arguments of the agent's container."""
    found: dict[str, Any] = commands.json("get", *DAEMON_SET, "-n", NAMESPACE)
    args = found["spec"]["template"]["spec"]["containers"][0]["args"]
    return next(str(one).partition("=")[2] for one in args if one.startswith(f"{option}="))


@pytest.mark.parametrize(
    ("chart", "values"),
    [
        (INSTALLER, ()),
        (INSTALLER, ("admission.mode=webhook",)),
        (
            INSTALLER,
            ("nodeAgent.privileged=false", "nodeAgent.maxSurge=3", "priorityClassQuota.enabled=true"),
        ),
        (SCHEDULER, ()),
        (SCHEDULER, ("replicas=1", "affinity.podAntiAffinity=null", "kubeScheduler.extraEnv[0].name=A")),
    ],
)
def test_an_api_server_accepts_every_object_and_knows_every_field(
    commands: Commands, chart: str, values: tuple[str, ...], k8s: str
) -> None:
    argv = arguments(
        chart, commands.json("version")["serverVersion"]["gitVersion"], *values, namespace=NAMESPACE
    )
    has = commands.typed("kubectl", "api-resources", "--api-group", "admissionregistration.k8s.io")
    for kind in ("ValidatingAdmissionPolicy", "MutatingAdmissionPolicy"):
        if f" {kind} " in has.replace("\n", " \n") and "admissionregistration.k8s.io/v1 " in has:
            argv += ["--api-versions", f"admissionregistration.k8s.io/v1/{kind}"]
    manifest = commands.typed(*argv)
    # Strict: an unknown or doubled field is an error.
    output = commands.typed(
        "kubectl", "create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=manifest
    )
    assert output.count("(server dry run)") == sum(1 for doc in yaml.safe_load_all(manifest) if doc)
    assert "Warning" not in output


def test_upgrades_and_rollbacks_change_only_what_was_requested(clean: Commands) -> None:
    notes = install(clean, INSTALLER, "gpuMemoryUnit=128MiB")
    assert "one unit of aliyun.com/gpu-mem is 128 MiB" in notes
    assert "kubectl label node NODE ack.node.gpu.schedule=share" in notes
    assert "kubectl inspect cgpu" in notes
    assert "--set priorityClassQuota.enabled=true" in notes
    install(clean, SCHEDULER)
    before = objects(clean)
    uid = clean.json("get", *DAEMON_SET, "-n", NAMESPACE)["metadata"]["uid"]
    assert argument(clean, "--unit") == "128MiB"

    install(clean, INSTALLER, "gpuMemoryUnit=1GiB", "networkPolicy.enabled=false", verb="upgrade")
    assert argument(clean, "--unit") == "1GiB"
    assert "NetworkPolicy/gpu/gpushare-device-plugin" in before - objects(clean)
    clean.typed("helm", "rollback", INSTALLER, "1", "-n", NAMESPACE)
    assert argument(clean, "--unit") == "128MiB"
    # helm keeps each revision; the rest is what controllers create.
    made = ("Secret/gpu/sh.helm.release", "ControllerRevision/", "ReplicaSet/", "Pod/")
    assert not [one for one in before ^ objects(clean) if not one.startswith(made)]
    assert clean.json("get", *DAEMON_SET, "-n", NAMESPACE)["metadata"]["uid"] == uid

    # From the cluster's own mechanism to the webhook and back: nothing of either is left.
    install(clean, INSTALLER, "admission.mode=webhook", verb="upgrade")
    policies = ("ValidatingAdmissionPolicy/", "MutatingAdmissionPolicy/")
    left = {one for one in objects(clean) if one.startswith(policies)}
    # The other chart's own, and those for ResourceClaims, where the cluster has the one or the other.
    stay = {
        f"ValidatingAdmissionPolicy//gpushare-{name}"
        for name in ("scheduler-pods", "claims", "claims-templates")
    }
    assert left == before & stay
    assert "Secret/gpu/gpushare-admission" in objects(clean)
    install(clean, INSTALLER, "admission.mode=webhook", "gpuMemoryUnit=1GiB", verb="upgrade")
    # Guards have a switch of their own: where the cluster has no policies, the webhook stays for them.
    install(clean, INSTALLER, "admission.enabled=false", "admission.guards=false", verb="upgrade")
    assert not [
        one
        for one in objects(clean)
        if "gpushare-admission" in one and not one.startswith(("ReplicaSet/", "Pod/"))
    ]


def test_the_webhooks_changes_to_its_objects_survive_an_upgrade(clean: Commands) -> None:
    install(clean, INSTALLER, "admission.mode=webhook")
    resource = "validatingwebhookconfiguration/gpushare-admission"
    bundle = "LS0t"
    patch = f'[{{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": "{bundle}"}}]'
    clean.typed("kubectl", "patch", resource, "--type", "json", "-p", patch)
    secret = ("secret", "gpushare-admission", "-n", NAMESPACE)
    clean.typed("kubectl", "patch", *secret, "--type", "merge", "-p", '{"data": {"current.ca.crt": "eA=="}}')
    install(clean, INSTALLER, "admission.mode=webhook", "gpuMemoryUnit=128MiB", verb="upgrade")
    assert clean.json("get", resource)["webhooks"][0]["clientConfig"]["caBundle"] == bundle
    assert clean.json("get", *secret)["data"] == {"current.ca.crt": "eA=="}


def test_a_second_installation_elsewhere_is_refused_with_the_reason(clean: Commands) -> None:
    install(clean, INSTALLER)
    done = clean.run("helm", "install", "other", str(CHARTS / INSTALLER), "-n", "default")
    assert done.returncode != 0
    assert "gpushare-device-plugin" in done.stdout
    assert 'must equal "other"' in done.stdout
    clean.run("helm", "uninstall", "other", "-n", "default", "--no-hooks")


def test_an_uninstall_keeps_only_what_users_made(clean: Commands, tmp_path: Path) -> None:
    wait_for("what the tests before left is collected", lambda: not collected(objects(clean)), timeout=120)
    before = objects(clean)
    install(clean, INSTALLER)
    install(clean, SCHEDULER)
    clean.typed("helm", "uninstall", SCHEDULER, "-n", NAMESPACE)
    clean.typed("helm", "uninstall", INSTALLER, "-n", NAMESPACE)
    assert "Deployment/gpu/gpushare-uninstall" in objects(clean)
    # No kubelet runs its pod, so the test runs it, by its account.
    kubeconfig = kubeconfig_of(clean, "gpushare-uninstall", NAMESPACE, tmp_path / "kubeconfig")
    found: dict[str, Any] = clean.json("get", "deployment", "gpushare-uninstall", "-n", NAMESPACE)
    arguments = found["spec"]["template"]["spec"]["containers"][0]["args"]
    argv = [sys.executable, "-m", "gpushare", *arguments, "--kubeconfig", str(kubeconfig)]
    argv += ["--device-plugin-ttl", "0", "--settle-time", "0.3"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        try:
            with contextlib.suppress(NotReached):
                wait_for("nothing is left", lambda: objects(clean) == before, timeout=120, every=0.5)
            assert sorted(objects(clean) ^ before) == []
        finally:
            process.terminate()
            output = process.communicate(timeout=30 * SLOWNESS)[1]
    assert process.returncode == 0, output
    assert "2 nodes were described by agents" in output
    assert "nothing is left on the nodes" in output
    for name, (labels, resources) in NODES.items():
        node = clean.json("get", "node", name)
        assert names.ANN_DEVICES not in node["metadata"].get("annotations", {})
        own = {key: value for key, value in node["metadata"].get("labels", {}).items() if key in labels}
        assert own == {key: value for key, value in labels.items() if key != names.LABEL_DESCRIBED}
        ours = {
            key: value for key, value in node["status"]["capacity"].items() if key.startswith("aliyun.com/")
        }
        assert ours == (resources if name == "another-plugins" else {})
        assert node["status"]["allocatable"] == node["status"]["capacity"]


@pytest.mark.parametrize("first", [NAMESPACE, "default"])
def test_a_new_installation_right_after_an_uninstall_is_not_cleaned_up(
    clean: Commands, tmp_path: Path, first: str
) -> None:
    clean.typed("helm", "install", INSTALLER, str(CHARTS / INSTALLER), "-n", first)
    clean.typed("helm", "uninstall", INSTALLER, "-n", first)
    kubeconfig = kubeconfig_of(clean, "gpushare-uninstall", first, tmp_path / "kubeconfig")
    install(clean, INSTALLER)
    argv = [sys.executable, "-m", "gpushare", "uninstall", "--kubeconfig", str(kubeconfig)]
    argv += ["--namespace", first, "--self", "gpushare-uninstall"]
    left = "ClusterRole//gpushare-uninstall"
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for("it ended itself", lambda: left not in objects(clean), timeout=120, every=0.5)
        finally:
            process.terminate()
            output = process.communicate(timeout=30 * SLOWNESS)[1]
    assert f"the agents' DaemonSet is in namespace {NAMESPACE}" in output
    assert "node agents have been reinstalled" in output
    assert "were described by agents" not in output
    assert f"DaemonSet/{NAMESPACE}/{names.DAEMON_SET_NAME}" in objects(clean)
    wait_for(
        "nothing of it is left",
        lambda: (
            not [one for one in objects(clean) if one.startswith(f"Deployment/{first}/gpushare-uninstall")]
        ),
        timeout=120,
        every=0.5,
    )
