"""Pods on the playground's kubelet: starting, restarting, ending, and their events."""

import os
import signal
from pathlib import Path

import pytest

from tests.integration.kubelet.small_cluster import PODS, container_of, script, until, waiting


def terminated(pod, name="c"):
    return container_of(pod, name)["state"].get("terminated", {})


async def events(cluster, name):
    listed = await cluster.get("/apis/events.k8s.io/v1/namespaces/default/events")
    return {one["reason"] for one in listed["items"] if one["regarding"]["name"] == name}


async def test_the_node_reports_its_system_information(cluster):
    node = await cluster.node()
    assert node["metadata"]["labels"]["colour"] == "blue"
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == "n1"
    status = node["status"]
    assert {"type": "InternalIP", "address": "127.0.0.1"} in status["addresses"]
    assert status["daemonEndpoints"]["kubeletEndpoint"]["Port"] == cluster.kubelet.port
    assert (status["capacity"]["cpu"], status["allocatable"]["pods"]) == ("8", "110")
    assert {one["type"]: one["status"] for one in status["conditions"]}["Ready"] == "True"

    async def lease():
        leases = await cluster.get("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases")
        return any(one["metadata"]["name"] == "n1" and one["spec"]["renewTime"] for one in leases["items"])

    await until(lease, "the lease is renewed")


async def test_a_running_pods_status_is_that_of_a_real_kubelet(cluster):
    await cluster.create("p")
    pod = await cluster.running("p")
    status = pod["status"]
    assert status["hostIP"] == "127.0.0.1"
    assert status["podIP"].startswith("127.")
    assert status["startTime"]
    assert {one["type"]: one["status"] for one in status["conditions"]}["Ready"] == "True"
    container = container_of(pod)
    assert (container["ready"], container["started"], container["restartCount"]) == (True, True, 0)
    assert container["containerID"].startswith("playground://")

    async def complete():
        return {"Pulled", "Created", "Started"} <= await events(cluster, "p")

    await until(complete, "the events are written")


async def test_a_finished_pod_has_succeeded_or_failed(cluster):
    await cluster.create("good", script("echo done"), restartPolicy="Never")
    await cluster.create("bad", script("exit 3"), restartPolicy="Never")
    await cluster.create("killed", script("kill -9 $$$$"), restartPolicy="Never")
    good, bad, killed = [await cluster.finished(name) for name in ("good", "bad", "killed")]
    assert (good["status"]["phase"], terminated(good)["exitCode"]) == ("Succeeded", 0)
    assert terminated(good)["reason"] == "Completed"
    assert (bad["status"]["phase"], terminated(bad)["exitCode"]) == ("Failed", 3)
    assert terminated(bad)["reason"] == "Error"
    assert terminated(killed)["exitCode"] == 137
    assert await cluster.log("good") == "done\n"


async def test_a_crashing_container_restarts_with_back_off_and_keeps_its_last_state(cluster):
    await cluster.create("p", script("echo once; exit 7"))
    pod = await cluster.pod_where(
        "p",
        lambda pod: (
            pod["status"].get("containerStatuses")
            and container_of(pod)["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff"
        ),
        "is in back-off",
    )
    container = container_of(pod)
    assert container["restartCount"] >= 1
    assert container["lastState"]["terminated"]["exitCode"] == 7
    await cluster.pod_where("p", lambda pod: container_of(pod)["restartCount"] >= 3, "goes on trying")
    assert await cluster.log("p", previous="true") == "once\n"

    async def backed_off():
        return "BackOff" in await events(cluster, "p")

    await until(backed_off, "an event of the back-off")


async def test_init_containers_run_in_order_and_a_sidecar_ends_with_the_pod(cluster, tmp_path):
    await cluster.create(
        "p",
        script(f"echo app >> {tmp_path}/order"),
        initContainers=[
            script(
                f"echo side >> {tmp_path}/order; while :; do sleep 0.05; done", "side", restartPolicy="Always"
            ),
            # A sidecar counts as started before its program has written anything.
            script(
                f"until test -s {tmp_path}/order; do sleep 0.02; done; echo init >> {tmp_path}/order", "init"
            ),
        ],
        restartPolicy="Never",
    )
    pod = await cluster.finished("p")
    assert (tmp_path / "order").read_text().split() == ["side", "init", "app"]
    assert cluster.attempt("p", "side").started_ns < cluster.attempt("p", "init").started_ns
    assert pod["status"]["phase"] == "Succeeded"
    assert terminated(pod, "init")["reason"] == "Completed"
    assert cluster.attempt("p", "side").ended is not None


async def test_an_unknown_image_waits_and_the_known_ones_are_listed(cluster):
    await cluster.create("p", {"name": "c", "image": "nginx:1"})

    def reason(pod):
        statuses = pod["status"].get("containerStatuses")
        return statuses[0]["state"].get("waiting", {}).get("reason") if statuses else None

    # The first of them lasts until the next try, which a slow connection may miss.
    failed = ("ErrImagePull", "ImagePullBackOff")
    pod = await cluster.pod_where("p", lambda pod: reason(pod) in failed, "cannot pull")
    message = container_of(pod)["state"]["waiting"]["message"]
    assert "nginx:1" in message
    assert "busybox" in message
    await cluster.pod_where("p", lambda pod: reason(pod) == "ImagePullBackOff", "backs off")


async def test_a_missing_program_is_a_start_error(cluster):
    await cluster.create(
        "p", {"name": "c", "image": "busybox", "command": ["no-such"]}, restartPolicy="Never"
    )
    pod = await cluster.finished("p")
    assert (terminated(pod)["reason"], terminated(pod)["exitCode"]) == ("StartError", 128)
    assert 'exec: "no-such": executable file not found in $PATH' in terminated(pod)["message"]


async def test_a_pod_with_a_missing_config_map_waits_until_it_exists(cluster):
    env = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}]
    await cluster.create("p", script("echo A=$A; sleep 100", env=env))
    await cluster.pod_where(
        "p",
        lambda pod: (
            pod["status"].get("containerStatuses")
            and container_of(pod)["state"].get("waiting", {}).get("message") == 'configmap "m" not found'
        ),
        "waits",
    )
    body = b'{"metadata":{"name":"m"},"data":{"k":"found"}}'
    await cluster.session.request("POST", "/api/v1/namespaces/default/configmaps", body=body)
    await cluster.logs_are("p", "A=found\n")


