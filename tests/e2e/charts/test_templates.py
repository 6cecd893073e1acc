"""The charts as helm renders them: compared with ``golden/``, and clear messages where it refuses.

``GPUSHARE_WRITE_GOLDEN=1`` rewrites the files. Of admission, which other tests exercise, they keep the
names; for the version they have VERSION, so that a release does not change them.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare import __version__
from gpushare.admission.accept import hami, kai
from gpushare.admission.accept.translation import PRODUCTS
from tests.e2e.asking import Commands
from tests.e2e.charts.rendering import (
    CHARTS,
    INSTALLER,
    NAMESPACE,
    SCHEDULER,
    arguments,
    found,
    notes,
    rendered,
)

GOLDEN = Path(__file__).parent / "golden"
ADMISSION = ("AdmissionPolicy", "AdmissionPolicyBinding", "WebhookConfiguration")
CASES = {
    "installer-1.36": (INSTALLER, "1.36.3", ()),
    "installer-1.30": (INSTALLER, "1.30.14", ("gpuMemoryUnit=128MiB",)),
    "installer-1.28": (INSTALLER, "1.28.15", ()),
    "installer-other-values": (
        INSTALLER,
        "1.36.3",
        (
            "image.digest=sha256:" + "0" * 64,
            "imagePullSecrets[0].name=mine",
            "nodeAgent.driverRoot=/run/nvidia/driver",
            "nodeAgent.containerRuntime=nvidia",
            "nodeAgent.runtimeClassName=nvidia",
            "nodeAgent.privileged=false",
            "nodeAgent.maxSurge=1",
            "nodeAgent.isolation.backend=preload",
            "nodeAgent.isolation.corePolicy=idle",
            "nodeAgent.watchdog.policy=off",
            "nodeAgent.nodeSelector.pool=gpu",
            "nodeAgent.kubeletRootDir=/var/lib/k0s/kubelet",
            "nodeAgent.podLabels.team=x",
            "nodeAgent.podAnnotations.note=y",
            "nodeAgent.extraEnv[0].name=HTTPS_PROXY",
            "nodeAgent.extraEnv[0].value=http://proxy:3128",
            "admission.enabled=false",
            "networkPolicy.enabled=false",
            "priorityClassQuota.enabled=true",
            "uninstall.cleanup=false",
            "monitoring.podMonitor.enabled=true",
            "monitoring.podMonitor.labels.release=mine",
            "monitoring.rules.enabled=true",
            "monitoring.rules.kind=ConfigMap",
            "monitoring.dashboard.enabled=true",
            "monitoring.dashboard.namespace=grafana",
        ),
    ),
    "scheduler-1.36": (SCHEDULER, "1.36.3", ()),
    "scheduler-1.28-of-a-provider": (SCHEDULER, "v1.28.15-gke.1200", ()),
    "scheduler-dashboard": (
        SCHEDULER,
        "1.36.3",
        ("dashboard.enabled=true", "dashboard.tokenSecret=page", "dashboard.agentNamespace=agents"),
    ),
    "scheduler-other-values": (
        SCHEDULER,
        "1.36.3",
        (
            "replicas=1",
            "gpuMemoryUnit=128MiB",
            "image.tag=x",
            "kubeScheduler.image.tag=v1.30.4",
            "extender.plugins.prefer-label.label=disk",
            "extender.plugins.prefer-label.weight=2",
            "kubeScheduler.extraArgs[0]=--feature-gates=A=true",
            "kubeScheduler.percentageOfNodesToScore=0",
            "extender.nodePolicy=spread",
            "extender.port=19451",
            "extender.ignoredByScheduler=false",
            "defragmentation.enabled=true",
            "autoscaling.removeStartupTaint=true",
            "autoscaling.placeholderPods.enabled=true",
            "affinity.nodeAffinity=null",
            "podDisruptionBudget.enabled=false",
            "networkPolicy.enabled=false",
            "monitoring.annotations=false",
            "monitoring.podMonitor.enabled=true",
            "monitoring.podMonitor.interval=15s",
            "monitoring.rules.enabled=true",
            "monitoring.rules.labels.release=mine",
        ),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_charts_pass_lint(helm: Commands, case: str) -> None:
    chart, version, values = CASES[case]
    argv = ["helm", "lint", "--strict", str(CHARTS / chart), "-n", NAMESPACE, "--kube-version", version]
    for value in values:
        argv += ["--set", value]
    assert "0 chart(s) failed" in helm.typed(*argv)


@pytest.mark.parametrize("case", CASES)
def test_charts_render_as_recorded(helm: Commands, case: str) -> None:
    chart, version, values = CASES[case]
    docs = rendered(helm, chart, version, *values)
    documents = [
        {"kind": doc["kind"], "name": doc["metadata"]["name"]} if doc["kind"].endswith(ADMISSION) else doc
        for doc in docs
    ]
    text = yaml.safe_dump_all(documents, sort_keys=True, width=120).replace(__version__, "VERSION")
    path = GOLDEN / f"{case}.yaml"
    if os.environ.get("GPUSHARE_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), f"{path.name}: if that is meant, GPUSHARE_WRITE_GOLDEN=1 writes it again"


def test_every_golden_file_belongs_to_a_case() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(CASES)


REFUSED = [
    (
        INSTALLER,
        "gpuMemoryUnit=2GiB",
        "'/gpuMemoryUnit': value must be one of '1GiB', '128MiB', 'GiB', 'MiB'",
    ),
    (INSTALLER, "gpumemoryunit=1GiB", "additional properties 'gpumemoryunit' not allowed"),
    (INSTALLER, "gpumemoryunit=1GiB", "value must be one of 'gpuMemoryUnit', 'image', 'imagePullSecrets'"),
    (INSTALLER, "image.tagg=1", "value must be one of 'repository', 'tag', 'digest', 'pullPolicy'"),
    (INSTALLER, "image.digest=sha256:1", "write sha256: and 64 hexadecimal digits, or leave it empty"),
    (INSTALLER, "nodeAgent.maxSurge=0", "nodeAgent.maxSurge: 0: write how many nodes are updated at once"),
    (INSTALLER, "nodeAgent.maxSurge=x%", "nodeAgent.maxSurge: x%: write how many nodes"),
    (INSTALLER, "nodeAgent.port=80", "'/nodeAgent/port': minimum: got 80, want 1,024"),
    (INSTALLER, "nodeAgent.driverRoot=usr", "nodeAgent.driverRoot: usr: write an absolute path of the node"),
    (INSTALLER, "nodeAgent.kubeletRootDir=var", "nodeAgent.kubeletRootDir: var: write an absolute path"),
    (INSTALLER, "nodeAgent.cdiDirs={cdi}", "nodeAgent.cdiDirs: cdi: write an absolute path of the node"),
    (
        INSTALLER,
        "nodeAgent.isolation.backend=cgpu",
        "value must be one of 'none', 'auto', 'preload', 'mps', 'driver'",
    ),
    (
        INSTALLER,
        "nodeAgent.isolation.backend=driver,nodeAgent.watchdog.policy=off",
        "it needs the watchdog; set nodeAgent.watchdog.policy to report or kill",
    ),
    (
        INSTALLER,
        "nodeAgent.isolation.backend=driver,nodeAgent.privileged=false",
        "the driver accepts limits only from privileged processes; keep nodeAgent.privileged=true",
    ),
    (
        INSTALLER,
        "nodeAgent.isolation.directory=/x",
        "nodeAgent.isolation.directory: /x: write an absolute path",
    ),
    (INSTALLER, "nodeAgent.watchdog.policy=end", "value must be one of 'off', 'report', 'kill'"),
    (INSTALLER, "nodeAgent.containerRuntime=docker", "value must be one of 'auto', 'nvidia', 'cdi'"),
    (
        INSTALLER,
        "monitoring.rules.runbookUrl=docs",
        "'/monitoring/rules/runbookUrl': 'docs' does not match pattern",
    ),
    (INSTALLER, "admission.mode=none", "value must be one of 'auto', 'policy', 'webhook'"),
    (INSTALLER, "admission.accept={runai}", "'/admission/accept/0': value must be one of 'hami', 'kai'"),
    (
        INSTALLER,
        "admission.accept={kai},admission.mode=policy",
        "admission.mode=policy disables; use auto or webhook",
    ),
    (
        INSTALLER,
        "admission.requireMatchingGPU=true,admission.mode=policy",
        "admission.requireMatchingGPU requires the webhook, which admission.mode=policy disables",
    ),
    (
        INSTALLER,
        "admission.toClaims=true,admission.mode=policy",
        "admission.toClaims requires the webhook, which admission.mode=policy disables",
    ),
    (
        INSTALLER,
        "admission.toClaims=true,claims.defaultMemoryMiB=4096",
        "claims.defaultMemoryMiB: with admission.toClaims, requests for whole GPUs become claims without an amount",
    ),
    (INSTALLER, "claims.extendedResource=true", "a share has no size, and each pod would get a whole GPU"),
    (INSTALLER, "claims.defaultCompute=7", "'/claims/defaultCompute'"),
    (INSTALLER, "admission.trustedServiceAccounts={a b}", "write a user as the API server knows it"),
    (
        SCHEDULER,
        "gpuMemoryUnit=2GiB",
        "'/gpuMemoryUnit': value must be one of '1GiB', '128MiB', 'GiB', 'MiB'",
    ),
    (SCHEDULER, "replica=1", "value must be one of 'gpuMemoryUnit', 'replicas'"),
    (SCHEDULER, "replicas=0", "'/replicas': minimum: got 0, want 1"),
    (SCHEDULER, "leaderElection.leaseDurationSeconds=10", "or two schedulers could lead at once"),
    (SCHEDULER, "leaderElection.retryPeriodSeconds=9", "must be above 1.2 times retryPeriodSeconds (9)"),
    (SCHEDULER, "extender.healthPort=9451", "extender.healthPort: 9451 is extender.port as well"),
    (SCHEDULER, "extender.probesPort=9455", "extender.decisionsPort: 9455 is extender.probesPort as well"),
    (SCHEDULER, "dashboard.metricsPort=9453", "dashboard.metricsPort: 9453 is dashboard.port as well"),
    (INSTALLER, "nodeAgent.usagePort=9452", "nodeAgent.usagePort: 9452 is nodeAgent.port as well"),
    (SCHEDULER, "extender.decisionsPort=null", "use --reset-then-reuse-values instead"),
    (INSTALLER, "nodeAgent.usagePort=null", "use --reset-then-reuse-values instead"),
    (SCHEDULER, "extender.port=10259", "10259 is kube-scheduler's own port; use another"),
    (
        SCHEDULER,
        "dashboard.enabled=true",
        "dashboard.tokenSecret: name a Secret whose key token holds the access token",
    ),
    (SCHEDULER, "kubeScheduler.podInitialBackoffSeconds=11", "must not be below podInitialBackoffSeconds"),
    (
        SCHEDULER,
        "autoscaling.placeholderPods.enabled=true,autoscaling.placeholderPods.namespace=kube-system",
        "autoscaling.placeholderPods.namespace: kube-system is the release's own",
    ),
    (SCHEDULER, "kubeScheduler.image.digest=x", "kubeScheduler.image.digest: x: write sha256:"),
]


@pytest.mark.parametrize(("chart", "value", "says"), REFUSED)
def test_wrong_values_are_refused_with_advice(helm: Commands, chart: str, value: str, says: str) -> None:
    done = helm.run(*arguments(chart, "1.36.3", value))
    assert done.returncode != 0
    assert says in done.stdout


@pytest.mark.parametrize("chart", [INSTALLER, SCHEDULER])
def test_an_older_cluster_is_refused(helm: Commands, chart: str) -> None:
    done = helm.run(*arguments(chart, "1.27.16"))
    assert done.returncode != 0
    assert (
        "chart requires kubeVersion: >=1.28.0-0 which is incompatible with Kubernetes v1.27.16" in done.stdout
    )


def test_policies_that_the_cluster_lacks_cannot_be_required(helm: Commands) -> None:
    done = helm.run(*arguments(INSTALLER, "1.28.15", "admission.mode=policy"))
    assert done.returncode != 0
    assert "Kubernetes v1.28.15 has no ValidatingAdmissionPolicy v1 (it comes with 1.30)" in done.stdout


@pytest.mark.parametrize(
    ("version", "mode", "by"),
    [
        ("1.28.15", "auto", {"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}),
        ("1.30.14", "auto", {"MutatingWebhookConfiguration", "ValidatingAdmissionPolicy"}),
        ("1.36.3", "auto", {"MutatingAdmissionPolicy", "ValidatingAdmissionPolicy"}),
        # ResourceClaims are always checked by policies.
        (
            "1.36.3",
            "webhook",
            {"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "ValidatingAdmissionPolicy"},
        ),
        ("1.30.14", "policy", {"ValidatingAdmissionPolicy"}),
    ],
)
def test_the_webhook_fills_the_gaps_of_the_cluster(
    helm: Commands, version: str, mode: str, by: set[str]
) -> None:
    docs = rendered(helm, INSTALLER, version, f"admission.mode={mode}")
    kinds = {doc["kind"] for doc in docs if doc["kind"].endswith(("AdmissionPolicy", "WebhookConfiguration"))}
    assert kinds == by
    deployed = [doc["metadata"]["name"] for doc in docs if doc["kind"] == "Deployment"]
    needed = any(kind.endswith("WebhookConfiguration") for kind in by)
    assert ("gpushare-admission" in deployed) is needed


@pytest.mark.parametrize("version", ["1.28.15", "1.36.3"])
def test_the_webhook_is_called_only_for_requests_of_accepted_schedulers(helm: Commands, version: str) -> None:
    resource_names = {"hami": hami.SIZES, "kai": kai.FAMILIES}
    for accepted in ({"hami"}, {"kai"}, {"hami", "kai"}):
        docs = rendered(helm, INSTALLER, version, f"admission.accept={{{','.join(sorted(accepted))}}}")
        configuration = found(docs, "MutatingWebhookConfiguration", "gpushare-admission")
        webhooks = {one["name"]: one for one in configuration["webhooks"] if "accept" in one["name"]}
        assert configuration["webhooks"][0]["name"] == "accept.gpushare.dev", "before units and scheduler"
        assert {name: one["failurePolicy"] for name, one in webhooks.items()} == {
            "accept.gpushare.dev": "Fail",
            "accept-templates.gpushare.dev": "Ignore",
            "accept-cronjobs.gpushare.dev": "Ignore",
            "accept-podtemplates.gpushare.dev": "Ignore",
        }
        for one in webhooks.values():
            conditions = {condition["name"]: condition["expression"] for condition in one["matchConditions"]}
            for name, product in PRODUCTS.items():
                assert (f'"{product.scheduler}"' in conditions["is-for-us"]) == (name in accepted)
                for resource_name in resource_names[name]:
                    assert (f"'{resource_name}'" in conditions["asks-in-other-words"]) == (name in accepted)
        pod = found(docs, "Deployment", "gpushare-admission")["spec"]["template"]["spec"]
        assert {f"--accept={name}" for name in accepted} == {
            argument for argument in pod["containers"][0]["args"] if argument.startswith("--accept=")
        }


@pytest.mark.parametrize("version", ["1.28.15", "1.36.3"])
def test_the_webhook_may_list_nodes_only_where_a_gpu_has_to_match(helm: Commands, version: str) -> None:
    for value, required in (("admission.requireMatchingGPU=true", True), ("admission.accept={kai}", False)):
        docs = rendered(helm, INSTALLER, version, value)
        configuration = found(docs, "MutatingWebhookConfiguration", "gpushare-admission")
        accept = configuration["webhooks"][0]
        assert accept["name"] == "accept.gpushare.dev"
        asked = accept["matchConditions"][-1]["expression"]
        assert ("startsWith('gpushare.dev/gpu-')" in asked) is required
        rights = found(docs, "ClusterRole", "gpushare-admission")["rules"]
        listing = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}
        assert (listing in rights) is required
        pod = found(docs, "Deployment", "gpushare-admission")["spec"]["template"]["spec"]
        assert ("--require-matching-gpu" in pod["containers"][0]["args"]) is required


def test_the_webhook_may_create_claim_templates_only_where_requests_become_claims(
    helm: Commands,
) -> None:
    for value, to_claims in (("admission.toClaims=true", True), ("admission.accept={kai}", False)):
        docs = rendered(helm, INSTALLER, "1.36.3", value)
        configuration = found(docs, "MutatingWebhookConfiguration", "gpushare-admission")
        assert [(one["name"], one["sideEffects"]) for one in configuration["webhooks"]] == [
            ("accept.gpushare.dev", "NoneOnDryRun" if to_claims else "None"),
            ("accept-templates.gpushare.dev", "None"),
            ("accept-cronjobs.gpushare.dev", "None"),
            ("accept-podtemplates.gpushare.dev", "None"),
        ]
        rights = found(docs, "ClusterRole", "gpushare-admission")["rules"]
        claims = [rule for rule in rights if rule["apiGroups"] == ["resource.k8s.io"]]
        assert (
            claims
            == [
                {
                    "apiGroups": ["resource.k8s.io"],
                    "resources": ["resourceclaimtemplates"],
                    "verbs": ["get", "list", "create"],
                }
            ]
            * to_claims
        )
        pod = found(docs, "Deployment", "gpushare-admission")["spec"]["template"]["spec"]
        assert ("--to-claims" in pod["containers"][0]["args"]) is to_claims


def test_requests_become_claims_from_kubernetes_1_36_on(helm: Commands) -> None:
    done = helm.run(*arguments(INSTALLER, "1.30.14", "admission.toClaims=true"))
    assert done.returncode
    assert (
        "admission.toClaims: Kubernetes v1.30.14 does not share devices between claims (that comes with 1.36)"
        in done.stdout
    )


@pytest.mark.parametrize(
    ("version", "dcgm", "monitors"),
    [
        ("1.36.3", "true", {"gpushare-device-plugin": ["/metrics", "/metrics/dcgm"]}),
        ("1.36.3", "false", {"gpushare-device-plugin": ["/metrics"]}),
        (
            "1.28.15",
            "true",
            {"gpushare-device-plugin": ["/metrics", "/metrics/dcgm"], "gpushare-admission": ["/metrics"]},
        ),
    ],
)
def test_every_metrics_page_is_scraped_at_a_port_of_the_pod(
    helm: Commands, version: str, dcgm: str, monitors: dict[str, list[str]]
) -> None:
    values = ("monitoring.podMonitor.enabled=true", f"monitoring.podMonitor.dcgm={dcgm}")
    docs = rendered(helm, INSTALLER, version, *values)
    made = [doc for doc in docs if doc["kind"] == "PodMonitor"]
    paths = {
        doc["metadata"]["name"]: [one["path"] for one in doc["spec"]["podMetricsEndpoints"]] for doc in made
    }
    assert paths == monitors
    _finds_pods(made, docs)


@pytest.mark.parametrize("chart", [INSTALLER, SCHEDULER])
def test_alerts_link_to_their_section_only_if_the_page_is_configured(helm: Commands, chart: str) -> None:
    page = "https://docs.example.com/troubleshooting/alerts.html"
    bare = yaml.safe_load((CHARTS / chart / "files" / "alerts.yaml").read_text())
    for kind in ("PrometheusRule", "ConfigMap"):
        values = ("monitoring.rules.enabled=true", f"monitoring.rules.kind={kind}")
        assert _alerts(rendered(helm, chart, "1.36.3", *values)) == bare
        linked = _alerts(rendered(helm, chart, "1.36.3", *values, f"monitoring.rules.runbookUrl={page}"))
        rules = [rule for group in linked["groups"] for rule in group["rules"]]
        assert [rule["annotations"].pop("runbook_url") for rule in rules] == [
            f"{page}#{rule['alert'].lower()}" for rule in rules
        ]
        assert linked == bare


def _alerts(docs: list[dict[str, Any]]) -> dict[str, Any]:
    """Prometheus' view of the rules."""
    (made,) = (doc for doc in docs if doc["metadata"]["name"].endswith("-alerts"))
    if made["kind"] == "PrometheusRule":
        rules: dict[str, Any] = made["spec"]
        return rules
    (text,) = made["data"].values()
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def test_the_dashboards_metrics_are_scraped_where_it_is_enabled(helm: Commands) -> None:
    values = ("monitoring.podMonitor.enabled=true", "dashboard.enabled=true", "dashboard.tokenSecret=page")
    docs = rendered(helm, SCHEDULER, "1.36.3", *values)
    monitors = [found(docs, "PodMonitor", name) for name in ("ack-co-scheduler", "gpushare-dashboard")]
    ports = [[one["port"] for one in monitor["spec"]["podMetricsEndpoints"]] for monitor in monitors]
    assert ports == [["health"], ["health"]]
    _finds_pods(monitors, docs)


