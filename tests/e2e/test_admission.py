"""The chart's policies on a real API server: every case of the tables, for pods, templates, and users.

The policies are rendered by helm for this API server's features. Only the control plane runs here: admission
does not depend on nodes.
"""

import json
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gpushare.api import names
from gpushare.kube.auth.access import load_access
from gpushare_playground.apiserver.errors import ApiError
from tests.admission_cases import PODS, WORKLOADS, pod, workload
from tests.admission_mistakes import unknown_words
from tests.admission_users import ADMIN, SCHEDULER, agent_on
from tests.admission_words import RECORDS, PodCase, box, carried_words, core_words, counted
from tests.admission_writes import OBJECTS, WRITES, Write, changed_words
from tests.e2e.asking import Answer, Api, Commands
from tests.e2e.audited import audited
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.plane import (
    CHECKOUT,
    OPTED_OUT,
    OPTED_OUT_NAMESPACE,
    administrators,
    control_plane,
    create_objects,
    wait_for_accounts,
)
from tests.e2e.policies import MUTATING, NAMESPACE, VALIDATING, policies, problem, serves, serves_claims
from tests.unit.playground.apiserver.plane import HERE, Plane

CASES = {case.id: case for case in PODS}


@pytest.fixture(scope="module")
def commands(binaries: Path, states: Path) -> Iterator[Commands]:
    """A control plane without nodes, and kubectl and helm for it."""
    with control_plane(binaries, states / "admission") as kubeconfig:
        yield Commands(kubeconfig, binaries)


@pytest.fixture(scope="module")
def access(commands: Commands) -> Any:
    return load_access(str(commands.kubeconfig))


@pytest.fixture(scope="module")
def api(commands: Commands, access: Any) -> Iterator[Api]:
    """The administrator, once the policies are in force and ``OBJECTS`` exist; RBAC permits everything to
    everybody.
    """
    with Api(access) as api:
        has = [api_name for api_name in (VALIDATING, MUTATING) if serves(api, api_name)]
        if VALIDATING not in has:
            pytest.skip(
                "this Kubernetes has no ValidatingAdmissionPolicy (v1 from 1.30 on): the webhook does it"
            )
        commands.apply(*policies(commands, api))
        commands.apply(administrators("everybody", "Group", "system:authenticated"), OPTED_OUT_NAMESPACE)
        wait_for_accounts(api, "default", OPTED_OUT)
        wait_for("every policy is at work", lambda: not _asleep(api, MUTATING in has))
        create_objects(api, SCHEDULER)
        yield api


def _asleep(api: Api, mutating: bool) -> list[str]:
    """Policies not in force yet, by one case each that is not refused or changed."""
    cases = [CASES[one] for one in ("compute-7", "exported-from-a-cluster", "mistakes-of-all-kinds")]
    kinds = ("Deployment", "CronJob", "PodTemplate")
    bodies = [(case, workload(kind, case, "probe")) for case in cases for kind in kinds]
    bodies += [(case, pod(case, "probe")) for case in cases]
    found = [
        f"{body['kind']} {case.id}" for case, body in bodies if problem(case, api.create(body, dry=True))
    ]
    answers = [
        api.create(
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "probe", **metadata}},
            user=user,
            dry=True,
        )
        for user, metadata in ((ADMIN, {"annotations": {names.ANN_DEVICES: "{}"}}), (agent_on("n1"), {}))
    ]
    answers.append(api.create(pod(CASES["memory"], "probe"), user=agent_on("n1"), dry=True))
    binding = next(one for one in WRITES if one.id == "plain-scheduler-binds-with-record")
    answers.append(api.attempt(binding))
    # Until RBAC knows that everybody may do everything, it refuses with the same status.
    found += [f"{answer.status}" for answer in answers if "ValidatingAdmissionPolicy" not in answer.message]
    if mutating:
        made = api.create(pod(CASES["memory"], "probe"), dry=True)
        if made.body.get("spec", {}).get("schedulerName") != names.SCHEDULER_NAME:
            found.append("scheduler name")
        made = api.create(pod(CASES["mib"], "probe"), dry=True)
        if not made.taken or counted(CASES["mib"], made.body):
            found.append("MiB and percent requests")
    return found


