"""The product's rules, as in-process admission.

On a real cluster they are policies of the chart, or our webhook; here functions have their role, with the same
messages (``gpushare.admission.rules.request_rules``) under the names of the same policies. A rule sees an object with its defaults
set. Other rules can be added: a list of mutating and a list of validating functions.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from gpushare.admission.accept.product import Product, Untranslatable
from gpushare.admission.accept.translation import PRODUCTS, template_warning, translation_patch
from gpushare.admission.review.admission_review import Refusal, Template, UserInfo
from gpushare.admission.review.admission_review import Request as WriteRequest
from gpushare.admission.review.admission_review import Resource as WrittenResource
from gpushare.admission.review.annotation_guard import Writers, refused_write
from gpushare.admission.rules.request_rules import (
    RECORDED,
    RECORDS,
    asks_for_gpu,
    carried,
    is_mirror,
    judge,
    judged_alike,
    pointing,
)
from gpushare.admission.rules.unit_rules import conversion
from gpushare.api import names
from gpushare.api.request.unit_conversion import Counting
from gpushare.api.submitted import SubmittedPod
from gpushare.process.log_setup import about
from gpushare.reasons.mistakes.pods import mistakes_of, mistakes_of_change
from gpushare_playground.apiserver.errors import ApiError, Object, qualified
from gpushare_playground.apiserver.kinds.resources import Resource
from gpushare_playground.apiserver.writes.patching import json_patch

logger = logging.getLogger(__name__)

DEFAULT_SCHEDULER: Final = "default-scheduler"
#: Schedulers whose requests can be replaced by ours.
ACCEPTABLE: Final = tuple(PRODUCTS)
#: Namespaces that are never reviewed, as in the chart.
EXCLUDED: Final = frozenset({"kube-system"})
#: Kinds from which the controllers here create pods.
_WORKLOADS: Final = frozenset({"deployments.apps", "replicasets.apps", "statefulsets.apps", "jobs.batch"})


@dataclass(frozen=True, slots=True)
class Review:
    """The input of an admission function: the object that is to be written, and its previous state.

    ``old`` is ``None`` for a new object; ``warnings`` are those for the client, to which functions add.
    """

    resource: Resource
    namespace_labels: dict[str, str]
    obj: Object
    user: str
    old: Object | None = None
    subresource: str = ""
    warnings: list[str] = field(default_factory=list)


Mutating = Callable[[Review], None]
"""Changes ``review.obj`` in place."""
Validating = Callable[[Review], None]
"""Raises ``ApiError`` to reject."""
CountingFn = Callable[[], Counting]
"""How MiB and percentage requests become units, at this time."""


def _pod_in(resource: Resource, obj: Object) -> SubmittedPod | None:
    """The pod that ``obj`` is, or that its template describes."""
    template_obj = _template_in(resource, obj)
    if template_obj is None:
        return None
    try:
        template = msgspec.convert(template_obj, Template)
    except msgspec.ValidationError as error:
        raise _refused(resource, obj, Refusal("gpushare", f"cannot be read: {error}", invalid=True)) from None
    return SubmittedPod(metadata=template.metadata, spec=template.spec)


def _template_in(resource: Resource, obj: Object) -> Object | None:
    """``obj`` itself if it is a pod, otherwise its pod template, as written."""
    if resource.storage == "pods":
        return obj
    if resource.storage not in _WORKLOADS:
        return None
    spec = obj.get("spec")
    template = spec.get("template") if isinstance(spec, dict) else None
    return template if isinstance(template, dict) else None


def _refused(resource: Resource, obj: Object, refusal: Refusal) -> ApiError:
    message = f"ValidatingAdmissionPolicy '{refusal.policy}' with binding '{refusal.policy}' denied request: {refusal.message}"
    name = (obj.get("metadata") or {}).get("name", "")
    kind = qualified(resource.plural, resource.group)
    code, reason = (422, "Invalid") if refusal.invalid else (403, "Forbidden")
    details: Object = {"name": name, "kind": resource.plural, "causes": [{"message": message}]}
    if resource.group:
        details["group"] = resource.group
    return ApiError(code, reason, f'{kind} "{name}" is forbidden: {message}', details)


def _excluded(review: Review) -> bool:
    return review.obj["metadata"].get("namespace") in EXCLUDED


def name_scheduler(review: Review) -> None:
    """Assign a pod that requests a share of a GPU and names no scheduler to ours.

    Unless a label of the pod or of its namespace opts out.
    """
    if review.resource.storage != "pods" or _excluded(review):
        return
    if review.namespace_labels.get(names.LABEL_ADMISSION) == "disabled":
        return
    pod = _pod_in(review.resource, review.obj)
    for change in pointing(pod) if pod else ():
        review.obj["spec"]["schedulerName"] = change["value"]


def accept_other_requests(accepted: Sequence[Product], counting: CountingFn) -> Mutating:
    """A function that replaces requests of ``accepted`` schedulers by ours, and warns about templates whose pods it would reject."""

    def accept(review: Review) -> None:
        if _excluded(review) or review.namespace_labels.get(names.LABEL_ADMISSION) == "disabled":
            return
        pod = _pod_in(review.resource, review.obj)
        if pod is None:
            return
        if review.resource.storage != "pods":
            if text := template_warning(pod, accepted, counting()):
                review.warnings.append(text)
            return
        try:
            patch = translation_patch(pod, accepted, counting())
        except Untranslatable as error:
            message = f'admission webhook "accept.gpushare.dev" denied the request: {error}'
            raise ApiError(422, "Invalid", message, {}) from None
        review.obj.update(json_patch(review.obj, patch))

    return accept


def count_in_units(counting: CountingFn) -> Mutating:
    """A function that converts MiB and percentage requests of pods to units."""

    def count(review: Review) -> None:
        if review.resource.storage != "pods" or _excluded(review):
            return
        pod = _pod_in(review.resource, review.obj)
        if pod is not None and (patch := conversion(pod, counting())):
            review.obj.update(json_patch(review.obj, patch))

    return count


def check_requests(counting: CountingFn, writers: Collection[str] = ()) -> Validating:
    """A function that rejects requests that can never be met, in pods and in pod templates; it raises ``ApiError``.

    ``writers`` are the users that may create pods with a node.
    """

    def check(review: Review) -> None:
        if review.subresource or _excluded(review):
            return
        pod = _pod_in(review.resource, review.obj)
        if pod is None:
            return
        before = None if review.old is None else _pod_in(review.resource, review.old)
        if before is not None and judged_alike(pod, before):
            return
        ending = "" if review.resource.storage == "pods" else "-templates"
        may_have_node = False
        if not ending:
            # Whether the user may write records on pods is checked separately.
            annotations = pod.metadata.annotations or {}
            pod.metadata.annotations = {
                name: text for name, text in annotations.items() if name not in RECORDS
            }
            recorded = pod.metadata.annotations != annotations
            trusted = review.user in writers or is_mirror(pod, review.user)
            may_have_node = recorded or review.old is not None or trusted
        for refusal in judge(pod, counting(), may_have_node=may_have_node).refusals:
            named = Refusal(f"{refusal.policy}{ending}", refusal.message, refusal.invalid)
            raise _refused(review.resource, review.obj, named)

    return check


def warn_of_typos(counting: CountingFn) -> Validating:
    """A function that rejects nothing, and warns about likely mistakes."""

    def warn(review: Review) -> None:
        if review.subresource or _excluded(review):
            return
        pod = _pod_in(review.resource, review.obj)
        if pod is None:
            return
        ending = "" if review.resource.storage == "pods" else "-templates"
        mistakes = None
        if review.old is not None and not ending:
            before = _pod_in(review.resource, review.old)
            ending, mistakes = "-bound", [] if before is None else mistakes_of_change(pod, before)
        elif review.old is not None:
            # Templates are reviewed whenever they change.
            now, then = (_template_in(review.resource, obj) for obj in (review.obj, review.old))
            if now == then:
                return
        named = f"gpushare-mistakes{ending}"
        for text in mistakes_of(pod, counting().unit) if mistakes is None else mistakes:
            review.warnings.append(
                f"Validation failed for ValidatingAdmissionPolicy '{named}' with binding '{named}': {text}"
            )

    return warn


def log_admitted(review: Review) -> None:
    """Log that a pod that requests a GPU is admitted, as the product's webhook does."""
    if review.resource.storage != "pods" or review.subresource or review.old is not None or _excluded(review):
        return
    pod = _pod_in(review.resource, review.obj)
    if pod is not None and asks_for_gpu(pod):
        key, uid = f"{pod.metadata.namespace}/{pod.metadata.name}", pod.metadata.uid
        logger.info("pod %s: admitted for %s", key, review.user, extra=about(pod=key, uid=uid))


