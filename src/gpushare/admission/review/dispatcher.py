"""Dispatches AdmissionReviews to the rules."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from gpushare.admission.accept.pod_patch import changes
from gpushare.admission.accept.product import Product, Untranslatable
from gpushare.admission.accept.translation import template_warning, translated, translation_patch
from gpushare.admission.claims.templates import TemplateUnavailable
from gpushare.admission.claims.translation import claimed, is_translated
from gpushare.admission.review import annotation_guard
from gpushare.admission.review.admission_review import (
    UNREADABLE,
    Refusal,
    Request,
    UserInfo,
    Verdict,
    is_pod,
    pod_of,
    read_review,
    write_review,
)
from gpushare.admission.review.annotation_guard import Writers, called
from gpushare.admission.rules import request_rules, unit_rules
from gpushare.api.objects import Pod
from gpushare.api.request.unit_conversion import Counting
from gpushare.process.log_setup import about
from gpushare.reasons.mistakes.pods import mistakes_of, mistakes_of_change

logger = logging.getLogger(__name__)

_WRITES: Final = ("CREATE", "UPDATE")
#: Names of policies; see ``Refusal.policy``.
_ACCEPT: Final = "gpushare-accept"
_MATCHING: Final = "gpushare-matching-gpu"


class Places(Protocol):
    """Finds the node of the pod behind a token."""

    async def node_of(self, user: UserInfo) -> str:
        """The node of the pod that ``user``'s token was issued for; empty if unknown."""


class ClaimTemplates(Protocol):
    """Creates ResourceClaimTemplates (``gpushare.admission.claims.templates.Templates``)."""

    async def provide(self, namespace: str, templates: Mapping[str, Any]) -> None:
        """Create those that the namespace does not have; raises ``TemplateUnavailable``."""


class Gpus(Protocol):
    """The GPUs of the cluster (``gpushare.admission.review.matching_gpus.MatchingGpus``)."""

    async def problem(self, pod: Pod) -> str:
        """Why none is one that ``pod``'s annotations allow; empty if there is one, or may be."""


