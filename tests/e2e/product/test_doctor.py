"""``gpushare doctor`` on the installed cluster: no fault at first, and each fault that a test causes is
reported alone.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from gpushare.api import names
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.product.product import NAMESPACE, Product, gpu_pod

CGPU = "cgpu-t4"
Findings = list[tuple[str, str, str]]


def doctor(product: Product, *options: str) -> tuple[int, Findings, str]:
    """Exit code, findings that are not ok, and the whole output."""
    ran = product.run(sys.executable, "-m", "gpushare", "doctor", "-o", "json", *options)
    assert not ran.err, ran.err
    findings = json.loads(ran.out)["findings"]
    bad = [(one["check"], one["state"], one["subject"]) for one in findings if one["state"] != "ok"]
    return ran.code, bad, ran.out


def says(product: Product, code: int, *wanted: tuple[str, str, str]) -> Callable[[], bool]:
    def checks() -> bool:
        found_code, found, _ = doctor(product)
        print(found)
        return (found_code, found) == (code, list(wanted))

    return checks


def test_a_sound_cluster_has_no_fault(product: Product) -> None:
    product.apply(gpu_pod("held", 2, labels={"app": "held"}))
    product.running("app=held")
    wait_for("nothing is found", says(product, 0), timeout=60)


def test_a_revoked_permission_is_reported(product: Product) -> None:
    binding = product.json("get", "clusterrolebinding", "gpushare-device-plugin")
    restored = {key: binding[key] for key in ("apiVersion", "kind", "roleRef", "subjects")}
    restored["metadata"] = {key: binding["metadata"][key] for key in ("name", "labels", "annotations")}
    product.kubectl("delete", "clusterrolebinding", "gpushare-device-plugin")
    try:
        wanted = ("process-rights", "fault", "clusterrolebinding gpushare-device-plugin")
        wait_for("the binding is missed", says(product, 2, wanted), timeout=60)
    finally:
        product.apply(restored)
    wait_for("nothing is found", says(product, 0), timeout=60)


def test_a_wrong_label_is_reported(product: Product) -> None:
    product.kubectl("label", "node", CGPU, f"{names.LABEL_MAX_PODS}=many")
    try:
        wait_for("the label is named", says(product, 2, ("node-labels", "fault", f"node {CGPU}")), timeout=60)
    finally:
        product.kubectl("label", "node", CGPU, f"{names.LABEL_MAX_PODS}-")
    wait_for("nothing is found", says(product, 0), timeout=60)


def test_an_account_with_few_permissions_sees_which_checks_were_skipped(
    product: Product, tmp_path: Path
) -> None:
    """A ServiceAccount that may read nodes and pods: a refusal by the API server is neither a passed check
    nor a fault.
    """
    account = "reads-little"
    product.kubectl("create", "serviceaccount", account)
    product.kubectl("create", "clusterrole", account, "--verb=get,list", "--resource=nodes,pods")
    product.kubectl(
        "create",
        "clusterrolebinding",
        account,
        f"--clusterrole={account}",
        f"--serviceaccount=default:{account}",
    )
    try:
        may = ("kubectl", "auth", "can-i", "list", "pods", f"--as=system:serviceaccount:default:{account}")
        wait_for("the role is known", lambda: product.run(*may).code == 0, timeout=20)
        token = product.kubectl("create", "token", account).strip()
        config = product.json("config", "view", "--raw", "--minify", "--flatten")
        (user,) = config["users"]
        user["user"] = {"token": token}
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(json.dumps(config))
        code, found, checks = doctor(product, "--kubeconfig", str(kubeconfig))
    finally:
        product.kubectl("delete", "clusterrolebinding,clusterrole", account)
        product.kubectl("delete", "serviceaccount", account)
    assert code == 1, checks
    assert ("permissions", "warning", "you") in found
    assert not [one for one in found if one[1] == "fault"], checks
    assert {one[0] for one in found if one[1] == "unknown"} >= {"process-rights", "admission"}, checks
    (permissions,) = [
        one["message"] for one in json.loads(checks)["findings"] if one["check"] == "permissions"
    ]
    assert "clusterroles" in permissions


def test_an_agent_checks_its_own_node(product: Product) -> None:
    """Its isolation libraries hold on the fake driver; what test clusters do not need is not checked here."""
    pods = product.json("-n", NAMESPACE, "get", "pods", "-l", "app.kubernetes.io/name=gpushare-device-plugin")
    agent = next(one for one in pods["items"] if one["spec"]["nodeName"] == CGPU)["metadata"]["name"]
    ran = product.run(
        *("kubectl", "-n", NAMESPACE, "exec", agent, "--", "gpushare"),
        *("doctor", "node", "-o", "json", "--host-root", "/host"),
    )
    findings = {one["check"]: (one["state"], one["message"]) for one in json.loads(ran.out)["findings"]}
    for check in ("driver", "gpus", "kubelet", "agent", "permissions", "isolation"):
        assert findings[check][0] == "ok", findings