async def test_deletion_is_graceful_and_the_object_goes_last(cluster):
    await cluster.create("p", script("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.02; done"))
    await cluster.logs_are("p", "up\n")
    attempt = cluster.attempt("p")
    await cluster.delete("p")
    await cluster.is_gone("p")
    assert attempt.ended is not None
    assert attempt.ended.code == 0
    await until(lambda: not any(cluster.folders.pods.iterdir()), "its folder is gone")


async def test_a_container_that_ignores_sigterm_is_killed_after_the_grace_period(cluster):
    await cluster.create("p", script("trap '' TERM; echo up; while :; do sleep 0.02; done"))
    await cluster.logs_are("p", "up\n")
    attempt = cluster.attempt("p")
    await cluster.delete("p", gracePeriodSeconds=1)
    await cluster.is_gone("p")
    assert attempt.ended.signal == signal.SIGKILL


async def test_a_force_deleted_pod_leaves_no_process(cluster, caplog):
    await cluster.create(
        "p", script("trap '' TERM; (setsid sleep 1000 &); echo up; while :; do sleep 0.02; done")
    )
    await cluster.logs_are("p", "up\n")
    attempt = cluster.attempt("p")
    await cluster.delete("p", gracePeriodSeconds=0)
    await until(lambda: attempt.ended is not None, "the container has ended")
    assert await cluster.pod("p") is None
    await until(lambda: not any(cluster.folders.pods.iterdir()), "its folder is gone")
    assert "does not die" not in caplog.text


async def test_the_folder_of_a_force_deleted_pod_stays_until_its_container_has_ended(cluster):
    await cluster.create("p", script("trap '' TERM; echo up; while :; do sleep 0.02; done"))
    await cluster.logs_are("p", "up\n")
    attempt = cluster.attempt("p")
    os.kill(attempt.shim, signal.SIGSTOP)  # it writes its exit status there, once it goes on
    try:
        await cluster.delete("p", gracePeriodSeconds=0)
        await until(lambda: _is_zombie(attempt.pid), "the container's process is killed")
        assert attempt.folder.is_dir()
    finally:
        os.kill(attempt.shim, signal.SIGCONT)
    await until(lambda: not any(cluster.folders.pods.iterdir()), "its folder is gone")
    assert attempt.ended.signal == signal.SIGKILL


def _is_zombie(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


async def test_processes_left_behind_by_a_container_end_with_it(cluster, tmp_path):
    await cluster.create(
        "p",
        script(
            f"(setsid sh -c 'echo $$$$ > {tmp_path}/pid; exec sleep 1000' &); "
            f"while ! test -s {tmp_path}/pid; do :; done; exit 0"
        ),
        restartPolicy="Never",
    )
    await cluster.finished("p")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_changes_of_others_to_the_node_are_preserved(bare):
    await bare.start_kubelet(status_interval_s=0.1)
    path = "/api/v1/nodes/n1/status"
    await bare.patch(path, {"status": {"capacity": {"aliyun.com/gpu-count": "8"}}})
    await bare.amounts_are(("8", "8"), "aliyun.com/gpu-count")
    await bare.patch(path, {"status": {"capacity": {"aliyun.com/gpu-count": None}}})
    await bare.amounts_are((None, None), "aliyun.com/gpu-count")


async def test_pods_that_arrive_together_do_not_count_against_each_other_before_admission(cluster):
    for number in range(4):
        await cluster.create(f"p{number}", waiting(resources={"requests": {"cpu": "2"}}))
    for number in range(4):
        await cluster.running(f"p{number}")


async def test_each_pod_has_its_own_address(cluster):
    for name in ("p", "q"):
        await cluster.create(name)
    await cluster.create("host", hostNetwork=True)
    addresses = [(await cluster.running(name))["status"]["podIP"] for name in ("p", "q", "host")]
    assert len(set(addresses)) == 3
    assert addresses[2] == "127.0.0.1"


async def test_a_pod_bound_before_the_kubelet_started_is_found(bare):
    await bare.session.request("POST", "/api/v1/nodes", body=b'{"metadata":{"name":"n1"}}')
    await bare.create("p")
    await bare.start_kubelet()
    await bare.running("p")
    assert (await bare.get(f"{PODS}/p"))["status"]["phase"] == "Running"
