"""The enabled plugins, sorted once by extension point, in the order of their list."""

from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare.ledger import Verdict
from gpushare.ledger.placement.ranks import MAX_SCORE
from gpushare.scheduler.cache.cache import ClusterCache, NodeRecord
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.framework.cycle_state import CycleState
from gpushare.scheduler.framework.interface import (
    Assume,
    Controller,
    DecodePodFn,
    Explain,
    Filter,
    FilterFits,
    FindRoom,
    Narrow,
    Pages,
    Permit,
    PodDecoder,
    PodsAfterCache,
    PodsBeforeCache,
    PodsListed,
    PodsWait,
    PostBind,
    PostFilter,
    PreBind,
    PreFilter,
    RawNodes,
    RawPods,
    Reserve,
    Score,
    Task,
    Verbs,
    WatchedKinds,
)

DecodeNodeFn = Callable[[bytes], tuple[str, NodeRecord]]

#: Above this number, shared names of nodes are dropped, as most of these nodes no longer exist.
_SHARED_NAMES: Final = 1 << 17


@dataclass(frozen=True)
class Enabled:
    """An enabled plugin. ``weight`` is the weight of its scores; GPU placement has 1."""

    name: str
    plugin: object
    weight: float = 1.0


class Framework:
    """Calls the plugins at their extension points."""

    def __init__(self, enabled: Sequence[Enabled] = ()) -> None:
        plugins = self._plugins = tuple(one.plugin for one in enabled)
        self.filters = tuple(one for one in plugins if isinstance(one, Filter))
        self._pre_filters = tuple(one for one in plugins if isinstance(one, PreFilter))
        self.room_finders = tuple(one for one in plugins if isinstance(one, FindRoom))
        self.assumers = tuple(one for one in plugins if isinstance(one, Assume))
        self._fit_filters = tuple(one for one in plugins if isinstance(one, FilterFits))
        self.narrowers = tuple(one for one in plugins if isinstance(one, Narrow))
        self._post_filters = tuple(one for one in plugins if isinstance(one, PostFilter))
        self.permits = tuple(one for one in plugins if isinstance(one, Permit))
        self.reserves = tuple(one for one in plugins if isinstance(one, Reserve))
        self.pre_binds = tuple(one for one in plugins if isinstance(one, PreBind))
        self.post_binds = tuple(one for one in plugins if isinstance(one, PostBind))
        self.watched_kinds = tuple(one for one in plugins if isinstance(one, WatchedKinds))
        self.pages = tuple(one for one in plugins if isinstance(one, Pages))
        self.explainers = tuple(one for one in plugins if isinstance(one, Explain))
        self._scorers = tuple((one.plugin, one.weight) for one in enabled if isinstance(one.plugin, Score))
        self._weight = 1.0 + sum(weight for _, weight in self._scorers)
        self._names: dict[str, str] = {}
        """One copy of the name of each node."""

    def refusals(self, state: CycleState) -> dict[str, str]:
        """The nodes that a ``Filter`` plugin refuses, with the reason of the first that does."""
        refused: dict[str, str] = {}
        nodes: Sequence[str] = state.names
        for plugin in self.filters:
            newly_refused = plugin.filter(state, nodes)
            if newly_refused:
                refused.update(newly_refused)
                nodes = [name for name in nodes if name not in newly_refused]
        return refused

    def pre_filter(self, state: CycleState) -> str:
        """The reason of the first plugin that refuses the pod on all nodes; empty if none does."""
        return next(filter(None, (plugin.pre_filter(state) for plugin in self._pre_filters)), "")

    def filter_fits(self, state: CycleState, verdict: Verdict) -> Verdict:
        """``verdict`` with the nodes that a ``FilterFits`` plugin refuses moved from fitting to refused."""
        for plugin in self._fit_filters:
            refused = plugin.filter_fits(state, verdict.fits)
            if refused:
                fits = [name for name in verdict.fits if name not in refused]
                verdict = Verdict(fits, {**verdict.refused, **refused}, verdict.hopeless)
        return verdict

    def scores(
        self, state: CycleState, nodes: Sequence[str], placement: list[tuple[str, int]]
    ) -> list[tuple[str, int]]:
        """The weighted mean of ``placement`` (the ledger's scores) and the plugins' scores, as integers from 0 to 10.

        A node that is not listed has 0. Plugins' scores are clamped to 0 to 10; scores of nodes that are not in ``nodes`` are ignored.
        """
        if not self._scorers:
            return placement
        sums: dict[str, float] = dict.fromkeys(nodes, 0.0)
        sums.update(placement)
        for plugin, weight in self._scorers:
            for name, score in plugin.score(state, nodes).items():
                if name in sums:
                    sums[name] += weight * min(max(score, 0.0), float(MAX_SCORE))
        means = ((name, round(total / self._weight)) for name, total in sums.items())
        return [(name, mean) for name, mean in means if mean]

    def post_filter(self, uid: str, nodes: Collection[str]) -> None:
        """No node takes the pod; evictions could make room on ``nodes``."""
        if len(self._names) > _SHARED_NAMES:
            self._names.clear()
        # Plugins keep thousands of names for each of many pods, and each request of kube-scheduler has its own copies.
        shared = list(map(self._names.setdefault, nodes, nodes))
        for plugin in self._post_filters:
            plugin.post_filter(uid, shared)

    def planned_node(self, uid: str) -> str:
        """The node on which a plugin has reserved room for the pod; empty if none has."""
        return next(filter(None, (one.planned_node(uid) for one in self.room_finders)), "")

    @property
    def reservers(self) -> tuple[FindRoom | Assume, ...]:
        """The plugins that reserve shares of pods before these come to be bound."""
        return (*self.room_finders, *self.assumers)

    def verbs(self) -> dict[str, Callable[[bytes], Coroutine[Any, Any, bytes]]]:
        """The verbs that plugins add to those of the core."""
        return {
            name: verb
            for plugin in self._plugins
            if isinstance(plugin, Verbs)
            for name, verb in plugin.verbs().items()
        }

    def tasks(self) -> list[Task]:
        """The plugins' long-running tasks."""
        return [task for plugin in self._plugins if isinstance(plugin, Controller) for task in plugin.tasks()]

    # --- watches ----------------------------------------------------------------------------------

    async def before_pods(self) -> None:
        """Return once pods may be listed."""
        for plugin in self._plugins:
            if isinstance(plugin, PodsWait):
                await plugin.before_pods()

    def pod_decoder(self, decode: DecodePodFn) -> DecodePodFn:
        """``decode``, wrapped by the plugins."""
        for plugin in self._plugins:
            if isinstance(plugin, PodDecoder):
                decode = plugin.pod_decoder(decode)
        observers = tuple(one for one in self._plugins if isinstance(one, RawPods))
        if not observers:
            return decode

        def observed(raw: bytes) -> tuple[str, PodRecord] | None:
            for observer in observers:
                observer.pod_read(raw)
            return decode(raw)

        return observed

    def pods(self, cache: ClusterCache) -> "Pods":
        """The event handler for the watch of pods."""
        plugins = self._plugins
        return Pods(
            cache,
            before=tuple(one for one in plugins if isinstance(one, PodsBeforeCache)),
            after=tuple(one for one in plugins if isinstance(one, PodsAfterCache)),
            listed=tuple(one for one in plugins if isinstance(one, PodsListed)),
        )

    def nodes(self, cache: ClusterCache) -> "Nodes":
        """The event handler for the watch of nodes."""
        return Nodes(cache, tuple(one for one in self._plugins if isinstance(one, RawNodes)))


