"""Shares through ResourceClaims on the real cluster: kube-scheduler allocates them, the kubelet prepares
them, containers are limited.
"""

import json
import signal
from dataclasses import replace
from pathlib import Path

from gpushare.api import names
from gpushare.api.quantity import parse_quantity
from gpushare_playground import gpus
from tests.docs.assigned import commands_typed_by
from tests.e2e.cluster import Cluster
from tests.e2e.product.claiming import (
    CLAIMS,
    CUDA_SAMPLE,
    NODE,
    Json,
    claim,
    files,
    held_by_tables,
    kill_agent,
    offered,
    pod,
    slices,
    typed,
    until,
)
from tests.e2e.product.product import (
    EXAMPLES,
    INSTALLER,
    MODES,
    NAMESPACE,
    Product,
    gpu_pod,
)
from tests.e2e.product.test_isolation import ALLOCATES, LEAST, MOST, busy_percent

#: Allocates 2 GiB and keeps them.
HOLDS = """
import ctypes, signal
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0), cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
print("holds", cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(2 << 30)), flush=True)
signal.pause()
"""
#: The message for a claim with a parameter that ``ShareConfig`` does not have.
WRONG = f"ResourceClaim wrong: its parameters for driver {names.DRA_DRIVER}: Object contains unknown field `timeSlice`"
#: The chart's values of ``claims``.
UNCLAIMED = ("extendedResource=false", "defaultMemoryMiB=0", "defaultCompute=0")


def taints(product: Product) -> list[tuple[str, str]]:
    """Keys and effects of the taints in the node's slice."""
    return [
        (taint["key"], taint["effect"])
        for one in slices(product)
        for device in one["spec"]["devices"]
        for taint in device.get("taints", ())
    ]


def health(product: Product, name: str) -> str:
    """The health of the GPU that a pod has through its claim, as the kubelet reports it; empty if it does not."""
    (container,) = product.get(f"/api/v1/namespaces/default/pods/{name}")["status"]["containerStatuses"]
    found = [
        resource["health"]
        for one in container.get("allocatedResourcesStatus", ())
        for resource in one["resources"]
    ]
    return found[0] if found else ""


