"""Controllers and scheduling loop at work in a whole playground, with the real kubectl and extender."""

from typing import Any

from tests.integration.playground.running_playground import Playground, a_pod, a_template, wait_until

T4, FOUR = "cgpu-t4", "core-mem-v100x4"


def condition(pod: dict[str, Any]) -> tuple[str, str]:
    found = [one for one in pod.get("status", {}).get("conditions", ()) if one["type"] == "PodScheduled"]
    return (str(found[0].get("reason", "")), str(found[0].get("message", ""))) if found else ("", "")


def waits_because(playground: Playground, name: str, part: str) -> str:
    """Wait until the pod's condition contains ``part``; returns the whole message."""
    pod: dict[str, Any] = {}

    def reached() -> bool:
        pod.update(playground.get("pod", name))
        return part in condition(pod)[1]

    wait_until(reached, detail=lambda: condition(pod))
    assert condition(pod)[0] == "Unschedulable"
    return condition(pod)[1]


def running(playground: Playground, name: str) -> None:
    playground.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")


def test_a_pod_is_pending_with_kube_schedulers_message_and_bound_as_soon_as_it_fits(
    playground: Playground,
) -> None:
    playground.apply(a_pod("first", gpu_mem=10, node=T4))
    running(playground, "first")
    playground.apply(a_pod("second", gpu_mem=10, node=T4))
    message = waits_because(playground, "second", "nodes are available")
    assert message == (
        "0/3 nodes are available: 1 no single GPU has 10 GiB free (largest free: 5 GiB on GPU 0), "
        "2 node(s) didn't match Pod's node affinity/selector. "
        "preemption: 0/3 nodes are available: "
        "3 Preemption is not helpful for scheduling."
    )

    def events() -> str:
        return playground.kubectl("events", "--for", "pod/second")

    wait_until(lambda: "FailedScheduling" in (output := events()) and message in output, detail=events)
    playground.kubectl("delete", "pod", "first", "--now")
    running(playground, "second")
    scheduled_message = "Successfully assigned default/second to cgpu-t4"
    wait_until(lambda: scheduled_message in playground.kubectl("events", "--for", "pod/second"))
    playground.kubectl("delete", "pod", "second", "--now")


def test_a_pod_refused_only_by_the_extender_is_bound_when_a_gpu_becomes_free(
    playground: Playground,
) -> None:
    for number in range(4):
        playground.apply(a_pod(f"big-{number}", gpu_mem=9, node=FOUR))
    playground.kubectl("wait", "--for=condition=Ready", *(f"pod/big-{n}" for n in range(4)), "--timeout=60s")
    playground.apply(a_pod("big-4", gpu_mem=9, node=FOUR))
    message = waits_because(playground, "big-4", "single GPU")
    assert message.startswith("0/3 nodes are available: 1 no single GPU has 9 GiB free")
    for freed in range(3):
        # Scheduler and extender see the deletion through watches of their own, in either order.
        waiting = f"big-{freed + 4}"
        playground.kubectl("delete", "pod", f"big-{freed}", "--now")
        running(playground, waiting)
        playground.apply(a_pod(f"big-{freed + 5}", gpu_mem=9, node=FOUR))
        waits_because(playground, f"big-{freed + 5}", "single GPU")
    playground.kubectl("delete", "pods", *(f"big-{number}" for number in range(3, 8)), "--now")


def test_a_gated_pod_waits_for_its_gate(playground: Playground) -> None:
    playground.apply(a_pod("gated", schedulingGates=[{"name": "example.com/later"}]))
    assert not playground.get("pod", "gated")["spec"].get("nodeName")
    patch = '[{"op": "remove", "path": "/spec/schedulingGates"}]'
    playground.kubectl("patch", "pod", "gated", "--type=json", "-p", patch)
    running(playground, "gated")
    playground.kubectl("delete", "pod", "gated", "--now")


def test_cordoned_and_tainted_nodes_get_no_pods(playground: Playground) -> None:
    playground.kubectl("cordon", T4)
    playground.kubectl("taint", "node", "share-v100", "busy=yes:NoSchedule")
    playground.apply(a_pod("homeless", nodeSelector={"kubernetes.io/os": "linux"}, gpu_mem=16))
    message = waits_because(playground, "homeless", "nodes are available")
    assert "1 node(s) were unschedulable" in message
    assert "1 node(s) had untolerated taint(s)" in message
    playground.kubectl("taint", "node", "share-v100", "busy-")
    running(playground, "homeless")
    playground.kubectl("uncordon", T4)
    playground.kubectl("delete", "pod", "homeless", "--now")


