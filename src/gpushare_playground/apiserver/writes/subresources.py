"""``binding``, ``eviction`` and ``scale``: writes with a body of another kind."""

from typing import Final

from gpushare_playground.apiserver import errors
from gpushare_playground.apiserver.errors import ApiError, Object
from gpushare_playground.apiserver.kinds.naming import WallClock, timestamp
from gpushare_playground.apiserver.kinds.resources import Resource
from gpushare_playground.apiserver.kinds.selectors import selector_requirements, selector_text
from gpushare_playground.apiserver.store import Record, Store
from gpushare_playground.apiserver.writes.deleting import DeleteOptions, Deleter
from gpushare_playground.apiserver.writes.writing import WriteOptions, Writer, copy_of

_SUCCESS: Final = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def bind(store: Store, pod: Record, binding: Object, now: WallClock) -> Object:
    """Assign a pod to a node in one write: node name, condition, and the Binding's annotations and labels.

    Existing keys of the pod are overwritten, all others are kept. Raises ``ApiError`` 409 if the pod has a
    node, is being deleted, is gated, or is not the one (uid, resourceVersion) that the Binding refers to.
    """
    metadata, target = binding.get("metadata") or {}, binding.get("target") or {}
    field_errors: list[errors.FieldError] = []
    if target.get("kind", "Node") not in ("", "Node"):
        field_errors.append(errors.unsupported("target.kind", target["kind"], ("", "Node")))
    if not target.get("name"):
        field_errors.append(errors.required("target.name"))
    if field_errors:
        raise errors.invalid("Binding", "", pod.name, field_errors)
    if metadata.get("name", pod.name) != pod.name:
        raise errors.bad_request(
            f"name in URL ({pod.name}) does not match name in Binding object: {metadata['name']}"
        )
    _check_bindable(pod, metadata)
    pod_metadata, status = dict(pod.obj["metadata"]), dict(pod.obj.get("status") or {})
    for part in ("annotations", "labels"):
        if metadata.get(part):
            pod_metadata[part] = {**(pod_metadata.get(part) or {}), **metadata[part]}
    conditions = [one for one in status.get("conditions") or () if one.get("type") != "PodScheduled"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp(now())}
    status["conditions"] = [*conditions, scheduled]
    spec = {**pod.obj["spec"], "nodeName": target["name"]}
    obj = {**pod.obj, "metadata": pod_metadata, "spec": spec, "status": status}
    store.put("pods", pod.namespace, pod.name, obj)
    return dict(_SUCCESS)


def _check_bindable(pod: Record, wanted: Object) -> None:
    metadata, spec = pod.obj["metadata"], pod.obj["spec"]

    def refusal(reason: str) -> ApiError:
        return errors.conflict("pods/binding", "", pod.name, reason)

    for word, key in (("UID", "uid"), ("ResourceVersion", "resourceVersion")):
        if wanted.get(key) and wanted[key] != metadata[key]:
            raise refusal(
                f"Precondition failed: {word} in precondition: {wanted[key]},"
                f" {word} in object meta: {metadata[key]}"
            )
    if metadata.get("deletionTimestamp"):
        raise refusal(f"pod {pod.name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        raise refusal(f'pod {pod.name} is already assigned to node "{spec["nodeName"]}"')
    if spec.get("schedulingGates"):
        raise refusal(f"pod {pod.name} has non-empty .spec.schedulingGates")


def _blocking_budget(store: Store, pod: Record) -> tuple[Record | None, int]:
    """The first disruption budget that selects the pod, and the number of those that do."""
    labels = pod.obj["metadata"].get("labels") or {}
    matching: list[Record] = []
    for budget in store.items("poddisruptionbudgets.policy", pod.namespace):
        wanted = selector_requirements((budget.obj.get("spec") or {}).get("selector"))
        if wanted is not None and all(requirement.matches(labels) for requirement in wanted):
            matching.append(budget)
    return (matching[0] if matching else None), len(matching)


def evict(store: Store, deleter: Deleter, resource: Resource, pod: Record, eviction: Object) -> Object:
    """Delete a pod unless a disruption budget forbids it, which raises ``ApiError`` 429."""
    status = pod.obj.get("status") or {}
    counted = status.get("phase") not in ("Succeeded", "Failed", "Pending") and not pod.obj["metadata"].get(
        "deletionTimestamp"
    )
    options = DeleteOptions.of(eviction.get("deleteOptions") or {}, {})
    if counted:
        budget, count = _blocking_budget(store, pod)
        if count > 1:
            message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            raise ApiError(500, "InternalError", message)
        if budget is not None:
            _take_from_budget(store, budget, options)
    deleter.delete(resource, pod.namespace, pod.name, options)
    return dict(_SUCCESS)


def _take_from_budget(store: Store, budget: Record, options: DeleteOptions) -> None:
    status = budget.obj.get("status") or {}
    allowed = status.get("disruptionsAllowed", 0)
    if allowed <= 0:
        raise ApiError(
            429,
            "TooManyRequests",
            "Cannot evict pod as it would violate the pod's disruption budget.",
            {
                "causes": [
                    {
                        "reason": "DisruptionBudget",
                        "message": f"The disruption budget {budget.name} needs"
                        f" {status.get('desiredHealthy', 0)} healthy pods and has"
                        f" {status.get('currentHealthy', 0)} currently",
                    }
                ]
            },
        )
    if not options.dry_run:
        obj = copy_of(budget)
        obj["status"]["disruptionsAllowed"] = allowed - 1
        store.put("poddisruptionbudgets.policy", budget.namespace, budget.name, obj)


def scale_of(record: Record) -> Object:
    """The ``autoscaling/v1`` ``Scale`` of a workload."""
    metadata, spec = record.obj["metadata"], record.obj["spec"]
    selector = selector_text(spec.get("selector"))
    status: Object = {"replicas": (record.obj.get("status") or {}).get("replicas", 0)}
    if selector:
        status["selector"] = selector
    copied = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in copied if key in metadata},
        "spec": {"replicas": spec.get("replicas", 0)},
        "status": status,
    }


def set_scale(
    writer: Writer, resource: Resource, record: Record, scale: Object, options: WriteOptions
) -> Record:
    """Write a ``Scale``'s replicas to its workload. Raises ``ApiError`` 422 for an invalid number, 409 if stale."""
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 0:
        field_errors = [errors.invalid_value("spec.replicas", replicas, "must be greater than or equal to 0")]
        raise errors.invalid("Scale", "autoscaling", record.name, field_errors)
    wanted = (scale.get("metadata") or {}).get("resourceVersion")
    if wanted and wanted != record.obj["metadata"]["resourceVersion"]:
        raise errors.conflict(resource.plural, resource.group, record.name, errors.MODIFIED)

    def with_replicas(obj: Object) -> Object:
        return {**obj, "spec": {**obj["spec"], "replicas": replicas}}

    return writer.patch(resource, record.namespace, record.name, with_replicas, options).record
