"""A scheduler that creates placeholder pods, and an API server where pods can be created and deleted."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gpushare.api.crd.placeholder_pod import decode_placeholder
from gpushare.api.node.modes import NodeMode
from gpushare.kube.client.errors import ApiError
from gpushare.scheduler.framework.cycle import filter_nodes
from gpushare.scheduler.framework.cycle_state import Bodies
from gpushare.scheduler.leader.lease import Leading
from gpushare.scheduler.plugins.autoscaling.placeholder_pods import Marks, PlaceholderPods
from gpushare.scheduler.plugins.autoscaling.settings import PlaceholderLimits
from gpushare.scheduler.server.protocol import BindingArgs
from tests.unit.scheduler.world import Api, World, gpu_node

WAIT_S = 30.0
LIMITS = PlaceholderLimits("placeholders", wait_s=WAIT_S, most=2)


class ScalingApi(Api):
    """With pods that can be created and deleted; ``failing`` scripts the results of the next writes."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: list[ApiError] = []
        self.holder = "here_1"
        self.made = 0
        self.deleted: list[str] = []

    async def create_pod(self, manifest: Mapping[str, Any]) -> None:
        if self.failing:
            raise self.failing.pop(0)
        key = f"{manifest['metadata']['namespace']}/{manifest['metadata']['name']}"
        if key in self.pods:
            raise ApiError(409, "AlreadyExists", "there is one", "")
        self.made += 1
        self.pods[key] = msgspec.json.decode(msgspec.json.encode(manifest))
        self.pods[key]["metadata"]["uid"] = f"s{self.made}"

    async def delete_pod(self, namespace: str, name: str, *, uid: str) -> None:
        if self.failing:
            raise self.failing.pop(0)
        self.deleted.append(uid)
        if self.pods.pop(f"{namespace}/{name}", None) is None:
            raise ApiError(404, "NotFound", "no such pod", "")

    async def set_condition(
        self, namespace: str, name: str, condition: Mapping[str, str], *, uid: str
    ) -> None:
        if self.failing:
            raise self.failing.pop(0)
        self.pods[f"{namespace}/{name}"]["status"] = {"conditions": [dict(condition)]}

    async def lease_holder(self, namespace: str, name: str) -> str:
        return self.holder


class Scaling(World):
    """A scheduler that creates placeholder pods."""

    def __init__(self, api: ScalingApi | None = None, limits: PlaceholderLimits = LIMITS) -> None:
        super().__init__(api or ScalingApi())
        self.scaling_api: ScalingApi = self.api  # type: ignore[assignment]
        self.marks: dict[str, Marks] = {}
        self.read = True
        leading = Leading(self.scaling_api, ("kube-system", "co"), "here")
        self.placeholders = PlaceholderPods(
            self.view,
            self.scaling_api,
            self.events,
            self.clock,
            limits,
            leading,
            self.quotas,
            marks=self.marks,
            ready=lambda: self.read,
        )

    def refused(self, uid: str, nodes: Any) -> None:
        self.placeholders.refused(uid, nodes)

    def node(self, name: str, *gib: int, kind: str = "two", mode: NodeMode = NodeMode.SHARE) -> None:
        self.add_node(gpu_node(name, *(1024 * size for size in gib), mode=mode))
        self.marks[name] = Marks(f"host-{name}", kind)

    async def bound(self, name: str, units: int, node: str) -> None:
        self.create(name, units)
        await self.bind(name, node)

    async def bind(self, name: str, node: str) -> None:
        await self.binder.bind(BindingArgs("default", name, f"uid-{name}", node))
        self.see(name)

    def ask(self, name: str, *nodes: str) -> list[str]:
        body = {"Pod": self.api.pods[f"default/{name}"], "NodeNames": list(nodes or self.marks)}
        answer = filter_nodes(self.view, Bodies().read(msgspec.json.encode(body)), self.framework())
        found: list[str] = msgspec.json.decode(answer)["NodeNames"] or []
        return found

    def end(self, name: str) -> None:
        record = self.view.bound.get(f"uid-{name}") or self.view.waiting[f"uid-{name}"]
        del self.api.pods[f"default/{name}"]
        self.view.remove_pod(record)

    def there(self) -> dict[str, tuple[set[str], set[str]]]:
        """Pods that have a placeholder pod, the hosts excluded for it, and its kinds."""
        return {
            one.stands_for.removeprefix("uid-"): (set(one.likeness.hosts), set(one.likeness.kinds))
            for key, raw in self.api.pods.items()
            if key.startswith("placeholders/")
            and (found := decode_placeholder(msgspec.json.encode(raw))) is not None
            for one in [found[1]]
        }

    def watch(self) -> None:
        """Let the watch deliver the current state."""
        seen = {}
        for key, raw in self.api.pods.items():
            found = decode_placeholder(msgspec.json.encode(raw)) if key.startswith("placeholders/") else None
            if found is not None:
                seen[found[1].stands_for] = found[1]
        for last in list(self.placeholders._existing.values()):
            if last.stands_for not in seen:
                self.placeholders.remove("", last)
        for one in seen.values():
            self.placeholders.upsert(one)

    async def look(self, seconds: float = 0.0) -> None:
        """Let time pass, the controller run, and the watch deliver."""
        self.clock.now_s += seconds
        await self.placeholders.look()
        self.watch()

    def recorded_events(self) -> list[tuple[str, str]]:
        return [(name, reason) for name, reason, _ in self.events.notes]