# --- pods and templates ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", PODS, ids=lambda case: case.id)
def test_pods(api: Api, case: PodCase) -> None:
    namespace = OPTED_OUT if case.namespace_labels else "default"
    answer = api.create(pod(case, "case", namespace), dry=True)
    pointed = answer.body["spec"]["schedulerName"] if answer.taken and serves(api, MUTATING) else None
    assert not problem(case, answer, pointed=pointed)
    if answer.taken and serves(api, MUTATING):
        assert not counted(case, answer.body)
    if case.by == "gpushare" and case.refused:
        assert re.search(r"ValidatingAdmissionPolicy 'gpushare-(requests|records)'", answer.message)
        assert answer.message.endswith(case.says)


@pytest.mark.parametrize("kind", WORKLOADS)
def test_templates(api: Api, kind: str) -> None:
    """Refused where they are submitted, with the messages of their pods; the users' text stays."""
    found = []
    for case in PODS:
        answer = api.create(workload(kind, case, "case"), dry=True)
        written = case.spec.get("schedulerName", "default-scheduler")
        pointed = _template(answer.body)["spec"]["schedulerName"] if answer.taken else None
        found.append((case.id, problem(replace(case, scheduler=written), answer, pointed=pointed)))
    assert len(found) == len(PODS)
    assert [(case, wrong) for case, wrong in found if wrong] == []


def _template(obj: dict[str, Any]) -> dict[str, Any]:
    spec = obj.get("spec", obj)
    found: dict[str, Any] = spec.get("jobTemplate", {}).get("spec", spec)["template"]
    return found


def test_a_template_is_validated_only_when_it_changes(api: Api, commands: Commands) -> None:
    """Objects older than the rules can still be scaled, rolled back and deleted by its controllers."""
    good = workload("Deployment", CASES["memory"], "changes")
    assert api.create(good).taken
    path = "/apis/apps/v1/namespaces/default/deployments/changes"
    bad = {"spec": {"template": {"metadata": {"labels": {names.LABEL_POD_GPU_COUNT: "2"}}}}}
    limits = {"limits": {names.GPU_MEM: "3"}, "requests": {names.GPU_MEM: "3"}}
    bad["spec"]["template"]["spec"] = {"containers": [{"name": "c", "image": "busybox", "resources": limits}]}
    refused = api.ask("PATCH", path, bad, dry=True)
    assert "label aliyun.com/gpu-count=2 spreads aliyun.com/gpu-mem over 2 GPUs" in refused.message
    commands.typed("kubectl", "delete", "validatingadmissionpolicybinding", "gpushare-requests-templates")
    wait_for("the rule sleeps", lambda: api.ask("PATCH", path, bad, dry=True).taken)
    assert api.ask("PATCH", path, bad).taken
    commands.apply(*policies(commands, api))
    wrong = workload("Deployment", CASES["compute-7"], "probe")
    wait_for("the rule is at work again", lambda: not api.create(wrong, dry=True).taken)
    assert api.ask("PATCH", path, {"spec": {"replicas": 1, "paused": True}}).taken
    assert api.ask("DELETE", path).taken


def test_a_waiting_pod_may_not_be_relabelled_into_one_that_never_fits(api: Api) -> None:
    path = "/api/v1/namespaces/default/pods/waiting"
    answer = api.ask("PATCH", path, {"metadata": {"labels": {names.LABEL_POD_GPU_COUNT: "2"}}}, dry=True)
    assert "equally, in whole units: container c asks for 3" in answer.message
    assert api.ask("PATCH", path, {"metadata": {"labels": {names.LABEL_POD_GPU_COUNT: "3"}}}, dry=True).taken
    wrong = {"metadata": {"labels": {names.LABEL_POD_COMPUTE_CLASS: "fast"}}}
    assert "must be 'latency' or 'batch'" in api.ask("PATCH", path, wrong, dry=True).message


