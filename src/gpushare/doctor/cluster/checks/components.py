"""What the charts install: whether it exists, runs, has its permissions, and is configured correctly."""

from collections.abc import Iterator
from typing import Any, Final

import yaml

from gpushare.api import names
from gpushare.doctor.cluster.checks.container_states import status_of, why_of
from gpushare.doctor.cluster.checks.services import asked_scheduler
from gpushare.doctor.cluster.facts import (
    ClusterFacts,
    Json,
    agent_pods,
    at,
    first_unready,
    first_why,
    gpu_nodes,
    is_ready,
    name_of,
    tolerations_of,
    why_unready,
)
from gpushare.doctor.cluster.reader import renewed_s
from gpushare.doctor.findings import Result, Unread, fault, fine, unknown, warning
from gpushare.doctor.suggested_commands import (
    INSTALLER,
    SCHEDULER,
    describe_agents,
    diagnosis_command,
    namespace_of,
    pull,
    upgrade,
)

_LED_S: Final = 30.0
#: kube-scheduler calls only the extender in its own pod.
_LEADS: Final = "; it leads, so no pods are placed"
_EXTENDER: Final = {
    "filterVerb": "filter",
    "prioritizeVerb": "prioritize",
    "bindVerb": "bind",
    "preemptVerb": "preempt",
}


def one_scheduler(facts: ClusterFacts) -> Iterator[Result]:
    """Two schedulers of the same name would place the same pods, each with its own ledger."""
    if isinstance(facts.deployments, Unread) or isinstance(facts.part_pods, Unread):
        return
    if len(facts.deployments) > 1:
        listed = ", ".join(map(name_of, facts.deployments))
        yield fault(
            f"scheduler {names.SCHEDULER_NAME}",
            f"it is installed {len(facts.deployments)} times: {listed}",
            "`helm uninstall` all but one: together they allocate the same memory twice",
        )
    if isinstance(facts.daemon_sets, Unread):
        return
    if len(facts.daemon_sets) > 1:
        listed = ", ".join(map(name_of, facts.daemon_sets))
        yield fault(
            f"DaemonSet {names.DAEMON_SET_NAME}",
            f"it exists {len(facts.daemon_sets)} times: {listed}",
            "`helm uninstall` all but one",
        )


def node_agents(facts: ClusterFacts) -> Iterator[Result]:
    """Whether a ready agent runs on every node with the label."""
    if facts.playground is not None:
        yield fine("", "a playground's agents are not pods; node-capacity shows whether they run")
        return
    if isinstance(facts.daemon_sets, Unread) or not facts.daemon_sets:
        return
    if isinstance(facts.nodes, Unread) or isinstance(facts.part_pods, Unread):
        return
    pods = agent_pods(facts)
    tainted = {result.subject for result in taints(facts)}
    for node in gpu_nodes(facts):
        pod = pods.get(node.name)
        if pod is None:
            if f"node {node.name}" not in tainted:
                yield fault(
                    node.subject,
                    f"it is labelled {names.LABEL_MODE}, but no node agent runs there",
                    f"{describe_agents(facts)}: its events say why",
                )
        elif not is_ready(pod):
            yield fault(
                node.subject,
                f"its agent, pod {name_of(pod)}, is not ready{why_unready(pod)}",
                "; ".join(filter(None, (diagnosis_command(pod), pull(facts, INSTALLER, pod)))),
            )


def taints(facts: ClusterFacts) -> Iterator[Result]:
    """Whether a taint keeps the agent away from a labelled node."""
    if isinstance(facts.daemon_sets, Unread) or isinstance(facts.nodes, Unread):
        return
    for daemon_set in facts.daemon_sets[:1]:
        tolerations = tolerations_of(daemon_set)
        for node in gpu_nodes(facts):
            repelling = [
                f"{taint.key}={taint.value}:{taint.effect}"
                for taint in node.taints
                if taint.effect in ("NoSchedule", "NoExecute")
                # The DaemonSet controller adds tolerations for taints that Kubernetes sets.
                and not taint.key.startswith("node.kubernetes.io/")
                and not any(toleration.covers(taint) for toleration in tolerations)
            ]
            if repelling:
                yield fault(
                    node.subject,
                    f"the taint {', '.join(repelling)} keeps the node agent away",
                    "tolerate it with `nodeAgent.tolerations`, or remove the taint or the label",
                )


def scheduler(facts: ClusterFacts) -> Iterator[Result]:
    """Whether the scheduler runs, its extender has read the cluster, and one of its pods is the leader."""
    if not isinstance(facts.deployments, Unread):
        for deployment in facts.deployments:
            wanted, ready = (
                at(deployment, "spec", "replicas") or 0,
                at(deployment, "status", "readyReplicas") or 0,
            )
            if ready < wanted:
                worse = fault if ready == 0 else warning
                describe = f"`kubectl -n {name_of(deployment).partition('/')[0]} describe pods -l app.kubernetes.io/name=ack-co-scheduler`"
                image = pull(facts, SCHEDULER, first_unready(facts, names.SCHEDULER_NAME))
                yield worse(
                    f"deployment {name_of(deployment)}",
                    f"{ready} of {wanted} pods are ready{first_why(facts, names.SCHEDULER_NAME)}",
                    f"{describe}; {image}" if image else describe,
                )
            if ready:
                yield from asked_scheduler(facts, name_of(deployment).partition("/")[0])
    for name, status_text in facts.answers.items():
        yield from _extender(facts, name, status_text)
    yield from _leading(facts)


