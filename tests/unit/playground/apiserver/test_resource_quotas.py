"""Requests of the pods in a namespace stay within its ResourceQuotas, counted and reported as by Kubernetes."""

from typing import Any

import pytest

from gpushare.api import names
from gpushare_playground.apiserver.errors import ApiError
from gpushare_playground.apiserver.kinds.naming import utc_now
from gpushare_playground.apiserver.writes.deleting import DeleteOptions, Deleter
from gpushare_playground.apiserver.writes.patching import merge_patch
from gpushare_playground.apiserver.writes.writing import WriteOptions
from tests.unit.playground.apiserver.plane import Plane

MEM, CORE = f"requests.{names.GPU_MEM}", f"requests.{names.GPU_CORE}"


class Team(Plane):
    """A namespace with quotas."""

    def __init__(self, **quotas: dict[str, Any]) -> None:
        super().__init__()
        self.add_namespace("team", {})
        for name, hard in quotas.items():
            self.quota(name, {"hard": hard})

    def quota(self, name: str, spec: dict[str, Any]) -> None:
        meta = {"name": name, "namespace": "team"}
        self.create(
            "resourcequotas", {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": spec}
        )

    def pod(
        self, name: str, namespace: str = "team", *, spec: dict[str, Any] | None = None, **limits: Any
    ) -> None:
        requested = {key.replace("gpu_mem", names.GPU_MEM): str(text) for key, text in limits.items()}
        made = {
            "containers": [{"name": "main", "image": "i", "resources": {"limits": requested}}],
            **(spec or {}),
        }
        meta = {"name": name, "namespace": namespace}
        self.create("pods", {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": made})

    def refused(self, name: str, **limits: Any) -> str:
        with pytest.raises(ApiError) as error:
            self.pod(name, **limits)
        assert error.value.code == 403
        return str(error.value)

    def used(self, name: str = "gpu") -> Any:
        return self.present("resourcequotas", name)["status"]["used"]

    def present(self, plural: str, name: str) -> Any:
        record = self.store.get(plural, "team", name)
        assert record is not None
        return record.obj

    def complete(self, name: str) -> None:
        pods = self.resource("v1", "pods")
        completed = lambda obj: merge_patch(obj, {"status": {"phase": "Succeeded"}})  # noqa: E731
        self.writer.patch(pods, "team", name, completed, WriteOptions(), "status")

    def delete(self, plural: str, name: str) -> None:
        deleter = Deleter(self.store, utc_now)
        deleter.delete(self.resource("v1", plural), "team", name, DeleteOptions())


def test_a_pod_above_the_quota_is_refused_with_the_figures_until_others_complete() -> None:
    team = Team(gpu={MEM: "16", CORE: "150"})
    assert team.used() == {MEM: "0", CORE: "0"}
    team.pod("a", gpu_mem=12)
    assert team.used() == {MEM: "12", CORE: "0"}
    assert team.refused("b", gpu_mem=8) == (
        f'pods "b" is forbidden: exceeded quota: gpu, requested: {MEM}=8, used: {MEM}=12, limited: {MEM}=16'
    )
    team.pod("elsewhere", "default", gpu_mem=100)
    team.pod("plain")
    team.complete("a")
    team.pod("b", gpu_mem=8)
    team.delete("pods", "b")
    assert team.used() == {MEM: "0", CORE: "0"}
    team.delete("resourcequotas", "gpu")
    team.pod("large", gpu_mem=100)


def test_each_of_several_quotas_applies_and_a_changed_one_immediately() -> None:
    team = Team(few={"pods": "2"}, gpu={MEM: 8})
    for name in ("a", "b"):
        team.pod(name, gpu_mem=1)
    assert "exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2" in team.refused("c")
    more = team.present("resourcequotas", "few") | {"spec": {"hard": {"pods": "9"}}}
    team.replace("resourcequotas", more)
    assert team.used("few") == {"pods": "2"}
    assert "exceeded quota: gpu" in team.refused("c", gpu_mem=7)
    assert team.store.get("pods", "team", "c") is None


def test_init_containers_count_as_kubernetes_counts_them() -> None:
    team = Team(gpu={MEM: "16"})
    early = {"name": "early", "image": "i", "resources": {"limits": {names.GPU_MEM: "9"}}}
    team.pod("a", spec={"initContainers": [early]}, gpu_mem=4)
    assert team.used() == {MEM: "9"}


def test_cpu_and_memory_have_to_be_specified_where_a_quota_counts_them() -> None:
    team = Team(compute={"limits.cpu": "4", "requests.memory": "2Gi", "cpu": "3"})
    assert team.refused("a").endswith(
        "failed quota: compute: must specify cpu for: main; limits.cpu for: main; requests.memory for: main"
    )
    team.pod("a", cpu="1500m", memory="1Gi")
    assert team.used("compute") == {"limits.cpu": "1500m", "requests.memory": "1Gi", "cpu": "1500m"}
    assert team.refused("b", cpu=2, memory="1Gi").endswith(
        "exceeded quota: compute, requested: cpu=2, used: cpu=1500m, limited: cpu=3"
    )


def test_resources_that_are_not_counted_refuse_no_pod() -> None:
    team = Team(other={"services": "0", MEM: "8"})
    team.quota("scoped", {"hard": {"pods": "0"}, "scopes": ["BestEffort"]})
    team.pod("a", gpu_mem=2)
    assert team.present("resourcequotas", "other")["status"]["hard"] == {MEM: "8"}
    assert not team.present("resourcequotas", "scoped").get("status")


def test_a_dry_run_counts_nothing() -> None:
    team = Team(gpu={MEM: "8"})
    pod = {
        "metadata": {"name": "a", "namespace": "team"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    team.writer.create(team.resource("v1", "pods"), "team", pod, WriteOptions(dry_run=True))
    assert team.used() == {MEM: "0"}