def test_ephemeral_containers_request_nothing(api: Api) -> None:
    path = "/api/v1/namespaces/default/pods/bound-n1/ephemeralcontainers"
    debugger = {**box("debug", mem="1"), "targetContainerName": "c"}
    answer = api.ask("PATCH", path, {"spec": {"ephemeralContainers": [debugger]}}, dry=True)
    assert not answer.taken
    assert "spec.ephemeralContainers[0].resources: Forbidden" in answer.message
    # Nor can it change the record.
    del debugger["resources"]
    changes = {
        "metadata": {"annotations": {names.ANN_SHARE: "{}"}},
        "spec": {"ephemeralContainers": [debugger]},
    }
    answer = api.ask("PATCH", path, changes, dry=True)
    assert changed_words(names.ANN_SHARE) in answer.message or _record(answer.body) == _record(
        OBJECTS["pods", "bound-n1"]
    )


def test_resizing_changes_neither_memory_nor_the_record(api: Api) -> None:
    path = "/api/v1/namespaces/default/pods/bound-n1/resize"
    bigger = {"name": "c", "resources": {"limits": {names.GPU_MEM: "4"}, "requests": {names.GPU_MEM: "4"}}}
    if api.ask("GET", path).status == 404:
        pytest.skip("this Kubernetes has no pods/resize")
    answer = api.ask("PATCH", path, {"spec": {"containers": [{**box("c"), **bigger}]}}, dry=True)
    assert not answer.taken
    answer = api.ask("PATCH", path, {"metadata": {"annotations": {names.ANN_SHARE: "{}"}}}, dry=True)
    assert changed_words(names.ANN_SHARE) in answer.message or _record(answer.body) == _record(
        OBJECTS["pods", "bound-n1"]
    )


def _record(obj: Any) -> str:
    record: str = obj["metadata"]["annotations"][names.ANN_SHARE]
    return record


# --- who may write what ------------------------------------------------------------------------------


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.id)
def test_writes(api: Api, write: Write) -> None:
    answer = api.attempt(write)
    if not write.says:
        assert answer.taken, answer.message
    else:
        assert answer.status == 403
        assert answer.message.endswith(write.says)


def test_an_agents_own_token_contains_its_node(api: Api, commands: Commands, access: Any) -> None:
    """Nothing impersonated: the token of the agent's pod, with the permissions that the chart gives it."""
    account = {"name": "gpushare-device-plugin", "namespace": NAMESPACE}
    commands.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    agent = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "agent", "namespace": NAMESPACE},
        "spec": {"serviceAccountName": account["name"], "nodeName": "n1", "containers": [box()]},
    }
    made = api.create(agent)
    assert made.taken, made.message
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "boundObjectRef": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": "agent",
                "uid": made.body["metadata"]["uid"],
            }
        },
    }
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account['name']}/token"
    token = api.ask("POST", path, body).body["status"]["token"]
    own = msgspec.structs.replace(access, client_certificate=b"", client_key=b"", token=token)
    with Api(own) as mine:
        devices = {"metadata": {"annotations": {names.ANN_DEVICES: "{}"}}}
        assert mine.ask("PATCH", "/api/v1/nodes/n1", devices, dry=True).taken
        answer = mine.ask("PATCH", "/api/v1/nodes/n2", devices, dry=True)
        assert "the node agent of node n1 may only change this node" in answer.message


def test_what_users_see(api: Api, commands: Commands) -> None:
    """kubectl, for real: the exported pod, the changed record, the wrong percentage."""
    exported = commands.typed("kubectl", "get", "pod", "bound-n1", "-o", "yaml")
    again = exported.replace("name: bound-n1", "name: again")
    ran = commands.run("kubectl", "create", "-f", "-", stdin=again)
    assert ran.returncode != 0
    assert carried_words(*(name for name in _ours(exported))) in ran.stdout
    ran = commands.run("kubectl", "annotate", "--overwrite", "pod", "bound-n1", f"{names.ANN_SHARE}=x")
    assert ran.returncode != 0
    assert changed_words(names.ANN_SHARE) in ran.stdout
    job = workload("Job", CASES["compute-7"], "wrong")
    ran = commands.run("kubectl", "apply", "-f", "-", stdin=json.dumps(job))
    assert ran.returncode != 0
    assert core_words(("c", "7")) in ran.stdout


def _ours(text: str) -> list[str]:
    return [name for name in RECORDS if f" {name}:" in text]