def test_claims_are_allocated_held_to_their_share_and_released(
    claiming: Product, cluster: Cluster, tmp_path: Path
) -> None:
    product = claiming
    _, see, *commands = commands_typed_by(__file__, "docs/guide/dra.md")
    assert "gpushare.dev" in typed(product, see.text, tmp_path)
    _, _, smi, table = (typed(product, one.text, tmp_path) for one in commands[:4])
    assert "/  3072MiB" in smi
    (row,) = (line.split() for line in table.splitlines() if line.startswith("inference"))
    assert ("default" in row, "3" in row, "30" in row, row[-1].startswith("inference-share-")) == (True,) * 4
    # Its memory, then success, success, success, success (2 GiB), out of memory (1 GiB, 2 GiB more).
    exec_in = ("exec", "inference", "--")
    allocated = product.kubectl(*exec_in, "python3", "-c", ALLOCATES).split()
    assert (allocated[0], allocated[-1]) == ("3072", "2"), allocated
    environment = product.environment("inference")
    assert (environment[names.ENV_MEM_LIMIT], environment[names.ENV_CORE_PERCENT]) == ("3072", "30")
    limits = product.kubectl(*exec_in, "cat", "/run/gpushare/limits")
    assert "memory_bytes=3221225472 core_percent=30 core_policy=hard" in limits

    # Two more share its GPU, two GPUs are two, and what fits on no GPU stays pending with
    # kube-scheduler's reason.
    product.apply(claim("second", "3Gi", 30), pod("second", "second"))
    product.running("app=second")
    # Containers and pods that use one claim have one limit: memory that one holds is unavailable to the others.
    second_pod = pod("twin", "second")
    (main,) = second_pod["spec"]["containers"]
    second_pod["spec"]["containers"].append(main | {"name": "beside"})
    product.apply(second_pod)
    product.running("app=twin")
    holding = product.start("kubectl", "exec", "twin", "-c", "main", "--", "python3", "-c", HOLDS)
    try:
        assert holding.stdout is not None
        assert holding.stdout.readline().split() == ["holds", "0"]
        for other in (("twin", "-c", "beside"), ("second",)):
            output = product.kubectl("exec", *other, "--", "python3", "-c", ALLOCATES).split()
            assert output == ["3072", "0", "0", "0", "2", "2"], other
    finally:
        holding.kill()
        holding.communicate()
    product.kubectl("delete", "pod", "twin", "--grace-period=1")
    product.apply(claim("third", "3Gi", 30), pod("third", "third"))
    product.running("app=third")
    gpus = {product.environment(one)[names.ENV_VISIBLE_DEVICES] for one in ("inference", "second", "third")}
    assert len(gpus) == 1
    product.apply(claim("pair", "1Gi", 0, count=2), pod("pair", "pair"))
    product.running("app=pair")
    assert len(product.environment("pair")[names.ENV_VISIBLE_DEVICES].split(",")) == 2
    product.apply(claim("large", "100Gi", 0), pod("large", "large"))
    product.wait_for_event("large", "cannot allocate all claims")

    # A killed agent loses nothing: the next one restores what this one had prepared.
    uid = cluster.get(f"{CLAIMS}/second")["metadata"]["uid"]
    before = files(cluster)
    assert f"gpushare.dev-claim-{uid}.json" in before
    kill_agent(product, cluster)
    assert files(cluster) == before
    # A starting kubelet removes the node's slices, and the agent writes its own again; pods keep running.
    (slice_before,) = slices(product)
    cluster.restart("kubelet", NODE, signal=signal.SIGKILL)
    until("another slice", lambda: _uids(slices(product)) not in ([], _uids([slice_before])))
    assert files(cluster) == before
    product.kubectl("delete", "pod", "second", "--grace-period=1")
    until("its files are gone", lambda: f"gpushare.dev-claim-{uid}.json" not in files(cluster))
    product.delete_all()
    until("nothing is left of claims", lambda: not files(cluster))


def test_the_example_has_sizes_of_shares(claiming: Product, tmp_path: Path) -> None:
    product = claiming
    (tmp_path / "examples").symlink_to(EXAMPLES)
    apply, wait, smi = commands_typed_by(__file__, "docs/guide/dra.md")[6:9]
    for command in (apply, wait):
        typed(product, command.text, tmp_path)
    assert "/  4096MiB" in typed(product, smi.text, tmp_path)
    assert product.environment("medium")[names.ENV_CORE_PERCENT] == "25"
    for size, mib in (("small", 2048), ("large", 8192)):
        product.apply(of_template(size, f"share-{size}"))
        product.running(f"app={size}")
        assert product.environment(size)[names.ENV_MEM_LIMIT] == str(mib)


#: A tenth of a GPU's memory, and a Deployment of pods with it.
TENTH: Json = claim("tenth", "1616Mi", 0)
TENTH |= {"kind": "ResourceClaimTemplate", "spec": {"spec": TENTH["spec"]}}


