"""The webhook as its process, called by a real API server through the configurations of the chart.

The chart is rendered as for a Kubernetes without policies; only the webhook's address is changed, to an IP,
since there is no pod network here. The process has only the permissions of its account.
"""

import base64
import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from gpushare.api import names
from gpushare.kube.auth.access import load_access
from tests.admission_cases import PODS, WORKLOADS, pod, workload
from tests.admission_scheduler import DEBUGS, IMAGE, OF_THE_SCHEDULER
from tests.admission_users import SCHEDULER, User
from tests.admission_words import PodCase, carried_words, counted
from tests.admission_writes import WRITES, Write, binding, changed_words
from tests.e2e.asking import Answer, Api
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.plane import (
    OPTED_OUT,
    OPTED_OUT_NAMESPACE,
    administrators,
    control_plane,
    create_objects,
    wait_for_accounts,
)
from tests.e2e.policies import serves_claims
from tests.e2e.product.product import Product
from tests.e2e.startup_taint import assert_that_the_startup_taint_alone_goes
from tests.e2e.webhook import NAME, NAMESPACE, Webhook, by_address, own_pods, rendered, rights
from tests.patience import SLOWNESS

KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
ROOT = "/apis/admissionregistration.k8s.io/v1"
CASES = {case.id: case for case in PODS}
USER = f"system:serviceaccount:{NAMESPACE}:{NAME}"
GROUPS = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated")
RECORD_POD = ("pods", "bound-n1")


@pytest.fixture(scope="module")
def product(binaries: Path, states: Path) -> Iterator[Product]:
    """A control plane without nodes, and kubectl and helm for it."""
    with control_plane(binaries, states / "webhook") as kubeconfig:
        yield Product(kubeconfig, binaries)


@pytest.fixture(scope="module")
def administrator(product: Product) -> Iterator[Api]:
    """All permissions for everybody, except for the webhook's account."""
    with Api(load_access(str(product.kubeconfig))) as api:
        users = sorted({write.user.name for write in WRITES} | {"kubernetes-admin", "system:kube-scheduler"})
        product.apply(administrators("writers-of-the-table", "User", *users), OPTED_OUT_NAMESPACE)
        wait_for_accounts(api, "default", OPTED_OUT, NAMESPACE)
        create_objects(api)
        yield api


@pytest.fixture(scope="module")
def webhook(
    product: Product, administrator: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Webhook]:
    """A process that API servers trust, with the permissions of its account."""
    folder = tmp_path_factory.mktemp("webhook")
    docs = rendered(product)
    product.apply(*rights(docs))
    kubeconfig = folder / "kubeconfig"
    document = yaml.safe_load(product.kubeconfig.read_text())
    document["users"][0]["user"] |= {"as": USER, "as-groups": list(GROUPS)}
    kubeconfig.write_text(yaml.safe_dump(document))
    made = Webhook(folder, kubeconfig)
    made.start("--period", "0.5")
    try:
        product.apply(*(by_address(doc, made.ports[0]) for doc in docs if "webhooks" in doc))
        wait_for("the API server trusts the webhook", made.ready)
        wait_for("it is asked", lambda: refused(administrator))
        yield made
    finally:
        made.stop()


@pytest.fixture
def api(administrator: Api, webhook: Webhook) -> Api:
    return administrator


def refused(api: Api) -> bool:
    def answers(case: PodCase) -> list[Answer]:
        carrying = [workload(kind, case, "probe") for kind in ("Deployment", "CronJob", "PodTemplate")]
        return [api.create(one, dry=True) for one in (pod(case, "probe"), *carrying)]

    (pointed, *_) = answers(CASES["memory"])
    return (
        all("multiple of 5" in answer.message for answer in answers(CASES["compute-7"]))
        and all(answer.warnings for answer in answers(CASES["mistakes-of-all-kinds"]))
        and pointed.taken
        and bool(pointed.body["spec"]["schedulerName"] == names.SCHEDULER_NAME)
    )