def guard_records(writers: Collection[str]) -> Validating:
    """A function that lets only the users ``writers`` write allocation records; raises ``ApiError``."""
    allowed = Writers(frozenset(writers), agent="", scheduler="")

    def guard(review: Review) -> None:
        if review.resource.storage not in ("pods", "nodes") or review.user in writers:
            return
        now, before = (_annotations(obj) for obj in (review.obj, review.old))
        if all(now.get(name) == before.get(name) for name in (*RECORDS, names.ANN_DEVICES)):
            return
        binding = review.subresource == "binding"
        if review.resource.storage == "pods" and review.old is None and not binding:
            text = carried(now)
            refusal = Refusal(RECORDED, text) if text else None
        else:
            request = WriteRequest(
                uid="",
                resource=WrittenResource(version="v1", resource=review.resource.plural),
                operation="UPDATE" if review.old is not None else "CREATE",
                sub_resource=review.subresource,
                user_info=UserInfo(review.user),
                object=_only(now),
                old_object=_only(before),
            )
            refusal = refused_write(request, allowed)
        if refusal is None:
            return
        ending = "-bindings" if binding else "-nodes" if review.resource.storage == "nodes" else ""
        raise _refused(review.resource, review.obj, Refusal(f"{refusal.policy}{ending}", refusal.message))

    return guard