def test_pods_of_a_deployment_find_the_scheduler(api: Api, commands: Commands) -> None:
    if not serves(api, MUTATING):
        pytest.skip("this Kubernetes has no MutatingAdmissionPolicy (v1 from 1.36 on): the webhook does it")
    deployment = workload("Deployment", CASES["memory"], "real")
    deployment["spec"]["replicas"] = 2
    commands.apply(deployment)
    pods = wait_for("two pods", lambda: _two(commands))
    assert {one["spec"]["schedulerName"] for one in pods} == {names.SCHEDULER_NAME}
    assert (
        commands.json("get", "deployment", "real")["spec"]["template"]["spec"]["schedulerName"]
        == "default-scheduler"
    )
    commands.typed("kubectl", "delete", "deployment", "real")


def _two(commands: Commands) -> list[Any]:
    found = [
        one
        for one in commands.json("get", "pods", "-l", "app=x")["items"]
        if one["metadata"]["name"].startswith("real-")
    ]
    return found if len(found) == 2 else []


# --- audit log ------------------------------------------------------------------------------------------


def test_the_audit_log_has_the_uid_of_a_gpu_pod_and_its_request(api: Api, states: Path) -> None:
    """Policies log nothing: there the way of a pod begins. Where a name is generated, the event itself has none."""
    case = CASES["mib"]
    request = pod(case, "x")
    del request["metadata"]["name"]
    request["metadata"]["generateName"] = "audited-"
    made = api.create(request)
    assert made.taken, made.message
    metadata = made.body["metadata"]
    found = audited(states / "admission", {"uid": metadata["uid"]})
    limits = made.body["spec"]["containers"][0]["resources"]["limits"]
    assert found.status == 201
    assert found.annotations == {
        "uid": metadata["uid"],
        "pod": f"default/{metadata['name']}",
        "scheduler": made.body["spec"]["schedulerName"],
        "asks": "container c asks for " + ", ".join(f"{name}: {amount}" for name, amount in limits.items()),
        **({"requested": metadata["annotations"][names.ANN_REQUESTED]} if serves(api, MUTATING) else {}),
    }
    assert api.ask("DELETE", f"/api/v1/namespaces/default/pods/{metadata['name']}").taken


def test_an_audit_annotation_that_cannot_be_evaluated_rejects_no_pod(
    api: Api, commands: Commands, states: Path
) -> None:
    (policy,) = (
        one
        for one in policies(commands, api)
        if one["metadata"]["name"] == "gpushare-audit" and one["kind"] == VALIDATING
    )
    broken = deepcopy(policy)
    for one in broken["spec"]["auditAnnotations"]:
        if one["key"] == "asks":
            one["valueExpression"] = "string(object.spec.containers[99].name)"
    commands.apply(broken)

    def without() -> bool:
        made = api.create(pod(CASES["memory"], "audited"), dry=True)
        assert made.taken, made.message
        return "asks" not in audited(states / "admission", {"uid": made.body["metadata"]["uid"]}).annotations

    wait_for("the value cannot be worked out", without)
    commands.apply(policy)


# --- the embedded API server ---------------------------------------------------------------------------


def test_the_playgrounds_api_server_refuses_identically(api: Api) -> None:
    """To the letter: message, reason, code, and the details from which kubectl makes its message."""
    plane = Plane()
    plane.fill()
    found = []
    # Those of which the playground has controllers; it stores the others unchecked.
    kinds = {"Pod": "pods"} | {
        kind: WORKLOADS[kind][1] for kind in ("Deployment", "ReplicaSet", "StatefulSet", "Job")
    }
    for case in (case for case in PODS if case.refused):
        for kind, plural in kinds.items():
            obj = pod(case, "alike") if kind == "Pod" else workload(kind, case, "alike")
            answer = api.create(obj, dry=True)
            status = _status(lambda plural=plural, obj=obj: plane.create(plural, obj))
            found.append((kind, case.id, status, answer.body))
    for write in (write for write in HERE if write.says):
        answer = api.attempt(write)
        found.append(("write", write.id, _status(lambda write=write: plane.write(write)), answer.body))
    assert len(found) > 100
    keys = ("message", "reason", "code", "details")
    differ = [
        (kind, name, [(ours.get(key), real.get(key)) for key in keys if ours.get(key) != real.get(key)])
        for kind, name, ours, real in found
    ]
    assert [one for one in differ if one[2]] == []


def _status(act: Callable[[], object]) -> dict[str, Any]:
    with pytest.raises(ApiError) as caught:
        act()
    status: dict[str, Any] = caught.value.status()
    return status