def _extender(facts: ClusterFacts, name: str, status_text: str) -> Iterator[Result]:
    """Findings about the extender of pod ``name``, by what it reported (``?`` in front: it could not be asked)."""
    pods = () if isinstance(facts.part_pods, Unread) else facts.part_pods
    pod = next((part for part in pods if name_of(part) == name), {})
    status = status_of(pod, "extender")
    if status_text.startswith("?"):
        if status.get("ready", True):
            suggestion = "ask for permission to get pods/proxy"
            yield unknown(name, f"its extender cannot be queried: {status_text[1:]}", suggestion)
            return
        status_text = why_of(status).removeprefix(": ") or "its container is not ready"
    if not status_text:
        return
    leads = name in _leaders(facts)
    another_ready = any(name_of(part) != name and is_ready(part) and _is_scheduler(part) for part in pods)
    todo = f"{diagnosis_command(pod, 'extender')} says why" if pod else "check its log"
    if leads and another_ready:
        namespace, _, own = name.partition("/")
        todo = f"`kubectl -n {namespace} delete pod {own}`: then a ready one becomes leader; first {todo}"
    yield fault(
        name,
        f"its extender is not ready: {status_text}{_LEADS if leads else ''}",
        todo,
    )


def _is_scheduler(pod: Json) -> bool:
    return bool(at(pod, "metadata", "labels", "app.kubernetes.io/name") == names.SCHEDULER_NAME)


def _leaders(facts: ClusterFacts) -> set[str]:
    """The pods named by the Leases, as ``NAMESPACE/NAME``: a holder is a pod's name, followed by ``_`` and a unique suffix."""
    return {
        f"{at(lease, 'metadata', 'namespace')}/{str(at(lease, 'spec', 'holderIdentity') or '').rpartition('_')[0]}"
        for lease in (() if isinstance(facts.leases, Unread) else facts.leases)
    }


def _leading(facts: ClusterFacts) -> Iterator[Result]:
    if isinstance(facts.leases, Unread) or isinstance(facts.server_time_s, Unread):
        return
    for lease in facts.leases:
        renewed, holder = renewed_s(lease), at(lease, "spec", "holderIdentity")
        if not holder or renewed is None:
            yield fault(
                f"lease {name_of(lease)}", "no scheduler leads", f"{_kube_scheduler_log(facts)} says why"
            )
        elif facts.server_time_s - renewed > _LED_S:
            yield fault(
                f"lease {name_of(lease)}",
                f"{holder} is the leader, but has not renewed the Lease for {facts.server_time_s - renewed:.0f} s: no pods are placed",
                f"`kubectl -n {namespace_of(facts, SCHEDULER)} get pods -l app.kubernetes.io/name=ack-co-scheduler`; another takes over when the Lease expires",
            )


def _kube_scheduler_log(facts: ClusterFacts) -> str:
    namespace = namespace_of(facts, SCHEDULER)
    return f"`kubectl -n {namespace} logs deploy/{names.SCHEDULER_NAME} -c kube-scheduler`"


def scheduler_config(facts: ClusterFacts) -> Iterator[Result]:
    """Whether kube-scheduler calls our extender, with all verbs that are needed."""
    if isinstance(facts.config_maps, Unread):
        yield unknown("ConfigMap ack-co-scheduler", facts.config_maps.why)
        return
    for config_map in facts.config_maps:
        subject = f"configmap {name_of(config_map)}"
        problems = list(_problems_of(str(at(config_map, "data", "config.yaml") or ""), _port(facts)))
        for problem in problems:
            yield fault(subject, problem, f"{upgrade(facts, SCHEDULER)} writes the configuration again")


def _problems_of(text: str, port: str) -> Iterator[str]:
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as error:
        yield f"config.yaml is no YAML: {' '.join(str(error).split())}"
        return
    profiles = at(config, "profiles") or []
    if names.SCHEDULER_NAME not in [at(profile, "schedulerName") for profile in profiles]:
        yield f"no profile is named {names.SCHEDULER_NAME}"
    extenders = [
        entry for entry in at(config, "extenders") or [] if str(at(entry, "urlPrefix")).endswith("/gpushare")
    ]
    if len(extenders) != 1:
        yield f"it lists our extender {len(extenders)} times instead of once"
        return
    extender: Any = extenders[0]
    for key, verb in _EXTENDER.items():
        if extender.get(key) != verb:
            yield f"extenders: {key} is {extender.get(key)!r}, not {verb}"
    if extender.get("nodeCacheCapable") is not True:
        yield "extenders: nodeCacheCapable is not true"
    if extender.get("ignorable"):
        yield "extenders: ignorable is true: pods would be placed without an allocation record while the extender is down"
    if extender.get("managedResources"):
        yield "extenders: managedResources is set: ResourcePolicies would not reach pods without GPUs"
    if port and f":{port}/" not in str(extender["urlPrefix"]):
        yield f"extenders: urlPrefix is {extender['urlPrefix']}, but the extender listens on port {port}"


def _port(facts: ClusterFacts) -> str:
    """The port of the Deployment's extender; empty if unknown."""
    for deployment in () if isinstance(facts.deployments, Unread) else facts.deployments:
        for container in at(deployment, "spec", "template", "spec", "containers") or ():
            for argument in container.get("args") or ():
                if str(argument).startswith("--listen="):
                    return str(argument).rpartition(":")[2]
    return ""
