"""Objects as tables: the columns of ``kubectl get``, and of ``-o wide``.

A kind's columns are rows of ``(name, priority, function)``; columns of priority 1 are shown only with
``-o wide``. A kind without an entry shows name and age, a custom kind the columns of its definition.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from gpushare_playground.apiserver.errors import Object
from gpushare_playground.apiserver.kinds.resources import Resource
from gpushare_playground.apiserver.reads import table_cells as cells
from gpushare_playground.apiserver.reads.pod_cells import (
    node_name,
    nominated_node,
    pod_ip,
    pod_status,
    readiness_gates,
    ready_count,
    restarts,
)

Cell = Callable[[Object, datetime], Any]
Column = tuple[str, int, Cell]

_TEMPLATE: Final[tuple[Column, ...]] = (
    ("Containers", 1, cells.template_containers),
    ("Images", 1, cells.template_images),
    ("Selector", 1, cells.selector),
)
_AGE: Final[Column] = ("Age", 0, cells.age)

_COLUMNS: Final[dict[str, tuple[Column, ...]]] = {
    "pods": (
        ("Ready", 0, ready_count),
        ("Status", 0, pod_status),
        ("Restarts", 0, restarts),
        _AGE,
        ("IP", 1, pod_ip),
        ("Node", 1, node_name),
        ("Nominated Node", 1, nominated_node),
        ("Readiness Gates", 1, readiness_gates),
    ),
    "nodes": (
        ("Status", 0, cells.node_status),
        ("Roles", 0, cells.node_roles),
        _AGE,
        ("Version", 0, cells.text("status.nodeInfo.kubeletVersion", "")),
        ("Internal-IP", 1, cells.node_address("InternalIP")),
        ("External-IP", 1, cells.node_address("ExternalIP")),
        ("OS-Image", 1, cells.text("status.nodeInfo.osImage", "<unknown>")),
        ("Kernel-Version", 1, cells.node_kernel),
        ("Container-Runtime", 1, cells.text("status.nodeInfo.containerRuntimeVersion", "<unknown>")),
    ),
    "namespaces": (("Status", 0, cells.text("status.phase", "")), _AGE),
    "services": (
        ("Type", 0, cells.text("spec.type", "")),
        ("Cluster-IP", 0, cells.text("spec.clusterIP", "<none>")),
        ("External-IP", 0, cells.external_addresses),
        ("Port(s)", 0, cells.service_ports),
        _AGE,
        ("Selector", 1, cells.map_selector),
    ),
    "configmaps": (("Data", 0, cells.data_count), _AGE),
    "secrets": (("Type", 0, cells.text("type", "")), ("Data", 0, cells.data_count), _AGE),
    "resourcequotas": (("Request", 0, cells.quota("requests.")), ("Limit", 0, cells.quota("limits.")), _AGE),
    "deployments.apps": (
        ("Ready", 0, cells.ready_of_replicas),
        ("Up-to-date", 0, cells.number("status.updatedReplicas")),
        ("Available", 0, cells.number("status.availableReplicas")),
        _AGE,
        *_TEMPLATE,
    ),
    "statefulsets.apps": (("Ready", 0, cells.ready_of_replicas), _AGE, *_TEMPLATE[:2]),
    "replicasets.apps": (
        ("Desired", 0, cells.number("spec.replicas")),
        ("Current", 0, cells.number("status.replicas")),
        ("Ready", 0, cells.number("status.readyReplicas")),
        _AGE,
        *_TEMPLATE,
    ),
    "jobs.batch": (
        ("Status", 0, cells.job_status),
        ("Completions", 0, cells.job_completions),
        ("Duration", 0, cells.job_duration),
        _AGE,
        *_TEMPLATE,
    ),
    "leases.coordination.k8s.io": (("Holder", 0, cells.text("spec.holderIdentity", "")), _AGE),
    "poddisruptionbudgets.policy": (
        ("Min Available", 0, cells.text("spec.minAvailable", "N/A")),
        ("Max Unavailable", 0, cells.text("spec.maxUnavailable", "N/A")),
        ("Allowed Disruptions", 0, cells.number("status.disruptionsAllowed")),
        _AGE,
    ),
    "priorityclasses.scheduling.k8s.io": (
        ("Value", 0, cells.number("value")),
        ("Global-Default", 0, cells.yes_no("globalDefault")),
        _AGE,
        ("PreemptionPolicy", 0, cells.text("preemptionPolicy", "<unset>")),
    ),
    "customresourcedefinitions.apiextensions.k8s.io": (
        ("Created At", 0, cells.text("metadata.creationTimestamp", "")),
    ),
}

# Events have no name column in the narrow form.
_EVENTS: Final[tuple[Column, ...]] = (
    ("Last Seen", 0, cells.event_last_seen),
    ("Type", 0, cells.text("type", "")),
    ("Reason", 0, cells.text("reason", "")),
    ("Object", 0, cells.event_object),
    ("Subobject", 1, cells.event_part("fieldPath")),
    ("Source", 1, cells.event_source),
    ("Message", 0, cells.event_message),
    ("First Seen", 1, cells.event_first_seen),
    ("Count", 1, cells.event_count),
    ("Name", 1, cells.text("metadata.name", "")),
)
_NAME: Final[Column] = ("Name", 0, cells.text("metadata.name", ""))
_INTEGERS: Final = frozenset(("Up-to-date", "Available", "Desired", "Current", "Data", "Value", "Count"))


def _columns(resource: Resource) -> tuple[Column, ...]:
    if resource.storage == "events":
        return _EVENTS
    if resource.columns:
        return (_NAME, *(cells.custom_column(column) for column in resource.columns))
    return (_NAME, *_COLUMNS.get(resource.storage, (_AGE,)))


def _definitions(columns: Sequence[Column]) -> list[Object]:
    return [
        {
            "name": name,
            "type": "integer" if name in _INTEGERS else "string",
            "format": "name" if name == "Name" else "",
            "description": "",
            "priority": priority,
        }
        for name, priority, _ in columns
    ]


def table_of(resource: Resource, objs: list[Object], metadata: Object, now: datetime, include: str) -> Object:
    """A ``meta.k8s.io/v1`` ``Table``. ``include``: what each row contains: Metadata, Object or None."""
    columns = _columns(resource)
    rows: list[Object] = []
    for obj in objs:
        row: Object = {"cells": [cell(obj, now) for _, _, cell in columns]}
        if resource.storage == "pods":
            row["conditions"] = cells.row_conditions(obj)
        if include == "Object":
            row["object"] = obj
        elif include != "None":
            row["object"] = {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": obj["metadata"],
            }
        rows.append(row)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": _definitions(columns),
        "rows": rows,
    }
