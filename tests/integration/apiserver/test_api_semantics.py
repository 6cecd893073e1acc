"""What clients rely on beneath kubectl: versions, conflicts, identity, binding, eviction, status, errors."""

import asyncio

import pytest

PODS = "/api/v1/namespaces/default/pods"
MERGE = "application/merge-patch+json"


async def test_only_known_tokens_are_served(api):
    answer = await api("GET", "/api/v1/pods", headers={"Authorization": "Bearer wrong"}, code=401)
    assert (answer["reason"], answer["code"]) == ("Unauthorized", 401)
    async with api.session.get(f"{api.base}/readyz", headers={"Authorization": ""}) as ready:
        assert (ready.status, await ready.text()) == (200, "ok")


async def test_a_new_pod_has_identity_and_defaults(api, make_pod):
    pod = await api("POST", PODS, make_pod(), code=201)
    metadata, spec, status = pod["metadata"], pod["spec"], pod["status"]
    assert metadata["uid"]
    assert metadata["creationTimestamp"].endswith("Z")
    assert metadata["generation"] == 1
    assert int(metadata["resourceVersion"]) > 1
    resources = spec["containers"][0]["resources"]
    assert resources == {"limits": {"aliyun.com/gpu-mem": "3"}, "requests": {"aliyun.com/gpu-mem": "3"}}
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) == ("Always", 30)
    assert (spec["priority"], spec["schedulerName"]) == (0, "ack-co-scheduler")
    assert status == {"phase": "Pending", "qosClass": "BestEffort"}


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"cpu": "1", "memory": "1Gi"}, "Guaranteed"),
        ({"cpu": "1"}, "Burstable"),
        ({"aliyun.com/gpu-mem": 1}, "BestEffort"),
    ],
)
async def test_quality_of_service_follows_cpu_and_memory(api, make_pod, limits, expected):
    pod = await api("POST", PODS, make_pod(limits=limits), code=201)
    assert pod["status"]["qosClass"] == expected


async def test_a_pod_with_a_scheduler_name_or_in_an_exempt_namespace_keeps_its_scheduler(api, make_pod):
    named = await api("POST", PODS, make_pod("a", schedulerName="mine"), code=201)
    assert named["spec"]["schedulerName"] == "mine"
    plain = await api("POST", PODS, make_pod("b", limits={"cpu": "1"}), code=201)
    assert plain["spec"]["schedulerName"] == "default-scheduler"
    space = {"metadata": {"name": "exempt", "labels": {"gpushare.dev/admission": "disabled"}}}
    await api("POST", "/api/v1/namespaces", space, code=201)
    exempt = await api("POST", "/api/v1/namespaces/exempt/pods", make_pod(), code=201)
    assert exempt["spec"]["schedulerName"] == "default-scheduler"


@pytest.mark.parametrize("percent", [7, 0, 105, "7"])
@pytest.mark.parametrize("place", ["containers", "initContainers"])
async def test_a_compute_share_off_the_step_size_is_invalid_in_every_container(api, make_pod, percent, place):
    pod = make_pod("p", limits={"aliyun.com/gpu-mem": 2})
    bad = {
        "name": "bad",
        "image": "i:1",
        "resources": {"limits": {"aliyun.com/gpu-core.percentage": percent}},
    }
    pod["spec"].setdefault(place, []).append(bad)
    answer = await api("POST", PODS, pod, code=422)
    assert answer["reason"] == "Invalid"
    assert f"from 5 to 100: container bad requests {percent}" in answer["message"]