def configurations(api: Api) -> list[dict[str, Any]]:
    return [api.get(f"{ROOT}/{kind}/{NAME}") for kind in KINDS]


def bundles(api: Api) -> set[bytes]:
    return {
        base64.b64decode(webhook["clientConfig"].get("caBundle", ""))
        for one in configurations(api)
        for webhook in one["webhooks"]
    }


# --- what is refused, word for word -------------------------------------------------------------------


#: About claims for a part of a device.
OF_CLAIMS = {
    "claims-mount-elsewhere",
    "claims-mount-over-isolation",
    "extended-resources-mount-over-isolation",
}


def too_new(api: Api, case: PodCase, answer: Answer) -> bool:
    """Whether the API server is older than what the case is about."""
    if case.id in OF_CLAIMS:
        return not serves_claims(api)
    if case.id != "for-the-whole-pod" or not answer.taken:
        return False
    assert any(
        "unknown field" in warning and warning.endswith('spec.resources"') for warning in answer.warnings
    )
    return True


@pytest.mark.parametrize("case", PODS, ids=lambda case: case.id)
def test_pods(api: Api, case: PodCase) -> None:
    answer = api.create(pod(case, "case", OPTED_OUT if case.namespace_labels else "default"), dry=True)
    if too_new(api, case, answer):
        return
    if case.refused:
        assert not answer.taken
        assert case.says in answer.message
        if case.by == "gpushare":
            assert (
                answer.message == f'admission webhook "requests.gpushare.dev" denied the request: {case.says}'
            )
        return
    assert answer.taken, answer.message
    assert answer.body["spec"]["schedulerName"] == case.scheduler
    assert not counted(case, answer.body)
    assert answer.warnings == case.warns


@pytest.mark.parametrize("kind", WORKLOADS)
def test_templates(api: Api, kind: str) -> None:
    for case in PODS:
        answer = api.create(workload(kind, case, "case"), dry=True)
        if too_new(api, case, answer):
            continue
        if case.by == "kubernetes" and kind == "StatefulSet" and case.says not in answer.message:
            # Kubernetes 1.28 itself validates templates of StatefulSets less closely than their pods.
            continue
        if case.refused:
            assert not answer.taken, case.id
            assert case.says in answer.message, case.id
        else:
            assert answer.taken, (case.id, answer.message)
            assert answer.warnings == case.warns, case.id


@pytest.mark.parametrize("write", [*WRITES, *OF_THE_SCHEDULER, DEBUGS], ids=lambda write: write.id)
def test_writes(api: Api, write: Write) -> None:
    answer = api.attempt(write)
    if not write.says:
        assert answer.taken, answer.message
    else:
        assert answer.status == 403
        assert answer.message.endswith(write.says)


def test_the_scheduler_may_remove_only_the_startup_taint_of_a_node(api: Api) -> None:
    assert_that_the_startup_taint_alone_goes(api)


def test_a_token_of_kubernetes_1_28_names_its_pod_and_the_pod_its_node(api: Api) -> None:
    """Before 1.30 tokens contain no node, but the pod, which the webhook looks up."""
    agent = pod(CASES["nothing-of-ours"], "agent", NAMESPACE)
    agent["spec"]["nodeName"] = "n1"
    made = api.create(agent)
    assert made.taken, made.message
    uid = made.body["metadata"]["uid"]
    user = User(
        f"system:serviceaccount:{NAMESPACE}:gpushare-device-plugin",
        GROUPS,
        {"authentication.kubernetes.io/pod-name": ("agent",), "authentication.kubernetes.io/pod-uid": (uid,)},
    )
    describe = {"metadata": {"annotations": {names.ANN_DEVICES: "{}"}}}
    assert api.ask("PATCH", "/api/v1/nodes/n1", describe, user=user, dry=True).taken
    answer = api.ask("PATCH", "/api/v1/nodes/n2", describe, user=user, dry=True)
    assert (
        "the node agent of node n1 may only change this node and the pods on it, not node n2"
        in answer.message
    )
    other = replace(user, extra={**user.extra, "authentication.kubernetes.io/pod-uid": ("another",)})
    answer = api.ask("PATCH", "/api/v1/nodes/n1", describe, user=other, dry=True)
    assert "does not identify its node" in answer.message