def _annotations(obj: Object | None) -> dict[str, str]:
    annotations: dict[str, str] | None = (
        None if obj is None else (obj.get("metadata") or {}).get("annotations")
    )
    return annotations or {}


def _only(annotations: Mapping[str, str]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode({"metadata": {"annotations": annotations}}))


@dataclass(frozen=True, slots=True)
class Admission:
    """The functions called for every write: first all mutating ones, then all validating ones."""

    mutating: Sequence[Mutating] = field(default=(count_in_units(Counting), name_scheduler))
    validating: Sequence[Validating] = field(default=(check_requests(Counting), warn_of_typos(Counting)))

    @classmethod
    def guarded(
        cls, writers: Collection[str], counting: CountingFn = Counting, accepted: Collection[str] = ()
    ) -> "Admission":
        """All rules of the product.

        ``writers`` are the users that may write allocation records, ``accepted`` the other schedulers whose requests are replaced by ours, of ``ACCEPTABLE``.
        """
        products = [PRODUCTS[name] for name in accepted]
        return cls(
            (accept_other_requests(products, counting), count_in_units(counting), name_scheduler),
            (
                check_requests(counting, writers),
                guard_records(writers),
                warn_of_typos(counting),
                log_admitted,
            ),
        )

    def mutate(self, review: Review) -> None:
        """Call every mutating function."""
        for function in self.mutating:
            function(review)

    def validate(self, review: Review) -> None:
        """Call every validating function. Raises ``ApiError``."""
        for function in self.validating:
            function(review)