def _finds_pods(monitors: list[dict[str, Any]], docs: list[dict[str, Any]]) -> None:
    """Each selects the pods of one workload, none of which also has annotations for scraping."""
    workloads = [doc for doc in docs if doc["kind"] in ("Deployment", "DaemonSet")]
    for monitor in monitors:
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        (its,) = [
            one["spec"]["template"]
            for one in workloads
            if wanted <= one["spec"]["template"]["metadata"]["labels"].items()
        ]
        ports = {port["name"] for one in its["spec"]["containers"] for port in one.get("ports", ())}
        assert {one["port"] for one in monitor["spec"]["podMetricsEndpoints"]} <= ports
        assert "prometheus.io/scrape" not in its["metadata"].get("annotations", {})


@pytest.mark.parametrize("chart", [INSTALLER, SCHEDULER])
def test_schemas_describe_every_value(chart: str) -> None:
    schema = json.loads((CHARTS / chart / "values.schema.json").read_text())
    values = yaml.safe_load((CHARTS / chart / "values.yaml").read_text())
    assert set(schema["properties"]) == {*values, "global"}
    _same(schema, {**values, "global": {}}, "")


def _same(schema: dict[str, Any], value: Any, path: str) -> None:
    """Each property has a description and a default, and each closed object lists its names as advice."""
    assert schema.get("description"), path
    if "properties" not in schema:
        return
    names = list(schema["properties"])
    assert schema["additionalProperties"] is False, path
    assert schema["propertyNames"] == {"enum": names}, path
    for name, inner in schema["properties"].items():
        where = f"{path}.{name}"
        if where.endswith((".resources.claims",)):
            continue
        assert name in value, where
        _same(inner, value[name], where)