def test_own_namespaces_are_left_alone(api: Api) -> None:
    assert api.create(pod(CASES["compute-7"], "own", NAMESPACE), dry=True).taken
    left = api.create(pod(CASES["memory"], "own", NAMESPACE), dry=True)
    assert left.body["spec"]["schedulerName"] == "default-scheduler"


def test_records_are_guarded_in_own_namespaces_too(api: Api) -> None:
    """As policies do: the ledger counts every pod, wherever it is."""
    carrying = pod(CASES[f"carries-{names.ANN_SHARE}"], "claims", NAMESPACE)
    answer = api.create(carrying, dry=True)
    assert (answer.status, answer.message) == (
        403,
        f"""admission webhook "new-records.gpushare.dev" denied the request: {carried_words(names.ANN_SHARE)}""",
    )
    assert api.create(carrying, user=SCHEDULER, dry=True).taken
    assert api.create(pod(CASES["nothing-of-ours"], "plain", NAMESPACE)).taken
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/plain"
    claim = {"metadata": {"annotations": {names.ANN_SHARE: "{}"}}}
    for part in ("", "/status"):
        answer = api.ask("PATCH", path + part, claim, dry=True)
        assert (answer.status, answer.message.endswith(changed_words(names.ANN_SHARE))) == (403, True)
        assert api.ask("PATCH", path + part, claim, user=SCHEDULER, dry=True).taken
    bound = binding("plain", {names.ANN_SHARE: "{}"})
    bound["metadata"]["namespace"] = NAMESPACE
    answer = api.ask("POST", f"{path}/binding", bound, dry=True)
    assert (answer.status, answer.message.endswith(carried_words(names.ANN_SHARE))) == (403, True)


def test_an_admitted_pod_is_logged_with_its_generated_name_and_uid(api: Api, webhook: Webhook) -> None:
    """The API server sets them before it calls validating webhooks: one search then shows a pod's whole way."""
    submitted = pod(CASES["memory"], "")
    submitted["metadata"] = {"generateName": "named-", "namespace": "default"}
    answer = api.create(submitted)
    assert answer.taken, answer.message
    made = answer.body["metadata"]
    key = f"pod default/{made['name']}: admitted for "

    def logged() -> bool:
        lines = [line for line in webhook.log().splitlines() if key in line]
        return bool(lines) and all(line.endswith(f"request={made['uid']}") for line in lines)

    wait_for("it is logged", logged)


# --- certificates --------------------------------------------------------------------------------------


def test_a_rotation_interrupts_no_request(api: Api, webhook: Webhook) -> None:
    """Every request of a stream is validated while authorities and certificates are rotated."""
    webhook.stop()
    # Renewed after 3.6 of 36 seconds; trusted 1 s before and after, for API servers need time to see that.
    valid = ("--valid-for", f"{0.01 * SLOWNESS:.4f}", "--renew-before", f"{0.009 * SLOWNESS:.4f}")
    webhook.start(*valid, "--overlap", f"{SLOWNESS:.2f}", "--period", "0.2")
    wait_for("ready again", webhook.ready)
    recreate(api, webhook)
    promotions = webhook.log().count("certificates: promote")
    requests = 0
    serials: set[int] = set()

    def rotated() -> bool:
        nonlocal requests
        requests += 1
        answer = api.create(pod(CASES["compute-7"], "probe"), dry=True)
        assert "multiple of 5" in answer.message, answer.message
        serials.add(webhook.certificate().serial_number)
        return requests > 20 and webhook.log().count("certificates: promote") >= promotions + 3

    wait_for("three rotations in a stream of requests", rotated, timeout=120.0)
    assert len(serials) >= 3
    webhook.stop()
    webhook.start("--period", "0.5")
    wait_for("ready again", webhook.ready)
    # The last certificate expires during the tests after this, and not on all replicas at once.
    recreate(api, webhook)