@dataclass(frozen=True, slots=True)
class Reviewer:
    """Answers reviews. ``bind_agents``: restrict a node agent to the node of its token; ``counting``: how MiB and percentage
    requests become units; ``accepted``: the other GPU schedulers whose requests are replaced by ours; ``claim_templates``: with it requests
    become ResourceClaims; ``gpus``: with it a pod is rejected if none is one that it may have."""

    writers: Writers
    places: Places
    scheduler: str
    bind_agents: bool = True
    counting: Counting = field(default_factory=Counting)
    accepted: Sequence[Product] = ()
    claim_templates: ClaimTemplates | None = None
    gpus: Gpus | None = None

    async def mutate(self, body: bytes) -> bytes:
        """The response of ``/mutate``; raises ``UnreadableReview``."""
        return await self._answer(body, self._pointed)

    async def count(self, body: bytes) -> bytes:
        """The response of ``/units``; raises ``UnreadableReview``."""
        return await self._answer(body, self._counted)

    async def accept(self, body: bytes) -> bytes:
        """The response of ``/accept``, which only warns about templates; raises ``UnreadableReview``."""
        return await self._answer(body, self._translated)

    async def validate(self, body: bytes) -> bytes:
        """The response of ``/validate``; raises ``UnreadableReview``."""
        return await self._answer(body, self._validated)

    async def warn(self, body: bytes) -> bytes:
        """The response of ``/mistakes``, which only warns; raises ``UnreadableReview``."""
        return await self._answer(body, self._warned)

    async def _answer(self, body: bytes, judge: Callable[[Request], Awaitable[Verdict]]) -> bytes:
        request = read_review(body)
        try:
            verdict = await judge(request)
        except UNREADABLE as error:
            kind = called(request)
            verdict = Verdict(
                [Refusal("gpushare", f"the {kind} object cannot be read: {error}", invalid=True)]
            )
        about_it = _about(request) if verdict.refusals else None
        for refusal in verdict.refusals:
            logger.info(
                "%s: %s %s %s/%s by %s refused: %s",
                refusal.policy,
                request.operation,
                called(request),
                request.namespace,
                request.name,
                request.user_info.username,
                refusal.message,
                extra=about_it,
            )
        return write_review(request.uid, verdict)

    async def _pointed(self, request: Request) -> Verdict:
        pod = _created(request)
        patch = request_rules.pointing(pod, self.scheduler) if pod else []
        if patch:
            # It has no UID yet, and may have no name.
            named = f"{request.namespace}/{request.name or '?'}"
            about_it = _about(request)
            logger.debug("pod %s: schedulerName set to %s", named, self.scheduler, extra=about_it)
        return Verdict(patch=patch)

    async def _counted(self, request: Request) -> Verdict:
        pod = _created(request)
        return Verdict(patch=unit_rules.conversion(pod, self.counting)) if pod else Verdict()

    async def _translated(self, request: Request) -> Verdict:
        if request.operation not in _WRITES or request.sub_resource:
            return Verdict()
        if is_pod(request.resource):
            pod = _created(request)
            try:
                return Verdict() if pod is None else await self._replaced(request, pod)
            except Untranslatable as error:
                return Verdict([Refusal(_ACCEPT, str(error), invalid=True)])
        template = pod_of(request.resource, request.object)
        text = template and (self._template_warning(template) or await self._unmatched(template))
        return Verdict(warnings=[text] if text else ())

    async def _unmatched(self, pod: Pod) -> str:
        """Why no GPU of the cluster is one that ``pod`` may have; empty if there is one, may be, or where that is not looked at."""
        if self.gpus is None:
            return ""
        return await self.gpus.problem(translated(pod, self.accepted, self.counting, self.scheduler) or pod)

    async def _replaced(self, request: Request, pod: Pod) -> Verdict:
        """Requests of other schedulers become ours, and ours become claims where that is on; raises ``Untranslatable``."""
        if text := await self._unmatched(pod):
            return Verdict([Refusal(_MATCHING, text, invalid=True)])
        if self.claim_templates is None:
            return Verdict(patch=translation_patch(pod, self.accepted, self.counting, self.scheduler))
        ours = translated(pod, self.accepted, self.counting, self.scheduler) or pod
        if not is_translated(ours):
            return Verdict()
        verdict = request_rules.judge(ours, self.counting)
        made = None if verdict.refusals else claimed(ours, self.counting, self.scheduler)
        if made is None:
            return verdict
        if not request.dry_run:
            try:
                await self.claim_templates.provide(request.namespace, made.templates)
            except TemplateUnavailable as error:
                return Verdict([Refusal(_ACCEPT, str(error))])
        return Verdict(patch=changes(pod, made.pod))

    def _template_warning(self, template: Pod) -> str:
        """Why pods of ``template`` would be rejected, unless that is said elsewhere; empty if they would not be."""
        text = template_warning(template, self.accepted, self.counting, self.scheduler)
        if text or self.claim_templates is None:
            return text
        ours = translated(template, self.accepted, self.counting, self.scheduler) or template
        if is_translated(ours) and not request_rules.judge(ours, self.counting).refusals:
            try:
                claimed(ours, self.counting, self.scheduler)
            except Untranslatable as error:
                return str(error)
        return ""

    async def _warned(self, request: Request) -> Verdict:
        if request.operation not in _WRITES or request.sub_resource:
            return Verdict()
        try:
            pod = pod_of(request.resource, request.object)
            if pod is not None and request.operation == "UPDATE" and is_pod(request.resource):
                before = pod_of(request.resource, request.old_object)
                return Verdict(warnings=mistakes_of_change(pod, before) if before else ())
        except UNREADABLE:
            # Likely mistakes are not rejected, nor is what cannot be read: other endpoints report that.
            return Verdict()
        return Verdict(warnings=mistakes_of(pod, self.counting.unit)) if pod else Verdict()

    async def _validated(self, request: Request) -> Verdict:
        if request.user_info.username == self.writers.agent:
            refused = annotation_guard.refused_verb(request)
            if refused is None and self.bind_agents:
                refused = annotation_guard.refused_place(
                    request, await self.places.node_of(request.user_info)
                )
            if refused is None:
                refused = annotation_guard.refused_content(request)
            if refused is not None:
                return Verdict([refused])
        if request.user_info.username == self.writers.scheduler:
            refused = annotation_guard.refused_scheduling(request)
            if refused is not None:
                return Verdict([refused])
        refused = annotation_guard.refused_write(request, self.writers)
        if refused is not None:
            return Verdict([refused])
        if request.operation not in _WRITES or request.sub_resource:
            return Verdict()
        pod = pod_of(request.resource, request.object)
        if pod is None:
            return Verdict()
        if request.operation == "UPDATE":
            before = pod_of(request.resource, request.old_object)
            if before is not None and request_rules.judged_alike(pod, before):
                return Verdict()
        writes_records = request.user_info.username in self.writers.records
        mirror = is_pod(request.resource) and request_rules.is_mirror(pod, request.user_info.username)
        may_have_record = is_pod(request.resource) and (request.operation == "UPDATE" or writes_records)
        if may_have_record:
            # Permission to write allocations was checked above.
            pod.metadata.annotations = None
        verdict = request_rules.judge(pod, self.counting, may_have_node=may_have_record or mirror)
        if not verdict.refusals and is_pod(request.resource) and not request.dry_run:
            _tell_admitted(request, pod)
        return verdict


def _about(request: Request) -> dict[str, Any]:
    """The subject of log lines: an existing pod by its UID, everything else by the review's."""
    if not is_pod(request.resource):
        return about(request=request.uid)
    uid = ""
    if request.operation != "CREATE":
        with suppress(*UNREADABLE):
            before = pod_of(request.resource, request.old_object)
            uid = "" if before is None else before.metadata.uid
    key = f"{request.namespace}/{request.name}" if request.name else ""
    return about(pod=key, uid=uid, request="" if uid else request.uid)


def _tell_admitted(request: Request, pod: Pod) -> None:
    """Log the admission of a new GPU pod. A validating review has the pod's UID and generated name."""
    if request.operation == "CREATE" and request_rules.asks_for_gpu(pod):
        key = f"{request.namespace}/{pod.metadata.name}"
        logger.info(
            "pod %s: admitted for %s",
            key,
            request.user_info.username,
            extra=about(pod=key, uid=pod.metadata.uid),
        )


def _created(request: Request) -> Pod | None:
    """The pod to be created; ``None`` for other requests."""
    if request.operation != "CREATE" or called(request) != "pods":
        return None
    try:
        return pod_of(request.resource, request.object)
    except UNREADABLE:
        # Not validated yet; the API server does so after us, with the better message.
        return None