def test_twenty_pods_fill_two_gpus_exactly(claiming: Product) -> None:
    product = claiming
    # Two of the four GPUs of 16160 MiB take claims, ten tenths each.
    product.kubectl("annotate", "node", NODE, f"{names.ANN_CORDONED}=2,3", "--overwrite")
    try:
        until("two GPUs are cordoned", lambda: len(taints(product)) == 2)
        template = {key: of_template("tenths", "tenth")[key] for key in ("metadata", "spec")}
        product.apply(
            TENTH,
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "tenths", "namespace": "default"},
                "spec": {
                    "replicas": 20,
                    "selector": {"matchLabels": template["metadata"]["labels"]},
                    "template": template,
                },
            },
        )
        product.running("app=tenths", 20)
        assert held_of_each_gpu(product) == [[1616] * 10, [1616] * 10]

        # One more is pending, until a pod is deleted.
        product.apply(ends("late"))
        product.wait_for_event("late", "cannot allocate all claims")
        product.kubectl("scale", "deployment/tenths", "--replicas=19")
        product.running("app=late")
        # So is the next one, until a pod ends by itself: it stays, and its claim is deleted.
        product.apply(ends("later"))
        product.wait_for_event("later", "cannot allocate all claims")
        product.kubectl("exec", "late", "--", "touch", "/tmp/end")
        product.running("app=later")
        (completed_pod,) = product.pods("app=late")
        assert completed_pod["status"]["phase"] == "Succeeded"
        assert held_of_each_gpu(product) == [[1616] * 10, [1616] * 10]
    finally:
        product.delete_all()
        product.kubectl("annotate", "node", NODE, f"{names.ANN_CORDONED}-")


def held_of_each_gpu(product: Product) -> list[list[int]]:
    """MiB of each claim, by GPU."""
    gpu_mib: dict[str, list[int]] = {}
    for (_, uuid), mib in held_by_tables(product).items():
        gpu_mib.setdefault(uuid, []).append(mib)
    return list(gpu_mib.values())


def of_template(name: str, template: str, **spec: object) -> Json:
    """A pod with a claim made from the template."""
    made = pod(name, "")
    made["spec"] |= {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}], **spec}
    return made


def ends(name: str) -> Json:
    """A pod with a tenth, which exits when its file ``/tmp/end`` exists."""
    made = of_template(name, "tenth", restartPolicy="Never")
    made["spec"]["containers"][0]["command"] = ["sh", "-c", "until [ -e /tmp/end ]; do sleep 0.1; done"]
    return made


def test_manifests_for_other_modes_run_with_claims(claiming: Product, tmp_path: Path) -> None:
    product = claiming
    *_, apply, rolled_out, see, remove = commands_typed_by(__file__, "docs/guide/dra.md")
    product.upgrade(INSTALLER, "--set", "admission.toClaims=true")
    try:
        for command in (apply, rolled_out):
            typed(product, command.text, tmp_path)
        assert "gpushare-3072mib-30core-" in typed(product, see.text, tmp_path)
        (made,) = product.running("app=unchanged")
        name, spec = made["metadata"]["name"], made["spec"]
        assert (spec["nodeName"], spec["schedulerName"]) == (NODE, "default-scheduler")
        assert "/  3072MiB" in product.kubectl("exec", name, "--", "nvidia-smi")
        assert product.environment(name)[names.ENV_CORE_PERCENT] == "30"
        assert any(name in line and " 30 " in line for line in product.inspect("-d", NODE).splitlines())

        pair = gpu_pod("pair", 4, labels={"app": "pair", names.LABEL_POD_GPU_COUNT: "2"})
        first = product.environment(name)[names.ENV_VISIBLE_DEVICES]
        # Each property that a slice has, as kube-scheduler evaluates it.
        pair["metadata"]["annotations"] = {
            names.ANN_GPU_MODEL_EXCLUDE: "A10,P40",
            names.ANN_GPU_ARCHITECTURE: "volta,ada-lovelace",
            names.ANN_GPU_ARCHITECTURE_EXCLUDE: "kepler",
            names.ANN_GPU_MEMORY_MIN: "15Gi",
            names.ANN_GPU_MEMORY_MAX: "16160Mi",
            names.ANN_GPU_UUID_EXCLUDE: first,
        }
        whole_gpu = {names.LABEL_POD_PLACEMENT: names.POD_PLACEMENT_WHOLE_DEVICE}
        product.apply(pair, gpu_pod("whole", 8, labels={"app": "whole", **whole_gpu}))
        product.running("app=pair")
        product.running("app=whole")
        assert len({first, *product.environment("pair")[names.ENV_VISIBLE_DEVICES].split(",")}) == 3
        assert product.environment("whole")[names.ENV_MEM_LIMIT] == "16160"
        other = gpu_pod("other", 3)
        other["metadata"]["annotations"] = {names.ANN_GPU_MODEL: "A100"}
        product.apply(other)
        product.wait_for_event("other", "cannot allocate all claims")
        typed(product, remove.text, tmp_path)
    finally:
        product.delete_all()
        product.upgrade(INSTALLER, "--set", "admission.toClaims=false")


