"""Least privilege: the calls of the components in all of these tests, compared with what the charts permit.

Runs after the tests that use the product, over the API server's audit log of the whole run.
"""

import json

from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.product.audit import calls, granted
from tests.e2e.product.product import AGENT, NAMESPACE, Product, gpu_pod

AGENT_ACCOUNT = "gpushare-device-plugin"
ACCOUNTS = (AGENT_ACCOUNT, "ack-co-scheduler", "gpushare-admission", "gpushare-dashboard")


def test_every_permission_is_used_and_none_is_missing(cluster: Cluster, installed: Product) -> None:
    made = list(calls(cluster, ACCOUNTS))
    assert len({call.right.account for call in made}) >= 2, "the audit log is empty of our components"
    # A starting API server refuses what it permits once it has read its roles; a missing permission is
    # never granted.
    allowed = {call.right for call in made if not call.forbidden}
    missing = sorted({f"{call.right} ({call.message})" for call in made if call.right not in allowed})
    assert not missing, "rights that components lack:\n" + "\n".join(missing)
    used = {call.right for call in made if call.of_ours and not call.forbidden}
    used_by_any = allowed
    roles = {kind: installed.json("get", kind, "-A")["items"] for kind in ("clusterroles", "roles")}
    unused = [right for right in granted(roles["clusterroles"], ACCOUNTS) if right not in used]
    unused += [right for right in granted(roles["roles"], ACCOUNTS) if right not in used_by_any]
    # A kind that the cluster lacks is listed, and never watched.
    served = set(installed.kubectl("api-resources", "--output=name").split())
    unused = [
        right
        for right in unused
        if right.verb != "watch" or f"{right.resource}.{right.group}".strip(".") in served
    ]
    assert not unused, "rights that no component has used:\n" + "\n".join(map(str, sorted(unused)))


def test_an_agent_writes_on_no_other_node_and_on_no_pod_of_another(
    cluster: Cluster, installed: Product
) -> None:
    installed.apply(gpu_pod("far", 2, labels={"app": "far"}, node="share-v100"))
    installed.running("app=far")
    pods = installed.pods(f"app.kubernetes.io/name={AGENT_ACCOUNT}", NAMESPACE) or installed.pods(
        "", NAMESPACE
    )
    agent = next(
        pod
        for pod in pods
        if pod["metadata"]["name"].startswith(AGENT.partition("/")[2])
        and pod["spec"]["nodeName"] == "cgpu-t4"
    )
    token = installed.kubectl(
        "-n",
        NAMESPACE,
        "exec",
        agent["metadata"]["name"],
        "--",
        # The image has no shell and no cat.
        "python3.11",
        "-c",
        "print(open('/var/run/secrets/kubernetes.io/serviceaccount/token').read(), end='')",
    )
    agent_kubectl = ("kubectl", f"--kubeconfig={_without_user(installed)}", f"--token={token}")
    for command in (
        ("annotate", "node", "share-v100", "gpushare.dev/devices-", "--overwrite"),
        ("annotate", "pod", "far", "gpushare.dev/allocation-"),
        ("label", "node", "cgpu-t4", "ack.node.gpu.schedule=share", "--overwrite"),
        ("taint", "node", "cgpu-t4", "stolen=yes:NoSchedule"),
    ):
        ran = installed.run(*agent_kubectl, *command)
        assert ran.code == 1, f"{command}\n{ran.text}"
        assert "denied" in ran.text or "orbidden" in ran.text, ran.text
    installed.delete_all()


def test_a_namespace_that_demands_restricted_pods_takes_the_scheduler(installed: Product) -> None:
    installed.kubectl("create", "namespace", "strict")
    try:
        installed.kubectl("label", "namespace", "strict", "pod-security.kubernetes.io/enforce=restricted")
        pod = next(
            pod
            for pod in installed.pods("", NAMESPACE)
            if pod["metadata"]["name"].startswith("ack-co-scheduler-")
        )
        spec = {**pod["spec"], "serviceAccountName": "default", "serviceAccount": "default"}
        for one in ("nodeName", "priorityClassName", "priority"):
            spec.pop(one, None)
        copy = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "copy", "namespace": "strict"},
            "spec": spec,
        }
        account = ("kubectl", "get", "serviceaccount", "default", "-n", "strict")
        wait_for("the namespace has its account", lambda: installed.run(*account).code == 0)
        installed.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(copy))
    finally:
        installed.kubectl("delete", "namespace", "strict", "--timeout=60s")


def _without_user(product: Product) -> str:
    """A kubeconfig with the cluster and no user: kubectl prefers a certificate to a token."""
    config = json.loads(product.kubectl("config", "view", "--raw", "-o", "json"))
    for user in config["users"]:
        user["user"] = {}
    path = product.kubeconfig.with_name("kubeconfig-without-user")
    path.write_text(json.dumps(config))
    return str(path)
