"""The device plugin interface, as observed on the real kubelet."""

import grpc
import pytest
from grpc import aio

from gpushare.kubeletapi import podresources_pb2 as resources_pb
from gpushare.kubeletapi import podresources_pb2_grpc as resources_rpc
from tests.integration.kubelet.small_cluster import RESOURCE, container_of, limits, script, until, waiting


async def test_devices_become_capacity_and_the_healthy_ones_allocatable(cluster, plugin):
    await cluster.amounts_are(("8", "8"))
    plugin.change({"a": True, "b": True, "c": False})
    await cluster.amounts_are(("3", "2"))


async def test_a_dead_plugin_leaves_its_capacity_and_nothing_allocatable(cluster, plugin):
    await cluster.create("p", waiting(**limits(2)))
    await cluster.running("p")
    await plugin.die()
    await cluster.amounts_are(("8", "0"))
    assert "running" in container_of(await cluster.pod("p"))["state"]
    await plugin.start()
    await cluster.amounts_are(("8", "8"))


async def test_the_end_of_any_plugins_stream_counts_as_the_end_of_the_last_registered_one(cluster, plugins):
    old, new = await plugins().start(), plugins()
    new.socket = old.socket.with_name("another.sock")
    await new.start()
    await old.die()
    await cluster.amounts_are(("8", "0"))
    await new.register()
    await cluster.amounts_are(("8", "8"))


async def test_a_plugin_that_stays_away_loses_its_resource(bare, plugins):
    await bare.start_kubelet(endpoint_grace_s=0.05, status_interval_s=0.1)
    plugin = await plugins().start()
    await bare.amounts_are(("8", "8"))
    await plugin.die()
    await bare.amounts_are(("0", "0"))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"version": "v1alpha1"}, "requested API version 'v1alpha1' is not supported by kubelet"),
        ({"resource_name": "gpu"}, "the ResourceName 'gpu' is invalid"),
        ({"resource_name": "kubernetes.io/x"}, "is invalid"),
        ({"endpoint": "../x.sock"}, "is no name of a socket"),
    ],
)
async def test_a_wrong_registration_is_refused_with_the_reason(cluster, plugins, changes, text):
    plugin = await plugins().serve()
    with pytest.raises(aio.AioRpcError) as caught:
        await plugin.register(**changes)
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert text in caught.value.details()


async def test_a_list_above_four_mebibytes_is_refused_and_gives_no_capacity(cluster, plugins):
    plugin = plugins(
        devices={f"GPU-00000000-0000-0000-0000-000000000000-{number:06}": True for number in range(75_000)}
    )
    await plugin.serve()
    await plugin.register()
    await until(lambda: cluster.kubelet.plugins.endpoint(RESOURCE) is None, "the kubelet hangs up")
    await cluster.amounts_are(("0", "0"))


async def test_preferences_are_requested_with_all_free_devices_in_random_order_and_honoured(cluster, plugins):
    plugin = plugins(devices={f"0-{number}": True for number in range(50)})
    plugin.prefer = lambda available, must, size: ["0-7", "0-9"]
    await plugin.start()
    await cluster.create("p", script("echo got=$DEVICES; sleep 100", **limits(2)))
    await cluster.logs_are("p", "got=0-7,0-9\n")
    available, must, size = plugin.preferences[0]
    assert (sorted(available), must, size) == (sorted(plugin.devices), [], 2)
    assert available != sorted(available)
    await cluster.create("q", waiting(**limits(1)))
    await cluster.running("q")
    assert sorted(plugin.preferences[1][0]) == sorted(plugin.devices.keys() - {"0-7", "0-9"})


async def test_a_preference_for_devices_that_are_not_free_is_not_followed(cluster, plugins):
    plugin = plugins(devices={"a": True, "b": True, "c": True})
    plugin.prefer = lambda available, must, size: ["x", "c", "y"]
    await plugin.start()
    await cluster.create("p", waiting(**limits(2)))
    await cluster.running("p")
    [devices] = plugin.allocations
    assert "c" in devices
    assert len(set(devices) & {"a", "b"}) == 1