# --- the policies themselves -------------------------------------------------------------------------


def test_the_api_server_finds_no_fault_with_the_types(api: Api, commands: Commands) -> None:
    """kube-controller-manager checks each expression against the types of what the policy is about."""

    def checked() -> list[Any]:
        found = commands.json("get", "validatingadmissionpolicies")["items"]
        done = [
            one
            for one in found
            if one.get("status", {}).get("observedGeneration") == one["metadata"]["generation"]
        ]
        return found if len(found) == len(done) else []

    found = wait_for("every policy's types are checked", checked)
    faults = {
        one["metadata"]["name"]: one["status"].get("typeChecking", {}).get("expressionWarnings")
        for one in found
    }
    assert len(faults) > 10
    assert {name: problems for name, problems in faults.items() if problems} == {}


@pytest.mark.parametrize("wrong", [False, True], ids=["right", "wrong"])
def test_a_pod_of_many_containers_costs_less_than_the_limit(api: Api, wrong: bool) -> None:
    many = tuple(box(f"c{n}", mem="1", core="7" if wrong and n == 199 else "5") for n in range(200))
    case = PodCase("many", many, says=core_words(("c199", "7")) if wrong else "")
    assert not problem(case, api.create(pod(case, "many"), dry=True))
    assert not problem(case, api.create(workload("CronJob", case, "many"), dry=True))


def test_a_misspelling_among_many_names_is_found_within_the_cel_cost_limit(api: Api) -> None:
    many = tuple(box(f"c{n}", mem="1") for n in range(199))
    unread = {f"example.com/{n:063}": "x" for n in range(250)}
    unknown = unknown_words(("slip", "aliyun.com/gpu-core", names.GPU_CORE))
    case = PodCase(
        "many", (*many, box("slip", **{"aliyun.com/gpu-core": "5"})), annotations=unread, warns=(unknown,)
    )
    assert not problem(case, api.create(pod(case, "many"), dry=True))
    assert not problem(case, api.create(workload("CronJob", case, "many"), dry=True))


def test_without_nodes_in_tokens_the_other_rules_on_agents_stay(api: Api, commands: Commands) -> None:
    agents = [
        one for one in policies(commands, api, "--set", "admission.nodeRestriction=never") if _of_agents(one)
    ]
    writes = {write.id: write for write in WRITES}
    free, bound = writes["agent-without-node"], writes["agent-labels-its-node"]
    commands.apply(*agents)
    wait_for("agents are free", lambda: api.attempt(free).taken)
    for user in (bound.user, free.user):
        assert api.attempt(bound, user=user).message.endswith(bound.says)
    commands.apply(*(one for one in policies(commands, api) if _of_agents(one)))
    wait_for("agents are bound", lambda: not api.attempt(free).taken)


@pytest.mark.parametrize("switched_off", ["enabled", "validation", "setSchedulerName"])
def test_records_and_nodes_are_guarded_whatever_else_is_off(
    api: Api, commands: Commands, switched_off: str
) -> None:
    left = policies(commands, api, "--set", f"admission.{switched_off}=false")
    assert [one for one in left if _guards(one)] == [one for one in policies(commands, api) if _guards(one)]
    assert len([one for one in left if _guards(one)]) == 14


def _guards(policy: dict[str, Any]) -> bool:
    """Whether it restricts writers; records in templates are validated with their requests."""
    return _of_agents(policy) or policy["metadata"]["name"] in (
        "gpushare-records",
        "gpushare-records-bindings",
        "gpushare-records-nodes",
    )


def _of_agents(policy: dict[str, Any]) -> bool:
    name: str = policy["metadata"]["name"]
    return name.startswith("gpushare-node-agent")


def test_switched_off_nothing_is_checked(api: Api, commands: Commands) -> None:
    def made(*values: str) -> list[dict[str, Any]]:
        return policies(commands, api, *(option for value in values for option in ("--set", value)))

    assert made("admission.enabled=false", "admission.guards=false") == []
    pointing = made("admission.validation=false", "admission.guards=false")
    assert {one["kind"] for one in pointing} <= {MUTATING, f"{MUTATING}Binding"}
    assert not any(map(_guards, made("admission.guards=false")))
    judging = made("admission.setSchedulerName=false")
    mutating = {one["metadata"]["name"] for one in judging if one["kind"] in (MUTATING, f"{MUTATING}Binding")}
    assert mutating <= {"gpushare-memory-amounts"}, (
        "requests in MiB or percent are converted to units all the same"
    )


