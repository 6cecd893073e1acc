"""The next actions for a pod: a pure decision from the states of its containers.

Init containers run one after the other, sidecars (init containers with ``restartPolicy: Always``) keep running and
the next one starts next to them, then all app containers start. A container that ended is restarted according
to the restart policy, the first time immediately, then after a wait that doubles.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare_playground.kubelet.podspec import Container, Pod
from gpushare_playground.kubelet.runtime.containers import Attempt

#: A container that ran this long, in seconds, starts without back-off when it ends (the real kubelet's value).
STEADY_S = 600.0


@dataclass(slots=True)
class ContainerState:
    """One container of a pod. ``not_before`` and ``delay_s`` are the wait before the next start, in seconds.

    ``waiting`` is (reason, message) of a container that could not be started.
    """

    name: str
    attempt: Attempt | None = None
    last: Attempt | None = None
    waiting: tuple[str, str] | None = None
    not_before: float = 0.0
    delay_s: float = 0.0

    @property
    def running(self) -> bool:
        """Whether its program is running."""
        return self.attempt is not None and self.attempt.ended is None

    @property
    def exit_code(self) -> int | None:
        """The exit code of its current start, ``None`` while it runs or if it never ran."""
        return (
            self.attempt.ended.code if self.attempt is not None and self.attempt.ended is not None else None
        )

    @property
    def restarts(self) -> int:
        """The number of its restarts."""
        return self.attempt.number if self.attempt is not None else 0


@dataclass(slots=True)
class Plan:
    """What to do now: containers to start, the wait until the next one is due, or the pod's end.

    ``outcome`` is Succeeded or Failed once the pod has ended; whatever still runs (sidecars) is to be stopped.
    """

    start: list[Container] = field(default_factory=list)
    wait_s: float | None = None
    outcome: str = ""


def restarts_after(pod: Pod, container: Container, code: int) -> bool:
    """Whether a container that ended with ``code`` is restarted."""
    if container.sidecar:
        return True
    policy = pod.spec.restart_policy
    if container in pod.init_containers:
        return policy != "Never" and code != 0
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def note_end(state: ContainerState, now: float, first_s: float, most_s: float) -> None:
    """Compute when a container that has just ended may be restarted."""
    attempt = state.attempt
    if attempt is None or attempt.ended is None:
        return
    if (attempt.ended.finished_ns - attempt.started_ns) / 1e9 > STEADY_S:
        state.delay_s = 0.0
    state.not_before = now + state.delay_s
    state.delay_s = min(max(first_s, state.delay_s * 2.0), most_s)


def make_plan(pod: Pod, states: Mapping[str, ContainerState], now: float) -> Plan:
    """Decide; ``now`` is on the clock of ``not_before``."""
    plan = Plan()
    outcome = _outcome(pod, states)
    if outcome:
        return Plan(outcome=outcome)
    apps_started = any(states[one.name].attempt is not None for one in pod.spec.containers)
    for container in pod.init_containers:
        state = states[container.name]
        if container.sidecar:
            if not state.running:
                _due(plan, container, state, now)
                if not apps_started:
                    return plan
            continue
        if apps_started or state.exit_code == 0:
            continue
        if state.running:
            return plan
        _due(plan, container, state, now)
        return plan
    for container in pod.spec.containers:
        state = states[container.name]
        code = state.exit_code
        if not state.running and (code is None or restarts_after(pod, container, code)):
            _due(plan, container, state, now)
    return plan


def _outcome(pod: Pod, states: Mapping[str, ContainerState]) -> str:
    for container in pod.init_containers:
        code = states[container.name].exit_code
        if not container.sidecar and code and not restarts_after(pod, container, code):
            return "Failed"
    codes = []
    for container in pod.spec.containers:
        code = states[container.name].exit_code
        if code is None or restarts_after(pod, container, code):
            return ""
        codes.append(code)
    return "Failed" if any(codes) else "Succeeded"


def _due(plan: Plan, container: Container, state: ContainerState, now: float) -> None:
    if state.not_before <= now:
        plan.start.append(container)
    else:
        wait_s = state.not_before - now
        plan.wait_s = wait_s if plan.wait_s is None else min(plan.wait_s, wait_s)