def recreate(api: Api, webhook: Webhook) -> None:
    """Have another certificate made immediately, whenever the served one expires: such a one is not
    announced before.
    """
    made = webhook.certificate()
    assert api.ask("PATCH", f"/api/v1/namespaces/{NAMESPACE}/secrets/{NAME}", {"data": None}).taken
    wait_for("another is served", lambda: webhook.certificate() != made)
    wait_for("it is asked", lambda: refused(api))


def test_the_doctor_reports_an_expired_certificate(api: Api, webhook: Webhook, product: Product) -> None:
    def found() -> set[tuple[str, str]]:
        ran = product.run(sys.executable, "-m", "gpushare", "doctor", "-o", "json")
        findings = json.loads(ran.out)["findings"]
        # No chart is completely installed here: that is reported, too.
        return {(one["state"], one["subject"]) for one in findings if one["check"] == "certificate"}

    assert found() == {("ok", "")}
    webhook.stop()
    old = base64.b64encode(expired()).decode()
    for kind, one in zip(KINDS, configurations(api), strict=True):
        patch = [
            {"op": "replace", "path": f"/webhooks/{at}/clientConfig/caBundle", "value": old}
            for at in range(len(one["webhooks"]))
        ]
        product.kubectl("patch", kind, NAME, "--type=json", "-p", json.dumps(patch))
    faults = found()
    assert {state for state, _ in faults} == {"fault"}
    assert ("fault", "webhook requests.gpushare.dev") in faults
    webhook.start("--period", "0.5")
    wait_for("ready again", webhook.ready)
    wait_for("it is asked", lambda: refused(api))
    assert found() == {("ok", "")}