def test_a_job_runs_exactly_once_though_controllers_and_scheduler_are_killed(
    playground: Playground,
) -> None:
    template = a_template()
    template["spec"]["restartPolicy"] = "Never"
    template["spec"]["containers"][0]["command"] = ["true"]
    spec = {"completions": 6, "parallelism": 2, "template": template}
    playground.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "many"}, "spec": spec})
    for wanted in (1, 3, 5):

        def reached(wanted: int = wanted) -> bool:
            return int(playground.get("job", "many").get("status", {}).get("succeeded", 0)) >= wanted

        wait_until(reached, within_s=60)
        for part in ("gpushare_playground.controllers", "gpushare_playground.kubescheduler"):
            if playground.processes(part):
                playground.kill(part)
    playground.kubectl("wait", "--for=condition=Complete", "job/many", "--timeout=60s")
    status = playground.get("job", "many")["status"]
    assert status["succeeded"] == 6
    assert not status.get("failed")
    assert len(playground.get("pods", "-l", "job-name=many")["items"]) == 6
    playground.kubectl("delete", "job", "many")
    wait_until(lambda: not playground.get("pods", "-l", "job-name=many").get("items"))


def test_pods_are_bound_once_the_killed_extender_is_back(playground: Playground) -> None:
    playground.kill("gpushare scheduler")
    playground.apply(a_pod("patient", gpu_mem=2))
    running(playground, "patient")
    playground.kubectl("delete", "pod", "patient", "--now")


def test_a_deployment_rolls_out_scales_and_rolls_back(playground: Playground) -> None:
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": a_template(app="web")}
    playground.apply(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
    )
    assert "successfully rolled out" in playground.kubectl(
        "rollout", "status", "deployment/web", "--timeout=60s"
    )
    playground.kubectl("set", "env", "deployment/web", "COLOUR=green")
    assert "successfully rolled out" in playground.kubectl(
        "rollout", "status", "deployment/web", "--timeout=60s"
    )
    playground.kubectl("scale", "deployment/web", "--replicas=3")
    playground.kubectl(
        "wait", "--for=jsonpath={.status.availableReplicas}=3", "deployment/web", "--timeout=60s"
    )
    playground.kubectl("rollout", "undo", "deployment/web")
    assert "successfully rolled out" in playground.kubectl(
        "rollout", "status", "deployment/web", "--timeout=60s"
    )
    sets = playground.get("replicasets", "-l", "app=web")["items"]
    assert sorted(one["spec"]["replicas"] for one in sets) == [0, 3]
    playground.kubectl("delete", "deployment", "web")
    wait_until(lambda: not playground.get("pods", "-l", "app=web").get("items"))


def test_a_stateful_set_starts_in_order_and_follows_its_template(playground: Playground) -> None:
    spec = {
        "replicas": 2,
        "serviceName": "db",
        "selector": {"matchLabels": {"app": "db"}},
        "template": a_template(app="db"),
    }
    playground.apply(
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}, "spec": spec}
    )
    playground.kubectl("rollout", "status", "statefulset/db", "--timeout=60s")
    first, second = (playground.get("pod", f"db-{number}") for number in (0, 1))
    ready = next(one for one in first["status"]["conditions"] if one["type"] == "Ready")
    assert second["metadata"]["creationTimestamp"] >= ready["lastTransitionTime"]
    playground.kubectl("set", "env", "statefulset/db", "COLOUR=green")
    playground.kubectl("rollout", "status", "statefulset/db", "--timeout=60s")
    for number in (0, 1):
        assert playground.get("pod", f"db-{number}")["spec"]["containers"][0]["env"]
    playground.kubectl("scale", "statefulset/db", "--replicas=1")
    wait_until(lambda: not playground.get("pod", "db-1"))
    playground.kubectl("delete", "statefulset", "db")
    wait_until(lambda: not playground.get("pod", "db-0"))