async def test_allocate_is_called_for_all_containers_before_any_starts_and_init_devices_are_reused(
    cluster, plugin
):
    await cluster.create(
        "p",
        script("echo $DEVICES; sleep 100", "a", **limits(2)),
        script("echo $DEVICES; sleep 100", "b", **limits(1)),
        initContainers=[
            waiting("side", restartPolicy="Always", **limits(1)),
            script("echo $DEVICES", "init", **limits(3)),
        ],
    )
    await cluster.running("p")
    side, init, first, second = plugin.allocations
    assert set(first) < set(init)
    assert set(second) <= set(init) - set(first)
    assert not set(side) & set(init)
    await cluster.logs_are("p", ",".join(sorted(first)), "a")


async def test_the_allocate_response_is_applied_to_the_container(cluster, plugin, tmp_path):
    (tmp_path / "limits").write_text("2154\n")
    plugin.answer = lambda ids: {
        "envs": {"FROM_PLUGIN": "yes", "MINE": "plugin"},
        "mounts": [{"container_path": "/run/gpushare", "host_path": str(tmp_path), "read_only": True}],
    }
    read = 'echo "$FROM_PLUGIN $MINE"; cat "$PLAYGROUND_ROOTFS/run/gpushare/limits"; sleep 100'
    await cluster.create("p", script(read, env=[{"name": "MINE", "value": "manifest"}], **limits(1)))
    await cluster.logs_are("p", "yes manifest\n2154\n")


async def test_a_refused_allocate_fails_the_pod_and_releases_its_devices(cluster, plugin):
    plugin.refusal = "no pod of this size waits on node n1"
    await cluster.create("p", waiting(**limits(8)))
    pod = await cluster.finished("p")
    assert pod["status"]["phase"] == "Failed"
    assert pod["status"]["reason"] == "UnexpectedAdmissionError"
    assert pod["status"]["message"] == (
        "Pod was rejected: Allocate failed due to rpc error: code = Unknown desc = "
        "no pod of this size waits on node n1, which is unexpected"
    )
    plugin.refusal = ""
    await cluster.create("q", waiting(**limits(8)))
    await cluster.running("q")


async def test_too_few_devices_fail_the_pod_with_the_figures(cluster, plugin):
    await cluster.create("p", waiting(**limits(5)))
    await cluster.running("p")
    await cluster.create("q", waiting(**limits(4)))
    pod = await cluster.finished("q")
    assert pod["status"]["reason"] == "UnexpectedAdmissionError"
    assert "Requested: 4, Available: 3" in pod["status"]["message"]


async def test_a_pod_with_a_resource_that_no_plugin_serves_fails_as_out_of_it(cluster):
    await cluster.patch(
        "/api/v1/nodes/n1/status", {"status": {"capacity": {"x.y/z": "2"}, "allocatable": {"x.y/z": "2"}}}
    )
    await cluster.stop_kubelet()
    await cluster.start_kubelet()
    await cluster.create("p", waiting(**limits(3, "x.y/z")))
    pod = await cluster.finished("p")
    assert pod["status"]["reason"] == "OutOfx.y/z"
    assert pod["status"]["message"] == (
        "Pod was rejected: Node didn't have enough resource: x.y/z, requested: 3, used: 0, capacity: 2"
    )


async def test_devices_of_a_finished_pod_are_allocated_again(cluster, plugin):
    await cluster.create("p", script("exit 0", **limits(8)), restartPolicy="Never")
    await cluster.finished("p")
    await cluster.create("q", waiting(**limits(8)))
    await cluster.running("q")


async def test_one_allocate_at_a_time(cluster, plugin):
    plugin.gate.clear()
    await cluster.create("p", waiting(**limits(4)))
    await cluster.create("q", waiting(**limits(4)))
    await until(lambda: len(plugin.preferences) == 1, "one is asked about")
    plugin.gate.set()
    await cluster.running("p")
    await cluster.running("q")
    assert [len(ids) for ids in plugin.allocations] == [4, 4]
    assert len({one for ids in plugin.allocations for one in ids}) == 8