def expired() -> bytes:
    """An expired authority, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "old")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now - timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(Encoding.PEM)


def test_two_replicas_share_one_certificate_and_one_of_them_renews_it(
    api: Api, webhook: Webhook, tmp_path: Path, product: Product
) -> None:
    second = Webhook(tmp_path, webhook._kubeconfig)
    second.start("--period", "0.5")
    try:
        wait_for("the second is ready", second.ready)
        assert second.certificate() == webhook.certificate()
        before = webhook.certificate().serial_number
        product.kubectl("patch", "secret", NAME, "-n", NAMESPACE, "--type=json",
                        '-p=[{"op":"remove","path":"/data"}]')  # fmt: skip
        wait_for("both serve another one", lambda: before not in {
            webhook.certificate().serial_number, second.certificate().serial_number})  # fmt: skip
        wait_for("the same", lambda: second.certificate() == webhook.certificate())
        wait_for("it is asked", lambda: refused(api))
    finally:
        second.stop()


def test_killed_at_any_moment_it_recovers(api: Api, webhook: Webhook, product: Product) -> None:
    for moment in ("", "certificates: begin", "trusts"):
        # It may be logged before kubectl has exited.
        count = webhook.log().count(moment)
        product.kubectl("patch", "secret", NAME, "-n", NAMESPACE, "--type=merge", '-p={"data":null}')
        if moment:
            wait_for(moment, lambda what=moment, at=count: webhook.log().count(what) > at, every=0.001)
        webhook.stop(signal.SIGKILL)
        webhook.start("--period", "0.5")
        wait_for("ready again", webhook.ready)
        wait_for("it is asked", lambda: refused(api))


def test_an_upgrade_by_helm_keeps_certificate_and_trust(api: Api, webhook: Webhook, product: Product) -> None:
    docs = rendered(product)
    before, certificate = bundles(api), webhook.certificate()
    product.apply(*rights(docs), *(by_address(doc, webhook.ports[0]) for doc in docs if "webhooks" in doc))
    assert bundles(api) == before
    assert refused(api)
    assert webhook.certificate() == certificate


def test_recreated_configurations_get_the_ca_bundle_again(
    api: Api, webhook: Webhook, product: Product
) -> None:
    docs = [by_address(doc, webhook.ports[0]) for doc in rendered(product) if "webhooks" in doc]
    for kind in KINDS:
        assert api.ask("DELETE", f"{ROOT}/{kind}/{NAME}").taken
    product.apply(*docs)
    wait_for("it is asked", lambda: refused(api))


def test_what_it_is_not_permitted(webhook: Webhook, product: Product) -> None:
    """Its account reads and writes its own three objects, and nothing else."""
    mine = product.run("kubectl", "auth", "can-i", "--list", f"--as={USER}", "-n", NAMESPACE).out
    own = [line.split() for line in mine.splitlines() if "secrets" in line or "webhookconf" in line]
    assert own
    for line in own:
        assert f"[{NAME}]" in line, line
        assert " ".join(line).endswith("[get patch]"), line
    for verb, what in (
        ("create", "secrets"),
        ("get", "secrets/other"),
        ("list", "secrets"),
        ("update", "nodes"),
    ):
        result = product.run("kubectl", "auth", "can-i", verb, what, f"--as={USER}", "-n", NAMESPACE)
        assert result.out.strip() == "no", (verb, what)


# --- without it ----------------------------------------------------------------------------------------


def test_what_happens_without_it(api: Api, webhook: Webhook, product: Product) -> None:
    """Only requests that would be validated are blocked: GPU pods, and strangers that write records."""
    webhook.stop(signal.SIGKILL)
    try:
        held = api.create(pod(CASES["memory"], "held"), dry=True)
        assert held.status == 500
        assert 'failed calling webhook "scheduler-name.gpushare.dev"' in held.message
        response = api.create(pod(CASES["names-our-scheduler"], "held"), dry=True)
        assert 'failed calling webhook "requests.gpushare.dev"' in response.message
        assert api.create(pod(CASES["nothing-of-ours"], "free"), dry=True).taken
        assert api.create(pod(CASES["compute-7"], "own", NAMESPACE), dry=True).taken
        for one in own_pods(product):
            made = api.create(one, dry=True)
            assert made.taken, made.message
        for kind in WORKLOADS:
            assert api.create(workload(kind, CASES["compute-7"], "free"), dry=True).taken, kind
        path = "/api/v1/namespaces/default/pods/bound-n1"
        assert api.ask("PATCH", path, {"metadata": {"labels": {"a": "b"}}}, dry=True).taken
        mark = {"metadata": {"annotations": {names.ANN_MEM_ASSIGNED: "true"}}}
        assert api.ask("PATCH", path, mark, user=SCHEDULER, dry=True).taken
        # The scheduler's own writes are not reviewed.
        for write in OF_THE_SCHEDULER:
            assert write.says or api.attempt(write).taken, write.id
        assert 'failed calling webhook "scheduler-pods.gpushare.dev"' in api.attempt(IMAGE).message
        stolen: Answer = api.ask("PATCH", path, mark, dry=True)
        assert 'failed calling webhook "records.gpushare.dev"' in stolen.message
        heartbeat = {"status": {"capacity": {"cpu": "8"}}}
        assert api.ask("PATCH", "/api/v1/nodes/n1/status", heartbeat, dry=True).taken
        assert api.ask("DELETE", path, dry=True).taken
        assert json.dumps(configurations(api))
    finally:
        webhook.start("--period", "0.5")
        wait_for("ready again", webhook.ready)
    wait_for("it is asked again", lambda: refused(api))