class Pods:
    """Passes events of pods to plugins, to the cache, and to plugins again."""

    def __init__(
        self,
        cache: ClusterCache,
        *,
        before: Sequence[PodsBeforeCache],
        after: Sequence[PodsAfterCache],
        listed: Sequence[PodsListed] = (),
    ) -> None:
        self._cache = cache
        self._before = before
        self._after = after
        self._listed = listed

    def synced(self) -> None:
        """The first list is complete."""
        for plugin in self._listed:
            plugin.pods_listed()

    def upsert(self, item: PodRecord) -> None:
        """A pod was added or changed."""
        for earlier in self._before:
            earlier.pod_arriving(item)
        self._cache.upsert_pod(item)
        for later in self._after:
            later.pod_updated(item)

    def remove(self, key: str, last: PodRecord) -> None:
        """A pod was deleted."""
        for earlier in self._before:
            earlier.pod_leaving(last)
        self._cache.remove_pod(last)
        for later in self._after:
            later.pod_removed(last)


class Nodes:
    """Passes events of nodes to the cache, and their JSON to ``RawNodes`` plugins."""

    def __init__(self, cache: ClusterCache, observers: Sequence[RawNodes]) -> None:
        self._cache = cache
        self._observers = observers
        self._latest: dict[str, NodeRecord] = {}

    def decoder(self, decode: DecodeNodeFn) -> DecodeNodeFn:
        """``decode``, wrapped to pass each node's JSON to the observers."""
        if not self._observers:
            return decode

        def observed(raw: bytes) -> tuple[str, NodeRecord]:
            name, record = decode(raw)
            self._latest[name] = record
            for plugin in self._observers:
                plugin.node_read(name, raw)
            return name, record

        return observed

    def synced(self) -> None:
        """The first list is complete."""

    def upsert(self, item: NodeRecord) -> None:
        """A node was added or changed."""
        self._cache.upsert_node(item)

    def remove(self, key: str, last: NodeRecord) -> None:
        """A node was deleted."""
        # A relist decodes all objects before it removes any, so a new node of that name may have been read already.
        if self._latest.get(key) is last:
            del self._latest[key]
            for plugin in self._observers:
                plugin.node_removed(key)
        self._cache.remove_node(key)


#: A framework without plugins: the core alone places pods.
NO_PLUGINS = Framework()
