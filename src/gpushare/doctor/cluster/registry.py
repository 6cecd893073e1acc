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
    Check("permissions", "you have all permissions that the checks need", "ask for the named permissions", permissions),
    Check("versions", "versions of API server, kubelets, kube-scheduler and charts are compatible", "upgrade the named component", versions, _needs("nodes", "daemon_sets", "deployments"), lacks=without("daemon_sets", "deployments")),
    Check("clocks", "this machine, the API server and the kubelets agree on the time", "NTP on the named machine", clocks, _needs("nodes", "leases", "node_leases"), lacks=without_nodes),
    Check("installation", "both charts are installed", "install the named chart", installed, _needs("daemon_sets", "deployments", "config_maps", "leases")),
    Check("one-scheduler", "one scheduler has the name ack-co-scheduler", "`helm uninstall` all but one", one_scheduler, _needs("deployments", "part_pods", "daemon_sets"), lacks=without("daemon_sets", "deployments")),
    Check("node-agents", "a ready agent runs on every labelled node", "describe the DaemonSet, read the agent's log", node_agents, _needs("daemon_sets", "nodes", "part_pods"), lacks=without_agents),
    Check("rollout", "agents, schedulers and the webhook run the current version and configuration", "`kubectl rollout status`, `kubectl rollout restart`", up_to_date, _needs("daemon_sets", "deployments", "config_maps", "part_pods"), lacks=without("daemon_sets", "deployments")),
    Check("taints", "no taint keeps the agent away from a labelled node", "`nodeAgent.tolerations`, or remove the taint", taints, _needs("daemon_sets", "nodes"), lacks=without_agents),
    Check("scheduler", "the scheduler runs, its extender answers, one replica leads", "describe its pods, read their logs", scheduler, _needs("deployments", "part_pods", "leases", "endpoint_slices"), lacks=without("deployments")),
    Check("scheduler-config", "kube-scheduler calls our extender with all required verbs", "`helm upgrade` of ack-co-scheduler", scheduler_config, _needs("config_maps", "deployments"), lacks=without("config_maps")),
    Check("process-rights", "the ServiceAccounts of our processes have the required permissions", "`helm upgrade` of the chart", process_rights, _needs("roles", "bindings", "own_roles", "own_bindings", "daemon_sets", "deployments", "dashboards", "webhook_deployments"), lacks=without("daemon_sets", "deployments")),
    Check("admission", "invalid requests are rejected, allocation records protected, pods get our scheduler", "`admission.enabled`, `admission.mode`", rules, _needs("daemon_sets", "webhooks", "webhook_deployments", "endpoint_slices", "network_policies"), lacks=without("daemon_sets")),
    Check("certificate", "the webhook's certificates are valid, or there is no webhook", "check the webhook's log: it renews them itself", certificate, _needs("webhooks")),
    Check("definitions", "ResourcePolicy and ElasticQuotaTree are served as defined by this release", "`helm upgrade` of ack-co-scheduler", kinds, _needs("definitions"), lacks=without("deployments")),
    Check("dashboard", "the dashboard runs or is disabled", "check its log; create its token", dashboard, _needs("dashboards", "part_pods", "endpoint_slices"), lacks=without("deployments")),
    Check("policy-units", "every unit of a ResourcePolicy has nodes, or waits for nodes to be added", "correct its nodeSelector", unit_nodes, _needs("policies", "nodes"), lacks=without("policies")),
    Check("policy-pods", "pods that a ResourcePolicy selects use our scheduler", "set their schedulerName", pods_of_others, _needs("policies", "policy_pods"), lacks=without("policies")),
    Check("elastic-quotas", "the ElasticQuotaTree, if any, is in force and the only one, and its namespaces exist", "correct the tree", elastic_quotas, _needs("quota_trees", "namespaces"), lacks=without("quota_trees")),
    Check("node-labels", "node labels are spelled correctly and have valid values", "correct the label", node_labels, _needs("nodes")),
    Check("node-devices", "every labelled node's GPUs are reported by its agent, in the label's mode", "read the agent's log", node_descriptions, _needs("nodes"), lacks=without_nodes),
    Check("node-capacity", "every kubelet offers what the agent reports", "check again after a change; the agent does not run or is not registered", node_capacity, _needs("nodes"), lacks=without_nodes),
    Check("node-health", "nodes and their GPUs are in service", "`kubectl describe node NODE`; `nvidia-smi` on it", node_health, _needs("nodes"), lacks=without_nodes),
    Check("other-plugins", "no other device plugin offers the GPUs of nodes with the label", "keep it off these nodes, or take the label away", other_plugins, _needs("nodes"), lacks=without_nodes),
    Check("claims", "ResourceClaims get GPUs of the nodes in mode `dra`: versions, features, DeviceClass and slices", "Kubernetes 1.36 with DRAConsumableCapacity; read the agent's log", claims, _needs("nodes", "slices", "device_classes"), lacks=without_nodes),
    Check("pod-records", "every pod on a GPU has a valid allocation record, and no GPU memory is allocated twice", "delete the named pod", pod_records, _needs("pods", "nodes")),
    Check("pod-shares", "every container with an enforced share has at least the memory of a CUDA context", "request more", pod_shares, _needs("pods", "nodes")),
    Check("waiting-pods", "every pending pod that requests a GPU uses our scheduler, would fit an empty node, and has no misspelt names", "set schedulerName; correct the name or the request", waiting_pods, _needs("pods", "nodes"), lacks=without("deployments")),
    Check("gangs", "every pending gang gets enough pods, and would fit the empty cluster", "let its owner create as many pods; add nodes, or request less", gangs, _needs("pods", "nodes", "owners"), lacks=without("deployments")),
)  # fmt: skip