def test_pods_that_need_no_access_to_the_node_are_restricted(helm: Commands) -> None:
    for chart, name in (
        (SCHEDULER, SCHEDULER),
        (INSTALLER, "gpushare-admission"),
        (INSTALLER, "gpushare-uninstall"),
    ):
        pod = found(rendered(helm, chart, "1.28.15"), "Deployment", name)["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert not any("hostPath" in volume for volume in pod.get("volumes", ()))
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "runAsNonRoot": True,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            }


def test_a_changed_configuration_changes_the_scheduler_pod(helm: Commands) -> None:
    def checksum(*values: str) -> str:
        deployment = found(rendered(helm, SCHEDULER, "1.36.3", *values), "Deployment", SCHEDULER)
        annotations = deployment["spec"]["template"]["metadata"]["annotations"]
        return str(annotations["gpushare.dev/config-checksum"])

    assert checksum() == checksum("replicas=3")
    assert checksum() != checksum("extender.weight=7")


def test_another_namespace_is_used_everywhere(helm: Commands) -> None:
    for chart in (INSTALLER, SCHEDULER):
        docs = rendered(helm, chart, "1.28.15", namespace="gpu")
        elsewhere = {
            doc["metadata"]["name"] for doc in docs if doc["metadata"].get("namespace") not in (None, "gpu")
        }
        ours = {f"{SCHEDULER}:authentication-reader", f"{SCHEDULER}:elastic-quotas"}
        assert elsewhere == (ours if chart == SCHEDULER else set())
        subjects = [subject for doc in docs for subject in doc.get("subjects", ())]
        assert {subject["namespace"] for subject in subjects} == {"gpu"}
    config = found(rendered(helm, SCHEDULER, "1.36.3", namespace="gpu"), "ConfigMap", SCHEDULER)
    assert yaml.safe_load(config["data"]["config.yaml"])["leaderElection"]["resourceNamespace"] == "gpu"


