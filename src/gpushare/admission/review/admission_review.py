"""``AdmissionReview`` (admission.k8s.io/v1) requests and responses, reduced to the fields that the rules read."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gpushare.admission.errors import UnreadableReview
from gpushare.api.objects import ObjectMeta
from gpushare.api.submitted import SubmittedPod, SubmittedSpec

#: The API server accepts objects of up to 3 MiB; a review also has the old one, and its JSON may be larger.
MAX_BODY_BYTES: Final = 16 * 1024 * 1024
_NULL: Final = b"null"
_VERSION: Final = "admission.k8s.io/v1"
#: Decoding errors: invalid JSON, another shape, invalid UTF-8, or excessive nesting.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class UserInfo(msgspec.Struct):
    """The requesting user; ``extra`` holds further claims of the token by key."""

    username: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None

    def claim(self, key: str) -> str:
        """The single value of ``extra[key]``; empty if there is none."""
        values = (self.extra or {}).get(key) or [""]
        return values[0]


class Resource(msgspec.Struct):
    """Group, version and plural of the written resource."""

    group: str = ""
    version: str = ""
    resource: str = ""


class Request(msgspec.Struct, rename="camel"):
    """The request; objects are raw JSON, ``null`` or absent if there is none."""

    uid: str
    resource: Resource
    operation: str
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    user_info: UserInfo = msgspec.field(default_factory=UserInfo)
    object: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    dry_run: bool = False
    old_object: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))


class _Review(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    request: Request


@dataclass(frozen=True, slots=True)
class Refusal:
    """A violated rule: its policy, and the message for the user.

    ``invalid``: the object can never be taken (HTTP 422); otherwise this user may not do it (403).
    """

    policy: str
    message: str
    invalid: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict: allowed if ``refusals`` is empty. ``patch`` is a JSON patch, ``warnings`` are shown to the user."""

    refusals: Sequence[Refusal] = ()
    patch: Sequence[dict[str, Any]] = ()
    warnings: Sequence[str] = ()


class Template(msgspec.Struct):
    """A pod template."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: SubmittedSpec = msgspec.field(default_factory=SubmittedSpec)


class _Workload(msgspec.Struct):
    class Spec(msgspec.Struct):
        template: Template | None = None

    spec: Spec = msgspec.field(default_factory=Spec)


class _CronJob(msgspec.Struct):
    class Spec(msgspec.Struct, rename="camel"):
        job_template: _Workload = msgspec.field(default_factory=_Workload)

    spec: Spec = msgspec.field(default_factory=Spec)


class _PodTemplate(msgspec.Struct):
    template: Template | None = None


#: Resources with a pod template, by group: those shaped like ``_Workload``, and others.
_WORKLOADS: Final = {
    ("apps", "deployments"),
    ("apps", "replicasets"),
    ("apps", "statefulsets"),
    ("apps", "daemonsets"),
    ("batch", "jobs"),
    ("", "replicationcontrollers"),
}
_REVIEW: Final = msgspec.json.Decoder(_Review)
_POD: Final = msgspec.json.Decoder(SubmittedPod)
_WORKLOAD: Final = msgspec.json.Decoder(_Workload)
_CRON_JOB: Final = msgspec.json.Decoder(_CronJob)
_POD_TEMPLATE: Final = msgspec.json.Decoder(_PodTemplate)


def read_review(body: bytes) -> Request:
    """The request of an AdmissionReview; raises ``UnreadableReview``."""
    try:
        review = _REVIEW.decode(body)
    except UNREADABLE as error:
        raise UnreadableReview(f"not an AdmissionReview of {_VERSION}: {error}") from None
    if (review.api_version, review.kind) != (_VERSION, "AdmissionReview"):
        raise UnreadableReview(
            f"not an AdmissionReview of {_VERSION}: {review.api_version} {review.kind}"[:300]
        )
    return review.request


def is_pod(resource: Resource) -> bool:
    """Whether the resource is a pod."""
    return (resource.group, resource.resource) == ("", "pods")


def pod_of(resource: Resource, raw: bytes) -> SubmittedPod | None:
    """The pod in ``raw``, or the one that its template describes; ``None`` if there is none.

    Raises one of ``UNREADABLE`` for another shape.
    """
    named = (resource.group, resource.resource)
    if is_pod(resource):
        return None if bytes(raw) == _NULL else _POD.decode(raw)
    template: Template | None = None
    if named in _WORKLOADS:
        template = _WORKLOAD.decode(raw).spec.template
    elif named == ("batch", "cronjobs"):
        template = _CRON_JOB.decode(raw).spec.job_template.spec.template
    elif named == ("", "podtemplates"):
        template = _POD_TEMPLATE.decode(raw).template
    return None if template is None else SubmittedPod(metadata=template.metadata, spec=template.spec)


def write_review(uid: str, verdict: Verdict) -> bytes:
    """The AdmissionReview response to request ``uid``."""
    response: dict[str, Any] = {"uid": uid, "allowed": not verdict.refusals}
    if verdict.refusals:
        message = "; ".join(one.message for one in verdict.refusals)
        invalid = any(one.invalid for one in verdict.refusals)
        code, reason = (422, "Invalid") if invalid else (403, "Forbidden")
        response["status"] = {"code": code, "reason": reason, "message": message}
        response["auditAnnotations"] = {"refused-by": ",".join(one.policy for one in verdict.refusals)}
    elif verdict.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(verdict.patch)).decode()
    if verdict.warnings:
        response["warnings"] = list(verdict.warnings)
    return msgspec.json.encode({"apiVersion": _VERSION, "kind": "AdmissionReview", "response": response})
