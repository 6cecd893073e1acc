"""Replaces requests of other GPU schedulers by ours, as a JSON patch. Pure.

The patch is complete, with units and our scheduler's name, as policies that would write them have run before the webhook.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from gpushare.admission.accept.hami import HAMI
from gpushare.admission.accept.kai import KAI
from gpushare.admission.accept.pod_patch import changes
from gpushare.admission.accept.product import Product, Share, Translation, Untranslatable
from gpushare.admission.rules import unit_rules
from gpushare.admission.rules.request_rules import asks_for_gpu, judge
from gpushare.api import names
from gpushare.api.objects import Container, Pod, ResourceQuantities, ResourceRequirements
from gpushare.api.request.unit_conversion import Counting

#: By name, as in ``--accept``.
PRODUCTS: Final[Mapping[str, Product]] = {product.name: product for product in (HAMI, KAI)}
_DEFAULT_SCHEDULERS: Final = ("", "default-scheduler")


def translation_patch(
    pod: Pod, accepted: Collection[Product], counting: Counting, scheduler: str = names.SCHEDULER_NAME
) -> list[dict[str, Any]]:
    """The JSON patch that replaces ``pod``'s requests of ``accepted`` products; empty if it has none, or opted out.

    Raises ``Untranslatable``.
    """
    after = translated(pod, accepted, counting, scheduler)
    return [] if after is None else [*changes(pod, after), *unit_rules.conversion(after, counting)]


def template_warning(
    template: Pod, accepted: Collection[Product], counting: Counting, scheduler: str = names.SCHEDULER_NAME
) -> str:
    """Why pods of ``template`` would be rejected; empty if they have no request of ``accepted`` products, or would not be."""
    try:
        after = translated(template, accepted, counting, scheduler)
    except Untranslatable as error:
        return str(error)
    if after is None:
        return ""
    return next((refusal.message for refusal in judge(after, counting).refusals), "")


def translated(
    pod: Pod, accepted: Collection[Product], counting: Counting, scheduler: str = names.SCHEDULER_NAME
) -> Pod | None:
    """``pod`` with our requests, memory in MiB or percent; ``None`` if it has no request of ``accepted`` products, has a node, or opted out.

    Raises ``Untranslatable``.
    """
    labels, annotations = pod.metadata.labels or {}, pod.metadata.annotations or {}
    if pod.spec.node_name or labels.get(names.LABEL_ADMISSION) == "disabled":
        return None
    found = [
        (product, translation)
        for product in accepted
        if pod.spec.scheduler_name in (*_DEFAULT_SCHEDULERS, scheduler, product.scheduler)
        and (translation := product.read(pod)) is not None
    ]
    if not found:
        return None
    if len(found) > 1:
        raise Untranslatable(
            f"the pod requests a share in the formats of {' and '.join(product.name for product, _ in found)}; keep one of them"
        )
    [(product, translation)] = found
    _check(pod, product, translation, counting)
    kept = {name: text for name, text in annotations.items() if name not in translation.replaced}
    count = {names.LABEL_POD_GPU_COUNT: str(translation.gpus)} if translation.gpus > 1 else {}
    metadata = msgspec.structs.replace(
        pod.metadata, labels={**labels, **count}, annotations={**kept, **translation.annotations}
    )
    spec = msgspec.structs.replace(
        pod.spec,
        containers=[_shared(container, translation) for container in pod.spec.containers],
        init_containers=[_shared(container, translation) for container in pod.spec.init_containers or ()],
        scheduler_name=scheduler,
    )
    return msgspec.structs.replace(pod, metadata=metadata, spec=spec)


def _check(pod: Pod, product: Product, translation: Translation, counting: Counting) -> None:
    own = [name for name in translation.annotations if name in (pod.metadata.annotations or {})]
    if translation.gpus > 1 and names.LABEL_POD_GPU_COUNT in (pod.metadata.labels or {}):
        own.append(names.LABEL_POD_GPU_COUNT)
    if asks_for_gpu(pod):
        own.append("a GPU among its limits")
    if own:
        raise Untranslatable(
            f"the pod requests a share in the format of {product.name} and in gpushare's own: {', '.join(own)}; keep one of them"
        )
    percent = [name for name, share in translation.shares.items() if share.memory_percent]
    if percent and not counting.reference_units:
        raise Untranslatable(
            f"{product.percent} requires a reference GPU size, which is not configured in this cluster (chart value "
            f"admission.referenceGpuMemoryMiB): request MiB in container {', container '.join(percent)}"
        )


def _shared(container: Container, translation: Translation) -> Container:
    share = translation.shares.get(container.name)
    if share is None:
        return container
    before = container.resources or ResourceRequirements()
    amounts = _amounts(share, translation.gpus)
    # In requests, too: the API server may have filled them in from limits already.
    limits, requests = (
        _replaced(quantities, translation.resources, amounts)
        for quantities in (before.limits, before.requests)
    )
    resources = msgspec.structs.replace(before, limits=limits, requests=requests)
    return msgspec.structs.replace(container, resources=resources)


def _amounts(share: Share, gpus: int) -> dict[str, str]:
    memory = (
        {names.GPU_MEMORY: f"{share.mib * gpus}Mi"}
        if share.mib
        else {names.GPU_MEMORY_PERCENT: str(share.memory_percent)}
    )
    return {**memory, names.GPU_CORE: str(share.core_percent)} if share.core_percent else memory


def _replaced(
    quantities: ResourceQuantities | None, removed: Collection[str], added: Mapping[str, str]
) -> ResourceQuantities:
    kept = {name: amount for name, amount in (quantities or {}).items() if name not in removed}
    return {**kept, **added}