def test_plain_pods_get_a_share_by_extended_resource(claiming: Product, cluster: Cluster) -> None:
    product = claiming
    container = {
        "name": "main",
        "image": CUDA_SAMPLE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "100000"],
        "resources": {"limits": {names.GPU_SHARE: "1"}},
    }
    template = {
        "metadata": {"labels": {"app": "plain"}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
    }
    plain: Json = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "plain", "namespace": "default"},
        "spec": {"replicas": 9, "selector": {"matchLabels": {"app": "plain"}}, "template": template},
    }
    values = ("extendedResource=true", "defaultMemoryMiB=7000", "defaultCompute=30")
    product.upgrade(INSTALLER, *(one for value in values for one in ("--set", f"claims.{value}")))
    try:
        product.rolled_out()
        product.apply(plain)

        # Two on each of four GPUs of 16160 MiB, and one is pending.
        def held() -> list[list[str]]:
            rows = (line.split() for line in product.inspect("-d", NODE).splitlines())
            return [row for row in rows if row[:1] and row[0].startswith("plain-")]

        until("eight have shares", lambda: len(held()) == 8)
        until("eight run", lambda: len([one for one in product.pods("app=plain") if ready(one)]) == 8)
        made = cluster.get(CLAIMS)["items"]
        assert len(made) == 8
        assert all("-extended-resources-" in one["metadata"]["name"] for one in made)
        pods = product.pods("app=plain")
        (late,) = (one["metadata"]["name"] for one in pods if not one["spec"].get("nodeName"))
        product.wait_for_event(late, "cannot allocate all claims")
        assert f"1 of {names.GPU_SHARE}" in product.inspect("--pending")
        assert "is made with its node" in product.inspect("--why", late)
        name = next(one["metadata"]["name"] for one in pods if one["metadata"]["name"] != late)
        assert "/  7000MiB" in product.kubectl("exec", name, "--", "nvidia-smi")
        assert product.environment(name)[names.ENV_CORE_PERCENT] == "30"
        assert f"{name}-extended-resources-" in product.inspect("--why", name)

        # An ending pod makes room, and its claim is deleted with it.
        product.kubectl("delete", "pod", name, "--grace-period=1")
        until(
            "the one that waited runs", lambda: ready(product.get(f"/api/v1/namespaces/default/pods/{late}"))
        )
        product.kubectl("delete", "deployment", "plain")
        until("no claim is left", lambda: not cluster.get(CLAIMS)["items"] and not files(cluster))
    finally:
        product.delete_all()
        product.upgrade(INSTALLER, *(one for value in UNCLAIMED for one in ("--set", f"claims.{value}")))
        product.rolled_out()


def ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def test_a_claim_gets_its_share_of_the_gpus_time(claiming: Product) -> None:
    product = claiming
    loops = pod("loops", "compute")
    loops["spec"]["containers"][0] |= {"command": ["bandwidthTest"], "workingDir": "/root"}
    product.apply(claim("compute", "2Gi", 30), loops)
    product.running("app=loops")
    percentages: list[int] = []

    def settled() -> bool:
        percentages.append(busy_percent(product, "loops"))
        return LEAST <= percentages[-1] <= MOST

    try:
        until("its utilisation is about 30%", settled)
    except TimeoutError as error:
        raise AssertionError(f"{error}; seen: {percentages}") from error


