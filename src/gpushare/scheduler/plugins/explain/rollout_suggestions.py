"""Suggestion for a pod of a Deployment that is updated while its earlier pods hold the GPUs."""

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from gpushare.api.request.request import Request
from gpushare.reasons.suggestions.trial import refusal, to_try
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.cache.pod_records import PodRecord

#: ``NAMESPACE/DEPLOYMENT-HASH-SUFFIX``, in the letters that Kubernetes uses for the hash of a pod template and for suffixes.
_POD: Final = re.compile(
    r"(?P<deployment>.+)-(?P<template>[b-df-hj-np-tv-xz24-9]{6,10})-[b-df-hj-np-tv-xz24-9]{5}"
)


class RolloutSuggestions:
    """Suggestions for many pods at one moment."""

    def __init__(self, view: ClusterCache) -> None:
        self._view = view
        self._bound: dict[str, list[PodRecord]] | None = None
        """Pods with a node, by their names without the last two parts."""

    def of(self, record: PodRecord, request: Request, texts: Mapping[str, str]) -> str:
        """Suggests ``maxSurge: 0`` if the end of the Deployment's earlier pods on a node of ``texts`` (reasons by node) would make room.

        Otherwise empty.
        """
        pending = _POD.fullmatch(record.pod)
        if pending is None:
            return ""
        deployment = pending["deployment"]
        earlier = [
            pod
            for pod in self._pods_like(deployment)
            if (match := _POD.fullmatch(pod.pod)) and match["template"] != pending["template"]
        ]
        if any(pod.leaving for pod in earlier):
            return ""  # the pod waits for an earlier one that is being deleted
        ledger = self._view.ledger
        nodes = map(ledger.node, sorted({pod.node for pod in earlier}.intersection(texts)))
        for node in to_try((node for node in nodes if node is not None), texts.get):
            ended = {pod.uid for pod in earlier if pod.node == node.name}
            if not refusal(ledger, request, node, ended=ended):
                return (
                    f"; or maxSurge: 0 in the strategy of Deployment {deployment}, which is being updated: "
                    f"its old pods on node {node.name} hold the capacity that the new pod needs, and are only deleted once it is ready"
                )
        return ""

    def _pods_like(self, deployment: str) -> list[PodRecord]:
        if self._bound is None:
            self._bound = defaultdict(list)
            for record in list(self._view.bound.values()):
                self._bound[record.pod.rsplit("-", 2)[0]].append(record)
        return self._bound.get(deployment, [])