@pytest.mark.parametrize(
    ("resources", "field", "message"),
    [
        (
            {"limits": {"aliyun.com/gpu-mem": "500m"}},
            "spec.containers[0].resources.limits[aliyun.com/gpu-mem]",
            'Invalid value: "500m": must be an integer',
        ),
        (
            {"limits": {"aliyun.com/gpu-mem": -1}},
            "spec.containers[0].resources.limits[aliyun.com/gpu-mem]",
            'Invalid value: "-1": must be greater than or equal to 0',
        ),
        (
            {"limits": {"aliyun.com/gpu-mem": 3}, "requests": {"aliyun.com/gpu-mem": 2}},
            "spec.containers[0].resources.requests",
            'Invalid value: "2": must be equal to aliyun.com/gpu-mem limit of 3',
        ),
        (
            {"requests": {"aliyun.com/gpu-mem": 2}},
            "spec.containers[0].resources.limits",
            "Required value: Limit must be set for non overcommitable resources",
        ),
        (
            {"limits": {"gpu": 2}},
            "spec.containers[0].resources.limits[gpu]",
            'Invalid value: "gpu": must be a standard resource type or fully qualified',
        ),
    ],
)
async def test_extended_resources_are_whole_and_requested_as_limited(
    api, make_pod, resources, field, message
):
    pod = make_pod()
    pod["spec"]["containers"][0]["resources"] = resources
    answer = await api("POST", PODS, pod, code=422)
    causes = {cause["field"]: cause["message"] for cause in answer["details"]["causes"]}
    assert causes[field] == message


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"metadata": {"name": "Bad_Name"}}, 422, "a lowercase RFC 1123 subdomain must consist of"),
        ({"metadata": {}}, 422, "metadata.name: Required value: name or generateName is required"),
        ({"spec": {"containers": []}}, 422, "spec.containers: Required value"),
        ({"spec": {"containers": [{"name": "c"}]}}, 422, "spec.containers[0].image: Required value"),
        ({"spec": {"containers": "c"}}, 400, "cannot unmarshal string into field spec.containers"),
        ({"kind": "Node"}, 400, "the object provided is a 'Node', expected 'Pod'"),
        ({"metadata": {"name": "p", "namespace": "other"}}, 400, "does not match the namespace sent"),
        ({"metadata": {"name": "p", "labels": {"a": "b c"}}}, 422, "a valid label must be an empty string"),
        ({"spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "x"}}}]}},
         400, "quantities must match the regular expression"),
    ],
)  # fmt: skip
async def test_bad_pods_are_refused_with_the_field(api, make_pod, change, code, message):
    answer = await api("POST", PODS, {**make_pod(), **change}, code=code)
    assert message in answer["message"]


async def test_bad_bodies_are_refused_and_create_nothing(api):
    assert "not valid JSON" in (await api("POST", PODS, None, code=400))["message"]
    assert (await api("POST", PODS, [1], code=400))["message"] == "the body must be an object"
    answer = await api("POST", PODS, {"a": 1}, media="application/xml", code=415)
    assert answer["reason"] == "UnsupportedMediaType"
    huge = {"metadata": {"name": "x", "annotations": {"a": "x" * 300_000}}}
    assert "may not be more than 262144 bytes" in (await api("POST", PODS, huge, code=422))["message"]
    huge["metadata"]["annotations"]["a"] *= 20
    assert (await api("POST", PODS, huge, code=413))["reason"] == "RequestEntityTooLarge"


async def test_unknown_paths_verbs_and_namespaces_get_different_errors(api, make_pod):
    assert (await api("GET", "/apis/nope.dev/v1/things", code=404))["reason"] == "NotFound"
    assert (await api("POST", "/api/v1/pods", make_pod(), code=405))["reason"] == "MethodNotAllowed"
    answer = await api("POST", "/api/v1/namespaces/nowhere/pods", make_pod(), code=404)
    assert answer["message"] == 'namespaces "nowhere" not found'
    answer = await api("GET", f"{PODS}/missing", code=404)
    assert (answer["message"], answer["details"]) == (
        'pods "missing" not found',
        {"name": "missing", "kind": "pods"},
    )