def test_the_uninstaller_may_read_the_agents_daemonset_in_all_namespaces(
    helm: Commands,
) -> None:
    docs = rendered(helm, INSTALLER, "1.36.3", namespace="gpu")
    rules = found(docs, "ClusterRole", "gpushare-uninstall")["rules"]
    assert [rule for rule in rules if "daemonsets" in rule["resources"]] == [
        {
            "apiGroups": ["apps"],
            "resources": ["daemonsets"],
            "resourceNames": ["gpushare-device-plugin-ds"],
            "verbs": ["list"],
        }
    ]
    found(docs, "DaemonSet", "gpushare-device-plugin-ds")


@pytest.mark.parametrize("namespace", ["default", "gpu"])
def test_notes_warn_that_pods_in_the_release_namespace_are_not_validated(
    helm: Commands, namespace: str
) -> None:
    warning = f"pods in {namespace} are not validated"
    assert warning in notes(helm, INSTALLER, namespace=namespace)
    assert "are not validated" not in notes(helm, INSTALLER)
    # Where nothing is checked anywhere, the namespace makes no difference.
    assert warning not in notes(helm, INSTALLER, "admission.enabled=false", namespace=namespace)


@pytest.mark.parametrize(("unit", "amount"), [("1GiB", 3), ("GiB", 3), ("128MiB", 24), ("MiB", 24)])
def test_notes_suggest_an_amount_that_is_valid_in_the_unit(helm: Commands, unit: str, amount: int) -> None:
    assert f"aliyun.com/gpu-mem: {amount} (3 GiB)," in notes(helm, INSTALLER, f"gpuMemoryUnit={unit}")


