"""Commands suggested by findings: complete, between backticks, with the cluster's releases, namespaces and pods."""

from typing import Final

from gpushare.api import names
from gpushare.doctor.cluster.checks.container_states import has_log, unpulled
from gpushare.doctor.cluster.facts import ClusterFacts, Json, agent_pods, at, name_of
from gpushare.doctor.findings import Unread

INSTALLER: Final = "ack-ai-installer"
SCHEDULER: Final = "ack-co-scheduler"
#: Field of the facts with the main object of each chart.
_MADE: Final = {INSTALLER: "daemon_sets", SCHEDULER: "deployments"}
_NAMESPACE: Final = "kube-system"
#: Annotation that helm writes on everything that it creates.
_RELEASE: Final = "meta.helm.sh/release-name"
_AGENTS: Final = "gpushare-device-plugin"
_KUBE_SCHEDULER: Final = "kube-scheduler"


def upgrade(facts: ClusterFacts, chart: str, setting: str = "") -> str:
    """The command that restores what ``chart`` creates, with its values; ``setting`` (``a.b=c,d=e``) changes some of them."""
    release, namespace = _release(facts, chart), namespace_of(facts, chart)
    if setting:
        return f"`helm upgrade {release} charts/{chart} -n {namespace} --reuse-values --set {setting}`"
    return f"`helm upgrade {release} charts/{chart} -n {namespace}`"


def install(facts: ClusterFacts, chart: str) -> str:
    """The command that installs ``chart``, or restores what it creates if there is a release of it."""
    return f"`helm upgrade --install {_release(facts, chart)} charts/{chart} -n {namespace_of(facts, chart)}`"


def namespace_of(facts: ClusterFacts, chart: str) -> str:
    """The namespace of ``chart``; if it is not found the one that was searched, or the default."""
    made = _first(facts, chart)
    return str(at(made, "metadata", "namespace") or facts.namespace or _NAMESPACE)


def agent_log(facts: ClusterFacts, node: str) -> str:
    """The command that shows the log of the agent on ``node``, or, if there is none, the agents' pods."""
    pod = agent_pods(facts).get(node)
    if pod is None:
        namespace = namespace_of(facts, INSTALLER)
        return f"`kubectl -n {namespace} get pods -o wide -l app.kubernetes.io/name={_AGENTS}`"
    return log(pod)


def log(pod: Json, container: str = "") -> str:
    """The command that shows the log of a pod."""
    namespace, _, name = name_of(pod).partition("/")
    if container:
        return f"`kubectl -n {namespace} logs {name} -c {container}`"
    return f"`kubectl -n {namespace} logs {name}`"


def diagnosis_command(pod: Json, container: str = "") -> str:
    """The command that shows why a pod, or a container of it, is not ready: its log, or the kubelet's message while there is none."""
    if has_log(pod, container):
        return log(pod, container)
    namespace, _, name = name_of(pod).partition("/")
    return f"`kubectl -n {namespace} describe pod {name}`"


def pull(facts: ClusterFacts, chart: str, pod: Json | None) -> str:
    """How to provide the image that a container of the pod is waiting for; empty if none is."""
    missing = None if pod is None else unpulled(pod)
    if missing is None:
        return ""
    image = missing.image or f"of container {missing.container}"
    where = f"node {missing.node}" if missing.node else "its node"
    setting = (
        "kubeScheduler.image.repository=REGISTRY/kube-scheduler"
        if missing.container == _KUBE_SCHEDULER
        else "image.repository=REGISTRY/gpushare"
    )
    return f"import the image {image} on {where}, or name a registry that has it: {upgrade(facts, chart, setting)}"


def doctor_of_node(facts: ClusterFacts, node: str) -> str:
    """The command that examines ``node`` from its agent's pod; empty if there is no such pod."""
    pod = agent_pods(facts).get(node)
    if pod is None:
        return ""
    namespace, _, name = name_of(pod).partition("/")
    return f"`kubectl -n {namespace} exec {name} -- gpushare doctor node --host-root /host`"


def describe_agents(facts: ClusterFacts) -> str:
    """The command that shows the events about missing agents."""
    return f"`kubectl -n {namespace_of(facts, INSTALLER)} describe ds {names.DAEMON_SET_NAME}`"


def _release(facts: ClusterFacts, chart: str) -> str:
    return str(at(_first(facts, chart), "metadata", "annotations", _RELEASE) or chart)


def _first(facts: ClusterFacts, chart: str) -> Json:
    made = getattr(facts, _MADE[chart])
    return {} if isinstance(made, Unread) or not made else dict(made[0])