async def test_generated_names_differ(api, make_pod):
    pod = make_pod()
    pod["metadata"] = {"generateName": "job-"}
    names = {(await api("POST", PODS, pod, code=201))["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("job-") and len(name) == 9 for name in names)


async def test_update_from_a_stale_version_or_of_another_uid_conflicts(api, make_pod):
    pod = await api("POST", PODS, make_pod(), code=201)
    await api("PATCH", f"{PODS}/p", {"metadata": {"labels": {"a": "b"}}}, media=MERGE, code=200)
    answer = await api("PUT", f"{PODS}/p", pod, code=409)
    assert answer["reason"] == "Conflict"
    assert "the object has been modified" in answer["message"]
    pod["metadata"].pop("resourceVersion")
    pod["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
    assert "UID in precondition" in (await api("PUT", f"{PODS}/p", pod, code=409))["message"]
    patch = {"metadata": {"resourceVersion": "1", "labels": {"x": "y"}}}
    await api("PATCH", f"{PODS}/p", patch, media=MERGE, code=409)


async def test_a_write_that_changes_nothing_has_no_new_version(api, make_pod):
    pod = await api("POST", PODS, make_pod(), code=201)
    again = await api("PUT", f"{PODS}/p", pod, code=200)
    assert again["metadata"]["resourceVersion"] == pod["metadata"]["resourceVersion"]


async def test_generation_counts_changes_of_the_spec_only(api):
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}
    workload = {
        "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template},
    }
    path = "/apis/apps/v1/namespaces/default/deployments"
    await api("POST", path, workload, code=201)

    async def generation(patch, part=""):
        answer = await api("PATCH", f"{path}/d{part}", patch, media=MERGE, code=200)
        return answer["metadata"]["generation"]

    assert await generation({"metadata": {"labels": {"x": "y"}}}) == 1
    assert await generation({"spec": {"replicas": 3}}) == 2
    assert await generation({"status": {"replicas": 3}, "spec": {"replicas": 9}}, "/status") == 2
    assert (await api("GET", f"{path}/d"))["spec"]["replicas"] == 3


async def test_binding_writes_node_annotations_and_labels_in_one_step(api, make_pod):
    pod = make_pod()
    pod["metadata"]["annotations"] = {"keep": "1", "change": "old"}
    made = await api("POST", PODS, pod, code=201)
    version = int(made["metadata"]["resourceVersion"])
    binding = {
        "metadata": {
            "name": "p",
            "uid": made["metadata"]["uid"],
            "annotations": {"change": "new", "gpushare.dev/allocation": "{}"},
            "labels": {"placed": "yes"},
        },
        "target": {"kind": "Node", "name": "n1"},
    }
    assert (await api("POST", f"{PODS}/p/binding", binding, code=201))["status"] == "Success"
    bound = await api("GET", f"{PODS}/p")
    assert int(bound["metadata"]["resourceVersion"]) == version + 1
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"] == {"keep": "1", "change": "new", "gpushare.dev/allocation": "{}"}
    assert bound["metadata"]["labels"] == {"app": "p", "placed": "yes"}
    assert [(one["type"], one["status"]) for one in bound["status"]["conditions"]] == [
        ("PodScheduled", "True")
    ]


async def test_a_second_binding_conflicts(api, make_pod):
    await api("POST", PODS, make_pod(), code=201)
    binding = {"target": {"kind": "Node", "name": "n1"}}
    await api("POST", f"{PODS}/p/binding", binding, code=201)
    answer = await api("POST", f"{PODS}/p/binding", {"target": {"name": "n2"}}, code=409)
    assert 'pod p is already assigned to node "n1"' in answer["message"]


async def test_binding_another_uid_a_deleted_or_a_gated_pod_is_refused(api, make_pod):
    await api("POST", PODS, make_pod(), code=201)
    target = {"target": {"kind": "Node", "name": "n1"}}
    wrong = {**target, "metadata": {"name": "p", "uid": "other"}}
    assert "Precondition failed: UID" in (await api("POST", f"{PODS}/p/binding", wrong, code=409))["message"]
    await api("POST", PODS, make_pod("gated", schedulingGates=[{"name": "wait"}]), code=201)
    gated = await api("POST", f"{PODS}/gated/binding", target, code=409)
    assert "has non-empty .spec.schedulingGates" in gated["message"]
    held = make_pod("held")
    held["metadata"]["finalizers"] = ["example.dev/hold"]
    await api("POST", PODS, held, code=201)
    await api("DELETE", f"{PODS}/held", code=200)
    assert "is being deleted" in (await api("POST", f"{PODS}/held/binding", target, code=409))["message"]
    await api("POST", f"{PODS}/missing/binding", target, code=404)


async def test_one_of_many_concurrent_bindings_succeeds(api, make_pod):
    await api("POST", PODS, make_pod(), code=201)
    answers = await asyncio.gather(
        *(api("POST", f"{PODS}/p/binding", {"target": {"name": f"n{number}"}}) for number in range(16))
    )
    assert [answer["code"] for answer in answers].count(201) == 1
    assert [answer["code"] for answer in answers].count(409) == 15


async def test_finalizers_keep_a_deleted_object_until_they_are_removed(api):
    body = {"metadata": {"name": "cm", "finalizers": ["example.dev/hold"]}}
    path = "/api/v1/namespaces/default/configmaps"
    await api("POST", path, body, code=201)
    assert (await api("DELETE", f"{path}/cm", code=200))["metadata"]["deletionTimestamp"]
    added = {"metadata": {"finalizers": ["example.dev/hold", "example.dev/more"]}}
    answer = await api("PATCH", f"{path}/cm", added, media=MERGE, code=422)
    assert "no new finalizers can be added if the object is being deleted" in answer["message"]
    await api("PATCH", f"{path}/cm", {"metadata": {"finalizers": None}}, media=MERGE, code=200)
    await api("GET", f"{path}/cm", code=404)


async def test_deletion_honours_its_preconditions(api, make_pod):
    await api("POST", PODS, make_pod(), code=201)
    body = {"preconditions": {"uid": "other"}}
    assert "Precondition failed: UID" in (await api("DELETE", f"{PODS}/p", body, code=409))["message"]
    await api("GET", f"{PODS}/p", code=200)


async def test_eviction_respects_the_disruption_budget(api, bound_pod):
    await bound_pod()
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    budget = {
        "metadata": {"name": "b"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "p"}}},
    }
    await api("POST", budgets, budget, code=201)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    refused = await api("POST", f"{PODS}/p/eviction", eviction, code=429)
    assert refused["details"]["causes"][0]["reason"] == "DisruptionBudget"
    status = {"status": {"disruptionsAllowed": 1}}
    await api("PATCH", f"{budgets}/b/status", status, media=MERGE, code=200)
    await api("POST", f"{PODS}/p/eviction", eviction, code=201)
    assert (await api("GET", f"{PODS}/p"))["metadata"]["deletionGracePeriodSeconds"] == 30
    assert (await api("GET", f"{budgets}/b"))["status"]["disruptionsAllowed"] == 0