SCHEDULERS = [
    ("kube-system", (), "kube-system"),
    ("default", ("admission.enabled=false",), "kube-system"),
    ("default", ("admission.schedulerNamespace=kube-system",), "kube-system"),
    ("default", (), "default"),
    ("kube-system", ("admission.schedulerNamespace=gpu",), "gpu"),
]


@pytest.mark.parametrize(("namespace", "values", "scheduler"), SCHEDULERS)
def test_notes_recommend_a_scheduler_namespace_that_admission_accepts(
    helm: Commands, namespace: str, values: tuple[str, ...], scheduler: str
) -> None:
    printed = notes(helm, INSTALLER, *values, namespace=namespace)
    assert f"helm install ack-co-scheduler charts/ack-co-scheduler -n {scheduler}\n" in printed
    # The deciding value is named, as it may be set elsewhere.
    assert ("--set admission.schedulerNamespace=" in printed) is (scheduler != "kube-system")


@pytest.mark.parametrize(
    ("namespace", "values", "ends"),
    [
        ("kube-system", (), "-n kube-system"),
        ("gpu", (), "-n gpu"),
        ("default", (), "-n kube-system --set admission.schedulerNamespace=default"),
        ("gpu", ("dashboard.agentNamespace=agents",), "-n agents --set admission.schedulerNamespace=gpu"),
    ],
)
def test_notes_recommend_an_agent_namespace_that_matches_the_scheduler(
    helm: Commands, namespace: str, values: tuple[str, ...], ends: str
) -> None:
    printed = notes(helm, SCHEDULER, *values, namespace=namespace)
    assert f"helm install ack-ai-installer charts/ack-ai-installer {ends}\n" in printed


def test_notes_require_the_schedulers_name_only_without_admission(helm: Commands) -> None:
    assert "if admission is disabled, set it yourself" in notes(helm, SCHEDULER)


def test_notes_point_to_an_enabled_dashboard(helm: Commands) -> None:
    printed = notes(helm, SCHEDULER, "dashboard.enabled=true", "dashboard.tokenSecret=page", namespace="gpu")
    assert "kubectl -n gpu port-forward service/gpushare-dashboard 9453:80" in printed
    assert "kubectl -n gpu get secret page" in printed
    assert "dashboard" not in notes(helm, SCHEDULER)