async def test_a_plugin_that_requests_it_is_called_before_every_start(cluster, plugins):
    plugin = await plugins(pre_start=True).start()
    await cluster.create("p", script("exit 1", **limits(1)))
    await until(lambda: len(plugin.pre_started) >= 3, "two restarts were announced")
    assert {tuple(ids) for ids in plugin.pre_started} == {tuple(plugin.allocations[0])}
    await plugin.die()
    pod = await cluster.pod_where(
        "p",
        lambda pod: (
            container_of(pod)["state"].get("waiting", {}).get("reason") == "CreateContainerConfigError"
        ),
        "cannot start while the plugin is away",
    )
    assert "PreStartContainer rpc failed" in container_of(pod)["state"]["waiting"]["message"]
    starts = len(plugin.pre_started)
    await plugin.start()
    await until(lambda: len(plugin.pre_started) > starts, "it starts again")


async def test_the_checkpoint_has_the_shape_of_a_real_one(cluster, plugin):
    pod = await cluster.create("p", waiting(**limits(2)))
    await cluster.running("p")
    data = cluster.checkpoint()
    [entry] = data["PodDeviceEntries"]
    assert entry["PodUID"] == pod["metadata"]["uid"]
    assert (entry["ContainerName"], entry["ResourceName"]) == ("c", RESOURCE)
    assert entry["DeviceIDs"]["-1"] == sorted(plugin.allocations[0])
    assert sorted(data["RegisteredDevices"][RESOURCE]) == sorted(plugin.devices)


async def ask(cluster, method, request):
    async with aio.insecure_channel(f"unix:{cluster.folders.pod_resources_socket}") as channel:
        return await getattr(resources_rpc.PodResourcesListerStub(channel), method)(request, timeout=5)


async def test_pod_resources_list_each_device_alone_and_no_init_containers(cluster, plugin):
    await cluster.create(
        "p",
        waiting("a", **limits(2)),
        initContainers=[
            script("exit 0", "init", **limits(2)),
            waiting("side", restartPolicy="Always", **limits(1)),
        ],
    )
    await cluster.create("q")
    await cluster.running("p")
    await cluster.running("q")
    listed = await ask(cluster, "List", resources_pb.ListPodResourcesRequest())
    pods = {one.name: one for one in listed.pod_resources}
    assert set(pods) == {"p", "q"}
    assert [one.name for one in pods["p"].containers] == ["side", "a"]
    devices = [(one.resource_name, list(one.device_ids)) for one in pods["p"].containers[1].devices]
    assert devices == [(RESOURCE, [device]) for device in sorted(plugin.allocations[-1])]
    got = await ask(
        cluster, "Get", resources_pb.GetPodResourcesRequest(pod_name="p", pod_namespace="default")
    )
    assert got.pod_resources == pods["p"]


async def test_pod_resources_list_a_pod_as_soon_as_its_admission_begins(cluster, plugin):
    plugin.gate.clear()
    await cluster.create("p", waiting(**limits(2)))
    await until(lambda: plugin.preferences, "p is asked for")
    await cluster.create("q", waiting(**limits(2)))
    await until(lambda: len(cluster.kubelet._workers) == 2, "the kubelet knows q")
    listed = await ask(cluster, "List", resources_pb.ListPodResourcesRequest())
    assert [one.name for one in listed.pod_resources] == ["p"]
    plugin.gate.set()
    await cluster.running("q")
    listed = await ask(cluster, "List", resources_pb.ListPodResourcesRequest())
    assert {one.name for one in listed.pod_resources} == {"p", "q"}


async def test_pod_resources_list_every_healthy_device(cluster, plugin):
    plugin.change({"a": True, "b": False, "c": True})
    await cluster.amounts_are(("3", "2"))
    answer = await ask(cluster, "GetAllocatableResources", resources_pb.AllocatableResourcesRequest())
    assert [(one.resource_name, list(one.device_ids)) for one in answer.devices] == [
        (RESOURCE, ["a"]),
        (RESOURCE, ["c"]),
    ]
