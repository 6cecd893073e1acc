"""What survives the end of a kubelet, and what does not."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from gpushare_playground.kubelet.cleanup import stop_containers
from gpushare_playground.kubelet.errors import NotRunning, Waiting
from gpushare_playground.kubelet.runtime.shim import start_ticks
from tests.integration.kubelet.small_cluster import (
    RESOURCE,
    TOKEN,
    container_of,
    limits,
    script,
    until,
    waiting,
)
from tests.patience import SLOWNESS


def process_of(cluster, name, container="c"):
    return cluster.attempt(name, container).pid


async def test_a_restarted_kubelet_adopts_running_containers(cluster):
    await cluster.create("p")
    before = await cluster.running("p")
    pid = process_of(cluster, "p")
    await cluster.stop_kubelet()
    await cluster.start_kubelet()
    await until(lambda: _adopted(cluster, "p"), "the pod and its container are found")
    assert process_of(cluster, "p") == pid
    await cluster.delete("p")
    await cluster.is_gone("p")
    assert start_ticks(pid) == 0
    assert container_of(before)["restartCount"] == 0


async def test_a_container_that_ended_meanwhile_is_reported_with_its_exit_code(cluster, tmp_path):
    text = f"until test -e {tmp_path}/go; do sleep 0.02; done; exit 5"
    await cluster.create("p", script(text), restartPolicy="Never")
    await cluster.running("p")
    shim = cluster.attempt("p").shim
    await cluster.stop_kubelet()
    (tmp_path / "go").touch()
    await until(lambda: start_ticks(shim) == 0, "the container has ended")
    await cluster.start_kubelet()
    pod = await cluster.finished("p")
    assert container_of(pod)["state"]["terminated"]["exitCode"] == 5


async def test_a_container_killed_with_its_shim_is_started_again(cluster):
    await cluster.create("p")
    await cluster.running("p")
    attempt = cluster.attempt("p")
    await cluster.stop_kubelet()
    os.kill(attempt.shim, signal.SIGKILL)
    await until(lambda: start_ticks(attempt.pid) == 0, "the program died with its shim")
    await cluster.start_kubelet()
    pod = await cluster.pod_where(
        "p",
        lambda pod: container_of(pod)["restartCount"] == 1 and "running" in container_of(pod)["state"],
        "runs again",
    )
    last = container_of(pod)["lastState"]["terminated"]
    assert (last["exitCode"], last["reason"]) == (137, "ContainerStatusUnknown")


async def test_a_pod_deleted_meanwhile_is_cleaned_up(cluster):
    await cluster.create("p")
    await cluster.running("p")
    pid = process_of(cluster, "p")
    await cluster.stop_kubelet()
    await cluster.delete("p", gracePeriodSeconds=0)
    await cluster.start_kubelet()
    await until(lambda: start_ticks(pid) == 0, "the container is stopped")
    await until(lambda: not any(cluster.folders.pods.iterdir()), "its folder is gone")


async def test_sockets_are_wiped_and_the_checkpoint_is_kept(cluster, plugin):
    await cluster.create("p", waiting(**limits(2)))
    await cluster.running("p")
    data = cluster.checkpoint()
    stray = cluster.folders.device_plugins / "notes.txt"
    stray.write_text("stays")
    await cluster.stop_kubelet()
    await cluster.start_kubelet()
    assert not plugin.socket.exists()
    assert stray.exists()
    assert cluster.checkpoint()["PodDeviceEntries"] == data["PodDeviceEntries"]


async def test_after_a_restart_capacity_is_zero_until_the_plugin_is_back(cluster, plugin):
    await cluster.create("p", waiting(**limits(2)))
    await cluster.running("p")
    await cluster.stop_kubelet()
    await cluster.start_kubelet(plugin_grace_s=0.0)
    await cluster.amounts_are(("0", "0"))
    assert "running" in container_of(await cluster.pod("p"))["state"]
    await plugin.die()
    await plugin.start()
    await cluster.amounts_are(("8", "8"))
    await cluster.create("q", waiting(**limits(6)))
    await cluster.running("q")
    assert not set(plugin.allocations[-1]) & set(plugin.allocations[0])


async def test_a_running_pod_keeps_its_devices_through_a_restart_without_its_plugin(cluster, plugin):
    await cluster.create("p", waiting(**limits(2)))
    await cluster.running("p")
    await plugin.die()
    await cluster.stop_kubelet()
    await cluster.start_kubelet(plugin_grace_s=0.0)
    await until(lambda: _adopted(cluster, "p"), "the pod and its container are found")
    assert "running" in container_of(await cluster.pod("p"))["state"]
    assert len(cluster.checkpoint()["PodDeviceEntries"]) == 1


async def test_a_pod_with_a_finished_init_container_fails_when_its_plugin_is_away_at_a_restart(
    cluster, plugin
):
    await cluster.create("p", waiting(**limits(2)), initContainers=[script("exit 0", "init", **limits(2))])
    await cluster.running("p")
    pid = process_of(cluster, "p")
    await plugin.die()
    await cluster.stop_kubelet()
    await cluster.start_kubelet(plugin_grace_s=0.0)
    pod = await cluster.finished("p")
    assert pod["status"]["reason"] == "UnexpectedAdmissionError"
    assert (
        f"no healthy devices present; cannot allocate unhealthy devices {RESOURCE}"
        in pod["status"]["message"]
    )
    assert start_ticks(pid) == 0


async def test_the_same_pod_survives_when_its_plugin_returns_in_time(cluster, plugin):
    await cluster.create("p", waiting(**limits(2)), initContainers=[script("exit 0", "init", **limits(2))])
    await cluster.running("p")
    pid = process_of(cluster, "p")
    await cluster.stop_kubelet()
    await plugin.die()
    starting = asyncio.create_task(cluster.start_kubelet(plugin_grace_s=10.0))
    await until(lambda: cluster.folders.registration_socket.exists(), "the kubelet serves")
    await plugin.start()
    await starting
    await until(lambda: cluster.kubelet.book.allocatable().get(RESOURCE) == 8, "the devices are back")
    await cluster.create("q", waiting(**limits(1)))
    await cluster.running("q")
    assert start_ticks(pid) > 0
    assert (await cluster.pod("p"))["status"]["phase"] == "Running"


async def test_without_a_checkpoint_devices_are_forgotten_and_allocated_again_at_the_next_start(
    cluster, plugin
):
    await cluster.create("p", script("until test -e $HOME/go; do sleep 0.02; done", **limits(2)))
    await cluster.running("p")
    await cluster.stop_kubelet()
    cluster.folders.checkpoint.unlink()
    await plugin.die()
    await cluster.start_kubelet(plugin_grace_s=0.0)
    await until(lambda: _adopted(cluster, "p"), "the pod and its container are found")
    assert "running" in container_of(await cluster.pod("p"))["state"]
    assert cluster.kubelet.book.grants() == []
    await plugin.start()
    os.kill(process_of(cluster, "p"), signal.SIGKILL)
    await cluster.pod_where("p", lambda pod: container_of(pod)["restartCount"] == 1, "was restarted")
    assert len(cluster.checkpoint()["PodDeviceEntries"]) == 1


async def test_a_grant_whose_resource_was_dropped_does_not_hold_up_a_restart(bare, plugins):
    await bare.start_kubelet(endpoint_grace_s=0.05, status_interval_s=0.1)
    plugin = await plugins().start()
    await bare.amounts_are(("8", "8"))
    await bare.create("p", waiting(**limits(2)))
    await bare.running("p")
    await plugin.die()
    await bare.amounts_are(("0", "0"))
    bare.kubelet.allocator.save()
    await bare.stop_kubelet()
    await bare.start_kubelet(plugin_grace_s=0.3)
    await bare.create("q")
    await bare.running("q")
    assert "running" in container_of(await bare.pod("p"))["state"]


async def test_a_finished_pod_is_left_as_it_is(cluster):
    await cluster.create("p", waiting(resources={"requests": {"cpu": "9"}}))
    before = (await cluster.finished("p"))["status"]
    await cluster.stop_kubelet()
    await cluster.start_kubelet()
    await until(lambda: "default/p" in _here(cluster), "the pod is found")
    await cluster.create("q")
    await cluster.running("q")
    assert (await cluster.pod("p"))["status"] == before
    await cluster.delete("p")
    await cluster.is_gone("p")


async def test_a_label_that_was_changed_survives_a_restart(cluster):
    await cluster.patch("/api/v1/nodes/n1", {"metadata": {"labels": {"colour": "red"}}})
    await cluster.stop_kubelet()
    await cluster.start_kubelet()
    assert (await cluster.node())["metadata"]["labels"]["colour"] == "red"


def _adopted(cluster, name):
    # The pod is known from the API server a moment before its running containers are found.
    with suppress(Waiting, NotRunning):
        return process_of(cluster, name)
    return None


def _here(cluster):
    return {
        f"{one['metadata']['namespace']}/{one['metadata']['name']}"
        for one in cluster.kubelet.described_pods()
    }


# --- as a process ---------------------------------------------------------------------------------


def kubelet_process(cluster, *more):
    arguments = ["--node", "n1", "--kubeconfig", str(cluster.kubeconfig), "--root", str(cluster.folders.root)]
    return subprocess.Popen(
        [sys.executable, "-m", "gpushare_playground.kubelet", *arguments, "--token", TOKEN, *more],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


async def ended(process):
    code = await asyncio.to_thread(process.wait, 60 * SLOWNESS)
    process.stderr.close()
    return code


async def test_containers_outlive_a_killed_kubelet_and_are_adopted_by_the_next_one(bare):
    first = kubelet_process(bare)
    await until(bare.node_ready, "the node is ready")
    await bare.create("p", script("echo up; exec sleep 1000"))
    await bare.logs_are("p", "up\n")
    first.kill()
    await ended(first)
    second = kubelet_process(bare)
    await bare.logs_are("p", "up\n")
    pod = await bare.running("p")
    assert container_of(pod)["restartCount"] == 0
    await bare.delete("p")
    await bare.is_gone("p")
    second.terminate()
    assert await ended(second) == 0


async def test_the_supervisor_stops_containers_by_their_records(bare):
    process = kubelet_process(bare)
    await until(bare.node_ready, "the node is ready")
    await bare.create("p", script("trap '' TERM; echo up; while :; do sleep 0.02; done"))
    await bare.logs_are("p", "up\n")
    process.terminate()
    assert await ended(process) == 0
    assert await asyncio.to_thread(stop_containers, bare.folders.root, 0.2) == 1
    assert await asyncio.to_thread(stop_containers, bare.folders.root, 0.2) == 0


async def test_kubelet_and_containers_stop_with_their_lifeline(bare):
    with subprocess.Popen(["sleep", "1000"]) as lifeline:  # noqa: ASYNC220 - returns at once
        process = kubelet_process(bare, "--lifeline", str(lifeline.pid))
        await until(bare.node_ready, "the node is ready")
        await bare.create("p", script("trap '' TERM; echo $$$$; while :; do sleep 0.02; done"))
        await bare.logs_are("p", "\n")
        pid = int(await bare.log("p"))
        lifeline.kill()
    await until(lambda: start_ticks(pid) == 0, "the container has ended")
    assert await ended(process) == 0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (["--node-ip", "10.0.0.1"], "is no loopback address"),
        (["--images", "/nowhere"], "/nowhere: is no folder"),
        (["--kubeconfig", "/nowhere/config"], "/nowhere/config"),
        (["--lifeline", "999999999"], "there is no process 999999999"),
    ],
)
async def test_a_wrong_option_stops_it_with_a_one_line_error(bare, change, text):
    process = kubelet_process(bare, *change)
    stderr = await asyncio.to_thread(process.stderr.read)
    assert await ended(process) == 2
    assert text in stderr
    assert "Traceback" not in stderr
