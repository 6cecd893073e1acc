"""What would help a pod where no node has the labels that its nodeSelector wants."""

from collections.abc import Callable
from typing import Final

from gpushare.api.request.request import Request
from gpushare.reasons import kube_scheduler
from gpushare.reasons.suggestions import modes
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.framework.services import PodQuotas

_ELSE: Final = "; or another selector"

AllowedNodesFn = Callable[[str, list[str]], list[str]]
"""Those of some nodes that the policy of a pod (UID) lets it have; the same list where it has none."""
FitsFn = Callable[[str, Request, list[str]], tuple[str, list[str]]]
"""The first of some nodes that takes a pod (UID) with its request, empty for none; and more."""


class LabelSuggestions:
    """Words for many pods of one moment: what was worked out for one holds for the next that asks and wants the same.

    ``nodes``: all that there are, those with the most free first.
    """

    def __init__(
        self,
        view: ClusterCache,
        quotas: PodQuotas,
        nodes: Callable[[], list[str]],
        let: AllowedNodesFn,
        fits: FitsFn,
    ) -> None:
        self._view = view
        self._quotas = quotas
        self._nodes = nodes
        self._let = let
        self._fits = fits
        self._open: list[str] | None = None
        self._told: dict[tuple[object, ...], str] = {}

    def of(self, record: PodRecord) -> str:
        """For a pod whose scheduler says that labels keep it off nodes."""
        unplaced, request = record.unplaced, record.request
        if not unplaced.selector:
            return kube_scheduler.OTHER_LABELS
        if self._open is None:
            self._open = [node for node in self._nodes() if node not in self._view.cordoned]
        nodes = self._let(record.uid, self._open)
        whole = request is not None and request.whole_device and self._quotas.in_use
        which = None if nodes is self._open else frozenset(nodes)
        alone = kube_scheduler.only_labels_refuse(unplaced)
        key = (request, unplaced.selector, alone, which, record.uid if whole else "")
        found = self._told.get(key)
        if found is None:
            found = self._told[key] = self._wanted(record, nodes, alone=alone) + _ELSE
        return found

    def _wanted(self, record: PodRecord, nodes: list[str], *, alone: bool) -> str:
        """``alone``: nothing else than its labels keeps the pod off any node."""
        ledger, request, selector = self._view.ledger, record.request, record.unplaced.selector
        found = modes.selected(ledger, request, selector, nodes)
        if found:
            return found
        told = f"a node with what its nodeSelector wants, {selector.replace(' ', ' and ')}"
        mode, labels = modes.without_mode(selector)
        if request is None or not labels:
            return f"{told}: `kubectl label node NODE {selector}`"
        some = [name for name in nodes if not mode or modes.is_in(ledger, name, mode)]
        node, _ = self._fits(record.uid, request, some)
        if not node:
            which = f"node in mode {mode}" if mode else "node"
            besides = " that is not cordoned" if self._view.cordoned else ""
            return f"{told}: no {which}{besides} has room for the pod now, whatever its labels"
        if_so = "" if alone else ", if no other rule keeps the pod off"
        return f"{told}: `kubectl label node {node} {labels}` (it has room for the pod{if_so})"