def test_a_namespaces_quota_counts_units_of_memory_and_compute(commands: Commands, api: Api) -> None:
    manifests = (CHECKOUT / "docs" / "guide" / "quotas.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", manifests, re.DOTALL)
    (quota,) = (
        one for block in blocks for one in yaml.safe_load_all(block) if one["kind"] == "ResourceQuota"
    )
    team = quota["metadata"]["namespace"]
    commands.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team}}, quota)
    wait_for_accounts(api, team)

    def ask(name: str, units: int, percent: int, *, dry: bool = False) -> Answer:
        limits = {names.GPU_MEM: units, names.GPU_CORE: percent}
        spec = {"containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}]}
        metadata = {"name": name, "namespace": team}
        return api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, dry=dry)

    # Admission uses its own watch: a quota that it has not counted yet refuses every pod, or none.
    wait_for("the quota is in force", lambda: "exceeded quota" in ask("huge", 17, 50, dry=True).message)
    assert ask("a", 12, 50).taken
    refused = ask("b", 8, 50)
    assert refused.status == 403
    assert (
        "exceeded quota: gpu, requested: requests.aliyun.com/gpu-mem=8, used: requests.aliyun.com/gpu-mem=12"
        in (refused.message)
    )
    assert ask("c", 1, 100).taken
    assert "requests.aliyun.com/gpu-core.percentage=50" in ask("d", 1, 50).message


def claimed(requests: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """A ResourceClaim, or a template of one."""
    spec: dict[str, Any] = {"devices": {"requests": requests}}
    metadata = {"name": "c", "namespace": "default"}
    spec = spec if kind == "ResourceClaim" else {"spec": spec}
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}


def request_for(name: str = "gpu", device_class: str = "gpushare.dev", **capacity: str) -> dict[str, Any]:
    exactly = {"deviceClassName": device_class, "capacity": {"requests": capacity}}
    return {"name": name, "exactly": exactly}


OF_MEMORY = "memory is in bytes and must be at least 1Mi; write 3Gi for three GiB: request gpu asks for 3"
OF_COMPUTE = "compute must be a multiple of 5 from 5 to 100, or 0: request gpu"
OF_SHARES = "a claim consumes one of a GPU's shares, leave capacity shares out: request gpu"
OF_OTHERS = "a claim for gpushare.dev can request capacity memory and compute, nothing else: request b"
FIRST_OF = {
    "name": "gpu",
    "firstAvailable": [
        {"name": "small", "deviceClassName": "gpushare.dev", "capacity": {"requests": {"compute": "7"}}}
    ],
}


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
@pytest.mark.parametrize(
    ("requests", "says"),
    [
        ([request_for(memory="3Gi", compute="30")], ""),
        ([request_for(memory="3Gi", compute="0")], ""),
        ([{"name": "gpu", "exactly": {"deviceClassName": "gpushare.dev"}}], ""),
        ([request_for(memory="1Mi", compute="100")], ""),
        ([request_for(memory="3")], OF_MEMORY),
        ([request_for(compute="7")], f"{OF_COMPUTE} asks for 7"),
        ([request_for(compute="105")], f"{OF_COMPUTE} asks for 105"),
        ([request_for(compute="500m")], f"{OF_COMPUTE} asks for 500m"),
        ([FIRST_OF], f"{OF_COMPUTE}/small asks for 7"),
        ([request_for(shares="2")], OF_SHARES),
        ([request_for(), request_for("b", memroy="3Gi")], OF_OTHERS),
        ([request_for(device_class="another.example.com", compute="7")], ""),
    ],
)
def test_claims(api: Api, kind: str, requests: list[dict[str, Any]], says: str) -> None:
    if not serves_claims(api):
        pytest.skip("this Kubernetes has no ResourceClaims (v1 from 1.34 on)")
    answer = api.create(claimed(requests, kind), dry=True)
    assert answer.taken is not bool(says), answer.message
    assert says in answer.message