async def test_node_status_is_written_through_its_subresource_only(api, kubelet):
    await api("POST", "/api/v1/nodes", kubelet.node(), code=201)
    patch = {"status": {"capacity": {"aliyun.com/gpu-count": 8}}}
    plain = await api("PATCH", "/api/v1/nodes/n1", patch, media=MERGE, code=200)
    assert "aliyun.com/gpu-count" not in plain["status"]["capacity"]
    strategic = "application/strategic-merge-patch+json"
    patched = await api("PATCH", "/api/v1/nodes/n1/status", patch, media=strategic, code=200)
    assert patched["status"]["capacity"]["aliyun.com/gpu-count"] == "8"
    assert patched["status"]["capacity"]["aliyun.com/gpu-mem"] == "15"
    ready = {
        "status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "New", "status": "True"}]}
    }
    patched = await api("PATCH", "/api/v1/nodes/n1/status", ready, media=strategic, code=200)
    assert {one["type"]: one["status"] for one in patched["status"]["conditions"]} == {
        "Ready": "False",
        "New": "True",
    }


async def test_events_of_both_groups_are_one_store(api):
    core = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reason": "Pulled",
        "message": "text",
        "type": "Normal",
        "count": 2,
        "source": {"component": "kubelet"},
    }
    await api("POST", "/api/v1/namespaces/default/events", core, code=201)
    new = await api("GET", "/apis/events.k8s.io/v1/namespaces/default/events/e", code=200)
    assert (new["note"], new["regarding"]["name"], new["deprecatedCount"]) == ("text", "p", 2)
    assert new["apiVersion"] == "events.k8s.io/v1"
    series = {"series": {"count": 3, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}}
    path = "/apis/events.k8s.io/v1/namespaces/default/events/e"
    await api("PATCH", path, series, media=MERGE, code=200)
    old = await api("GET", "/api/v1/namespaces/default/events/e", code=200)
    assert (old["series"]["count"], old["message"]) == (3, "text")
    selected = await api(
        "GET", "/apis/events.k8s.io/v1/events", fieldSelector="regarding.name=p,regarding.kind=Pod", code=200
    )
    assert len(selected["items"]) == 1
    assert (await api("GET", "/api/v1/events", fieldSelector="involvedObject.name=q"))["items"] == []


async def test_priority_comes_from_the_pods_priority_class(api, make_pod):
    high = {"metadata": {"name": "high"}, "value": 1000}
    await api("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", high, code=201)
    pod = await api("POST", PODS, make_pod(priorityClassName="high"), code=201)
    assert pod["spec"]["priority"] == 1000
    refused = await api("POST", PODS, make_pod("q", priorityClassName="nope"), code=403)
    assert "no PriorityClass with name nope was found" in refused["message"]


async def test_a_job_selects_its_pods_by_its_own_uid(api):
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i:1"}]}}
    path = "/apis/batch/v1/namespaces/default/jobs"
    job = await api("POST", path, {"metadata": {"name": "j"}, "spec": {"template": template}}, code=201)
    uid = job["metadata"]["uid"]
    assert job["spec"]["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    assert job["spec"]["template"]["metadata"]["labels"]["job-name"] == "j"
    assert (job["spec"]["completions"], job["spec"]["backoffLimit"]) == (1, 6)
    image = {"spec": {"template": {"spec": {"activeDeadlineSeconds": 5}}}}
    answer = await api("PATCH", f"{path}/j", image, media=MERGE, code=422)
    assert "field is immutable" in answer["message"]


async def test_metadata_only_requests_are_served(api, make_pod):
    await api("POST", PODS, make_pod(), code=201)
    accept = {"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}
    found = await api("GET", PODS, headers=accept, code=200)
    assert found["kind"] == "PartialObjectMetadataList"
    assert set(found["items"][0]) == {"kind", "apiVersion", "metadata"}
    binary = {"Accept": "application/vnd.kubernetes.protobuf"}
    assert (await api("GET", PODS, headers=binary, code=406))["reason"] == "NotAcceptable"
