"""All checks of a cluster, in the order of the report."""

from typing import Final

from gpushare.doctor.cluster.checks.absent import without, without_agents, without_nodes
from gpushare.doctor.cluster.checks.admission import certificate, rules
from gpushare.doctor.cluster.checks.api_server import clocks, permissions, versions
from gpushare.doctor.cluster.checks.charts import installed
from gpushare.doctor.cluster.checks.claims import claims
from gpushare.doctor.cluster.checks.components import (
    node_agents,
    one_scheduler,
    scheduler,
    scheduler_config,
    taints,
)
from gpushare.doctor.cluster.checks.crds import kinds
from gpushare.doctor.cluster.checks.dashboard import dashboard
from gpushare.doctor.cluster.checks.elastic_quotas import elastic_quotas
from gpushare.doctor.cluster.checks.gangs import gangs
from gpushare.doctor.cluster.checks.nodes import node_capacity, node_descriptions, node_health, node_labels
from gpushare.doctor.cluster.checks.other_plugins import other_plugins
from gpushare.doctor.cluster.checks.pods import pod_records, waiting_pods
from gpushare.doctor.cluster.checks.rbac import process_rights
from gpushare.doctor.cluster.checks.resource_policies import pods_of_others, unit_nodes
from gpushare.doctor.cluster.checks.rollout import up_to_date
from gpushare.doctor.cluster.checks.shares import pod_shares
from gpushare.doctor.findings import Check

#: Field of the facts → the permission needed to read it.
_RIGHTS: Final = {
    "nodes": "list nodes",
    "pods": "list pods",
    "part_pods": "list pods",
    "config_maps": "list configmaps",
    "daemon_sets": "list daemonsets.apps",
    "deployments": "list deployments.apps",
    "leases": "list leases.coordination.k8s.io",
    "node_leases": "list leases.coordination.k8s.io",
    "roles": "list clusterroles.rbac.authorization.k8s.io",
    "bindings": "list clusterrolebindings.rbac.authorization.k8s.io",
    "own_roles": "list roles.rbac.authorization.k8s.io",
    "own_bindings": "list rolebindings.rbac.authorization.k8s.io",
    "network_policies": "list networkpolicies.networking.k8s.io",
    "policies": "list resourcepolicies.scheduling.alibabacloud.com",
    "policy_pods": "list pods",
    "quota_trees": "list elasticquotatrees.scheduling.sigs.k8s.io",
    "namespaces": "list namespaces",
    "owners": "get jobs.batch, replicasets.apps and statefulsets.apps",
    "definitions": "list customresourcedefinitions.apiextensions.k8s.io",
    "webhook_deployments": "list deployments.apps",
    "dashboards": "list deployments.apps",
    "slices": "list resourceslices.resource.k8s.io",
    "device_classes": "list deviceclasses.resource.k8s.io",
    "endpoint_slices": "list endpointslices.discovery.k8s.io",
    "webhooks": "list validatingwebhookconfigurations.admissionregistration.k8s.io and mutatingwebhookconfigurations",
}


def _needs(*fields: str) -> tuple[tuple[str, str], ...]:
    return tuple((field, _RIGHTS[field]) for field in fields)


