"""Suggestions for pods whose nodeSelector matches no node."""

from collections.abc import Callable
from typing import Final

from gpushare.api.request.request import Request
from gpushare.reasons import kube_scheduler
from gpushare.reasons.suggestions import modes
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.framework.services import PodQuotas

_OTHER_SELECTOR: Final = "; or another selector"

AllowedNodesFn = Callable[[str, list[str]], list[str]]
"""The nodes of a list that the ResourcePolicy of a pod (UID) allows; the same list object if it has no policy."""
FitsFn = Callable[[str, Request, list[str]], tuple[str, list[str]]]
"""The first of some nodes that takes a pod (UID) with its request (empty: none), and the nodes with room on their GPUs."""


class LabelSuggestions:
    """Suggestions for many pods at one moment, cached for pods with the same request and selector.

    ``nodes``: all nodes, those with the most free memory first.
    """

    def __init__(
        self,
        view: ClusterCache,
        quotas: PodQuotas,
        nodes: Callable[[], list[str]],
        allowed_nodes: AllowedNodesFn,
        fits: FitsFn,
    ) -> None:
        self._view = view
        self._quotas = quotas
        self._nodes = nodes
        self._allowed_nodes = allowed_nodes
        self._fits = fits
        self._schedulable: list[str] | None = None
        self._suggestions: dict[tuple[object, ...], str] = {}

    def of(self, record: PodRecord) -> str:
        """Suggestion for a pod that, by its scheduler's message, is kept off nodes by labels."""
        unplaced, request = record.unplaced, record.request
        if not unplaced.selector:
            return kube_scheduler.OTHER_LABELS
        if self._schedulable is None:
            self._schedulable = [node for node in self._nodes() if node not in self._view.cordoned]
        nodes = self._allowed_nodes(record.uid, self._schedulable)
        by_pod = request is not None and request.whole_device and self._quotas.in_use
        allowed = None if nodes is self._schedulable else frozenset(nodes)
        labels_only = kube_scheduler.only_labels_refuse(unplaced)
        key = (request, unplaced.selector, labels_only, allowed, record.uid if by_pod else "")
        suggestion = self._suggestions.get(key)
        if suggestion is None:
            suggestion = self._suggestions[key] = (
                self._labelled_node(record, nodes, labels_only=labels_only) + _OTHER_SELECTOR
            )
        return suggestion

    def _labelled_node(self, record: PodRecord, nodes: list[str], *, labels_only: bool) -> str:
        """Which node to label. ``labels_only``: nothing but labels keeps the pod off any node."""
        ledger, request, selector = self._view.ledger, record.request, record.unplaced.selector
        in_mode = modes.selected(ledger, request, selector, nodes)
        if in_mode:
            return in_mode
        wanted = f"a node that matches its nodeSelector, {selector.replace(' ', ' and ')}"
        mode, labels = modes.without_mode(selector)
        if request is None or not labels:
            return f"{wanted}: `kubectl label node NODE {selector}`"
        candidates = [name for name in nodes if not mode or modes.is_in(ledger, name, mode)]
        node, _ = self._fits(record.uid, request, candidates)
        if not node:
            node_kind = f"node in mode {mode}" if mode else "node"
            schedulable = " that is not cordoned" if self._view.cordoned else ""
            return f"{wanted}: no {node_kind}{schedulable} has enough capacity now, regardless of labels"
        condition = "" if labels_only else ", unless another rule excludes the node"
        return f"{wanted}: `kubectl label node {node} {labels}` (it has enough capacity{condition})"