def _uids(found: list[Json]) -> list[str]:
    return [one["metadata"]["uid"] for one in found]


def test_a_claim_reports_its_limits_and_monitoring_is_unlimited(claiming: Product) -> None:
    product = claiming
    parameters = {
        "apiVersion": f"{names.DRA_DRIVER}/v1",
        "kind": "ShareConfig",
        "computePolicy": "work-conserving",
        "computeClass": "latency",
    }
    policy = claim("policy", "1Gi", 30)
    policy["spec"]["devices"]["config"] = [{"opaque": {"driver": names.DRA_DRIVER, "parameters": parameters}}]
    wrong = claim("wrong", "1Gi", 30)
    wrong["spec"]["devices"]["config"] = [
        {"opaque": {"driver": names.DRA_DRIVER, "parameters": parameters | {"timeSlice": 3}}}
    ]
    product.apply(policy, pod("policy", "policy"), wrong, pod("wrong", "wrong"))
    product.running("app=policy")
    limits = product.kubectl("exec", "policy", "--", "cat", "/run/gpushare/limits")
    assert "core_percent=30 core_policy=idle core_class=latency" in limits
    product.wait_for_event("wrong", WRONG)

    monitor = claim("monitor", "1Gi", 0)
    exactly = monitor["spec"]["devices"]["requests"][0]["exactly"]
    del exactly["capacity"]
    exactly |= {"adminAccess": True}
    product.kubectl("label", "namespace", "default", "resource.kubernetes.io/admin-access=true")
    try:
        product.apply(monitor, pod("monitor", "monitor"))
        product.running("app=monitor")
        assert "16160MiB" in product.kubectl("exec", "monitor", "--", "nvidia-smi")
    finally:
        product.kubectl("label", "namespace", "default", "resource.kubernetes.io/admin-access-")


def test_an_agent_writes_no_slice_of_another_node(claiming: Product) -> None:
    product = claiming
    agent = f"system:serviceaccount:{NAMESPACE}:gpushare-device-plugin"
    impersonation = (f"--as={agent}", "--as-user-extra=authentication.kubernetes.io/node-name=cgpu-t4")
    (found,) = slices(product)
    ran = product.run("kubectl", *impersonation, "delete", "resourceslice", found["metadata"]["name"])
    assert "node cgpu-t4 may not write ResourceSlices of other nodes" in ran.text
    assert _uids(slices(product)) == _uids([found])


def test_pods_with_claims_leave_a_gpu_that_stays_lost(claiming: Product, cluster: Cluster) -> None:
    product, node = claiming, cluster.node(NODE)
    product.apply(claim("share", "3Gi", 0), pod("holds", "share"))
    product.running("app=holds")
    uuid = product.environment("holds")[names.ENV_VISIBLE_DEVICES]
    until("its status says so", lambda: health(product, "holds") == "Healthy")
    whole = gpus.preset(str(node.preset), node.name)
    others = (replace(one, fault="lost") if one.uuid == uuid else one for one in whole.gpus)
    gpus.write(node.gpu_file, replace(whole, gpus=tuple(others)))
    try:
        until(
            "it takes no new claims",
            lambda: (f"{names.DRA_DRIVER}/unhealthy", "NoSchedule") in taints(product),
        )
        assert product.node_of("holds") == NODE
        until("its status says so", lambda: health(product, "holds") == "Unhealthy")
        until("Kubernetes deletes the pod", lambda: not product.pods("app=holds"))
    finally:
        gpus.write(node.gpu_file, whole)
    until("the GPU is offered again", lambda: not taints(product))


