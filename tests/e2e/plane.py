"""A control plane without nodes, and the objects that the admission tables need."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpushare.api import names
from tests.admission_users import User
from tests.admission_writes import OBJECTS
from tests.e2e.asking import Api
from tests.e2e.cluster.settings import audit_policy
from tests.e2e.cluster.waiting import wait_for
from tests.patience import SLOWNESS

CHECKOUT = Path(__file__).parents[2]
OPTED_OUT = "opted-out"
OPTED_OUT_NAMESPACE = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": OPTED_OUT, "labels": {names.LABEL_ADMISSION: "disabled"}},
}


@contextmanager
def control_plane(binaries: Path, state: Path) -> Iterator[Path]:
    """The kubeconfig of a fresh etcd, API server and controllers, which stop with the block; ``audited``
    reads its audit log.
    """
    state.mkdir(parents=True)
    policy = state / "audit-policy.json"
    policy.write_text(json.dumps(audit_policy()))
    argv = [sys.executable, "-m", "gpushare_playground.controlplane", "--binaries", str(binaries)]
    argv += ["--state", str(state), "--audit-policy", str(policy)]
    # Its nodes have no kubelet: after a minute a controller would mark them not ready and evict their pods.
    argv += ["--flag", "kube-controller-manager=--node-startup-grace-period=24h"]
    for component in ("etcd", "kube-apiserver", "kube-controller-manager"):
        argv += ["--component", component]
    plane = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT)
    try:
        assert plane.stdout is not None
        words = plane.stdout.readline().split()
        assert words[:1] == ["ready"], "the control plane did not start; its stderr says why"
        yield Path(words[1])
    finally:
        plane.terminate()
        plane.communicate(timeout=60 * SLOWNESS)


def administrators(name: str, kind: str, *subjects: str) -> dict[str, Any]:
    """The binding that gives those users or groups all permissions."""
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": group, "kind": kind, "name": subject} for subject in subjects],
    }


def wait_for_accounts(api: Api, *namespaces: str) -> None:
    """Wait until the default account of each namespace exists: pods are accepted only then."""
    paths = [f"/api/v1/namespaces/{namespace}/serviceaccounts/default" for namespace in namespaces]
    wait_for(f"{paths} are there", lambda: all(api.ask("GET", path).taken for path in paths))


def create_objects(api: Api, user: User | None = None) -> None:
    """Create the objects that exist before each write of the table."""
    for obj in OBJECTS.values():
        answer = api.create(obj, user=user)
        assert answer.taken, answer.message
