"""The kubelet's plan for a pod's containers, and the status that it writes."""

from pathlib import Path

import msgspec
import pytest

from gpushare_playground.kubelet.pods.pod_plan import ContainerState, make_plan, note_end
from gpushare_playground.kubelet.pods.podstatus import rejected_status, running_status
from gpushare_playground.kubelet.podspec import Pod
from gpushare_playground.kubelet.runtime.containers import Attempt, Ended

SECOND = 1_000_000_000


def pod_of(*containers, init=(), policy="Always"):
    spec = {
        "containers": [{"name": name} for name in containers],
        "initContainers": [
            {"name": name.removesuffix("*"), **({"restartPolicy": "Always"} if name.endswith("*") else {})}
            for name in init
        ],
        "restartPolicy": policy,
    }
    return msgspec.convert({"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": spec}, Pod)


def attempt(number=0, code=None, ran_s=1):
    one = Attempt(Path("/pods/u/c") / str(number), number, pid=1, started_ns=SECOND)
    if code is not None:
        reason = "Completed" if code == 0 else "Error"
        one.ended = Ended(code, 0, (1 + ran_s) * SECOND, reason)
    return one


def states(pod, **current):
    """Per container: missing = never started, None = runs, a number = ended with that code."""
    made = {}
    for container in pod.ordered:
        state = made[container.name] = ContainerState(container.name)
        if container.name in current:
            state.attempt = attempt(code=current[container.name])
    return made


def starts(pod, current, now=100.0):
    return [one.name for one in make_plan(pod, states(pod, **current), now).start]


@pytest.mark.parametrize(
    ("init", "current", "expected"),
    [
        ((), {}, ["a", "b"]),
        ((), {"a": None}, ["b"]),
        ((), {"a": None, "b": None}, []),
        (("i", "j"), {}, ["i"]),
        (("i", "j"), {"i": None}, []),
        (("i", "j"), {"i": 0}, ["j"]),
        (("i", "j"), {"i": 1}, ["i"]),
        (("i", "j"), {"i": 0, "j": 0}, ["a", "b"]),
        (("s*", "j"), {}, ["s"]),
        (("s*", "j"), {"s": None}, ["j"]),
        (("s*", "j"), {"s": None, "j": 0}, ["a", "b"]),
        (("s*", "j"), {"s": 1, "j": 0, "a": None, "b": None}, ["s"]),
    ],
)
def test_containers_start_in_order_and_sidecars_stay(init, current, expected):
    assert starts(pod_of("a", "b", init=init), current) == expected


@pytest.mark.parametrize(
    ("policy", "code", "restarted", "outcome"),
    [
        ("Always", 0, True, ""),
        ("Always", 1, True, ""),
        ("OnFailure", 0, False, "Succeeded"),
        ("OnFailure", 1, True, ""),
        ("Never", 0, False, "Succeeded"),
        ("Never", 3, False, "Failed"),
    ],
)
def test_the_restart_policy_decides_what_an_end_means(policy, code, restarted, outcome):
    pod = pod_of("a", policy=policy)
    plan = make_plan(pod, states(pod, a=code), 100.0)
    assert [one.name for one in plan.start] == (["a"] if restarted else [])
    assert plan.outcome == outcome


def test_a_failed_init_container_fails_the_pod_that_never_restarts():
    pod = pod_of("a", init=("i",), policy="Never")
    assert make_plan(pod, states(pod, i=1), 0.0).outcome == "Failed"


def test_a_pod_completes_although_its_sidecar_runs():
    pod = pod_of("a", init=("s*",), policy="Never")
    assert make_plan(pod, states(pod, s=None, a=0), 0.0).outcome == "Succeeded"


def test_the_first_restart_is_immediate_and_the_wait_for_later_ones_doubles():
    state = ContainerState("c")
    waits = []
    for number in range(5):
        state.attempt = attempt(number, code=1)
        note_end(state, 1000.0, 10.0, 50.0)
        waits.append(state.not_before - 1000.0)
    assert waits == [0.0, 10.0, 20.0, 40.0, 50.0]
    state.attempt = attempt(9, code=1, ran_s=601)
    note_end(state, 1000.0, 10.0, 50.0)
    assert state.not_before == 1000.0


def test_a_container_in_back_off_is_waited_for():
    pod = pod_of("a")
    current = states(pod, a=1)
    current["a"].not_before = 107.5
    plan = make_plan(pod, current, 100.0)
    assert (plan.start, plan.wait_s) == ([], 7.5)


def status(pod, current, outcome="", now=100.0):
    return running_status(
        pod, current, outcome=outcome, addresses=("127.64.0.9", "127.0.0.2"), now_ns=SECOND, now=now
    )


def condition(found, kind):
    return next(one for one in found["conditions"] if one["type"] == kind)


def test_a_running_pod_is_ready():
    pod = pod_of("a")
    found = status(pod, states(pod, a=None))
    assert (found["phase"], found["podIP"], found["hostIP"]) == ("Running", "127.64.0.9", "127.0.0.2")
    assert {one["type"]: one["status"] for one in found["conditions"]} == dict.fromkeys(
        ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"), "True"
    )
    assert found["containerStatuses"][0]["state"] == {"running": {"startedAt": "1970-01-01T00:00:01Z"}}


def test_a_pod_whose_init_container_runs_is_pending_and_names_it():
    pod = pod_of("a", init=("i",))
    found = status(pod, states(pod, i=None))
    assert found["phase"] == "Pending"
    assert condition(found, "Initialized")["message"] == "containers with incomplete status: [i]"
    assert found["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing"}}


def test_a_crashing_container_waits_and_shows_its_last_end():
    pod = pod_of("a")
    current = states(pod, a=3)
    current["a"].not_before = 110.0
    shown = status(pod, current)["containerStatuses"][0]
    assert shown["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert shown["lastState"]["terminated"]["exitCode"] == 3
    assert shown["lastState"]["terminated"]["reason"] == "Error"


def test_a_finished_pod_is_not_ready_because_it_has_completed():
    pod = pod_of("a", policy="Never")
    found = status(pod, states(pod, a=0), outcome="Succeeded")
    assert found["phase"] == "Succeeded"
    assert condition(found, "Ready")["reason"] == "PodCompleted"
    assert found["containerStatuses"][0]["state"]["terminated"]["reason"] == "Completed"


def test_a_condition_keeps_the_time_of_its_last_change_and_others_are_left_alone():
    pod = pod_of("a")
    pod.status.conditions = [
        {"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"},
        {"type": "Initialized", "status": "False", "lastTransitionTime": "2020-01-01T00:00:00Z"},
        {"type": "example.com/gate", "status": "True"},
    ]
    found = status(pod, states(pod, a=None))
    assert condition(found, "Ready")["lastTransitionTime"] == "2020-01-01T00:00:00Z"
    assert condition(found, "Initialized")["lastTransitionTime"] == "1970-01-01T00:00:01Z"
    assert {"type": "example.com/gate", "status": "True"} in found["conditions"]


def test_a_rejected_pod_has_failed_with_the_reason():
    found = rejected_status(pod_of("a"), "OutOfcpu", "Node didn't have enough resource: cpu", SECOND)
    assert (found["phase"], found["reason"]) == ("Failed", "OutOfcpu")
    assert found["message"] == "Pod was rejected: Node didn't have enough resource: cpu"