def test_a_slice_follows_its_gpus_and_is_removed_with_the_mode(claiming: Product) -> None:
    product = claiming
    (before,) = slices(product)
    product.kubectl("annotate", "node", NODE, f"{names.ANN_CORDONED}=3", "--overwrite")
    until(
        "the cordoned GPU has a taint",
        lambda: taints(product) == [(names.DRA_DRIVER + "/cordoned", "NoSchedule")],
    )
    (after,) = slices(product)
    assert _uids([after]) == _uids([before]), "it is changed, not replaced"
    product.kubectl("annotate", "node", NODE, f"{names.ANN_CORDONED}-")
    until("it has none", lambda: not taints(product))
    assert offered(product) == 4
    attributes = json.dumps(slices(product)[0]["spec"]["devices"][0]["attributes"])
    assert all(one in attributes for one in ("uuid", "productName", "Volta", "7.0.0", "driverVersion"))
    product.label(NODE, MODES[NODE])
    until("there is no slice", lambda: not slices(product))


def test_claims_get_what_a_pod_from_mode_cgpu_leaves_until_it_ends(claiming: Product) -> None:
    product = claiming
    product.label(NODE, "cgpu")
    product.offers(NODE, gpu_mem=60)
    product.apply(gpu_pod("early", 5, node=NODE, labels={"app": "early"}))
    (early,) = product.running("app=early")
    (held,) = json.loads(early["metadata"]["annotations"][names.ANN_SHARE])["gpus"]
    uuid, rest = held["uuid"], 16160 - held["mib"]
    product.label(NODE, "dra")
    until("the slice has what the pod leaves", lambda: memory_offered(product, uuid) == rest)

    # All of it is one claim's; neither 1 MiB more nor a whole GPU's memory is available.
    product.apply(
        of_gpu(claim("rest", f"{rest}Mi", 0), uuid),
        pod("rest", "rest"),
        of_gpu(claim("whole", "", 0), uuid),
        pod("whole", "whole"),
    )
    product.running("app=rest")
    assert f"/ {rest:>5}MiB" in product.kubectl("exec", "rest", "--", "nvidia-smi")
    product.apply(of_gpu(claim("more", "2Mi", 0), uuid), pod("more", "more"))
    for name in ("more", "whole"):
        product.wait_for_event(name, "cannot allocate all claims")
    (same,) = product.running("app=early")
    assert same["metadata"]["uid"] == early["metadata"]["uid"]
    (node,) = json.loads(product.inspect(NODE, "-o", "json"))["nodes"]
    shares = {one["name"]: [(s["uuid"], s["MiB"]) for s in one["shares"]] for one in node["pods"]}
    assert shares == {"early": [(uuid, held["mib"])], "rest": [(uuid, rest)]}
    details = [line.split()[0] for line in product.inspect("-d", NODE).splitlines() if line.split()]
    assert {"early", "rest"} <= set(details)

    product.kubectl("delete", "pod", "early", "--grace-period=1")
    until("the slice has the whole GPU", lambda: memory_offered(product, uuid) == 16160)
    product.running("app=more")
    assert not product.node_of("whole")
    product.kubectl("delete", "pod", "rest", "more", "--grace-period=1")
    product.kubectl("delete", "resourceclaims", "rest", "more")
    product.running("app=whole")


def memory_offered(product: Product, uuid: str) -> int:
    """MiB that the node's slice has of a GPU; 0 without it."""
    return sum(
        int(parse_quantity(device["capacity"]["memory"]["value"])) >> 20
        for one in slices(product)
        for device in one["spec"]["devices"]
        if device["attributes"]["uuid"]["string"] == uuid
    )


def of_gpu(claim: Json, uuid: str) -> Json:
    """The claim, for that GPU; without ``capacity`` if it requests no memory."""
    exactly = claim["spec"]["devices"]["requests"][0]["exactly"]
    if not exactly["capacity"]["requests"]["memory"]:
        del exactly["capacity"]
    expression = f'device.attributes["{names.DRA_DRIVER}"].uuid == "{uuid}"'
    exactly["selectors"] = [{"cel": {"expression": expression}}]
    return claim