CHECKS: Final = (
    Check("permissions", "you may read all that is looked at", "ask for the rights that are named", permissions),
    Check("versions", "API server, kubelets, kube-scheduler and charts go together", "upgrade what is named", versions, _needs("nodes", "daemon_sets", "deployments"), lacks=without("daemon_sets", "deployments")),
    Check("clocks", "this machine, the API server and the kubelets agree on the time", "NTP on the machine that is named", clocks, _needs("nodes", "leases", "node_leases"), lacks=without_nodes),
    Check("installation", "both charts are there", "`helm upgrade` of the chart that is named, with --install", installed, _needs("daemon_sets", "deployments", "config_maps", "leases")),
    Check("one-scheduler", "one scheduler has the name ack-co-scheduler", "`helm uninstall` all but one", one_scheduler, _needs("deployments", "part_pods", "daemon_sets"), lacks=without("daemon_sets", "deployments")),
    Check("node-agents", "an agent runs, ready, on every node with the label", "describe the DaemonSet, read the agent's log", node_agents, _needs("daemon_sets", "nodes", "part_pods"), lacks=without_agents),
    Check("rollout", "agents, schedulers and the webhook are of the present version and configuration", "`kubectl rollout status`, `kubectl rollout restart`", up_to_date, _needs("daemon_sets", "deployments", "config_maps", "part_pods"), lacks=without("daemon_sets", "deployments")),
    Check("taints", "no taint keeps the agent from a node with the label", "`nodeAgent.tolerations`, or away with the taint", taints, _needs("daemon_sets", "nodes"), lacks=without_agents),
    Check("scheduler", "the scheduler runs, its extender answers, one leads", "describe its pods, read their logs", scheduler, _needs("deployments", "part_pods", "leases", "endpoint_slices"), lacks=without("deployments")),
    Check("scheduler-config", "kube-scheduler asks our extender for all that it must", "`helm upgrade` of ack-co-scheduler", scheduler_config, _needs("config_maps", "deployments"), lacks=without("config_maps")),
    Check("process-rights", "the accounts of our processes have the rights that they need", "`helm upgrade` of the chart", process_rights, _needs("roles", "bindings", "own_roles", "own_bindings", "daemon_sets", "deployments", "dashboards", "webhook_deployments"), lacks=without("daemon_sets", "deployments")),
    Check("admission", "wrong requests are refused, records guarded, pods pointed to our scheduler", "`admission.enabled`, `admission.mode`", rules, _needs("daemon_sets", "webhooks", "webhook_deployments", "endpoint_slices", "network_policies"), lacks=without("daemon_sets")),
    Check("certificate", "the webhook's certificates are valid, or there is no webhook", "read the webhook's log: it renews them itself", certificate, _needs("webhooks")),
    Check("definitions", "ResourcePolicy and ElasticQuotaTree are served, as this release has them", "`helm upgrade` of ack-co-scheduler", kinds, _needs("definitions"), lacks=without("deployments")),
    Check("dashboard", "the dashboard runs, or is switched off", "read its log; make its token", dashboard, _needs("dashboards", "part_pods", "endpoint_slices"), lacks=without("deployments")),
    Check("policy-units", "every unit of a ResourcePolicy has nodes, or waits for some to come", "correct its nodeSelector", unit_nodes, _needs("policies", "nodes"), lacks=without("policies")),
    Check("policy-pods", "pods that a ResourcePolicy selects are our scheduler's", "let them name it", pods_of_others, _needs("policies", "policy_pods"), lacks=without("policies")),
    Check("elastic-quotas", "the ElasticQuotaTree, where there is one, is in force, the only one, and its namespaces are there", "correct the tree", elastic_quotas, _needs("quota_trees", "namespaces"), lacks=without("quota_trees")),
    Check("node-labels", "labels of nodes are spelled right and have known values", "correct the label", node_labels, _needs("nodes")),
    Check("node-devices", "every node with the label is described by its agent, in the mode of the label", "read the agent's log", node_descriptions, _needs("nodes"), lacks=without_nodes),
    Check("node-capacity", "every kubelet offers what the agent says that there is", "look again after a change; the agent does not run or is not registered", node_capacity, _needs("nodes"), lacks=without_nodes),
    Check("node-health", "nodes and their GPUs are in service", "`kubectl describe node NODE`; `nvidia-smi` on it", node_health, _needs("nodes"), lacks=without_nodes),
    Check("other-plugins", "no other device plugin offers the GPUs of nodes with the label", "keep it off these nodes, or take the label away", other_plugins, _needs("nodes"), lacks=without_nodes),
    Check("claims", "ResourceClaims get GPUs of the nodes in mode `dra`: versions, features, DeviceClass and slices", "Kubernetes 1.36 with DRAConsumableCapacity; read the agent's log", claims, _needs("nodes", "slices", "device_classes"), lacks=without_nodes),
    Check("pod-records", "every pod on a GPU has a record that is true, and no GPU is given twice", "delete the pod that is named", pod_records, _needs("pods", "nodes")),
    Check("pod-shares", "every container that is held to its share has as much of the GPU as a CUDA context takes there", "ask for more", pod_shares, _needs("pods", "nodes")),
    Check("waiting-pods", "every waiting pod with a GPU is our scheduler's, can be served, would fit an empty node, and has no name like ours that nobody offers or reads", "name the scheduler; correct the name or the request", waiting_pods, _needs("pods", "nodes"), lacks=without("deployments")),
    Check("gangs", "every gang that waits will have its pods, and would fit the cluster if it were empty", "let its owner make as many pods; add nodes, or ask for less", gangs, _needs("pods", "nodes", "owners"), lacks=without("deployments")),
)  # fmt: skip
